use std::sync::Arc;

use axum::Router;
use axum::extract::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{HttpConfig, HttpEnvironments};
use crate::environment::{Action, Environment, Observation, Task};

/// Serves an environment that echoes, except for the texts "fail", "page" and "large". Returns its URL, and the
/// bodies of the calls that it gets.
async fn serve() -> (String, Arc<Mutex<Vec<Value>>>) {
    let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (of_reset, of_step) = (Arc::clone(&bodies), Arc::clone(&bodies));
    let reset = move |Json(body): Json<Value>| {
        let messages = body["messages"].clone();
        of_reset.lock().push(body);
        async move { Json(json!({ "messages": messages })) }
    };
    let step = move |Json(body): Json<Value>| {
        let text = body["text"].as_str().unwrap().to_owned();
        of_step.lock().push(body);
        async move {
            match text.as_str() {
                "fail" => (StatusCode::INTERNAL_SERVER_ERROR, "no such room").into_response(),
                "page" => "<html>".into_response(),
                "large" => "x".repeat(2 << 20).into_response(),
                text => {
                    let message = json!({ "role": "user", "content": text });
                    Json(json!({ "messages": [message], "reward": 0.5 })).into_response()
                }
            }
        }
    };
    let app = Router::new().route("/env/reset", post(reset)).route("/env/step", post(step));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/env/", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "a server of a test")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, bodies)
}

fn task() -> Task {
    Task {
        messages: vec![json!({ "role": "user", "content": "begin" })],
        answer: "14".to_owned(),
        fields: json!({ "level": 2 }),
        seed: 7,
    }
}

fn open(url: &str) -> Arc<HttpEnvironments> {
    Arc::new(HttpEnvironments::open(&HttpConfig { url: url.to_owned(), call_s: 20.0 }).unwrap())
}

#[tokio::test]
async fn calls_carry_the_session_and_the_turn() {
    let (url, bodies) = serve().await;
    let server = open(&url);
    server.check().await.unwrap();
    let mut environment = server.begin(&"t-1".into());
    let begun = environment.reset(&task()).await.unwrap();
    assert_eq!(begun.messages, task().messages);
    for _ in 0..2 {
        let step = environment.step(Action { text: "on", ids: &[1, 2] }).await.unwrap();
        let expected = json!({ "role": "user", "content": "on" });
        assert_eq!((step.observation, step.reward), (Observation::Messages(vec![expected]), Some(0.5)));
    }
    let bodies = bodies.lock();
    let seen = |key: &str| bodies.iter().map(|body| body[key].clone()).collect::<Vec<_>>();
    assert_eq!(seen("session"), ["t-1", "t-1", "t-1"]);
    assert_eq!(seen("turn"), [Value::Null, json!(0), json!(1)]);
    assert_eq!((&bodies[0]["answer"], &bodies[0]["fields"]["level"]), (&json!("14"), &json!(2)));
    assert_eq!(bodies[1]["ids"], json!([1, 2]));
}

#[tokio::test]
async fn a_server_that_fails_is_named_with_what_it_said() {
    let (url, bodies) = serve().await;
    let server = open(&url);
    let mut environment = server.begin(&"t-1".into());
    for (text, expected) in [
        ("fail", "answered status=500 with \"no such room\""),
        ("page", "a body that is not JSON"),
        ("large", "more than 1048576 bytes"),
    ] {
        let error = environment.step(Action { text, ids: &[] }).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(bodies.lock().len(), 3, "no call is repeated");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = open(&closed).begin(&"t-1".into()).reset(&task()).await.unwrap_err().to_string();
    assert!(error.contains("no answer from http://127.0.0.1"), "{error}");
}
