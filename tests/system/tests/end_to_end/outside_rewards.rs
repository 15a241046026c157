//! Tests runs with external rewards that hang, answer nonsense, raise exceptions, leak or die. The step ends
//! in time, every group has a fate, and no request to a scorer is open after the run has ended.

mod functions;
mod gates;
mod outages;
mod servers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::support::{Ended, Rolldock, root};

const GROUPS: usize = 8;
const SAMPLES: usize = 4;
/// The time limit of a run. A run takes far less, even on a busy machine, unless it hangs.
const IN_TIME: Duration = Duration::from_secs(90);

/// A run of one step on simulated servers. The rows of the step stay in the queue. In the recipe, `DIR` is
/// replaced by the folder of the step.
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
            [policy]
            mode = "off"
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

    /// The rows in the queue. Checks that all groups are complete.
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

/// A server that serves until it is dropped.
struct Served {
    /// `http://ADDRESS`, without a slash at the end.
    url: String,
    _runtime: Runtime,
}

impl Served {
    fn start(app: axum::Router) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = async move { axum::serve(listener, app).await.unwrap() };
        tokio_util::task::TaskTracker::new().spawn_on(serving, runtime.handle());
        Self { url, _runtime: runtime }
    }
}

fn has_python() -> bool {
    let has = Command::new("python3").args(["-c", ""]).status().is_ok_and(|status| status.success());
    if !has {
        eprintln!("skipped: there is no python3");
    }
    has
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
