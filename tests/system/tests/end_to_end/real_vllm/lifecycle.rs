//! New policy versions for real vLLM servers during generation, and samples that are interrupted and resumed.
//!
//! The model is tiny and random, and its weights never change. An update only changes their version label,
//! which the engine reports for each token. A relay between run and server keeps the answers of the engine.
//! The tests compare the rows with these answers, token by token.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{GENERATED, SCALE_OUT};
use crate::support::relay::{Exchange, Relay, numbers, versions_of_tokens};
use crate::support::vllm::{Vllm, get_json, is_paused, metric, post_json, running_on};
use crate::support::{Rolldock, Running, pause_for, wait_for, wait_within};

const GROUPS: usize = 2;
const SAMPLES: usize = 4;
const LENGTH: usize = 192;
/// The number of tokens of a step. The random model hardly ever ends a response by itself.
const STEP_TOKENS: usize = GROUPS * SAMPLES * LENGTH;
/// The time for which an update leaves servers paused, in seconds. A test kills a process during this time.
const PAUSED_S: u32 = 5;
/// The number of tokens that end a response. The model draws nearly uniformly from about 150,000 tokens, so
/// one drawn token in 50 ends a response.
const STOPS: u32 = 3_000;

/// A run to which the test announces versions.
struct Run {
    process: Running,
    policy: String,
    out: PathBuf,
}

impl Run {
    fn start(out: &Path, steps: usize, servers: &[String], settings: &[&str]) -> Self {
        let port = rolldock_tests::free_address().port();
        let run = super::run_over(servers.iter().map(String::as_str), steps, out);
        let common = [
            "validation.every_steps=1000000",
            "rollout.workers=1",
            &format!("rollout.max_concurrent_prompts={GROUPS}"),
            &format!("rollout.train_batch_size={GROUPS}"),
            &format!("rollout.gen_batch_size={GROUPS}"),
            &format!("rollout.samples_per_prompt={SAMPLES}"),
            &format!("rollout.max_response_length={LENGTH}"),
            "rollout.early_stop=fifo",
            "rollout.launch=batch",
            "filter.enable=false",
            "policy.mode=sync",
            &format!("policy.listen=127.0.0.1:{port}"),
            "policy.max_staleness=1000",
        ];
        let run = common.iter().chain(settings).fold(run, |run, setting| run.set(setting));
        let policy = format!("http://127.0.0.1:{port}");
        Self { process: run.start(), policy, out: out.to_owned() }
    }

    fn announce(&self, version: u64) {
        let announced = post_json(&self.policy, "/v1/policy/announce", &json!({ "version": version }));
        assert!(announced.is_some(), "{}", self.process.stderr_so_far());
    }

    /// Waits until the run reports that its servers have the version.
    fn serves(&self, version: u64) {
        wait_for("version on the servers", || {
            get_json(&self.policy, "/v1/policy").is_some_and(|status| status["version"] == version)
        });
    }

    fn steps(&self) -> usize {
        self.process.stdout_so_far().matches("target reached").count()
    }

    fn steps_on(&self, steps: usize) {
        let until = self.steps() + steps;
        wait_within(GENERATED, "more steps", || self.steps() >= until);
    }

    /// Waits for the end of the run, and checks that it succeeded. Returns its rows, which are exactly the rows
    /// of the accepted groups.
    fn ends_whole(mut self) -> Vec<Value> {
        wait_within(GENERATED, "end of the run", || self.process.has_ended());
        let ended = self.process.wait();
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        whole_groups(&self.out, accepted_groups(&ended.stdout))
    }
}

/// The number of accepted groups, from "done: 2 steps; 12 groups accepted of 24 dispatched (...)".
fn accepted_groups(stdout: &str) -> usize {
    let words: Vec<&str> = stdout.split_whitespace().collect();
    let at = words.windows(3).position(|words| words == ["groups", "accepted", "of"]);
    words[at.unwrap_or_else(|| panic!("{stdout}")) - 1].parse().unwrap()
}

