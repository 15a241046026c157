//! Tests of runs whose agents run elsewhere: workers take tasks from the run's queue over HTTP, and start a
//! process for each task. The process calls the model through the run's gateway.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt8Type;
use futures::future::join_all;
use parking_lot::Mutex;
use rolldock_ledger::LedgerState;
use rolldock_queue::{Lease, Queue, RemoteConfig, RemoteQueue, Take};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::agents::{CHAT, TWO_TURNS, of_server, over, tokens_line};
use crate::interrupts::{WaitingTake, interrupted};
use crate::metrics::address;
use crate::support::{Rolldock, Running, Simengine, untaken_recipe, wait_for};

/// The partition of the tasks.
const TASKS: &str = "agent_tasks";
/// The longest time that a worker waits for a task.
const PATIENCE: Duration = Duration::from_secs(240);
/// The interval at which a worker renews its lease.
const RENEW: Duration = Duration::from_millis(300);

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    /// A small run whose agents are elsewhere.
    fn run(&self, steps: &str, server: &Simengine) -> Rolldock {
        let out = self.dir.path().join("run");
        let run = Rolldock::new(&["run", "--steps", steps, "--out"]).arg(out).arg(untaken_recipe());
        let settings = [
            "agent.remote=true",
            "model.name=simulated",
            "model.tokenizer=builtin",
            "data.train=data/arithmetic/train.jsonl",
            "data.validation=data/arithmetic/validation.jsonl",
            "filter.enable=false",
            "rollout.early_stop=off",
            "rollout.train_batch_size=2",
            "rollout.gen_batch_size=2",
            "rollout.samples_per_prompt=4",
            "rollout.max_response_length=256",
            "queue.capacity_rows=1000",
            "queue.listen=127.0.0.1:0",
        ];
        over(settings.iter().fold(run, |run, set| run.set(set)), &[server])
    }

    /// Runs a program of an agent on a task. Returns the program's output, or its error.
    fn work(&self, script: &str, task: &Value) -> Result<String, String> {
        let mut agent = Command::new("python3")
            .args(["-c", &format!("{CHAT}{script}")])
            .env("OPENAI_BASE_URL", task["base_url"].as_str().unwrap())
            .env("OPENAI_API_KEY", task["api_key"].as_str().unwrap())
            .env("PROCESSES", self.dir.path().join("processes"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        agent.stdin.take().unwrap().write_all(task.to_string().as_bytes()).unwrap();
        let ended = agent.wait_with_output().unwrap();
        let [stdout, stderr] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        if ended.status.success() { Ok(stdout) } else { Err(stderr) }
    }
}

/// A worker's connection to the queue of a run.
struct Worker {
    queue: RemoteQueue,
}

impl Worker {
    fn new(run: &Running) -> Self {
        let url = run.url_after("serving the queue at ");
        Self { queue: RemoteQueue::new(RemoteConfig::new(url)).unwrap() }
    }

    /// Takes a task. Returns `None` if the run has no more tasks.
    async fn take(&self) -> Option<(Lease, Value)> {
        let take = Take::rows("agent", 1).until(Instant::now() + PATIENCE);
        let lease = self.queue.take(TASKS, &take).await.unwrap()?;
        let text = lease.batches()[0].column_by_name("task").unwrap().as_string::<i32>().value(0).to_owned();
        Some((lease, serde_json::from_str(&text).unwrap()))
    }

    /// Takes the rows of `count` groups, as a trainer does. Returns the names of their trajectories, and the
    /// number of tokens that they train.
    async fn train(&self, count: usize) -> (Vec<String>, u64) {
        let (mut names, mut tokens) = (Vec::new(), 0);
        for _ in 0..count {
            let take = Take::groups("train", 1).until(Instant::now() + PATIENCE);
            let lease = self.queue.take("train", &take).await.unwrap().unwrap();
            for batch in lease.batches() {
                let uids = batch.column_by_name("trajectory_uid").unwrap().as_string::<i32>();
                names.extend(uids.iter().map(|uid| uid.unwrap().to_owned()));
                let masks = batch.column_by_name("response_mask").unwrap().as_list::<i32>();
                let bits = masks.values().as_primitive::<UInt8Type>();
                tokens += bits.values().iter().map(|bit| u64::from(*bit)).sum::<u64>();
            }
            lease.ack().await.unwrap();
        }
        (names, tokens)
    }
}

/// Runs a program of an agent on a task, and renews the lease meanwhile.
async fn work(
    place: &Arc<Place>,
    lease: &Lease,
    script: &'static str,
    task: &Value,
) -> Result<String, String> {
    let (place, task) = (Arc::clone(place), task.clone());
    let (done, mut working) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(place.work(script, &task)));
    loop {
        tokio::select! {
            worked = &mut working => return worked.unwrap(),
            () = tokio::time::sleep(RENEW) => lease.renew().await.unwrap(),
        }
    }
}

