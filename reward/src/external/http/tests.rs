//! Tests with servers that fail in many ways, on real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::external::test_server::{Reply, Server, job};
use crate::external::{ExternalConfig, HttpConfig};

fn runner(
    server: &Server,
    change: impl FnOnce(&mut ExternalConfig, &mut HttpConfig),
) -> Arc<dyn RewardRunner> {
    let mut config =
        ExternalConfig { cache_entries: 0, consecutive_failures_max: 0, ..ExternalConfig::default() };
    let mut http =
        HttpConfig { url: server.url.clone(), api_key_env: None, batch_max: None, batch_wait_ms: 20 };
    change(&mut config, &mut http);
    config.http = Some(http);
    config.build(TaskTracker::new(), CancellationToken::new()).unwrap()
}

fn single(server: &Server) -> Arc<dyn RewardRunner> {
    runner(server, |_, _| {})
}

/// A runner of batches of 4 that waits long for each batch, so only a full batch is sent immediately.
fn batch(server: &Server) -> Arc<dyn RewardRunner> {
    runner(server, |_, http| (http.batch_max, http.batch_wait_ms) = (Some(4), 1_500))
}

async fn ask(runner: &Arc<dyn RewardRunner>, response: &str) -> Result<f64, RewardError> {
    runner.score(&job(response)).await.map(|score| score.score)
}

async fn ask_all(runner: &Arc<dyn RewardRunner>, responses: &[&str]) -> Vec<Result<f64, RewardError>> {
    join_all(responses.iter().map(|response| ask(runner, response))).await
}

fn number_in(value: &Value) -> f64 {
    value["solution_str"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_server_is_asked_with_the_job() {
    let server = Server::start(|_, body| {
        assert_eq!((&body["ground_truth"], &body["extra_info"]["index"]), (&json!("42"), &json!(7)));
        Reply::ok(json!({ "score": number_in(&body), "pred": "p" }).to_string())
    })
    .await;
    assert_eq!(ask(&single(&server), "0.25").await, Ok(0.25));
}

#[tokio::test]
async fn a_server_that_hangs_is_left_at_the_deadline() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let hasty = runner(&server, |config, _| config.deadline_s = 0.3);
    let started = Instant::now();
    let error = ask(&hasty, "1").await.unwrap_err();
    // The deadline comes during an attempt, or during the pause before the next one.
    assert!(matches!(error, RewardError::Deadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.left(1).await;
}

#[tokio::test]
async fn early_stop_closes_every_connection() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let patient = single(&server);
    let responses = ["1"; 10];
    assert!(timeout(Duration::from_secs(1), ask_all(&patient, &responses)).await.is_err());
    assert_eq!(server.requests(), 10);
    server.left(10).await;
}

#[tokio::test]
async fn nonsense_is_an_error_and_asked_for_once() {
    let long = format!("\"{}\"", "x".repeat(ANSWER_BYTES_MAX));
    let bodies: [&[u8]; 8] = [
        b"",
        b"<html>it works</html>",
        b"NaN",
        b"{\"score\": NaN}",
        b"{\"score\": \"high\"}",
        b"[1]",
        b"\xff\xfe",
        long.as_bytes(),
    ];
    for body in bodies {
        let reply = body.to_vec();
        let server = Server::start(move |_, _| Reply::ok(reply.clone())).await;
        let error = ask(&single(&server), "1").await.unwrap_err();
        assert!(matches!(error, RewardError::Nonsense { .. }), "{error}");
        assert!(error.to_string().len() < 1000, "{error}");
        assert_eq!(server.requests(), 1);
    }
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_again_and_one_that_refuses_is_not() {
    for (first, asked) in [(500, 2), (503, 2), (429, 2), (400, 1), (404, 1), (302, 1)] {
        let server = Server::start(move |number, _| match number {
            0 => Reply::Say(first, "", b"not now".to_vec()),
            _ => Reply::ok("1"),
        })
        .await;
        let result = ask(&single(&server), "1").await;
        assert_eq!(server.requests(), asked, "status {first}: {result:?}");
        match asked {
            2 => assert_eq!(result, Ok(1.0)),
            _ => assert!(result.unwrap_err().to_string().contains("not now")),
        }
    }
}

#[tokio::test]
async fn a_connection_that_breaks_is_tried_again() {
    let server = Server::start(|number, _| if number == 0 { Reply::Close } else { Reply::ok("true") }).await;
    assert_eq!(ask(&single(&server), "1").await, Ok(1.0));

    let gone = single(&server);
    drop(server);
    sleep(Duration::from_millis(50)).await;
    assert!(matches!(ask(&gone, "1").await, Err(RewardError::Unreachable { .. })));
}

#[tokio::test]
async fn the_servers_pause_is_kept() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Say(429, "Retry-After: 0.6\r\n", Vec::new()),
        _ => Reply::ok("1"),
    })
    .await;
    let started = Instant::now();
    assert_eq!(ask(&single(&server), "1").await, Ok(1.0));
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(600) && took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_full_batch_is_one_request_and_answers_keep_their_order() {
    let server = Server::start(|_, body| {
        let scores: Vec<Value> = body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| json!({ "score": number_in(item) }))
            .collect();
        Reply::ok(json!({ "scores": scores }).to_string())
    })
    .await;
    let started = Instant::now();
    let scores = ask_all(&batch(&server), &["1", "2", "3", "4"]).await;
    assert_eq!(scores, [Ok(1.0), Ok(2.0), Ok(3.0), Ok(4.0)]);
    assert!(started.elapsed() < Duration::from_millis(1_500), "a full batch does not wait");
    assert_eq!(server.requests(), 1);
    let scores = ask_all(&batch(&server), &["1", "2", "3", "4", "5"]).await;
    assert_eq!(scores[4], Ok(5.0), "what is left goes out when its time is over");
    assert_eq!(server.requests(), 3);
}