/// The rows of a run. Checks that there are `groups` groups, and that each has every sample exactly once.
fn whole_groups(out: &Path, groups: usize) -> Vec<Value> {
    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(out).succeeds().stdout;
    let rows: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for row in &rows {
        found
            .entry(row["prompt_uid"].as_str().unwrap())
            .or_default()
            .push(row["sample_index"].as_u64().unwrap());
    }
    assert_eq!(found.len(), groups, "every prompt, and no other");
    for (prompt, mut samples) in found {
        samples.sort_unstable();
        assert_eq!(samples, (0..SAMPLES as u64).collect::<Vec<_>>(), "{prompt}");
    }
    rows
}

/// Checks that a row equals the answers of the engine to the requests for its sample. Each request must
/// continue where the previous request ended, with the rest of the token budget. Returns the number of
/// requests and the version of each token.
fn follow(row: &Value, exchanges: &[Exchange]) -> (u64, Vec<String>) {
    let (prompt_ids, response_ids) = (numbers(&row["prompt_ids"]), numbers(&row["response_ids"]));
    let mut so_far = 0;
    let (mut logprobs, mut versions, mut finish_reasons) = (Vec::new(), Vec::new(), Vec::new());
    while so_far < response_ids.len() {
        let asked = [prompt_ids.as_slice(), &response_ids[..so_far]].concat();
        let is_next = |exchange: &&Exchange| {
            let answered = &exchange.token_ids;
            exchange.prompt_ids == asked
                && !answered.is_empty()
                && response_ids[so_far..].starts_with(answered)
        };
        let next = exchanges.iter().find(is_next).unwrap_or_else(|| panic!("no server generated {row}"));
        assert_eq!(next.max_tokens as usize, LENGTH - so_far, "what is left of the budget");
        so_far += next.token_ids.len();
        logprobs.extend_from_slice(&next.logprobs);
        versions.extend_from_slice(&next.versions);
        finish_reasons.push(next.finish_reason.as_str());
    }
    let is_same = |(of_row, of_engine): (&Value, f64)| (of_row.as_f64().unwrap() - of_engine).abs() < 1e-4;
    let of_row = row["rollout_logprobs"].as_array().unwrap();
    assert_eq!((of_row.len(), logprobs.len()), (response_ids.len(), response_ids.len()));
    assert!(of_row.iter().zip(logprobs).all(is_same), "{row}");
    assert_eq!(versions_of_tokens(&row["version_spans"], response_ids.len()), versions, "{row}");
    assert_eq!(row["version_source"], "engine");
    let finish_reason = finish_reasons.pop().unwrap();
    assert!(finish_reasons.iter().all(|reason| *reason == "abort"), "{finish_reasons:?}");
    // A sample that was aborted at its last token has ended by its length.
    let expected = if response_ids.len() == LENGTH { "length" } else { finish_reason };
    assert_eq!(row["finish_reason"], expected, "after {} tokens", response_ids.len());
    (finish_reasons.len() as u64 + 1, versions)
}

/// Checks rows against the answers of the engines. Returns the number of segments and the versions of each
/// row.
fn follow_all(rows: &[Value], relays: &[Relay]) -> Vec<(u64, BTreeSet<u64>)> {
    let exchanges: Vec<Exchange> = relays.iter().flat_map(Relay::exchanges).collect();
    let check = |row: &Value| {
        let (segments, versions) = follow(row, &exchanges);
        assert_eq!(row["segments"].as_u64(), Some(segments), "{row}");
        let versions: BTreeSet<u64> = versions.iter().map(|version| version.parse().unwrap()).collect();
        assert_eq!(row["policy_version_min"].as_u64(), versions.first().copied());
        assert_eq!(row["policy_version_max"].as_u64(), versions.last().copied());
        (segments, versions)
    };
    rows.iter().map(check).collect()
}

fn generated_by(servers: &[&Vllm]) -> f64 {
    servers.iter().map(|server| metric(&server.url, "vllm:generation_tokens_total")).sum()
}