/// Works on all tasks of a run. Returns their number.
async fn work_on_all(place: &Arc<Place>, worker: &Worker) -> usize {
    let mut done = 0;
    while let Some((lease, task)) = worker.take().await {
        work(place, &lease, TWO_TURNS, &task).await.unwrap();
        lease.ack().await.unwrap();
        done += 1;
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_make_the_samples_of_a_run() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Arc::new(Place::new());
    let run = place.run("2", &server).start();
    let workers = [Worker::new(&run), Worker::new(&run)];
    let working = join_all(workers.iter().map(|worker| work_on_all(&place, worker)));
    let (done, (names, tokens)) = tokio::join!(working, workers[0].train(4));
    assert_eq!(done.iter().sum::<usize>(), 16, "{done:?}");
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("done: 2 steps; 4 groups accepted"), "{}", ended.stdout);
    assert_eq!(
        (names.len(), names.iter().collect::<BTreeSet<_>>().len()),
        (16, 16),
        "one row for each sample"
    );
    let generated: u64 =
        tokens_line(&ended.stdout).split(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert_eq!((generated, tokens), (of_server(&server, "vllm:generation_tokens_total"), generated));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_dead_worker_is_a_new_attempt() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Arc::new(Place::new());
    let run = place.run("1", &server).set("agent.lease=10").start();
    let worker = Worker::new(&run);
    let (lease, task) = worker.take().await.unwrap();
    work(&place, &lease, "chat(json.load(sys.stdin)['messages'])", &task).await.unwrap();
    // A dead worker neither renews its lease nor gives it back.
    std::mem::forget(lease);
    let (done, (names, tokens)) = tokio::join!(work_on_all(&place, &worker), worker.train(2));
    assert_eq!(done, 8);
    let again = format!("{}-a2", task["trajectory"].as_str().unwrap());
    assert!(names.contains(&again) && names.len() == 8, "{names:?} and {again}");
    let ended = run.wait();
    assert!(ended.stdout.contains("done: 1 step; 2 groups accepted"), "{}", ended.stdout);
    assert!(
        tokens < of_server(&server, "vllm:generation_tokens_total"),
        "a turn of the dead worker is trained"
    );
}

/// Workers of an interrupted run wait for its next process.
#[test]
fn an_interrupted_run_does_not_end_its_tasks() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Place::new();
    let run = place.run("1", &server).start();
    let at = run.url_after("serving the queue at http://");
    let waiting = WaitingTake::start(&at, TASKS, "agent");
    let dispatched = || {
        let state = LedgerState::read(&place.dir.path().join("run"));
        state.is_ok_and(|(state, _)| state.totals().dispatched > 0)
    };
    wait_for("tasks", dispatched);
    interrupted(run);
    assert!(!waiting.heard_of_an_end());
}

/// Makes one call. Prints the status and the retry advice of a refusal.
const REFUSED: &str = r#"
try:
    chat(json.load(sys.stdin)["messages"])
except urllib.error.HTTPError as error:
    print(error.code, error.headers["x-should-retry"])
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_stop_takes_tasks_back() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Arc::new(Place::new());
    let run = place.run("2", &server).set("rollout.early_stop=first").set("rollout.on_stop=requeue");
    let run = run.set("rollout.gen_batch_size=4").set("rollout.launch=batch").start();
    let worker = Worker::new(&run);
    let held = Mutex::new(Vec::new());
    let working = async {
        // The tasks of two prompts are completed, which is a whole step. The tasks of other prompts are held
        // and never completed.
        let (mut prompts, mut done) = (Vec::new(), 0);
        while done < 8 {
            let (lease, task) = worker.take().await.unwrap();
            let prompt = task["prompt_uid"].clone();
            if !prompts.contains(&prompt) && prompts.len() < 2 {
                prompts.push(prompt.clone());
            }
            if prompts.contains(&prompt) {
                work(&place, &lease, TWO_TURNS, &task).await.unwrap();
                lease.ack().await.unwrap();
                done += 1;
            } else {
                std::mem::forget(lease);
                held.lock().push(task);
            }
        }
        // The waiting tasks of this step are gone, and the worker takes the tasks of the next step.
        while let Some((lease, task)) = worker.take().await {
            match work(&place, &lease, TWO_TURNS, &task).await {
                Ok(_) => lease.ack().await.unwrap(),
                Err(reason) => {
                    assert!(reason.contains("400"), "{reason}");
                    lease.nack().await.unwrap();
                }
            }
            for task in held.lock().drain(..) {
                wait_for("the end of a held task", || place.work(REFUSED, &task).unwrap() == "400 false\n");
            }
        }
    };
    let (_, (names, _)) = tokio::join!(working, worker.train(4));
    let ended = run.wait();
    assert!(ended.stdout.contains("done: 2 steps; 4 groups accepted"), "{}", ended.stdout);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 16, "{names:?}");
    assert!(held.lock().is_empty());
}

#[test]
fn a_run_without_workers_says_that_its_tasks_wait() {
    let server = Simengine::start(&[]);
    let place = Place::new();
    let run = place.run("1", &server).set("timeouts.silence=1").start();
    let url = address(&run);
    let words = "a worker that takes its task from the partition \"agent_tasks\"";
    wait_for("why", || Rolldock::new(&["why"]).arg(&url).succeeds().stdout.contains(words));
    wait_for("the watchdog", || run.stderr_so_far().contains("the run waits for start"));
    assert!(run.stderr_so_far().contains(words), "{}", run.stderr_so_far());
    run.interrupt();
    let ended = run.wait();
    assert!(ended.code.is_some() && !ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[tokio::test]
async fn tasks_of_a_killed_run_are_gone_when_it_goes_on() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Arc::new(Place::new());
    let run = place.run("1", &server).start();
    let worker = Worker::new(&run);
    let (_lease, stale) = worker.take().await.unwrap();
    run.kill();
    let resume = Rolldock::new(&["run", "--resume"]).arg(place.dir.path().join("run")).start();
    let worker = Worker::new(&resume);
    let (lease, task) = worker.take().await.unwrap();
    assert_ne!(stale["api_key"], task["api_key"]);
    work(&place, &lease, TWO_TURNS, &task).await.unwrap();
    lease.ack().await.unwrap();
    let (done, (names, _)) = tokio::join!(work_on_all(&place, &worker), worker.train(2));
    assert_eq!(done, 7);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 8, "{names:?}");
    let ended = resume.wait();
    assert!(ended.stdout.contains("1 step; 2 groups accepted"), "{}", ended.stdout);
}
