//! Rewards that are servers: they hang and answer nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};

use super::*;
use crate::support::wait_for;

/// The number of questions that wait for an answer.
#[derive(Clone, Default)]
struct Asked(Arc<AtomicUsize>);

struct Waiting(Asked);

impl Waiting {
    fn enter(asked: Asked) -> Self {
        asked.0.fetch_add(1, Ordering::SeqCst);
        Self(asked)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server with a reward that answers nonsense and a judge that sometimes hangs.
struct Outside {
    served: Served,
    asked: Asked,
}

impl Outside {
    fn start() -> Self {
        let asked = Asked::default();
        let app = axum::Router::new()
            .route("/nonsense", post(nonsense))
            .route("/v1/chat/completions", post(judge))
            .with_state(asked.clone());
        Self { served: Served::start(app), asked }
    }

    fn no_question_waits(&self) {
        wait_for("end of the last question", || self.asked.0.load(Ordering::SeqCst) == 0);
    }
}

async fn nonsense(State(asked): State<Asked>) -> &'static str {
    let _waiting = Waiting::enter(asked);
    "<html>502 Bad Gateway</html>"
}

/// Hangs if the right answer is even, except for the probe, whose response is the right answer. Otherwise the
/// verdict is the parity of the sum of the response's bytes.
async fn judge(State(asked): State<Asked>, Json(question): Json<Value>) -> Json<Value> {
    let _waiting = Waiting::enter(asked);
    let text = question["messages"][0]["content"].as_str().unwrap();
    let (answer, response) = text.split_once('|').unwrap();
    let is_probe = answer == response;
    if !is_probe && answer.trim_end().ends_with(['0', '2', '4', '6', '8']) {
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
        outside.served.url
    )
}

#[test]
fn a_hanging_judge_fails_its_samples_and_the_step_ends() {
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
        outside.served.url
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
        outside.served.url
    );
    let step = Step::new(&reward).with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = step.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT"), "{}", ended.stdout);
    assert_eq!((fate(&ended, " filtered"), fate(&ended, " failed")), (32, 0), "{}", ended.stdout);
    assert!(step.rows().is_empty());
}
