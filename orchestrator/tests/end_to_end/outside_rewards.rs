//! Runs whose rewards come from outside the process and hang, answer nonsense, raise, leak or die. The step
//! ends in time, every group has a fate, and no question to a scorer is open after the run has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::support::{Ended, Rolldock, root, wait_for};

const GROUPS: usize = 8;
const SAMPLES: usize = 4;
/// The time limit of a run. A run takes far less, even on a busy machine, unless it hangs.
const IN_TIME: Duration = Duration::from_secs(90);

/// A run of one step on simulated servers, whose rows stay in the queue. `DIR` in the reward part of the
/// recipe stands for the folder of the step.
struct Step {
    dir: TempDir,
}

impl Step {
    fn new(reward: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let recipe = format!(
            r#"
            [model]
            name = "simulated"
            tokenizer = "builtin"
            [data]
            train = {train:?}
            max_prompt_length = 256
            [fleet]
            max_loads_per_server = 64
            [fleet.simulated]
            servers = 2
            time_scale = 0.05
            max_num_seqs = 64
            mean_response_length = 60
            [rollout]
            workers = 2
            max_concurrent_prompts = 8
            samples_per_prompt = {SAMPLES}
            train_batch_size = {GROUPS}
            gen_batch_size = 32
            max_gen_batches = 8
            max_response_length = 256
            [run]
            steps = 1
            {reward}
            "#,
            train = root().join("data/arithmetic/train.jsonl"),
        );
        let recipe = recipe.replace("DIR", dir.path().to_str().unwrap());
        std::fs::write(dir.path().join("recipe.toml"), recipe).unwrap();
        Self { dir }
    }

