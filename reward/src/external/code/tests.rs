//! Tests with real processes at every level of isolation that works on this host. Other levels are skipped
//! with a message; plain limits must work everywhere.

mod attacks;
mod forms;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::external::SandboxChoice;
use crate::external::test_server::eventually;

const ATTEMPT: Duration = Duration::from_secs(3600);

/// A runner with a directory of its own for the directories of its candidates.
struct Fixture {
    choice: SandboxChoice,
    runner: CodeRunner,
    tracker: TaskTracker,
    folder: TempDir,
}

/// A Python that every user can run. A Python in a user's home directory is excluded.
fn interpreter() -> &'static str {
    match Path::new("/usr/bin/python3").exists() {
        true => "/usr/bin/python3",
        false => "python3",
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

async fn fixture(
    choice: SandboxChoice,
    change: impl FnOnce(&mut CodeConfig),
) -> Result<Fixture, RewardError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut config = CodeConfig {
        interpreter: interpreter().into(),
        sandbox: choice,
        directory: Some(folder.path().to_owned()),
        // Many tests run at the same time, on few cores. Tests of a limit set a shorter one.
        time_s: 120.0,
        time_all_s: 600.0,
        ..CodeConfig::default()
    };
    change(&mut config);
    let tracker = TaskTracker::new();
    let runner = CodeRunner::new(&config, ATTEMPT, tracker.clone()).unwrap();
    runner.check().await?;
    Ok(Fixture { choice, runner, tracker, folder })
}

/// One fixture for each level that works on this host.
async fn fixtures(change: impl Fn(&mut CodeConfig)) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for choice in [SandboxChoice::Bubblewrap, SandboxChoice::Namespaces, SandboxChoice::Limits] {
        match fixture(choice, &change).await {
            Ok(fixture) => fixtures.push(fixture),
            Err(error) if choice != SandboxChoice::Limits => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    fixtures
}

fn code_job(response: &str, ground_truth: &str) -> RewardJob {
    RewardJob {
        response: response.into(),
        ground_truth: ground_truth.into(),
        data_source: "code".into(),
        prompt: "?".into(),
        extra: Arc::new(Value::Null),
    }
}

/// One test of a whole program.
fn prints(input: &str, output: &str) -> String {
    json!({ "inputs": [input], "outputs": [output] }).to_string()
}

impl Fixture {
    fn is_caged(&self) -> bool {
        self.choice != SandboxChoice::Limits
    }

    async fn score(&self, response: &str, ground_truth: &str) -> Score {
        let job = code_job(response, ground_truth);
        self.runner.score(&job).await.unwrap_or_else(|error| panic!("{:?}: {error}", self.choice))
    }

    /// The reason of a candidate's score.
    async fn pred(&self, response: &str, ground_truth: &str) -> String {
        let score = self.score(response, ground_truth).await;
        let pred = score.pred.unwrap();
        assert_eq!(score.acc, f64::from(pred == "passed"), "{pred}");
        pred
    }

    /// All processes that run for this fixture, including those that have changed their group or session.
    fn processes(&self) -> Vec<PathBuf> {
        let folder = self.folder.path().to_str().unwrap();
        let contains = |path: PathBuf| {
            let text = std::fs::read(path).unwrap_or_default();
            memchr::memmem::find(&text, folder.as_bytes()).is_some()
        };
        let is_there = |place: &PathBuf| {
            let state = std::fs::read_to_string(place.join("stat")).unwrap_or_default();
            let runs_here = contains(place.join("environ")) || contains(place.join("cmdline"));
            !state.contains(") Z ") && runs_here
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        entries.filter(is_there).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.folder.path()).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// Waits until the job has left no files, processes or permits.
    async fn leaves_nothing(&self) {
        eventually("files go", || self.files().is_empty()).await;
        eventually("processes go", || self.processes().is_empty()).await;
        let sandbox = self.runner.sandbox.get().unwrap();
        eventually("turns come back", || sandbox.free_turns() == self.runner.spec.workers).await;
        self.tracker.close();
        assert!(timeout(Duration::from_secs(20), self.tracker.wait()).await.is_ok(), "tasks are left");
        self.tracker.reopen();
    }
}
