//! A reward server that is down: from the start, temporarily, or permanently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};

use super::*;
use crate::metrics::address;
use crate::support::metrics::{Scrapes, documented, scrape};
use crate::support::vllm::metric;
use crate::support::wait_for;

/// The number of answers before the server goes down. The first answer is to the probe.
const ANSWERS_BEFORE: usize = 20;

#[derive(Clone, Default)]
struct Reward {
    answers: Arc<AtomicUsize>,
    refusals: Arc<AtomicUsize>,
    /// While this is set, the server is down after `ANSWERS_BEFORE` answers. When it is cleared, the server
    /// is up again.
    goes_down: Arc<AtomicBool>,
}

impl Reward {
    fn is_down(&self) -> bool {
        self.goes_down.load(Ordering::SeqCst) && self.answers.load(Ordering::SeqCst) >= ANSWERS_BEFORE
    }
}

async fn score(State(reward): State<Reward>, Json(question): Json<Value>) -> Result<Json<Value>, StatusCode> {
    if reward.is_down() {
        reward.refusals.fetch_add(1, Ordering::SeqCst);
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    reward.answers.fetch_add(1, Ordering::SeqCst);
    let response = question["solution_str"].as_str().unwrap();
    let parity = response.bytes().map(usize::from).sum::<usize>() % 2;
    Ok(Json(json!({ "score": parity })))
}

/// A reward server that goes down.
struct Server {
    served: Served,
    reward: Reward,
}

impl Server {
    fn start() -> Self {
        let reward = Reward::default();
        reward.goes_down.store(true, Ordering::SeqCst);
        let app = axum::Router::new().route("/score", post(score)).with_state(reward.clone());
        Self { served: Served::start(app), reward }
    }

    fn comes_back(&self) {
        self.reward.goes_down.store(false, Ordering::SeqCst);
    }

    fn step(&self, outage_deadline_s: f64) -> Step {
        Step::new(&format!(
            "[reward]\nhttp = \"{}/score\"\n[reward.guard]\nretries = 0\nbackoff_initial_s = 0.1\nbackoff_max_s = 0.2\n\
             outage_deadline_s = {outage_deadline_s:?}",
            self.served.url
        ))
    }
}

/// Continues the run of a step, and checks that it has lost no group.
fn goes_on(step: &Step) {
    let ended = Rolldock::new(&["run", "--resume"]).arg(step.out()).succeeds();
    assert!(ended.stdout.contains("the run continues"), "{}", ended.stdout);
    assert_eq!(fate(&ended, " failed"), 0, "{}", ended.stdout);
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    let ledger = Rolldock::new(&["ledger"]).arg(step.out()).succeeds();
    assert!(ledger.stdout.contains(" 0 failed"), "{}", ledger.stdout);
}

#[test]
fn a_reward_that_is_down_from_the_start_is_found_before_anything_is_written() {
    let closed = rolldock_tests::free_address();
    for (reward, words) in [
        (format!("http = \"http://{closed}/score\""), "gave no answer: "),
        ("python = \"DIR/down.py:compute_score\"".to_owned(), "is unavailable: ConnectionRefusedError"),
    ] {
        if reward.starts_with("python") && !has_python() {
            continue;
        }
        let step = Step::new(&format!("[reward]\n{reward}"));
        step.file(
            "down.py",
            "def compute_score(*_, **__):\n    raise ConnectionRefusedError(111, 'refused')\n",
        );
        let ended = step.fails_in_time();
        assert!(ended.stderr.contains("error: the reward cannot be used: "), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!step.out().exists(), "nothing was written");
    }
}

#[test]
fn an_outage_costs_no_group() {
    let server = Server::start();
    let step = server.step(60.0);
    let run = step.command().start();
    let metrics = address(&run);
    let mut scrapes = Scrapes::default();
    wait_for("an outage", || {
        scrapes.note(&scrape(&metrics, None).1);
        run.stderr_so_far().contains("the reward is still out")
    });
    assert_eq!(metric(&metrics, "rolldock_reward_up"), 0.0);
    // An answer that was on its way when the server went down may be read late. It ends the outage, and the
    // next failures begin another one.
    let outages = metric(&metrics, "rolldock_reward_outages_total");
    assert!((1.0..=3.0).contains(&outages), "{outages} outages");
    scrapes.note(&scrape(&metrics, None).1);
    let names = documented("Outside rewards");
    assert!(scrapes.unmoved(&names).is_empty(), "always 0: {:?}", scrapes.unmoved(&names));
    server.comes_back();
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(fate(&ended, " failed"), 0, "{}", ended.stdout);
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(ended.stdout.contains(&format!("reward outages: {outages}, ")), "{}", ended.stdout);
    assert!(ended.stderr.contains("the reward answers again"), "{}", ended.stderr);
    assert!(server.reward.refusals.load(Ordering::SeqCst) < 200, "only probes are sent");
}

#[test]
fn a_permanent_outage_ends_the_run_which_can_be_resumed() {
    for on_stop in ["requeue", "carry"] {
        let server = Server::start();
        let step = server.step(1.0).with("workers = 2", &format!("workers = 2\non_stop = \"{on_stop}\""));
        let ended = step.fails_in_time();
        let words = "error: no score for outage_deadline_s=1; the last error: reward server ";
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(ended.stderr.contains("status=503"), "{}", ended.stderr);
        server.comes_back();
        goes_on(&step);
    }
}

#[test]
fn a_run_that_is_interrupted_in_an_outage_can_be_resumed() {
    let server = Server::start();
    let step = server.step(600.0).with("workers = 2", "workers = 2\non_stop = \"carry\"");
    let run = step.command().start();
    wait_for("an outage", || run.stderr_so_far().contains("the reward is out"));
    let since = Instant::now();
    run.interrupt();
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("interrupted after"), "{}", ended.stdout);
    assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
    server.comes_back();
    goes_on(&step);
}
