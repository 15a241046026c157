//! Tests with real Python processes. They are skipped with a message if there is no `python3`.

use std::sync::Arc;

use futures::future::join_all;
use rustix::process::{Pid, test_kill_process};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::external::test_server::{eventually, job};
use crate::external::{ExternalConfig, RewardJob, RewardRunner};
use crate::{ErrorClass, RewardError, Score};

/// Reward functions whose behaviour the response selects.
const REWARDS: &str = r#"
import asyncio, math, os, sys, time

print("said while it was imported")
kept = []
calls = 0

def compute_score(data_source, solution_str, ground_truth, extra_info):
    global calls
    calls += 1
    kept.append(bytearray(1000))
    print("said to the user")
    os.write(1, b"said past python\n")
    assert (data_source, ground_truth, extra_info) == ("test", "42", {"index": 7})
    if solution_str == "exit":
        sys.exit(4)
    if solution_str == "os._exit":
        os._exit(5)
    if solution_str == "crash":
        os.abort()
    if solution_str == "sleep":
        time.sleep(1000)
    if solution_str == "system":
        os.system("echo said by a child")
        return 1
    if solution_str == "fork":
        child = os.fork()
        if child == 0:
            return 0
        os.waitpid(child, 0)
        return 1
    if solution_str == "pid":
        return {"score": calls, "pred": str(os.getpid())}
    if solution_str == "memory":
        return len(bytearray(1 << 32))
    return eval(solution_str)

async def later(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0.01)
    return {"score": 0.5, "acc": True, "pred": solution_str}

def of_prompt(solution_str, prompt, **others):
    return prompt == "What?" and sorted(others) == ["data_source", "extra_info", "ground_truth"]

class Rewards:
    def ten(self, **job):
        return 10.0

rewards = Rewards()
no_function = 7
"#;

struct Fixture {
    runner: Arc<dyn RewardRunner>,
    tracker: TaskTracker,
    folder: tempfile::TempDir,
}

fn fixture_of(function: &str, settings: &str, table: &str) -> Option<Fixture> {
    let found = std::process::Command::new("python3").args(["-c", ""]).status();
    if !found.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my_rewards.py"), REWARDS).unwrap();
    let path = folder.path().to_str().unwrap();
    let function = function.replace('~', path);
    let recipe = format!(
        "cache_entries = 0\nconsecutive_failures_max = 0\n{settings}\n\
         [python]\nfunction = {function:?}\npath = [{path:?}]\nworkers = 1\n{table}"
    );
    let config: ExternalConfig = toml::from_str(&recipe).unwrap();
    let tracker = TaskTracker::new();
    let runner = config.build(tracker.clone(), CancellationToken::new()).unwrap();
    Some(Fixture { runner, tracker, folder })
}

fn fixture() -> Option<Fixture> {
    fixture_of("my_rewards:compute_score", "", "")
}

impl Fixture {
    async fn ask(&self, response: &str) -> Result<Score, RewardError> {
        self.runner.score(&job(response)).await
    }

    async fn score(&self, response: &str) -> f64 {
        self.ask(response).await.unwrap().score
    }

    async fn reason(&self, response: &str) -> String {
        match self.ask(response).await {
            Err(RewardError::Raised { reason, .. }) => reason,
            other => panic!("{response}: {other:?}"),
        }
    }

    /// The number of calls that the worker has answered, and its process id.
    async fn worker(&self) -> (f64, Pid) {
        let score = self.ask("pid").await.unwrap();
        (score.score, Pid::from_raw(score.pred.unwrap().parse().unwrap()).unwrap())
    }
}

#[tokio::test]
async fn every_kind_of_result_is_a_score() {
    let Some(fixture) = fixture() else { return };
    for (result, wanted) in [
        ("1", 1.0),
        ("-0.5", -0.5),
        ("True", 1.0),
        ("False", 0.0),
        ("{'score': 2, 'acc': 1, 'pred': None, 'other': object()}", 2.0),
        ("{'score': 3, 'pred': 'é' * (1 << 20)}", 3.0),
        ("system", 1.0),
        ("fork", 1.0),
    ] {
        assert_eq!(fixture.score(result).await, wanted, "{result}");
    }
    let full = fixture.ask("{'score': -1.0, 'acc': False, 'pred': 'a\\ud800é\\n'}").await.unwrap();
    assert_eq!(full, Score { score: -1.0, acc: 0.0, pred: Some("a?é\n".into()), ..Score::default() });
    let with_parts = fixture.ask("{'score': 1.0, 'parts': {'form': True, 'length': -0.5}}").await.unwrap();
    assert_eq!(with_parts.parts, [("form".into(), 1.0), ("length".into(), -0.5)].into_iter().collect());
}

