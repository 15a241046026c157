//! Tests that each call goes to the right server, the right number of times.

use tokio::io::AsyncReadExt;

use super::*;
use crate::PermitRequest;

#[tokio::test]
async fn control_of_engines_is_not_for_clients() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        for path in
            ["/pause", "/sleep?level=2", "/collective_rpc", "/update_weights", "/v1/load_lora_adapter"]
        {
            let refused = proxy.post(path, "{}").await;
            assert_eq!(refused.status(), 403, "{path}");
            let error: Value = refused.json().await.unwrap();
            let words = error["error"]["message"].as_str().unwrap();
            assert!(words.contains("call them directly"), "{words}");
        }
        assert_eq!(engine.seen.control.load(Ordering::Relaxed), 0);
        let unknown = proxy.get("/is_paused").await;
        assert_eq!(
            (unknown.status().as_u16(), unknown.text().await.unwrap()),
            (404, "{\"detail\":\"Not Found\"}".into())
        );
    })
    .await;
}

#[tokio::test]
async fn a_read_is_answered_by_any_server_that_can() {
    let (engine, broken) = (engine().await, busy().await);
    // The server accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let config = ProxyConfig { read_timeout: Duration::from_millis(100), ..ProxyConfig::default() };
    before(&[&silent_url, &broken.url, &engine.url], config.clone(), async |proxy| {
        for _ in 0..10 {
            assert_eq!(proxy.get("/v1/models").await.text().await.unwrap(), "{\"data\":[]}");
        }
        assert!(broken.seen.requests.load(Ordering::Relaxed) > 0, "not always from the same one");
    })
    .await;
    before(&[&silent_url, &engine.url], config, async |proxy| {
        let id = proxy.balancer.find("s0").unwrap();
        proxy.balancer.set_paused(id, true).unwrap();
        let began = Instant::now();
        for _ in 0..10 {
            assert_eq!(proxy.get("/v1/models").await.status(), 200);
        }
        assert!(began.elapsed() < Duration::from_millis(100), "those that are active are asked first");
        let url = format!("{}/v1/models", proxy.url);
        let with_body = proxy.client.get(url).body("of no use").send().await.unwrap();
        assert_eq!(with_body.status(), 200, "its length is not announced");
    })
    .await;
}

#[tokio::test]
async fn a_request_that_a_server_may_have_begun_is_not_sent_again() {
    let engine = engine().await;
    // The server reads a request and closes the connection.
    let dropping = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dropping_url = format!("http://{}", dropping.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let _dropping = AbortOnDropHandle::new(TaskTracker::new().spawn(async move {
        loop {
            let (mut stream, _) = dropping.accept().await.unwrap();
            let mut request = [0; 4096];
            if stream.read(&mut request).await.unwrap() > 0 {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }));
    before(&[&dropping_url, &engine.url], ProxyConfig::default(), async |proxy| {
        let mut lost = 0;
        for _ in 0..20 {
            match proxy.ask(json!({ "prompt": "x" })).await.status().as_u16() {
                502 => lost += 1,
                status => assert_eq!(status, 200),
            }
        }
        assert_eq!(taken.load(Ordering::Relaxed), 3, "then it was dead");
        assert_eq!(lost, 3);
        assert_eq!(engine.seen.requests.load(Ordering::Relaxed), 17);
    })
    .await;
}

#[tokio::test]
async fn a_replay_goes_to_another_server_even_if_the_first_is_idle() {
    let (engine, busy) = (engine().await, busy().await);
    let config = ProxyConfig { attempts_max: 2, ..ProxyConfig::default() };
    for first in ["http://127.0.0.1:9", &busy.url] {
        before(&[first, &engine.url], config.clone(), async |proxy| {
            let idle = proxy.balancer.find("s0").unwrap();
            let nearly_all = PermitRequest { exclude: vec![idle], ..PermitRequest::new(7) };
            let _held = proxy.balancer.acquire(nearly_all).await.unwrap();
            assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 200, "{first}");
            let outcomes = proxy.balancer.snapshot().servers[0].outcomes.clone();
            assert_eq!(outcomes.fault + outcomes.backpressure, 1, "{first}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_is_alone_and_busy_is_asked_once() {
    let busy = busy().await;
    before(&[&busy.url], ProxyConfig::default(), async |proxy| {
        assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 503);
        assert_eq!(busy.seen.requests.load(Ordering::Relaxed), 1);
    })
    .await;
}

#[tokio::test]
async fn replays_of_a_busy_fleet_are_a_tenth_of_the_requests() {
    let fleet = [busy().await, busy().await];
    before(&[&fleet[0].url, &fleet[1].url], ProxyConfig::default(), async |proxy| {
        for _ in 0..300 {
            assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 503);
        }
        let sent: usize = fleet.iter().map(|engine| engine.seen.requests.load(Ordering::Relaxed)).sum();
        assert!((400..=435).contains(&sent), "{sent}: a hundred to begin with, and a tenth");
    })
    .await;
}

#[tokio::test]
async fn nan_values_count_against_the_engine() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let answer = proxy.ask(json!({ "say": "nan" })).await;
        assert_eq!(answer.status(), 400, "the answer is passed on unchanged");
        assert!(answer.text().await.unwrap().contains("not JSON compliant"));
        let outcomes = proxy.balancer.snapshot().servers[0].outcomes.clone();
        assert_eq!((outcomes.fault, outcomes.client_error), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn tokenizing_does_not_end_a_trial() {
    let engine = engine().await;
    before(&[&engine.url], ProxyConfig::default(), async |proxy| {
        let id = proxy.balancer.find("s0").unwrap();
        proxy.balancer.declare_dead(id, "test").unwrap();
        proxy.balancer.revive(id).unwrap();
        let tokens = proxy.post("/tokenize", "{\"prompt\":\"x\"}").await;
        assert_eq!(tokens.text().await.unwrap(), "{\"tokens\":[]}");
        let server = proxy.balancer.snapshot().servers.remove(0);
        assert_eq!((server.state, server.granted_total), (ServerState::Probing, 0));
        assert_eq!(proxy.ask(json!({ "prompt": "x" })).await.status(), 200);
        assert_eq!(proxy.balancer.snapshot().servers[0].state, ServerState::Active);
    })
    .await;
}
