//! Tests of the proxy in front of scripted engines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bounds;
mod routes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::*;
use crate::control::vllm::VllmControl;
use crate::server::ServerState;
use crate::{BalancerConfig, ServerSpec};

/// Counts of the requests that an engine has received.
#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    aborts: AtomicUsize,
    gone: AtomicUsize,
    control: AtomicUsize,
    /// Requests that run until they are aborted, with the times at which they began.
    running: Mutex<HashMap<String, (Instant, CancellationToken)>>,
}

/// Longest time of a test on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for which an engine does not know a new request yet. An abort within this time is lost.
const ABORT_RACE: Duration = Duration::from_millis(40);

struct Gone(Arc<Seen>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Ordering::Relaxed);
    }
}

async fn complete(
    State(seen): State<Arc<Seen>>,
    request: axum::extract::Request,
) -> axum::response::Response {
    seen.requests.fetch_add(1, Ordering::Relaxed);
    let id = request.headers().get("x-request-id").map(|id| id.to_str().unwrap().to_owned());
    let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match body["say"].as_str() {
        Some("hang") => {
            let _gone = Gone(seen);
            std::future::pending().await
        }
        Some("run") => {
            let end = CancellationToken::new();
            seen.running.lock().insert(format!("cmpl-{}-0", id.unwrap()), (Instant::now(), end.clone()));
            end.cancelled().await;
            "{\"finish_reason\":\"abort\"}".into_response()
        }
        Some("nan") => {
            let words = "{\"error\":{\"message\":\"Out of range float values are not JSON compliant: nan\"}}";
            (StatusCode::BAD_REQUEST, words).into_response()
        }
        Some(endless @ ("drip" | "flood")) => {
            let piece = "x".repeat(if endless == "flood" { 1 << 16 } else { 1 });
            let pieces = futures::stream::repeat(piece).then(|piece| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok::<_, Infallible>(piece)
            });
            Body::from_stream(pieces).into_response()
        }
        Some("wrong") => (StatusCode::BAD_REQUEST, "{\"error\":\"yours\"}").into_response(),
        Some("slow") => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "at last".into_response()
        }
        Some("stream") => {
            let pieces = futures::stream::iter(0..5).then(|piece| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok::<_, Infallible>(format!("data: {piece}\n\n"))
            });
            ([("content-type", "text/event-stream")], Body::from_stream(pieces)).into_response()
        }
        Some("stall") => {
            let first = futures::stream::iter([Ok::<_, Infallible>("data: 0\n\n")]);
            Body::from_stream(first.chain(futures::stream::pending())).into_response()
        }
        // The body is sent back unchanged.
        _ => ([("x-request-id", "7")], bytes).into_response(),
    }
}

async fn aborted(State(seen): State<Arc<Seen>>, body: axum::body::Bytes) -> &'static str {
    seen.aborts.fetch_add(1, Ordering::Relaxed);
    let body: Value = serde_json::from_slice(&body).unwrap();
    for id in body["request_ids"].as_array().unwrap() {
        if let Some((since, end)) = seen.running.lock().get(id.as_str().unwrap())
            && since.elapsed() >= ABORT_RACE
        {
            end.cancel();
        }
    }
    "{}"
}

async fn paused(State(seen): State<Arc<Seen>>) {
    seen.control.fetch_add(1, Ordering::Relaxed);
}

struct Engine {
    url: String,
    seen: Arc<Seen>,
    _serving: AbortOnDropHandle<()>,
}

async fn engine() -> Engine {
    let seen = Arc::new(Seen::default());
    let router = Router::new()
        .route("/v1/completions", post(complete))
        // The engine waits for a body of the announced length.
        .route("/v1/models", get(|_: axum::body::Bytes| async { "{\"data\":[]}" }))
        .route("/tokenize", post(|_: axum::body::Bytes| async { "{\"tokens\":[]}" }))
        .route("/pause", post(paused))
        .route("/abort_requests", post(aborted))
        .with_state(Arc::clone(&seen));
    serving(router, seen).await
}

async fn serving(router: Router, seen: Arc<Seen>) -> Engine {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = TaskTracker::new().spawn(async move { axum::serve(listener, router).await.unwrap() });
    Engine { url, seen, _serving: AbortOnDropHandle::new(serving) }
}

/// An engine that refuses everything.
async fn busy() -> Engine {
    let seen = Arc::new(Seen::default());
    let refuse = |State(seen): State<Arc<Seen>>| async move {
        seen.requests.fetch_add(1, Ordering::Relaxed);
        (StatusCode::SERVICE_UNAVAILABLE, "full")
    };
    serving(Router::new().fallback(refuse).with_state(Arc::clone(&seen)), seen).await
}