#[tokio::test]
async fn an_invalid_score_is_an_error_and_ends_no_worker() {
    let Some(fixture) = fixture() else { return };
    for (result, words) in [
        ("None", "the result is None"),
        ("'1'", "the result is '1'"),
        ("math.nan", "the result is nan; expected a finite number"),
        ("math.inf", "the result is inf"),
        ("10 ** 400", "the result is 10000"),
        ("[1, 2]", "the result is [1, 2]"),
        ("{'score': 1, 'parts': [1]}", "parts is [1]; expected a dict"),
        ("{'score': 1, 'parts': {'form': '1'}}", "a part is '1'"),
        ("{'acc': 1}", "to have \"score\""),
        ("{'score': None}", "score is None"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("undefined", "NameError"),
        ("'\\ud800' + 1", "TypeError"),
        ("(_ for _ in ()).throw(asyncio.CancelledError())", "CancelledError"),
        ("(_ for _ in ()).throw(KeyboardInterrupt())", "KeyboardInterrupt"),
    ] {
        let reason = fixture.reason(result).await;
        assert!(reason.contains(words) && reason.len() < 1000, "{result}: {reason}");
    }
    assert!(fixture.reason("1 / 0").await.contains(":1)"), "the place is named");
    let (calls, _) = fixture.worker().await;
    assert_eq!(calls, 17.0, "one worker has answered them all");
}

#[tokio::test]
async fn an_error_of_the_system_is_not_that_of_the_job() {
    let Some(fixture) = fixture_of("my_rewards:compute_score", "retries = 0", "") else { return };
    for (result, words) in [
        ("(_ for _ in ()).throw(ConnectionResetError('gone'))", "ConnectionResetError: gone"),
        ("open('/no/such/file')", "FileNotFoundError"),
        ("(_ for _ in ()).throw(TimeoutError('late'))", "TimeoutError: late"),
    ] {
        let error = fixture.ask(result).await.unwrap_err();
        assert!(
            matches!(error, RewardError::Unavailable { .. }) && error.to_string().contains(words),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_function_that_exits_costs_the_worker_and_its_job_only() {
    let Some(fixture) = fixture() else { return };
    for (way, how) in [("exit", "status: 4"), ("os._exit", "status: 5"), ("crash", "signal: 6")] {
        let error = fixture.ask(way).await.unwrap_err();
        assert!(
            matches!(error, RewardError::WorkerDied { .. }) && error.to_string().contains(how),
            "{error}"
        );
        assert_eq!(fixture.score("1").await, 1.0, "after {way}");
    }
    let error = fixture.ask("crash").await.unwrap_err();
    assert!(error.to_string().contains("said to the user"), "{error}");
}

#[tokio::test]
async fn a_worker_that_is_killed_under_a_job_is_replaced() {
    let Some(fixture) = fixture() else { return };
    let (_, first) = fixture.worker().await;
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    let (calls, second) = fixture.worker().await;
    assert_eq!(calls, 1.0);
    assert_ne!(first, second);
}

#[tokio::test]
async fn a_function_that_never_ends_is_killed_at_the_deadline() {
    let settings = "attempt_s = 20\ndeadline_s = 2";
    let Some(fixture) = fixture_of("my_rewards:compute_score", settings, "") else { return };
    fixture.runner.check().await.unwrap();
    let (_, first) = fixture.worker().await;
    let error = fixture.ask("sleep").await.unwrap_err();
    assert!(matches!(error, RewardError::Deadline { waiting_for: "an answer", .. }), "{error}");
    eventually("it is gone", || test_kill_process(first).is_err()).await;
    fixture.runner.check().await.unwrap();
    let (calls, _) = fixture.worker().await;
    assert_eq!(calls, 1.0, "the next job has a fresh worker");
}

#[tokio::test]
async fn early_stop_cancels_them_all() {
    let Some(fixture) = fixture_of("my_rewards:compute_score", "concurrency = 64", "") else { return };
    let (_, pid) = fixture.worker().await;
    let jobs: Vec<RewardJob> = (0..64).map(|_| job("sleep")).collect();
    let all = join_all(jobs.iter().map(|job| fixture.runner.score(job)));
    assert!(timeout(Duration::from_millis(500), all).await.is_err());
    eventually("the busy one is gone", || test_kill_process(pid).is_err()).await;
    assert_eq!(fixture.score("1").await, 1.0);
}

#[tokio::test]
async fn a_worker_is_replaced_after_its_limit_of_jobs() {
    let Some(fixture) = fixture_of("my_rewards:compute_score", "", "jobs_per_worker = 3") else { return };
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(fixture.worker().await.0);
    }
    assert_eq!(calls, [1.0, 2.0, 3.0, 1.0, 2.0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_function_that_wants_too_much_memory_fails_alone() {
    let Some(fixture) = fixture_of("my_rewards:compute_score", "", "memory_mb = 2048") else { return };
    assert!(fixture.reason("memory").await.contains("MemoryError"));
    assert_eq!(fixture.worker().await.0, 2.0);
}

#[tokio::test]
async fn functions_of_every_shape_are_found() {
    let Some(later) = fixture_of("~/my_rewards.py:later", "", "") else { return };
    let half = later.ask("x").await.unwrap();
    assert_eq!(half, Score { score: 0.5, acc: 1.0, pred: Some("x".into()), ..Score::default() });
    let Some(of_prompt) = fixture_of("my_rewards:of_prompt", "", "") else { return };
    assert_eq!(of_prompt.score("x").await, 1.0);
    let Some(method) = fixture_of("my_rewards:rewards.ten", "", "") else { return };
    assert_eq!(method.score("x").await, 10.0);
}

#[tokio::test]
async fn a_function_that_does_not_exist_is_one_clear_error() {
    for (function, words) in [
        ("my_rewards:missing", "has no attribute 'missing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("~/nowhere.py:f", "nowhere.py"),
        ("my_rewards:no_function", "expected a function"),
    ] {
        let Some(fixture) = fixture_of(function, "", "") else { return };
        let error = fixture.runner.check().await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.class(), ErrorClass::Client);
        assert_eq!(fixture.ask("1").await, Err(error), "and it stays so");
    }
    let Some(fixture) = fixture_of("my_rewards:compute_score", "", "interpreter = \"no-python\"") else {
        return;
    };
    let error = fixture.ask("1").await.unwrap_err();
    assert!(
        matches!(error, RewardError::Unloadable { .. }) && error.to_string().contains("no-python"),
        "{error}"
    );
}

#[tokio::test]
async fn no_worker_is_left_when_the_runner_is_dropped() {
    let Some(fixture) = fixture_of("my_rewards:compute_score", "", "") else { return };
    let (_, pid) = fixture.worker().await;
    let Fixture { runner, tracker, folder } = fixture;
    drop(runner);
    tracker.close();
    assert!(timeout(Duration::from_secs(20), tracker.wait()).await.is_ok(), "tasks are left");
    assert!(test_kill_process(pid).is_err(), "the worker is left");
    drop(folder);
}

#[test]
fn configured_folders_come_before_the_inherited_python_path() {
    let config: ExternalConfig =
        toml::from_str("python = { function = 'm:f', path = ['/a', '/b'] }").unwrap();
    let config = config.python.unwrap();
    let path = |config: &PythonConfig, inherited| {
        pool_spec(config, "reward", Duration::from_secs(1), inherited).env.get("PYTHONPATH").cloned()
    };
    assert_eq!(path(&config, Some("/c")).as_deref(), Some("/a:/b:/c"));
    assert_eq!(path(&config, None).as_deref(), Some("/a:/b"));
    let bare = PythonConfig { path: Vec::new(), ..config };
    assert_eq!(path(&bare, Some("/c")), None, "what is inherited stays as it is");
}

/// A program that starts a worker, gives it a job that never ends, prints the worker's process id and waits.
#[cfg(target_os = "linux")]
const PARENT: &str = r#"
import json, subprocess, sys, time
worker, function = sys.argv[1:]
process = subprocess.Popen(
    [sys.executable, "-u", "-c", worker, function], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
assert json.loads(process.stdout.readline()) == {"ready": True}
job = {"id": 1, "data_source": "test", "solution_str": "sleep", "ground_truth": "42", "extra_info": {"index": 7}}
process.stdin.write(json.dumps(job).encode() + b"\n")
process.stdin.flush()
print(process.pid, flush=True)
time.sleep(1000)
"#;

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_busy_worker_does_not_outlive_its_parent() {
    use std::io::{BufRead, BufReader};

    let Some(fixture) = fixture() else { return };
    let file = fixture.folder.path().join("my_rewards.py");
    let mut parent = std::process::Command::new("python3")
        .args(["-c", PARENT, WORKER, &format!("{}:compute_score", file.display())])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let worker = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(worker).is_ok());
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The process that inherits the worker may reap it late, so a zombie is accepted.
    let stat = format!("/proc/{}/stat", worker.as_raw_nonzero());
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    eventually("the worker is gone", || !runs()).await;
}
