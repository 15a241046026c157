//! Requests that are ended by id.

use super::*;

#[tokio::test]
async fn cancelled_requests_are_aborted_together_again_and_again_then_never_more() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let kept = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::Completions).await;
    for _ in 0..3 {
        server.push(status(403, ""));
        server.push(status(200, r#"{"status":"aborted"}"#));
    }
    engine.cancelled("s", &"r-1".into());
    engine.cancelled("s", &"r-2".into());
    engine.settle(PATIENCE).await;
    for _ in 0..3 {
        for path in ["POST /inference/v1/abort_requests ", "POST /abort_requests "] {
            let Seen::Request { head, body, .. } = server.next_seen().await else { panic!("closed") };
            assert!(head.starts_with(path), "{head}");
            let ids: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(ids, json!({"request_ids": ["cmpl-r-1", "cmpl-r-1-0", "cmpl-r-2", "cmpl-r-2-0"]}));
        }
    }
    for counted in
        ["rolldock_aborts_sent_total{server=\"s\"} 2", "rolldock_aborts_confirmed_total{server=\"s\"} 2"]
    {
        assert!(kept.render().contains(counted), "{}", kept.render());
    }
    // Neither endpoint exists, so no further abort is sent.
    server.push(status(403, ""));
    server.push(status(404, ""));
    engine.cancelled("s", &"r-3".into());
    engine.settle(PATIENCE).await;
    engine.cancelled("s", &"r-4".into());
    engine.settle(PATIENCE).await;
    assert!(matches!(server.next_seen().await, Seen::Request { .. }));
    assert!(matches!(server.next_seen().await, Seen::Request { .. }));
    assert!(server.seen.try_recv().is_err());
}

/// An abort does not wait behind the data of another request.
#[tokio::test]
async fn aborts_go_over_connections_of_their_own() {
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::Completions).await;
    let mut generates = async || {
        server.push(status(200, &completion(&[5, 6]).to_string()));
        engine.generate("s", request("r-1")).await.unwrap();
        let Seen::Request { client, .. } = server.next_seen().await else { panic!("closed") };
        client
    };
    // The connection is idle afterwards, and a request can use it again.
    let data = generates().await;
    assert_eq!(generates().await, data);
    for _ in 0..3 {
        server.push(status(200, "{}"));
    }
    engine.cancelled("s", &"r-2".into());
    engine.settle(PATIENCE).await;
    for _ in 0..3 {
        let Seen::Request { client, head, .. } = server.next_seen().await else { panic!("closed") };
        assert!(head.starts_with("POST /inference/v1/abort_requests "), "{head}");
        assert_ne!(client, data, "it came over a generation's connection");
    }
}