    /// Replaces the text `line` of the recipe by `changed`.
    fn with(self, line: &str, changed: &str) -> Self {
        let path = self.dir.path().join("recipe.toml");
        let recipe = std::fs::read_to_string(&path).unwrap();
        assert!(recipe.contains(line), "{recipe}");
        std::fs::write(path, recipe.replace(line, changed)).unwrap();
        self
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn command(&self) -> Rolldock {
        Rolldock::new(&["run"]).arg(self.dir.path().join("recipe.toml")).arg("--out").arg(self.out())
    }

    fn succeeds_in_time(&self) -> Ended {
        let since = Instant::now();
        let ended = self.command().succeeds();
        assert!(since.elapsed() < IN_TIME, "{:?}\n{}", since.elapsed(), ended.stdout);
        ended
    }

    fn fails_in_time(&self) -> Ended {
        let since = Instant::now();
        let ended = self.command().fails(1);
        assert!(since.elapsed() < IN_TIME, "{:?}\n{}", since.elapsed(), ended.stdout);
        ended
    }

    /// The rows in the queue.
    fn rows_of_any_groups(&self) -> Vec<Value> {
        let exported =
            Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(self.out()).succeeds().stdout;
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The rows in the queue. Checks that all groups are whole.
    fn rows(&self) -> Vec<Value> {
        let rows = self.rows_of_any_groups();
        let groups: BTreeSet<&str> = rows.iter().map(|row| row["prompt_uid"].as_str().unwrap()).collect();
        assert_eq!(rows.len(), groups.len() * SAMPLES, "whole groups");
        rows
    }
}

/// The number of groups with a fate: the number before `word` in the line that begins with `done:`.
fn fate(ended: &Ended, word: &str) -> usize {
    let line = ended.stdout.lines().find(|line| line.starts_with("done:")).unwrap();
    let before = line.split(word).next().unwrap().trim_end();
    before.rsplit(['(', ' ']).next().unwrap().parse().unwrap()
}

fn has_python() -> bool {
    let has = Command::new("python3").args(["-c", ""]).status().is_ok_and(|status| status.success());
    if !has {
        eprintln!("skipped: there is no python3");
    }
    has
}

/// The number of questions that arrived at a scorer, and the number of those that wait for an answer.
#[derive(Clone, Default)]
struct Asked {
    all: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
}

struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn enter(asked: &Asked) -> Self {
        asked.all.fetch_add(1, Ordering::SeqCst);
        asked.waiting.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&asked.waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server with a reward that answers nonsense and a judge that sometimes hangs.
struct Outside {
    url: String,
    asked: Asked,
    _runtime: Runtime,
}

impl Outside {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let asked = Asked::default();
        let app = axum::Router::new()
            .route("/nonsense", post(nonsense))
            .route("/v1/chat/completions", post(judge))
            .with_state(asked.clone());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = async move { axum::serve(listener, app).await.unwrap() };
        tokio_util::task::TaskTracker::new().spawn_on(serving, runtime.handle());
        Self { url, asked, _runtime: runtime }
    }

    fn no_question_waits(&self) {
        wait_for("end of the last question", || self.asked.waiting.load(Ordering::SeqCst) == 0);
    }
}

async fn nonsense(State(asked): State<Asked>) -> &'static str {
    let _waiting = Waiting::enter(&asked);
    "<html>502 Bad Gateway</html>"
}

/// Hangs if the right answer is even. Otherwise the verdict is the parity of the sum of the response's bytes.
async fn judge(State(asked): State<Asked>, Json(question): Json<Value>) -> Json<Value> {
    let _waiting = Waiting::enter(&asked);
    let text = question["messages"][0]["content"].as_str().unwrap();
    let (answer, response) = text.split_once('|').unwrap();
    if answer.trim_end().ends_with(['0', '2', '4', '6', '8']) {
        std::future::pending::<()>().await;
    }
    let verdict = response.bytes().map(usize::from).sum::<usize>() % 2;
    Json(json!({ "choices": [{ "message": { "content": format!("VERDICT: {verdict}") } }] }))
}

fn judged(outside: &Outside, more: &str) -> String {
    format!(
        r#"
        [reward.judge]
        url = "{}/v1"
        model = "judge"
        template = "{{{{ ground_truth }}}}|{{{{ response }}}}"
        pattern = "VERDICT: ([01])"
        range = [0, 1]
        {more}
        "#,
        outside.url
    )
}

#[test]
fn a_function_of_the_field_scores_as_it_is() {
    if !has_python() {
        return;
    }
    let step = Step::new("[reward]\npython = { function = \"judge.py:compute_score\", directory = \"DIR\" }");
    step.file(
        "judge.py",
        r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = len(solution_str) % 2 == 0
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": ground_truth + "?"}
"#,
    );
    let ended = step.succeeds_in_time();
    let rows = step.rows();
    assert_eq!(rows.len(), GROUPS * SAMPLES, "{}", ended.stdout);
    for row in &rows {
        let acc = row["acc"].as_f64().unwrap();
        assert_eq!(row["score"].as_f64().unwrap(), 2.0 * acc - 1.0);
        assert_eq!(row["prediction"], format!("{}?", row["ground_truth"].as_str().unwrap()));
    }
    assert!(ended.stdout.contains("reward: Python judge.py:compute_score"), "{}", ended.stdout);
}

#[test]
fn a_function_that_raises_and_exits_costs_the_groups_that_it_did_so_for() {
    if !has_python() {
        return;
    }
    let step = Step::new("[reward]\npython = \"DIR/bad.py:compute_score\"\n[reward.guard]\nretries = 0");
    step.file(
        "bad.py",
        r#"
import os
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    digit = ground_truth.strip()[-1]
    if digit in "135":
        raise ValueError("odd is not a number")
    if digit in "24":
        os._exit(3)
    return float(len(solution_str) % 2)
"#,
    );
    let ended = step.succeeds_in_time();
    let rows = step.rows();
    assert_eq!(rows.len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(fate(&ended, " failed") > 0, "{}", ended.stdout);
    for row in &rows {
        let truth = row["ground_truth"].as_str().unwrap();
        assert!(!truth.ends_with(['1', '2', '3', '4', '5']), "{truth}");
    }
    for reason in ["odd is not a number", "exit status: 3"] {
        assert!(ended.stderr.contains(reason), "{reason}: {}", ended.stderr);
    }
}

#[test]
fn a_function_that_leaks_is_replaced_before_it_matters() {
    if !has_python() || !cfg!(target_os = "linux") {
        return;
    }
    let step = Step::new(
        "[reward.python]\nfunction = \"DIR/leak.py:compute_score\"\nworkers = 2\nmemory_mb = 600\njobs_per_worker = 10",
    );
    step.file(
        "leak.py",
        r#"
hoard = []
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    hoard.append(bytearray(32 << 20))
    return float(len(solution_str) % 2)
"#,
    );
    let ended = step.succeeds_in_time();
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert_eq!(fate(&ended, " failed"), 0, "{}", ended.stdout);
}

#[test]
fn a_judge_that_hangs_fails_what_it_hangs_for_and_the_step_ends() {
    let outside = Outside::start();
    let step = Step::new(&judged(&outside, "[timeouts]\nreward = 2"));
    let ended = step.succeeds_in_time();
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(fate(&ended, " failed") > 0, "{}", ended.stdout);
    assert!(ended.stderr.contains("no score within deadline_s=2"), "{}", ended.stderr);
    outside.no_question_waits();
}

#[test]
fn early_stop_cancels_questions_that_wait() {
    let outside = Outside::start();
    let step = Step::new(&judged(&outside, "[timeouts]\nreward = 3600\nsample = 3600"))
        .with("workers = 2", "workers = 2\nearly_stop = \"first\"");
    let ended = step.succeeds_in_time();
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert_eq!(fate(&ended, " failed"), 0, "{}", ended.stdout);
    assert!(fate(&ended, " requeued") > 0, "{}", ended.stdout);
    outside.no_question_waits();
}

#[test]
fn early_stop_carries_whole_samples_that_are_still_asked_about() {
    let outside = Outside::start();
    let step = Step::new(&judged(&outside, "[timeouts]\nreward = 3600\nsample = 3600")).with(
        "workers = 2",
        "workers = 2\nearly_stop = \"first\"\non_stop = \"carry\"\nrequest = \"sample\"",
    );
    let ended = step.succeeds_in_time();
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert_eq!((fate(&ended, " failed"), fate(&ended, " requeued")), (0, 0), "{}", ended.stdout);
    assert!(fate(&ended, " carried") > 0, "{}", ended.stdout);
    outside.no_question_waits();
}

#[test]
fn a_server_that_answers_nonsense_ends_the_run_if_that_is_the_rule() {
    let outside = Outside::start();
    let reward = format!(
        "[reward]\nhttp = \"{}/nonsense\"\n[reward.guard]\non_failure = \"stop\"\nretries = 1",
        outside.url
    );
    let step = Step::new(&reward);
    let ended = step.fails_in_time();
    assert!(
        ended.stderr.contains("on_failure=\"stop\"")
            && ended.stderr.contains("expected the answer to be JSON"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("502 Bad Gateway"), "{}", ended.stderr);
    outside.no_question_waits();
}

#[test]
fn a_score_in_place_of_nonsense_makes_equal_groups_that_the_filter_drops() {
    let outside = Outside::start();
    let reward = format!(
        "[reward]\nhttp = \"{}/nonsense\"\n[reward.guard]\non_failure = {{ score = 0.0 }}\nretries = 0",
        outside.url
    );
    let step = Step::new(&reward).with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = step.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT"), "{}", ended.stdout);
    assert_eq!((fate(&ended, " filtered"), fate(&ended, " failed")), (32, 0), "{}", ended.stdout);
    assert!(step.rows().is_empty());
}

#[test]
fn gates_filter_by_name_and_yield_to_a_step_that_would_be_short() {
    let filter = r#"
        [filter]
        gates = [{ gate = "length", mean_tokens_min = 100000.0 }]
        KEEP
    "#;
    let short = Step::new(filter).with("KEEP", "").with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = short.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT") && short.rows().is_empty(), "{}", ended.stdout);

    let kept = Step::new(filter)
        .with("KEEP", "keep_if_short = [\"length\"]")
        .with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = kept.succeeds_in_time();
    assert_eq!(kept.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(ended.stdout.contains("target reached"), "{}", ended.stdout);
}

/// Raises for about one response in three, in all groups.
const RAISES_AT_TIMES: &str = r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if sum(map(ord, solution_str)) % 3 == 0:
        raise ValueError("divisible")
    return float(len(solution_str))
"#;

#[test]
fn a_group_goes_on_without_samples_that_it_can_do_without() {
    if !has_python() {
        return;
    }
    let filter = "[filter]\nmetric = \"none\"\ngates = [{ gate = \"min_samples\", samples = 2 }]";
    let step = Step::new(&format!(
        "[reward]\npython = \"DIR/some.py:compute_score\"\n[reward.guard]\nretries = 0\n{filter}"
    ));
    step.file("some.py", RAISES_AT_TIMES);
    let ended = step.succeeds_in_time();
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in step.rows_of_any_groups() {
        groups.entry(row["prompt_uid"].to_string()).or_default().push(row);
    }
    assert_eq!(groups.len(), GROUPS, "{}", ended.stdout);
    let sizes: BTreeSet<usize> = groups.values().map(Vec::len).collect();
    assert!(sizes.iter().all(|size| (2..=SAMPLES).contains(size)), "{sizes:?}");
    assert!(sizes.iter().any(|size| *size < SAMPLES), "some lack samples: {sizes:?}");
    for rows in groups.values() {
        let mean = rows.iter().map(|row| row["advantage"].as_f64().unwrap()).sum::<f64>() / rows.len() as f64;
        assert!(mean.abs() < 1e-4, "advantages are those of the samples that are there: {rows:?}");
    }
}

#[test]
fn a_group_that_is_kept_for_a_short_step_has_passed_the_gates_outside() {
    if !has_python() {
        return;
    }
    let step = Step::new(
        r#"
        [filter]
        metric = "none"
        gates = [{ gate = "length", name = "too_short", mean_tokens_min = 100000.0 }]
        keep_if_short = ["too_short"]
        [[filter.outside]]
        name = "mine"
        ask = { python = "DIR/gate.py:keep" }
        "#,
    )
    .with("max_gen_batches = 8", "max_gen_batches = 1");
    step.file("gate.py", "def keep(data_source, solution_str, ground_truth, extra_info):\n    return 0.0\n");
    let ended = step.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT") && step.rows().is_empty(), "{}", ended.stdout);
    assert!(ended.stdout.contains("gate mine: 32 groups seen, 32 rejected"), "{}", ended.stdout);
    assert!(ended.stdout.contains("mine 32"), "counted by its name: {}", ended.stdout);
}

#[test]
fn a_gate_of_ones_own_is_asked_about_groups_that_all_others_let_pass() {
    if !has_python() {
        return;
    }
    let step = Step::new(
        r#"
        [[filter.outside]]
        name = "mine"
        ask = { python = "DIR/gate.py:keep" }
        "#,
    );
    step.file(
        "gate.py",
        r#"
def keep(data_source, solution_str, ground_truth, extra_info):
    accs = extra_info["accs"]
    assert len(accs) == len(extra_info["rewards"]) == len(extra_info["tokens"]) == 4
    return 0 < sum(accs) < 3
"#,
    );
    let ended = step.succeeds_in_time();
    let mut right: BTreeMap<String, f64> = BTreeMap::new();
    for row in step.rows() {
        *right.entry(row["prompt_uid"].to_string()).or_default() += row["acc"].as_f64().unwrap();
    }
    assert_eq!(right.len(), GROUPS, "{}", ended.stdout);
    assert!(right.values().all(|right| (1.0..3.0).contains(right)), "{right:?}");
    assert!(ended.stdout.contains("gate mine: "), "{}", ended.stdout);
}

#[test]
fn a_rubric_keeps_its_parts_in_columns_and_batch_advantages_are_white() {
    let step = Step::new(
        r#"
        [reward]
        scorer = "rubric"
        advantage = "reinforce_plus_plus_baseline"
        mask_truncated = true
        [reward.options]
        parts = [
            { name = "right", weight = 1.0, scorer = "math_dapo" },
            { name = "brief", weight = 0.1, scorer = "length", target = 50, max = 200 },
        ]
        "#,
    );
    let ended = step.succeeds_in_time();
    let rows = step.rows();
    assert_eq!(rows.len(), GROUPS * SAMPLES, "{}", ended.stdout);
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let (mut weight, mut sum) = (0.0, 0.0);
    for row in &rows {
        let score = number(row, "score_right") + 0.1 * number(row, "score_brief");
        assert!((number(row, "score") - score).abs() < 1e-5, "{row}");
        let mask: Vec<u64> =
            row["response_mask"].as_array().unwrap().iter().map(|mask| mask.as_u64().unwrap()).collect();
        let is_cut = row["finish_reason"] == "length";
        assert!(mask.iter().all(|mask| *mask == u64::from(!is_cut)));
        let tokens = mask.iter().sum::<u64>() as f64;
        weight += tokens;
        sum += tokens * number(row, "advantage");
    }
    assert!((sum / weight).abs() < 1e-4, "the mean over tokens is 0, not {}", sum / weight);
}