struct Running {
    url: String,
    balancer: LoadBalancer,
    end: CancellationToken,
    client: reqwest::Client,
}

impl Running {
    async fn post(&self, path: &str, body: &str) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.url)).body(body.to_owned()).send().await.unwrap()
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    async fn ask(&self, body: Value) -> reqwest::Response {
        let url = format!("{}/v1/completions", self.url);
        self.client.post(url).body(body.to_string()).send().await.unwrap()
    }

    fn in_use(&self) -> u64 {
        self.balancer.snapshot().in_use()
    }
}

/// Runs a test against a proxy in front of servers with these addresses.
async fn before(urls: &[&str], config: ProxyConfig, test: impl AsyncFnOnce(&Running)) {
    before_with(BalancerConfig { seed: 3, ..BalancerConfig::default() }, urls, config, test).await;
}

async fn before_with(
    balancing: BalancerConfig,
    urls: &[&str],
    config: ProxyConfig,
    test: impl AsyncFnOnce(&Running),
) {
    let servers =
        urls.iter().enumerate().map(|(at, url)| ServerSpec::new(format!("s{at}"), *url, 8)).collect();
    let balancer = LoadBalancer::new(balancing, servers).unwrap();
    let control = VllmControl::new(Duration::from_secs(5), None).unwrap();
    let (taken, aborter) = aborts(balancer.clone(), Arc::new(control), None);
    let config = ProxyConfig { aborts: Some(taken), ..config };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let end = CancellationToken::new();
    let running = Running {
        url: format!("http://{}", listener.local_addr().unwrap()),
        balancer: balancer.clone(),
        end: end.clone(),
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
    };
    let serving = Proxy::new(balancer, config).serve(listener, end.clone());
    let testing = async {
        test(&running).await;
        end.cancel();
    };
    let aborting = aborter.run(end.clone());
    let local = LocalSet::new();
    let all = local.run_until(async { tokio::join!(serving, testing, aborting) });
    tokio::time::timeout(PATIENCE, all).await.expect("a request is left waiting");
    assert_eq!(running.in_use(), 0, "a permit is out");
}

async fn until(mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < give_up, "the condition never held");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn bodies_are_forwarded_unchanged_and_streams_without_delay() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let odd = "{ \"prompt\" :[1,2],  \"n\":2, \"x\":\"\u{e9}\" }";
        let url = format!("{}/v1/completions?a=b", proxy.url);
        let answer = proxy.client.post(&url).header("x-mine", "1").body(odd).send().await.unwrap();
        assert_eq!(answer.headers()["x-request-id"], "7");
        assert_eq!(answer.text().await.unwrap(), odd);
        let mut stream = proxy.ask(json!({ "say": "stream" })).await;
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        let mut text = String::new();
        let mut pieces = 0;
        while let Some(piece) = stream.chunk().await.unwrap() {
            text.push_str(std::str::from_utf8(&piece).unwrap());
            pieces += 1;
        }
        assert_eq!(text.matches("data:").count(), 5);
        assert!(pieces > 1, "it came in one piece");
        let models = proxy.client.get(format!("{}/v1/models", proxy.url)).send().await.unwrap();
        assert_eq!(models.text().await.unwrap(), "{\"data\":[]}");
        let health: Value =
            proxy.client.get(format!("{}/health", proxy.url)).send().await.unwrap().json().await.unwrap();
        assert_eq!((&health["live"], &health["waiting"]), (&json!(1), &json!(0)));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_engines_work_and_returns_the_permit() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let asking =
            tokio::time::timeout(Duration::from_millis(100), proxy.ask(json!({ "say": "hang", "n": 3 })));
        assert!(asking.await.is_err());
        until(|| engine.seen.gone.load(Ordering::Relaxed) == 1 && proxy.in_use() == 0).await;
        // The client also disconnects in the middle of an answer.
        let mut stream = proxy.ask(json!({ "say": "stall" })).await;
        assert!(stream.chunk().await.unwrap().is_some());
        assert_eq!(proxy.in_use(), 1);
        drop(stream);
        until(|| proxy.in_use() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn an_abort_is_not_lost_in_the_proxy() {
    let engines = [engine().await, engine().await];
    before(&[&engines[0].url, &engines[1].url], ProxyConfig::default(), async |proxy| {
        let asking = async {
            let url = format!("{}/v1/completions", proxy.url);
            let call = proxy.client.post(url).header("x-request-id", "a").body("{\"say\":\"run\"}");
            call.send().await.unwrap().text().await.unwrap()
        };
        let aborting = async {
            let is_there = |engine: &Engine| engine.seen.running.lock().contains_key("cmpl-a-0");
            until(|| engines.iter().any(is_there)).await;
            // The abort arrives before the engine knows the request. The abort names the id that the engine
            // gave the client.
            proxy.post("/abort_requests", "{\"request_ids\":[\"cmpl-a\",\"b\"]}").await
        };
        let (ended, told) = tokio::join!(asking, aborting);
        assert_eq!(ended, "{\"finish_reason\":\"abort\"}");
        let told: Value = told.json().await.unwrap();
        assert_eq!((&told["aborted"], &told["servers"]), (&json!(2), &json!(2)));
        let sent = |engine: &Engine| engine.seen.aborts.load(Ordering::Relaxed);
        until(|| engines.iter().all(|engine| sent(engine) == crate::control::ABORT_PAUSES.len())).await;
    })
    .await;
}

#[tokio::test]
async fn an_abort_of_all_requests_is_refused() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        for body in ["", "{}", "{\"request_ids\":[]}"] {
            let refused = proxy.post("/inference/v1/abort_requests", body).await;
            assert_eq!(refused.status(), 400, "{body:?}");
            assert!(refused.text().await.unwrap().contains("expected request_ids"), "{body:?}");
        }
        assert_eq!(engine.seen.aborts.load(Ordering::Relaxed), 0);
    })
    .await;
    let refusing = busy().await;
    before(&[&refusing.url], ProxyConfig::default(), async |proxy| {
        assert_eq!(proxy.post("/abort_requests", "{\"request_ids\":[\"a\"]}").await.status(), 502);
    })
    .await;
}

