//! Agents that run elsewhere. The tests are the workers: they take tasks from the partition, and call the model in
//! a process that knows only the task.

use std::process::Stdio;

use arrow_array::cast::AsArray;
use rolldock_queue::{Lease, Partition, QueueConfig, Take, TransferQueue};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::*;
use crate::TASKS_PARTITION;

struct Workers {
    world: World,
    queue: TransferQueue,
}

impl Workers {
    async fn new(config: AgentConfig, limits: Limits) -> Self {
        let config = AgentConfig { remote: true, ..config };
        let world = World::with(config, Changes { limits, ..Changes::default() }).await;
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        world.agents.begin(&queue).await.unwrap();
        Self { world, queue }
    }

    fn partition(&self) -> Partition {
        self.queue.partition(TASKS_PARTITION).unwrap()
    }

    async fn take(&self) -> (Lease, Value) {
        let take = Take::rows("agent", 1).until(Instant::now() + PATIENCE);
        let lease = self.partition().take(&take).await.unwrap().unwrap();
        let text = lease.batches()[0].column_by_name("task").unwrap().as_string::<i32>().value(0).to_owned();
        (lease, serde_json::from_str(&text).unwrap())
    }

    /// Checks that no task, no trajectory and no place is left.
    async fn until_quiet(&self) {
        self.world.until("the tasks are gone", || self.partition().stats().rows == 0).await;
        self.world.until_quiet().await;
    }
}

/// Runs an agent's script on a task. Returns whether the script succeeded, and what it printed.
async fn work(script: &str, task: &Value) -> (bool, String) {
    let mut agent = Command::new("python3")
        .args(["-c", &format!("{CHAT}{script}")])
        .env("OPENAI_BASE_URL", task["base_url"].as_str().unwrap())
        .env("OPENAI_API_KEY", task["api_key"].as_str().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = agent.stdin.take().unwrap();
    stdin.write_all(task.to_string().as_bytes()).await.unwrap();
    drop(stdin);
    let ended = agent.wait_with_output().await.unwrap();
    let text = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (ended.status.success(), text.concat())
}

/// Does some work, and renews the lease of its task meanwhile.
async fn holding<T>(lease: &Lease, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(Duration::from_millis(200)) => lease.renew().await.unwrap(),
        }
    }
}

/// A call whose refusal is printed.
const REFUSED: &str = r#"
import urllib.error
try:
    chat(task["messages"])
except urllib.error.HTTPError as error:
    print(error.code, error.headers["x-should-retry"])
"#;

