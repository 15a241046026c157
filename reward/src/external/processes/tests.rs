//! Tests of pools of real processes, which are `sh` scripts.

use std::path::Path;

use futures::future::join_all;
use rustix::process::{Pid, test_kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::health::DEATHS_IN_A_ROW_MAX;
use super::*;
use crate::external::test_server::{eventually, job};

struct Fixture {
    pool: ProcessPool,
    tracker: TaskTracker,
    token: CancellationToken,
    folder: tempfile::TempDir,
}

/// A pool of `sh` processes; `$0` is the path of an empty folder.
fn pool_with(script: &str, change: impl FnOnce(&mut PoolSpec)) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let words = ["sh", "-c", script, folder.path().to_str().unwrap()];
    let mut spec = PoolSpec {
        what: "test".into(),
        words: words.map(str::to_owned).to_vec(),
        directory: None,
        env: BTreeMap::new(),
        workers: 1,
        handshake: None,
        jobs_per_worker: None,
        memory_bytes: None,
    };
    change(&mut spec);
    let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
    let pool = ProcessPool::new(spec, tracker.clone(), &token);
    Fixture { pool, tracker, token, folder }
}

fn pool(script: &str) -> Fixture {
    pool_with(script, |_| {})
}

impl Fixture {
    async fn ask(&self) -> Result<f64, RewardError> {
        self.pool.score(&job("x")).await.map(|score| score.score)
    }

    /// Sets the number of deaths in a row, and the time of the next start.
    fn has_deaths(&self, deaths: u32, next_start: Option<Instant>) {
        let mut health = self.pool.0.health.lock();
        (health.deaths, health.next_start) = (deaths, next_start);
    }

    /// The lines of a file that the script writes.
    fn lines(&self, name: &str) -> Vec<String> {
        lines_of(&self.folder.path().join(name))
    }

    /// Drops the pool and waits for all of its tasks, and therefore for all of its processes.
    async fn ends(self) {
        let Self { pool, tracker, folder, .. } = self;
        drop(pool);
        tracker.close();
        assert!(timeout(Duration::from_secs(20), tracker.wait()).await.is_ok(), "tasks are left");
        for pid in lines_of(&folder.path().join("pids")) {
            assert!(is_gone(&pid), "process {pid} is left");
        }
    }
}

fn bad() -> RewardJob {
    job("bad")
}

fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Whether a process has ended. An orphan that no process waits for (in a container without an init) counts
/// as ended.
fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains(") Z ") || test_kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap()).is_err()
}

#[tokio::test]
async fn lines_are_answered_by_one_process() {
    let fixture = pool("echo $$ >>$0/pids; while read line; do echo; echo 0.5; done");
    for _ in 0..3 {
        assert_eq!(fixture.ask().await, Ok(0.5));
    }
    assert_eq!(fixture.lines("pids").len(), 1);
    fixture.ends().await;
}

#[tokio::test]
async fn the_question_is_the_documented_one() {
    let fixture = pool(
        "while read -r line; do printf '%s\\n' \"$line\" >>$0/jobs; echo '{\"id\":1,\"score\":1}'; done",
    );
    assert_eq!(fixture.ask().await, Ok(1.0));
    let wanted = r#"{"id":1,"data_source":"test","solution_str":"x","ground_truth":"42","extra_info":{"index":7},"prompt":"What?"}"#;
    assert_eq!(fixture.lines("jobs"), [wanted]);
}

#[tokio::test]
async fn a_worker_that_dies_is_replaced_and_its_job_given_to_another() {
    let fixture = pool(
        "echo $$ >>$0/pids; read line; if [ ! -e $0/died ]; then : >$0/died; exit 3; fi; echo 1; read line; echo 0",
    );
    assert_eq!(fixture.ask().await, Ok(1.0));
    assert_eq!(fixture.lines("pids").len(), 2);
    assert_eq!(fixture.pool.0.health.lock().deaths, 0, "an answer resets the deaths in a row");
    fixture.ends().await;
}