/// Waits until the servers are idle, and labels their weights as version 0.
fn begin_anew(servers: &[&Vllm]) {
    for server in servers {
        wait_for("idle engine", || running_on(&server.url) == 0.0);
        let named = post_json(&server.url, "/update_weight_version", &json!({ "new_version": "0" }));
        assert_eq!(named.unwrap()["success"], true);
    }
}

fn urls(servers: &[&Vllm]) -> Vec<String> {
    servers.iter().map(|server| server.url.clone()).collect()
}

pub(super) fn what_is_cut_off_at_the_end_of_a_step_goes_on_in_the_next(servers: &[&Vllm]) {
    begin_anew(servers);
    let dir = TempDir::new().unwrap();
    let relays: Vec<Relay> = servers.iter().map(|server| Relay::before(&server.url)).collect();
    let relayed: Vec<String> = relays.iter().map(|relay| relay.url.clone()).collect();
    let stops: Vec<String> = (0..STOPS).map(|id| id.to_string()).collect();
    // The lengths of responses vary, so some group is unfinished whenever a step ends. Groups that end before the
    // two that a step takes serve the next steps. The batch of the first step has twelve groups, so eight steps
    // need more groups than could end before any was cut off.
    let settings = [
        "rollout.on_stop=carry",
        &format!("rollout.max_concurrent_prompts={}", GROUPS + 1),
        &format!("rollout.gen_batch_size={}", 6 * GROUPS),
        &format!("rollout.sampling.stop_token_ids=[{}]", stops.join(",")),
    ];
    let steps = 8;
    let run = Run::start(&dir.path().join("run"), steps, &relayed, &settings);
    for step in 1..steps {
        wait_within(GENERATED, "end of a step", || run.steps() >= step);
        run.announce(step as u64);
    }
    let rows = run.ends_whole();
    assert_eq!(rows.len(), steps * GROUPS * SAMPLES);
    let followed = follow_all(&rows, &relays);
    let resumed = followed.iter().filter(|(segments, _)| *segments > 1).count();
    eprintln!("carried: {resumed} of {} samples came in segments", rows.len());
    let goes_on = |(segments, versions): &(u64, BTreeSet<u64>)| *segments > 1 && versions.len() > 1;
    assert!(followed.iter().any(goes_on), "some sample was cut off in its middle: {followed:?}");
}

/// Announces two versions during generation. Returns the number of segments and the versions of each row.
fn two_versions_in_the_middle(servers: &[&Vllm], pause: &str) -> Vec<(u64, BTreeSet<u64>)> {
    begin_anew(servers);
    let dir = TempDir::new().unwrap();
    let relays: Vec<Relay> = servers.iter().map(|server| Relay::before(&server.url)).collect();
    let relayed: Vec<String> = relays.iter().map(|relay| relay.url.clone()).collect();
    let generated_before = generated_by(servers);
    let settings =
        ["policy.mode=fully_async", "policy.update.method=none", &format!("policy.update.pause={pause}")];
    let run = Run::start(&dir.path().join("run"), 1, &relayed, &settings);
    for version in [1, 2] {
        let share = (STEP_TOKENS as u64 * version / 4) as f64;
        wait_within(GENERATED, "tokens", || generated_by(servers) - generated_before >= share);
        run.announce(version);
        run.serves(version);
    }
    let rows = run.ends_whole();
    assert_eq!(rows.len(), GROUPS * SAMPLES);
    follow_all(&rows, &relays)
}

pub(super) fn requests_that_are_kept_have_tokens_of_several_versions(servers: &[&Vllm]) {
    let followed = two_versions_in_the_middle(servers, "keep");
    assert!(followed.iter().all(|(segments, _)| *segments == 1), "nothing is cut off");
    let mixed = followed.iter().filter(|(_, versions)| versions.len() > 1).count();
    eprintln!("kept: {mixed} of {} samples have tokens of several versions", followed.len());
    assert!(followed.iter().any(|(_, versions)| versions.len() == 3), "{followed:?}");
}