#[tokio::test]
async fn a_worker_makes_a_trajectory() {
    let workers = Workers::new(AgentConfig::default(), Limits::default()).await;
    let worker = async {
        let (lease, task) = workers.take().await;
        let stage = || *workers.world.stages.0.lock();
        workers.world.until("the task is taken", || stage() == Some(Stage::Agent)).await;
        assert_eq!((&task["attempt"], &task["deadline_s"]), (&json!(1), &json!(600.0)));
        assert_eq!((&task["trajectory"], &task["answer"]), (&json!("t-1"), &json!("2")));
        let (is_well, printed) = work(TWO_TURNS, &task).await;
        assert!(is_well, "{printed}");
        lease.ack().await.unwrap();
    };
    let (finished, ()) = tokio::join!(workers.world.run("t-1"), worker);
    let finished = finished.unwrap();
    assert_eq!((finished.end, finished.is_truncated, finished.reward), ("done", false, None));
    assert_eq!(finished.taken.trajectory.turns().count(), 2);
    workers.until_quiet().await;
    workers.world.agents.end_of_tasks();
    assert!(workers.partition().take(&Take::rows("agent", 1)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_task_that_comes_back_is_a_new_attempt() {
    let config = AgentConfig { lease: 3.0, ..AgentConfig::default() };
    for dies in [false, true] {
        let workers = Workers::new(config.clone(), Limits::default()).await;
        let worker = async {
            let (first, stale) = workers.take().await;
            assert!(holding(&first, work("chat(task['messages'])", &stale)).await.0);
            // A worker that dies does nothing more, so its lease expires.
            let lost = if dies {
                Some(first)
            } else {
                drop(first);
                None
            };
            let (second, task) = workers.take().await;
            assert_eq!((&task["attempt"], &task["trajectory"]), (&json!(2), &json!("t-1-a2")));
            assert_ne!((&task["api_key"], &task["seed"]), (&stale["api_key"], &stale["seed"]));
            assert_eq!(holding(&second, work(REFUSED, &stale)).await.1, "400 false\n");
            assert!(holding(&second, work(TWO_TURNS, &task)).await.0);
            second.ack().await.unwrap();
            if let Some(lost) = lost {
                assert!(lost.ack().await.is_err(), "the lease of the dead worker counts");
            }
        };
        let (finished, ()) = tokio::join!(workers.world.run("t-1"), worker);
        let taken = finished.unwrap().taken;
        assert_eq!(taken.trajectory.turns().count(), 2, "the turn of the first attempt is not in the rows");
        let sampled: u64 = taken.trajectory.turns().map(|turn| turn.sampled_ids().len() as u64).sum();
        assert_eq!(taken.drawn_tokens, sampled);
        assert!(workers.world.counts.drew.load(Ordering::Relaxed) > sampled, "all tokens are counted");
        workers.until_quiet().await;
    }
}

#[tokio::test]
async fn a_task_that_every_worker_gives_back_fails() {
    let config = AgentConfig { attempts_max: 2, ..AgentConfig::default() };
    let workers = Workers::new(config, Limits::default()).await;
    let worker = async {
        for _ in 0..2 {
            workers.take().await.0.nack().await.unwrap();
        }
    };
    let (finished, ()) = tokio::join!(workers.world.run("t-1"), worker);
    assert!(reason(finished).contains("agent.attempts_max=2"));
    workers.until_quiet().await;
}

#[tokio::test]
async fn bad_ends_and_limits_are_those_of_agents_of_the_run() {
    let config = AgentConfig { deadline: 0.5, ..AgentConfig::default() };
    let workers = Workers::new(config, Limits::default()).await;
    let (finished, (lease, task)) = tokio::join!(workers.world.run("late"), workers.take());
    assert!(reason(finished).contains("within agent.deadline=0.5 s"));
    workers.until_quiet().await;
    assert_eq!(work(REFUSED, &task).await.1, "400 false\n");
    drop(lease);

    let workers = Workers::new(AgentConfig::default(), Limits::default()).await;
    let idle = async { workers.take().await.0.ack().await.unwrap() };
    let (finished, ()) = tokio::join!(workers.world.run("idle"), idle);
    assert!(reason(finished).contains("without a whole answer"));

    let limits = Limits { turns: 1, ..Limits::default() };
    let workers = Workers::new(AgentConfig::default(), limits).await;
    let refused = async {
        let (lease, task) = workers.take().await;
        assert!(!work(TWO_TURNS, &task).await.0, "the second call is refused");
        lease.nack().await.unwrap();
    };
    let (finished, ()) = tokio::join!(workers.world.run("limited"), refused);
    let finished = finished.unwrap();
    assert_eq!((finished.end, finished.is_truncated), ("turns", true));
    workers.until_quiet().await;
}

#[tokio::test]
async fn a_drop_takes_the_task_back() {
    let workers = Workers::new(AgentConfig::default(), Limits::default()).await;
    for is_taken in [false, true] {
        let mut held = None;
        tokio::select! {
            _ = workers.world.run("t-1") => panic!("the task ended"),
            taken = workers.take(), if is_taken => held = Some(taken),
            () = workers.world.until("the offer", || workers.partition().stats().rows == 1), if !is_taken => {}
        }
        workers.until_quiet().await;
        if let Some((lease, task)) = held {
            assert_eq!(work(REFUSED, &task).await.1, "400 false\n");
            // The ack of a task that was taken back changes nothing.
            lease.ack().await.unwrap();
        }
    }
}