#[tokio::test]
async fn a_job_that_kills_two_workers_ends_in_an_error_with_the_stderr() {
    let fixture = pool("read line; echo one >&2; echo 'out of luck' >&2; exit 3");
    let error = fixture.ask().await.unwrap_err();
    let RewardError::WorkerDied { how, stderr, .. } = &error else { panic!("{error}") };
    assert_eq!((how.as_str(), stderr.as_str()), ("exit status: 3", "one\nout of luck"));
    assert_eq!(fixture.pool.0.health.lock().deaths, 2);

    let killed = pool("read line; kill -9 $$");
    assert!(killed.ask().await.unwrap_err().to_string().contains("signal: 9"));
}

#[tokio::test]
async fn too_many_restarts_of_workers_are_an_error() {
    let fixture = pool("echo $$ >>$0/pids; read line; echo no luck >&2; exit 7");
    let mut words = String::new();
    for _ in 0..20 {
        words = fixture.ask().await.unwrap_err().to_string();
    }
    assert!(words.contains("deaths=8 in a row") && words.contains("no luck"), "{words}");
    let starts = fixture.lines("pids").len();
    assert_eq!(starts, DEATHS_IN_A_ROW_MAX as usize, "20 jobs would have been 40 starts");
    fixture.ends().await;
}

#[tokio::test]
async fn a_pool_that_was_given_up_is_tried_again_later() {
    let fixture = pool("read line; [ -e $0/works ] || exit 7; echo 1; read line");
    fixture.has_deaths(DEATHS_IN_A_ROW_MAX, Some(Instant::now()));
    assert!(matches!(fixture.ask().await, Err(RewardError::WorkerDied { .. })), "it was tried");
    assert!(fixture.ask().await.unwrap_err().is_refusal());
    std::fs::write(fixture.folder.path().join("works"), "").unwrap();
    fixture.pool.0.health.lock().next_start = Some(Instant::now());
    assert_eq!(fixture.ask().await, Ok(1.0));
}

/// A worker that dies of the response "bad", and of nothing else.
const MORTAL: &str = "echo $$ >>$0/pids; while read -r line; do \
                      case $line in *bad*) exit 3;; esac; echo 1; done";

#[tokio::test]
async fn a_probe_is_not_refused_and_ends_the_refusals() {
    let fixture = pool(MORTAL);
    fixture.has_deaths(DEATHS_IN_A_ROW_MAX, Some(Instant::now() + Duration::from_secs(3600)));
    assert!(fixture.ask().await.unwrap_err().is_refusal());
    assert_eq!(fixture.pool.probe(&job("x")).await, Ok(()));
    assert_eq!(fixture.ask().await, Ok(1.0));
    assert_eq!(fixture.lines("pids").len(), 1);
    fixture.ends().await;
}

#[tokio::test]
async fn a_probe_that_kills_its_workers_reports_it_each_time() {
    let fixture = pool(MORTAL);
    for _ in 0..6 {
        let error = fixture.pool.probe(&bad()).await.unwrap_err();
        assert!(matches!(error, RewardError::WorkerDied { .. }), "{error}");
    }
    let never = pool_with("exit 3", |spec| spec.handshake = Some(Duration::from_secs(10)));
    let error = never.pool.probe(&job("x")).await.unwrap_err();
    assert!(matches!(&error, RewardError::WorkerDied { how, .. } if how == "exit status: 3"), "{error}");
    assert_eq!(never.pool.0.health.lock().deaths, 1, "a probe starts a failing worker only once");
}

#[tokio::test]
async fn a_job_whose_worker_died_is_not_called_refused() {
    let fixture = pool(MORTAL);
    fixture.has_deaths(DEATHS_IN_A_ROW_MAX - 1, None);
    let error = fixture.pool.score(&bad()).await.unwrap_err();
    assert!(matches!(error, RewardError::WorkerDied { .. }), "its second worker was refused: {error}");
}

#[tokio::test]
async fn a_probe_finds_out_that_workers_can_be_started_again() {
    let script = "[ -e $0/works ] || { echo '{\"fatal\":\"no such thing\"}'; exit; }; \
                  echo '{\"ready\":true}'; while read line; do echo 1; done";
    let fixture = pool_with(script, |spec| spec.handshake = Some(Duration::from_secs(10)));
    assert!(matches!(fixture.ask().await, Err(RewardError::Unloadable { .. })));
    std::fs::write(fixture.folder.path().join("works"), "").unwrap();
    assert!(
        matches!(fixture.ask().await, Err(RewardError::Unloadable { .. })),
        "jobs start nothing meanwhile"
    );
    assert_eq!(fixture.pool.probe(&job("x")).await, Ok(()));
    fixture.pool.0.kill_idle();
    assert_eq!(fixture.ask().await, Ok(1.0));
}