pub(super) fn requests_that_are_aborted_go_on_from_their_tokens(servers: &[&Vllm]) {
    let followed = two_versions_in_the_middle(servers, "abort");
    for (segments, versions) in &followed {
        assert!(versions.len() as u64 <= *segments, "no request has tokens of two versions");
    }
    let resumed = followed.iter().filter(|(segments, _)| *segments > 1).count();
    eprintln!("aborted: {resumed} of {} samples came in segments", followed.len());
    assert!(
        followed.iter().any(|(segments, versions)| *segments == 3 && versions.len() == 3),
        "{followed:?}"
    );
}

/// Settings with which an update leaves servers paused for `PAUSED_S` seconds.
fn slow_update() -> [String; 4] {
    [
        "policy.mode=fully_async".to_owned(),
        "policy.update.pause=keep".to_owned(),
        "policy.update.method=command".to_owned(),
        format!("policy.update.command=[\"sleep\", \"{PAUSED_S}\"]"),
    ]
}

pub(super) fn servers_that_a_dead_run_left_paused_go_on(servers: &[&Vllm]) {
    begin_anew(servers);
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let settings = slow_update();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let run = Run::start(&out, 1, &urls(servers), &settings);
    for server in servers {
        wait_for("request on the engine", || running_on(&server.url) > 0.0);
    }
    run.announce(1);
    for server in servers {
        wait_for("paused engine", || is_paused(&server.url));
    }
    run.process.kill();
    pause_for(Duration::from_secs(1));
    assert!(servers.iter().all(|server| is_paused(&server.url)), "they stay paused");

    let run = Run::start(&out, 1, &urls(servers), &settings);
    for server in servers {
        wait_for("engine that goes on", || !is_paused(&server.url));
    }
    assert!(run.process.stdout_so_far().contains("the run continues: "), "{}", run.process.stdout_so_far());
    // The first announcement was not confirmed, so the trainer repeats it.
    run.announce(1);
    run.serves(1);
    let rows = run.ends_whole();
    assert_eq!(rows.len(), GROUPS * SAMPLES);
    assert!(!servers.iter().any(|server| is_paused(&server.url)));
}

pub(super) fn a_run_continues_without_a_server_that_dies_while_paused_and_uses_it_when_it_is_back(
    first: &mut Vllm,
    second: &Vllm,
) {
    begin_anew(&[first, second]);
    let dir = TempDir::new().unwrap();
    let slow = slow_update();
    let mut settings: Vec<&str> = slow.iter().map(String::as_str).collect();
    settings.push("rollout.max_response_length=48");
    let run = Run::start(&dir.path().join("run"), 1_000, &urls(&[first, second]), &settings);
    wait_for("request on the engine", || running_on(&first.url) > 0.0);
    run.announce(1);
    wait_for("paused engine", || is_paused(&first.url));
    first.kill();
    run.serves(1);
    run.steps_on(2);
    first.restart_beside(second, &SCALE_OUT);
    // The run's probe of a server generates a few tokens too.
    wait_for("samples on the server that came back", || {
        metric(&first.url, "vllm:generation_tokens_total") > 100.0
    });
    run.steps_on(2);
    run.process.interrupt();
    let rows = run.ends_whole();
    let mut of_first = BTreeMap::new();
    for row in &rows {
        let versions = versions_of_tokens(&row["version_spans"], numbers(&row["response_ids"]).len());
        // A server that has just started labels its weights "default". No row may have this label.
        assert!(versions.iter().all(|version| version == "0" || version == "1"), "{row}");
        let is_of_first = row["server"].as_str().unwrap().contains(&first.url[7..]);
        let of_it = if is_of_first { versions } else { Vec::new() };
        of_it.into_iter().for_each(|version| *of_first.entry(version).or_insert(0_u32) += 1);
    }
    eprintln!("killed while paused: tokens of the server by version: {of_first:?}");
    assert!(of_first.contains_key("1"), "it has generated since it is back, with the new version");
}
