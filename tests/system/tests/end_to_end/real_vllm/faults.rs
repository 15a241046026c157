//! Real vLLM servers that are paused, killed, stopped and broken during a step.
//!
//! The model is tiny and random, so the filter is off. Every drawn prompt must be accepted, because the death
//! of a server may cost attempts but no group.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::{GENERATED, SCALE_OUT};
use crate::support::vllm::{Vllm, metric, post, running_on};
use crate::support::{Ended, Rolldock, Running, pause_for, wait_for, wait_within};

const GROUPS: usize = 4;
const SAMPLES: usize = 4;
/// The largest number of tokens of a response. A generation of this length takes some seconds, so a server
/// can fail during it.
const LENGTH_MAX: u32 = 224;
const STALL: Duration = Duration::from_secs(5);
/// The longest time until a dead server is noticed. The monitor checks once a second and waits for two
/// failures in a row: 2 to 3 s on an idle machine. The rest is for a busy machine, on which late probes do
/// not count.
const NOTICED: Duration = Duration::from_secs(15);

/// A run on two servers. One of the servers will be paused or fail.
struct Step {
    process: Running,
    out: PathBuf,
    _dir: TempDir,
}

impl Step {
    fn start(steps: usize, servers: [&Vllm; 2]) -> Self {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let run = super::run_over(servers.map(|server| server.url.as_str()), steps, &out);
        let settings = [
            "validation.every_steps=1000000",
            &format!("rollout.train_batch_size={GROUPS}"),
            &format!("rollout.gen_batch_size={GROUPS}"),
            &format!("rollout.samples_per_prompt={SAMPLES}"),
            &format!("rollout.max_response_length={LENGTH_MAX}"),
            "rollout.early_stop=fifo",
            "filter.enable=false",
            &format!("timeouts.stall={}", STALL.as_secs()),
        ];
        let process = settings.iter().fold(run, |run, setting| run.set(setting)).start();
        let mut step = Self { process, out, _dir: dir };
        // Each check asks both servers, because the requests of one server may end while the test waits for
        // the other.
        let mut are_seen = [false; 2];
        wait_for("requests on both engines", || {
            for (is_seen, server) in are_seen.iter_mut().zip(servers) {
                *is_seen |= running_on(&server.url) > 0.0 || step.has_lost(server);
            }
            assert!(
                !step.process.has_ended(),
                "the run ended before both engines had requests: {are_seen:?}"
            );
            are_seen == [true; 2]
        });
        step
    }

    fn has_lost(&self, server: &Vllm) -> bool {
        let host = server.url.trim_start_matches("http://");
        self.process
            .stderr_so_far()
            .lines()
            .any(|line| line.contains("server is dead") && line.contains(host))
    }

    /// Waits until the run has found `server` dead, and returns the time since `since`.
    fn time_to_lose(&mut self, server: &Vllm, since: Instant) -> Duration {
        wait_for("word of the server's death", || self.has_lost(server) || self.process.has_ended());
        let said = self.process.stderr_so_far();
        assert!(self.has_lost(server), "the run ended without a word of the server's death:\n{said}");
        since.elapsed()
    }

    /// Waits until `further` more steps have ended, interrupts the run, and checks that every group of its steps is
    /// complete.
    fn ends_after(self, further: usize) -> Vec<serde_json::Value> {
        let steps = |text: &str| text.matches("target reached").count();
        let steps_before = steps(&self.process.stdout_so_far());
        wait_within(GENERATED, "more steps", || {
            steps(&self.process.stdout_so_far()) >= steps_before + further
        });
        self.process.interrupt();
        let ended = self.process.wait();
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
        whole_groups(&self.out, steps(&ended.stdout) * GROUPS)
    }

    /// Waits for the end of the run, and checks that every group of `steps` steps is complete.
    fn ends_whole(mut self, steps: usize) -> (Ended, Vec<serde_json::Value>) {
        wait_within(GENERATED, "end of the run", || self.process.has_ended());
        let ended = self.process.wait();
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
        let rows = whole_groups(&self.out, steps * GROUPS);
        (ended, rows)
    }
}

