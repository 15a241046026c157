#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use tokio_util::task::TaskTracker;

use super::*;

/// The statuses and bodies of `/inference/v1/generate` and of `/v1/completions`.
type Answers = [(u16, &'static str); 2];

async fn answer(State(answers): State<Answers>, uri: Uri) -> (StatusCode, &'static str) {
    let (status, body) = match uri.path() {
        "/v1/models" => (200, r#"{"data": [{"id": "m"}]}"#),
        "/inference/v1/generate" => answers[0],
        "/v1/completions" => answers[1],
        other => panic!("{other}"),
    };
    (StatusCode::from_u16(status).unwrap(), body)
}

async fn checked(answers: Answers) -> Result<(), ControlError> {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(answers);
    let serving = TaskTracker::new().spawn(async move { axum::serve(socket, router).await.unwrap() });
    let server = ServerRef { name: Arc::from("a"), url: Some(url.into()) };
    let http = HttpControl::new(Duration::from_secs(10), None).unwrap();
    let checked = check_generation(&http, &server).await;
    serving.abort();
    checked
}

const ABSENT: (u16, &str) = (404, r#"{"detail": "Not Found"}"#);

#[tokio::test]
async fn sound_log_probabilities_pass_in_both_dialects() {
    let generated = r#"{"choices": [{"logprobs": {"content": [{"logprob": -0.5}, {"logprob": -8999.0}, {"logprob": 0}]}}]}"#;
    checked([(200, generated), ABSENT]).await.unwrap();
    let completed = r#"{"choices": [{"logprobs": {"token_logprobs": [-0.5, -1.5]}}]}"#;
    checked([ABSENT, (200, completed)]).await.unwrap();
}

#[tokio::test]
async fn broken_log_probabilities_fail_and_the_token_is_named() {
    let generated = r#"{"choices": [{"logprobs": {"content": [{"logprob": -0.5}, {"logprob": -9999.0}]}}]}"#;
    let error = checked([(200, generated), ABSENT]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "server=a failed at a generation after the update: log-probability=-9999 of token=1, so the weights are \
         incomplete or broken"
    );
    for broken in ["-9500.5", "null", "-1e39", "\"NaN\""] {
        let completed: &'static str =
            format!(r#"{{"choices": [{{"logprobs": {{"token_logprobs": [{broken}]}}}}]}}"#).leak();
        let error = checked([ABSENT, (200, completed)]).await.unwrap_err();
        assert!(matches!(error, ControlError::Failed { .. }), "{broken}: {error}");
    }
}

#[tokio::test]
async fn an_engine_that_fails_fails_the_check() {
    let not_json = "{\"choices\": [{\"logprobs\": {\"content\": [{\"logprob\": NaN}]}}]}";
    let out_of_range = r#"{"error": {"message": "Out of range float values are not JSON compliant"}}"#;
    for answers in [
        [(500, "EngineCore encountered an issue"), ABSENT],
        [(200, not_json), ABSENT],
        [ABSENT, (400, out_of_range)],
    ] {
        let error = checked(answers).await.unwrap_err();
        assert!(matches!(error, ControlError::Failed { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_server_without_log_probabilities_cannot_be_checked() {
    let refused = r#"{"error": {"message": "Unable to get tokenizer because skip_tokenizer_init is set"}}"#;
    for completions in [ABSENT, (400, refused), (200, r#"{"choices": [{"text": "x", "logprobs": null}]}"#)] {
        let error = checked([ABSENT, completions]).await.unwrap_err();
        assert!(matches!(error, ControlError::Unsupported { .. }), "{error}");
    }
}