#[tokio::test]
async fn an_invalid_line_ends_the_worker() {
    let cases = [
        ("echo hello", "to be JSON"),
        ("echo '{\"id\":99,\"score\":1}'", "answer to id=1"),
        ("yes | head -c 4000000 | tr -d '\\n'; sleep 100", "answer line of at most"),
    ];
    for (says, words) in cases {
        let fixture = pool(&format!("echo $$ >>$0/pids; read line; {says}; read line; echo 1"));
        let error = fixture.ask().await.unwrap_err();
        assert!(
            matches!(error, RewardError::Nonsense { .. }) && error.to_string().contains(words),
            "{error}"
        );
        assert!(error.to_string().len() < 1000, "{error}");
        assert_eq!(fixture.lines("pids").len(), 1, "the job is not sent again");
        fixture.ends().await;
    }
}

#[tokio::test]
async fn an_invalid_score_in_a_valid_answer_ends_no_worker() {
    let fixture = pool(
        "echo $$ >>$0/pids; read line; echo null; read line; echo '{\"id\":2,\"error\":\"no\"}'; read line; echo 1",
    );
    assert!(matches!(fixture.ask().await, Err(RewardError::Nonsense { .. })));
    assert!(matches!(fixture.ask().await, Err(RewardError::Raised { .. })));
    assert_eq!(fixture.ask().await, Ok(1.0));
    assert_eq!(fixture.lines("pids").len(), 1);
}