#[tokio::test]
async fn a_batch_may_fail_in_parts_or_whole() {
    let server = Server::start(|_, body| {
        let items = body["items"].as_array().unwrap();
        match items[0]["solution_str"].as_str().unwrap() {
            "parts" => Reply::ok(r#"[0.5, {"error": "no"}, "x", true]"#),
            "short" => Reply::ok(r#"{"scores": [1, 1]}"#),
            "wrong" => Reply::ok(r#"{"scores": 4}"#),
            _ => Reply::Say(400, "", b"whole".to_vec()),
        }
    })
    .await;
    let runner = batch(&server);
    let parts = ask_all(&runner, &["parts", "b", "c", "d"]).await;
    assert_eq!((&parts[0], &parts[3]), (&Ok(0.5), &Ok(1.0)));
    assert!(
        matches!(parts[1], Err(RewardError::Raised { .. }))
            && matches!(parts[2], Err(RewardError::Nonsense { .. }))
    );
    for (first, words) in
        [("short", "expected scores=4, found scores=2"), ("wrong", "to be a list"), ("other", "whole")]
    {
        for result in ask_all(&runner, &[first, "b", "c", "d"]).await {
            assert!(result.unwrap_err().to_string().contains(words), "{first}");
        }
    }
}

#[tokio::test]
async fn a_batch_goes_on_for_the_remaining_jobs_and_ends_with_the_last() {
    let items = Arc::new(AtomicUsize::new(0));
    let server = {
        let items = Arc::clone(&items);
        Server::start(move |number, body| {
            let count = body["items"].as_array().unwrap().len();
            items.fetch_add(count, Ordering::SeqCst);
            if number == 0 { Reply::ok(json!(vec![1; count]).to_string()) } else { Reply::Hang }
        })
        .await
    };
    let runner = batch(&server);
    let stays = ask(&runner, "1");
    let leaves = timeout(Duration::from_millis(50), ask(&runner, "2"));
    let (stayed, left) = tokio::join!(stays, leaves);
    assert_eq!(stayed, Ok(1.0));
    assert!(left.is_err());
    assert_eq!(items.load(Ordering::SeqCst), 1, "a cancelled job is not sent");

    assert!(timeout(Duration::from_secs(1), ask_all(&runner, &["1"; 4])).await.is_err());
    server.left(1).await;
}

#[tokio::test]
async fn the_end_of_the_token_ends_a_batch() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let token = CancellationToken::new();
    let batch =
        HttpBatch::new(&server.url, None, 2, Duration::from_millis(1), TaskTracker::new(), token.clone())
            .unwrap();
    let (first, second) = (job("1"), job("2"));
    let (one, two, ()) = tokio::join!(batch.score(&first), batch.score(&second), async {
        sleep(Duration::from_millis(100)).await;
        token.cancel();
    });
    assert_eq!((one, two), (Err(RewardError::Cancelled), Err(RewardError::Cancelled)));
    server.left(1).await;
}

#[test]
fn errors_do_not_show_the_password_of_an_address() {
    let runner = HttpSingle::new("http://user:secret@127.0.0.1:1/score", None).unwrap();
    assert_eq!(runner.0.what(), "reward server http://127.0.0.1:1/score");
}
