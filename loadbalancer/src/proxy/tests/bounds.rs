//! Tests of the proxy's bounds on time and size.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn brief(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client that announces a body of this many bytes, sends `body`, and does nothing more.
async fn begins(proxy: &Running, length: usize, body: &str) -> TcpStream {
    let mut client = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    let request =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

#[tokio::test]
async fn a_request_without_an_answer_fails_at_its_timeout_and_the_engine_stops() {
    let engine = engine().await;
    let config = ProxyConfig { request_timeout: brief(200), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let late = proxy.ask(json!({ "say": "hang" })).await;
        assert_eq!(late.status(), 504);
        let error: Value = late.json().await.unwrap();
        assert_eq!(error["error"]["message"], "no answer within 0.2 s (request timeout)");
        until(|| engine.seen.gone.load(Ordering::Relaxed) == 1 && proxy.in_use() == 0).await;
        assert_eq!(proxy.balancer.snapshot().servers[0].outcomes.fault, 1);
        assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 200, "the connection is good");
    })
    .await;
}

#[tokio::test]
async fn a_trial_that_is_never_answered_ends() {
    let engine = engine().await;
    let config = ProxyConfig { request_timeout: brief(100), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let id = proxy.balancer.find("s0").unwrap();
        proxy.balancer.declare_dead(id, "test").unwrap();
        proxy.balancer.revive(id).unwrap();
        assert_eq!(proxy.ask(json!({ "say": "hang" })).await.status(), 504);
        let seen = &proxy.balancer.snapshot().servers[0];
        assert_eq!((seen.state, seen.reason.as_deref()), (ServerState::Probing, Some("a fault on trial")));
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_stands_still_is_cut_off() {
    let engine = engine().await;
    let config = ProxyConfig { idle_timeout: brief(100), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let mut stream = proxy.ask(json!({ "say": "stall" })).await;
        assert!(stream.chunk().await.unwrap().is_some());
        assert!(stream.chunk().await.is_err(), "it is cut off");
        assert_eq!(proxy.in_use(), 0);
        assert_eq!(proxy.balancer.snapshot().servers[0].outcomes.fault, 1);
        let slow = proxy.ask(json!({ "say": "slow" })).await;
        assert_eq!(slow.text().await.unwrap(), "at last", "an answer that has not begun has more time");
    })
    .await;
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off_and_no_fault() {
    let engine = engine().await;
    let config =
        ProxyConfig { request_timeout: brief(200), idle_timeout: brief(100), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let mut stream = proxy.ask(json!({ "say": "drip" })).await;
        let ended = loop {
            match stream.chunk().await {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        assert!(ended.is_err(), "it is cut off");
        let outcomes = proxy.balancer.snapshot().servers[0].outcomes.clone();
        assert_eq!((outcomes.fault, outcomes.cancelled), (0, 1));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_no_permit_for_ever() {
    let engine = engine().await;
    let config = ProxyConfig { idle_timeout: brief(200), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let body = "{\"say\":\"flood\"}";
        let _client = begins(proxy, body.len(), body).await;
        until(|| proxy.in_use() == 1).await;
        until(|| proxy.in_use() == 0).await;
        assert_eq!(proxy.balancer.snapshot().servers[0].outcomes.fault, 0);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_no_connection_for_ever_either() {
    let engine = engine().await;
    let long = || "x".repeat(1 << 20);
    let config = ProxyConfig {
        idle_timeout: brief(500),
        metrics: Some(RenderMetrics(Arc::new(long))),
        ..ProxyConfig::default()
    };
    before(&[&engine.url], config, async |proxy| {
        let mut client = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
        // The answers are longer than the kernel's buffers on both sides.
        let asks = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(32);
        client.write_all(asks.as_bytes()).await.unwrap();
        // A write of the client fails when the proxy has closed the connection.
        until(|| client.try_write(b"x").is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock))
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let engine = engine().await;
    let config = ProxyConfig { body_timeout: brief(100), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let mut client = begins(proxy, 100, "half").await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert_eq!(engine.seen.requests.load(Ordering::Relaxed), 0);
    })
    .await;
}

#[tokio::test]
async fn the_bytes_of_held_requests_are_bounded() {
    let engine = engine().await;
    let config = ProxyConfig { buffered_bytes_max: 1000, ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let large = json!({ "say": "hang", "prompt": "x".repeat(800) });
        let hanging = tokio::time::timeout(brief(500), proxy.ask(large));
        let asking = async {
            until(|| proxy.in_use() == 1).await;
            let refused = proxy.ask(json!({ "prompt": "x".repeat(800) })).await;
            assert_eq!(refused.status(), 503);
            assert_eq!(refused.headers()["retry-after"], "1");
            assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 200);
        };
        let (hanging, ()) = tokio::join!(hanging, asking);
        assert!(hanging.is_err());
        until(|| proxy.in_use() == 0).await;
        assert_eq!(
            proxy.ask(json!({ "prompt": "x".repeat(800) })).await.status(),
            200,
            "there is room again"
        );
    })
    .await;
}

#[tokio::test]
async fn the_number_of_waiting_requests_is_bounded() {
    let engine = engine().await;
    let balancing = BalancerConfig { waiting_max: 1, ..BalancerConfig::default() };
    before_with(balancing, &[&engine.url], ProxyConfig::default(), async |proxy| {
        let all = json!({ "say": "slow", "n": 8 });
        let crowding = async {
            until(|| proxy.balancer.snapshot().waiting == 1).await;
            let refused = proxy.ask(json!({ "prompt": "x" })).await;
            assert_eq!(refused.status(), 503);
            assert_eq!(refused.headers()["retry-after"], "1");
            assert!(refused.text().await.unwrap().contains("waiting_max=1"));
        };
        let (first, second, ()) = tokio::join!(proxy.ask(all.clone()), proxy.ask(all), crowding);
        assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    })
    .await;
}

#[tokio::test]
async fn every_prompt_of_a_list_takes_its_places() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let two = json!({ "say": "hang", "prompt": [[1, 2, 3], [4]], "n": 2 });
        let (hanging, ()) = tokio::join!(tokio::time::timeout(brief(300), proxy.ask(two)), async {
            until(|| proxy.in_use() == 4).await;
        });
        assert!(hanging.is_err());
        let refused = proxy.ask(json!({ "prompt": ["a", "b"], "n": 10_000 })).await;
        assert_eq!(refused.status(), 400);
        assert!(refused.text().await.unwrap().contains("samples=20000"));
    })
    .await;
}

#[tokio::test]
async fn idle_connections_are_dropped_also_those_to_departed_servers() {
    let engine = engine().await;
    let upstreams = Upstreams::new(Duration::from_secs(5));
    let (head, ()) = Request::get("/v1/models").body(()).unwrap().into_parts();
    let mut answer = upstreams.send_to(&engine.url, &head, &bytes::Bytes::new()).await.unwrap();
    let whole = http_body_util::BodyExt::collect(&mut answer.body);
    let mut whole = pin!(whole);
    poll_fn(|context| {
        answer.wire.drive(context);
        whole.as_mut().poll(context)
    })
    .await
    .unwrap();
    upstreams.give_back(&engine.url, answer.wire);
    upstreams.sweep();
    assert_eq!(upstreams.known(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    upstreams.sweep();
    assert_eq!(upstreams.known(), 0);
}

#[tokio::test]
async fn connections_without_a_request_keep_no_client_out() {
    let engine = engine().await;
    let limits =
        ConnectionLimits { max: Some(8), unauthenticated_max: Some(4), ..ConnectionLimits::default() };
    let config = ProxyConfig { connections: Connections::new("proxy", &limits), ..ProxyConfig::default() };
    before(&[&engine.url], config, async |proxy| {
        let address = proxy.url.strip_prefix("http://").unwrap();
        let mut strangers = Vec::new();
        for _ in 0..40 {
            strangers.push(TcpStream::connect(address).await.unwrap());
        }
        let answered =
            tokio::time::timeout(Duration::from_secs(1), proxy.ask(json!({ "prompt": "x" }))).await;
        assert_eq!(answered.unwrap().status(), 200);
    })
    .await;
}