#[tokio::test]
async fn a_dead_or_busy_server_is_not_asked_twice_for_one_request() {
    let (engine, busy) = (engine().await, busy().await);
    let absent = "http://127.0.0.1:9";
    before(&[absent, &busy.url, &engine.url], ProxyConfig::default(), async |proxy| {
        for _ in 0..30 {
            assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 200);
        }
        let servers = proxy.balancer.snapshot().servers;
        assert_eq!(servers[0].outcomes.fault, 3, "then it was in its cooldown");
        assert_eq!(servers[0].state, ServerState::Probing);
        assert_eq!(servers[1].state, ServerState::Active, "busy is not broken");
        assert_eq!(servers[2].outcomes.success, 30);
    })
    .await;
}

#[tokio::test]
async fn mistakes_of_a_client_do_not_count_against_the_server() {
    let engine = engine().await;
    let config = ProxyConfig { body_bytes_max: 1000, ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        for _ in 0..10 {
            let answer = proxy.ask(json!({ "say": "wrong" })).await;
            assert_eq!(answer.status(), 400);
            assert_eq!(answer.text().await.unwrap(), "{\"error\":\"yours\"}");
        }
        assert_eq!(engine.seen.requests.load(Ordering::Relaxed), 10, "none was sent again");
        assert_eq!(proxy.balancer.snapshot().servers[0].state, ServerState::Active);
        let long = proxy.ask(json!({ "prompt": "x".repeat(2000) })).await;
        assert_eq!(long.status(), 413);
        let error: Value = long.json().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("bytes=1000"), "{error}");
        let heavy = proxy.ask(json!({ "n": 9 })).await;
        assert_eq!(heavy.text().await.unwrap(), "{\"n\":9}", "it has all eight places");
    })
    .await;
}

#[tokio::test]
async fn the_loss_of_a_server_during_an_answer_ends_the_clients_request() {
    let engine = engine().await;
    let config = ProxyConfig { attempts_max: 1, ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let mut stream = proxy.ask(json!({ "say": "stall" })).await;
        assert!(stream.chunk().await.unwrap().is_some());
        let id = proxy.balancer.find("s0").unwrap();
        proxy.balancer.declare_dead(id, "test").unwrap();
        assert!(stream.chunk().await.is_err(), "it is cut off");
        proxy.balancer.revive(id).unwrap();
        let (hanging, ()) = tokio::join!(proxy.ask(json!({ "say": "hang" })), async {
            until(|| proxy.in_use() == 1).await;
            proxy.balancer.declare_dead(id, "test").unwrap();
        });
        assert_eq!(hanging.status(), 502);
        assert!(hanging.text().await.unwrap().contains("the server was lost"));
        proxy.balancer.revive(id).unwrap();
    })
    .await;
}

#[tokio::test]
async fn running_requests_finish_at_the_end() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let (answer, ()) = tokio::join!(proxy.ask(json!({ "say": "slow" })), async {
            until(|| proxy.in_use() == 1).await;
            proxy.end.cancel();
        });
        assert_eq!(answer.text().await.unwrap(), "at last");
        let late = proxy.client.get(format!("{}/health", proxy.url)).send().await;
        assert!(late.is_err(), "it takes no more connections");
    })
    .await;
}