/// The rows of a run. Checks that there are `groups` groups, and that each has every sample exactly once.
fn whole_groups(out: &Path, groups: usize) -> Vec<serde_json::Value> {
    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(out).succeeds().stdout;
    let rows: Vec<serde_json::Value> =
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for row in &rows {
        let prompt = row["prompt_uid"].as_str().unwrap().to_owned();
        found.entry(prompt).or_default().push(row["sample_index"].as_u64().unwrap());
        let tokens = row["response_ids"].as_array().unwrap().len();
        assert_eq!(row["rollout_logprobs"].as_array().unwrap().len(), tokens);
    }
    assert_eq!(found.len(), groups, "every prompt, and no other");
    for (prompt, mut samples) in found {
        samples.sort_unstable();
        assert_eq!(samples, (0..SAMPLES as u64).collect::<Vec<_>>(), "{prompt}");
    }
    rows
}

fn new_attempts(rows: &[serde_json::Value]) -> usize {
    rows.iter().filter(|row| row["attempt"].as_u64().unwrap() > 0).count()
}

pub(super) fn a_paused_server_is_waited_for(first: &Vllm, second: &Vllm) {
    let step = Step::start(1, [first, second]);
    post(&first.url, "/pause?mode=keep");
    pause_for(Duration::from_secs(10));
    assert!(!step.has_lost(first), "twice the stall time-out, but it says that it is paused");
    post(&first.url, "/resume");
    let (_, rows) = step.ends_whole(1);
    assert_eq!(new_attempts(&rows), 0, "nothing was lost");
    assert!(rows.iter().any(|row| row["engine_s"].as_f64().unwrap() >= 10.0), "they were in its middle");
}

pub(super) fn a_killed_server_is_replaced_and_used_again_when_it_is_back(first: &mut Vllm, second: &Vllm) {
    let mut step = Step::start(1_000, [first, second]);
    let since = Instant::now();
    first.kill();
    let noticed = step.time_to_lose(first, since);
    eprintln!("killed: noticed after {noticed:?}");
    assert!(noticed <= NOTICED, "{noticed:?}");
    first.restart_beside(second, &SCALE_OUT);
    wait_for("request on the server that came back", || {
        metric(&first.url, "vllm:generation_tokens_total") > 0.0
    });
    let rows = step.ends_after(2);
    assert!(new_attempts(&rows) > 0, "what ran on it was begun anew");
    eprintln!("killed: {} of {} samples begun anew", new_attempts(&rows), rows.len());
}

pub(super) fn a_server_after_sigterm_is_found_by_the_stall_rule(first: &Vllm, second: &Vllm) {
    let mut step = Step::start(1_000, [first, second]);
    // Its requests may have ended while the test waited for those of the other server.
    wait_for("requests on the server that ends", || running_on(&second.url) > 0.0);
    let since = Instant::now();
    second.terminate();
    let noticed = step.time_to_lose(second, since);
    eprintln!("SIGTERM: noticed after {noticed:?}");
    assert!(noticed <= STALL + NOTICED, "{noticed:?}");
    let rows = step.ends_after(1);
    assert!(new_attempts(&rows) > 0, "what ran on it was begun anew");
}

/// The HTTP server runs for some seconds after the death of its engine, and answers every request with an
/// error.
pub(super) fn an_engine_that_breaks_costs_attempts_only(first: &Vllm, second: &Vllm) {
    // A run of one step might end before it notices.
    let mut step = Step::start(2, [first, second]);
    let since = Instant::now();
    second.kill_engine();
    let noticed = step.time_to_lose(second, since);
    eprintln!("engine fault: noticed after {noticed:?}");
    let (_, rows) = step.ends_whole(2);
    assert!(new_attempts(&rows) > 0, "what ran on it was begun anew");
    let servers =
        rows.iter().filter(|row| row["server"].as_str().unwrap().contains(&second.url[7..])).count();
    eprintln!("engine fault: {servers} of {} samples came from it", rows.len());
}