#[tokio::test]
async fn a_worker_that_writes_additional_output_is_replaced() {
    let fixture = pool("while read line; do printf '1\\n0\\n'; done");
    for _ in 0..3 {
        assert_eq!(fixture.ask().await, Ok(1.0));
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_one_lasting_error() {
    let fixture = pool_with("", |spec| spec.words = vec!["/nowhere/at/all".into()]);
    let error = fixture.pool.check().await.unwrap_err();
    assert!(matches!(error, RewardError::Unloadable { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    assert_eq!(fixture.ask().await, Err(error));
}

#[tokio::test]
async fn a_handshake_is_waited_for_and_may_say_no() {
    let limit = Duration::from_secs(10);
    let ready = pool_with("echo '{\"ready\":true}'; read line; echo 1", |spec| spec.handshake = Some(limit));
    assert_eq!(ready.pool.check().await, Ok(()));
    assert_eq!(ready.ask().await, Ok(1.0));

    let script = "echo $$ >>$0/pids; echo '{\"fatal\":\"no such thing\"}'; read line";
    let fatal = pool_with(script, |spec| spec.handshake = Some(limit));
    for _ in 0..3 {
        let error = fatal.ask().await.unwrap_err();
        assert!(
            matches!(&error, RewardError::Unloadable { reason, .. } if reason == "no such thing"),
            "{error}"
        );
    }
    assert_eq!(fatal.lines("pids").len(), 1);

    let mute = pool_with("read line", |spec| spec.handshake = Some(Duration::from_millis(20)));
    let error = mute.ask().await.unwrap_err();
    assert!(error.to_string().contains("not ready within start_s=0.02"), "{error}");
}

#[tokio::test]
async fn a_dropped_job_kills_its_worker_and_its_children() {
    let script = "echo $$ >>$0/pids; read line; if [ -e $0/hung ]; then echo 1; read line; fi; \
                  : >$0/hung; sleep 1000 & echo $! >>$0/pids; wait";
    let fixture = pool(script);
    assert!(timeout(Duration::from_secs(1), fixture.ask()).await.is_err());
    eventually("two processes", || fixture.lines("pids").len() == 2).await;
    eventually("both are gone", || fixture.lines("pids").iter().all(|pid| is_gone(pid))).await;
    assert_eq!(fixture.ask().await, Ok(1.0), "the next job has a fresh worker");
    assert_eq!(fixture.pool.0.health.lock().deaths, 0, "a worker that the pool killed is no death");
    fixture.ends().await;
}

#[tokio::test]
async fn a_start_outlives_the_job_that_asked_for_it() {
    let script = "echo $$ >>$0/pids; sleep 0.5; echo '{\"ready\":true}'; while read line; do echo 1; done";
    let fixture = pool_with(script, |spec| spec.handshake = Some(Duration::from_secs(20)));
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(40), fixture.ask()).await.is_err());
    }
    assert_eq!(fixture.ask().await, Ok(1.0));
    assert_eq!(fixture.lines("pids").len(), 1);
    fixture.ends().await;
}

#[tokio::test]
async fn the_end_of_the_token_ends_jobs_and_processes() {
    let fixture =
        pool_with("echo $$ >>$0/pids; while read line; do sleep 1000; done", |spec| spec.workers = 2);
    let (first, second, ()) = tokio::join!(fixture.ask(), fixture.ask(), async {
        eventually("two workers", || fixture.lines("pids").len() == 2).await;
        fixture.token.cancel();
    });
    assert_eq!((first, second), (Err(RewardError::Cancelled), Err(RewardError::Cancelled)));
    assert_eq!(fixture.ask().await, Err(RewardError::Cancelled));
    eventually("both are gone", || fixture.lines("pids").iter().all(|pid| is_gone(pid))).await;
    fixture.ends().await;

    let idle = pool("echo $$ >>$0/pids; while read line; do echo 1; done");
    assert_eq!(idle.ask().await, Ok(1.0));
    idle.token.cancel();
    eventually("the idle one is gone", || idle.lines("pids").iter().all(|pid| is_gone(pid))).await;
}

#[tokio::test]
async fn no_more_processes_live_than_the_pool_has_workers() {
    let script =
        "echo $$ >>$0/pids; while read line; do echo s >>$0/now; sleep 0.05; echo e >>$0/now; echo 1; done";
    let fixture = pool_with(script, |spec| spec.workers = 3);
    let scores = join_all((0..12).map(|_| fixture.ask())).await;
    assert!(scores.iter().all(|score| *score == Ok(1.0)), "{scores:?}");
    let (mut running, mut most) = (0, 0);
    for line in fixture.lines("now") {
        running += if line == "s" { 1 } else { -1 };
        most = most.max(running);
    }
    assert!((2..=3).contains(&most), "{most} at a time");
    assert_eq!(fixture.lines("pids").len(), 3);
    fixture.ends().await;
}

#[tokio::test]
async fn a_worker_is_replaced_after_jobs_per_worker_jobs() {
    let fixture = pool_with("echo $$ >>$0/pids; while read line; do echo 1; done", |spec| {
        spec.jobs_per_worker = NonZeroU64::new(2);
    });
    for _ in 0..6 {
        assert_eq!(fixture.ask().await, Ok(1.0));
    }
    assert_eq!(fixture.lines("pids").len(), 3);
    fixture.ends().await;
}

#[tokio::test]
async fn a_worker_that_died_between_two_jobs_costs_neither() {
    let fixture = pool("echo $$ >>$0/pids; while read line; do echo 1; done");
    assert_eq!(fixture.ask().await, Ok(1.0));
    let pid = Pid::from_raw(fixture.lines("pids")[0].parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(fixture.ask().await, Ok(1.0));
    assert_eq!(fixture.lines("pids").len(), 2);
    assert_eq!(fixture.pool.0.health.lock().deaths, 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_has_a_memory_limit() {
    let fixture = pool_with("read line; ulimit -v; read line", |spec| spec.memory_bytes = Some(1 << 30));
    assert_eq!(fixture.ask().await, Ok(f64::from(1 << 20)), "sh counts in units of 1024 bytes");
}

#[tokio::test]
async fn a_worker_that_closes_its_output_and_lives_on_is_dead() {
    let fixture = pool("echo $$ >>$0/pids; read line; exec >&-; sleep 1000");
    let error = fixture.ask().await.unwrap_err();
    assert!(error.to_string().contains("closed its pipes"), "{error}");
    fixture.ends().await;
}

#[tokio::test]
async fn only_the_end_of_a_long_stderr_is_kept() {
    let fixture = pool("read line; yes noise | head -c 600000 >&2; echo last >&2; exit 1");
    let RewardError::WorkerDied { stderr, .. } = fixture.ask().await.unwrap_err() else { panic!("it lives") };
    assert!(stderr.ends_with("noise\nlast") && stderr.len() < 100, "{stderr}");
}
