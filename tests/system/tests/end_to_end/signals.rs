//! Tests of runs that end by a signal.

use std::net::TcpListener;
use std::path::Path;

use rolldock_ledger::LedgerState;
use tempfile::TempDir;

use crate::support::{Rolldock, Simengine, recipe, wait_for};

/// Settings for small and slow steps: a run of 1000 steps does not end during the test.
const SETTINGS: [&str; 8] = [
    "fleet.simulated.time_scale=0.05",
    "fleet.simulated.mean_response_length=40",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "queue.consumer.take_groups=2",
    "queue.capacity_rows=32",
];

fn run(out: &Path, steps: &str) -> Rolldock {
    let run = Rolldock::new(&["run", "--steps", steps, "--out"]).arg(out).arg(recipe("quickstart.toml"));
    SETTINGS.iter().fold(run, |run, set| run.set(set))
}

/// The arguments of the command in `printed` that resumes the run.
fn resume_arguments(printed: &str) -> Vec<&str> {
    let command = printed.lines().find_map(|line| line.split_once("go on with: rolldock "));
    command.unwrap_or_else(|| panic!("no command in {printed}")).1.split(' ').collect()
}

/// The number before `words` in `text`.
fn number_before(words: &str, text: &str) -> u64 {
    let before = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}")).0;
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The number of tokens that were generated, in the summary of a run.
fn tokens_of(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("tokens: "));
    let words = line.unwrap_or_else(|| panic!("no tokens in {text}")).split(' ').next().unwrap();
    words.replace(',', "").parse().unwrap()
}

/// Whether SIGHUP is ignored, as under `nohup`. The run then ignores SIGHUP too.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}

/// Signals a run, checks how it ends, and resumes it. Returns the number of prompts that were cut off and came
/// back.
fn came_back_after(signal: &str, code: i32) -> u64 {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let running = run(&out, "1000").start();
    wait_for("a step", || running.stdout_so_far().contains("target reached"));
    running.signal(signal);
    let ended = running.wait();
    assert_eq!(ended.code, Some(code), "{signal}: {}", ended.stderr);
    assert!(ended.stderr.contains("cancelling the requests on the engines"), "{signal}: {}", ended.stderr);
    let said = ended.stdout.lines().find(|line| line.contains("interrupted after")).unwrap_or_default();
    assert!(said.contains(" accepted of "), "{signal}: {}", ended.stdout);
    let steps = number_before(" step", said).to_string();
    // The resumed run has already done all of its steps, and the prompts that were cut off are requeued.
    let resume = Rolldock::new(&resume_arguments(&ended.stdout)).arg("--steps").arg(steps.clone());
    let on = resume.succeeds();
    let continues = on.stdout.split_once("the run continues: ").unwrap().1;
    let back = number_before(" prompt", continues);
    let cut_off = number_before(" requeued,", said) + number_before(" held,", said);
    assert!(back <= cut_off, "{signal}: {said}\n{}", on.stdout);
    assert!(on.stdout.contains(&format!("done: {steps} step")), "{signal}: {}", on.stdout);
    // The counts continue from the counts of the first process.
    assert!(tokens_of(&on.stdout) >= tokens_of(&ended.stdout), "{signal}: {}", on.stdout);
    let seen = |text: &str| number_before(" groups seen", text);
    assert!(seen(&on.stdout) >= seen(&ended.stdout), "{signal}: {}", on.stdout);
    assert!(!on.stdout.contains("go on with"), "{signal}: nothing is left to do: {}", on.stdout);
    back
}

#[test]
fn a_run_that_gets_a_signal_ends_in_order_and_can_be_resumed() {
    let signals = [("TERM", 143), ("HUP", 143), ("INT", 0)];
    let heard = signals.into_iter().filter(|(signal, _)| *signal != "HUP" || !hangup_is_ignored());
    let came_back: u64 = heard.map(|(signal, code)| came_back_after(signal, code)).sum();
    // A signal between two steps cuts nothing off. So further signals are sent until one arrives in a step.
    let came_back = came_back > 0 || (0..20).any(|_| came_back_after("TERM", 143) > 0);
    assert!(came_back, "no prompt that was cut off came back");
}

#[test]
fn a_run_that_fails_names_the_command_that_resumes_it() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("a run");
    let sets = ["run.on_short=error", "rollout.gen_batch_size=4", "rollout.max_gen_batches=1"];
    let run = sets.iter().fold(run(&out, "50"), |run, set| run.set(set)).set("fleet.api_key=hush");
    let failed = run.fails(1);
    assert!(failed.stderr.contains("(run.on_short = \"error\")"), "{}", failed.stderr);
    let command = format!("go on with: rolldock run --resume '{}' --set fleet.api_key=...\n", out.display());
    assert!(failed.stderr.ends_with(&command), "{command} in {}", failed.stderr);
    assert!(!failed.stderr.contains("hush"), "{}", failed.stderr);
}

#[test]
fn a_signal_before_the_run_began_ends_it_at_once_and_leaves_nothing() {
    // The server accepts connections and answers nothing, so the run waits for the answer to its probe.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    server.set_nonblocking(true).unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let running = run(&out, "1").arg("--endpoint").arg(&url).start();
        let mut connection = None;
        wait_for("the probe", || {
            connection = server.accept().ok();
            connection.is_some()
        });
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code, Some(code), "{signal}: {}", ended.stderr);
        assert!(ended.stderr.contains("before the run began"), "{signal}: {}", ended.stderr);
        assert!(!out.exists(), "{signal}");
    }
}

/// A run whose server hangs cannot end gracefully, because it waits for the tokens of its requests.
#[test]
fn a_second_signal_ends_a_run_at_once_and_names_the_command() {
    let server = Simengine::start(&["--time-scale", "20"]);
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let sets = ["rollout.on_stop=carry", "rollout.carry.grace=100", "timeouts.drain=200"];
    let run = sets.iter().fold(run(&out, "1"), |run, set| run.set(set));
    let running = run.arg("--endpoint").arg(&server.url).start();
    wait_for("the first dispatch", || {
        LedgerState::read(&out).is_ok_and(|(state, _)| state.totals().in_flight > 0)
    });
    server.stop();
    running.signal("INT");
    wait_for("the first signal", || running.stderr_so_far().contains("interrupted: "));
    running.signal("TERM");
    let ended = running.wait();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert_eq!(resume_arguments(&ended.stderr), ["run", "--resume", out.to_str().unwrap()]);
}
