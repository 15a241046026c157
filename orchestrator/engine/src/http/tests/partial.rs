//! Streams and interrupts: the tokens that a request keeps when it is cut off.

use super::*;

/// The bytes of a streamed answer: one HTTP chunk per event, and no last chunk that ends the stream.
fn streamed(events: &[Value]) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for event in events {
        let text = format!("data: {event}\n\n");
        bytes.extend_from_slice(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
    }
    bytes
}

fn piece(token: u32, logprob: f32, finish_reason: Option<&str>) -> Value {
    json!({"choices": [{
        "index": 0, "token_ids": [token], "finish_reason": finish_reason, "logprobs": {"token_logprobs": [logprob]},
    }]})
}

#[tokio::test]
async fn a_stream_is_asked_for_and_followed_whatever_becomes_of_it() {
    for dialect in [Dialect::Generate, Dialect::Completions] {
        let scope = Scope::new();
        let mut server = ScriptedServer::start(&scope).await;
        let engine = engine(&scope, |_| {});
        server.join(&engine, dialect).await;
        let progress = Progress::new();
        let ask = || {
            let streams = GenerateRequest { stream: true, cache_salt: Some("v\"7".into()), ..request("r-1") };
            engine.generate("s", GenerateRequest { progress: Some(progress.clone()), ..streams })
        };
        let end = b"0\r\n\r\n";

        let whole = [piece(7, -0.5, None), piece(8, -1.5, Some("stop"))];
        server.push(Script::Answer { bytes: [&streamed(&whole)[..], end].concat(), piece_bytes: 5 });
        let sample = ask().await.unwrap().samples.remove(0);
        assert_eq!((sample.response_ids, sample.logprobs), (vec![7, 8], vec![-0.5, -1.5]));
        assert!(progress.take().is_empty());
        let Seen::Request { body, .. } = server.next_seen().await else { panic!("closed") };
        let sent: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&sent["stream"], &sent["cache_salt"]), (&json!(true), &json!("v\"7")));

        // The connection dies, or a proxy ends the stream, or the engine reports a failure. In each case the
        // earlier tokens are kept.
        let error = json!({"error": {"message": "dead", "code": 500}});
        let cut = streamed(&[piece(7, -0.5, None)]);
        let ended = [&cut[..], end].concat();
        let failed = streamed(&[piece(7, -0.5, None), error]);
        for (bytes, words) in
            [(cut, "connection"), (ended, "stream ended"), (failed, "the engine failed: dead")]
        {
            server.push(Script::AnswerAndClose(bytes));
            let error = ask().await.unwrap_err();
            assert!(
                matches!(error, EngineError::Failed { .. }) && error.to_string().contains(words),
                "{error}"
            );
            let parts = progress.take();
            assert_eq!((&parts[0].response_ids[..], &parts[0].logprobs[..]), (&[7][..], &[-0.5][..]));
        }
        // An answer that cannot be trusted leaves no tokens.
        server.push(Script::AnswerAndClose(streamed(&[piece(7, -0.5, None), piece(8, -9999.0, None)])));
        let error = ask().await.unwrap_err();
        assert!(matches!(error, EngineError::BadAnswer { .. }), "{error}");
        assert!(progress.take().is_empty());
    }
}

#[tokio::test]
async fn an_interrupt_is_sent_until_its_request_returns_or_so_many_times() {
    for request_ends in [false, true] {
        let scope = Scope::new();
        let mut server = ScriptedServer::start(&scope).await;
        let engine = Arc::new(engine(&scope, |_| {}));
        server.join(&engine, Dialect::Generate).await;
        server.push(Script::Hang(Vec::new()));
        (0..8).for_each(|_| server.push(status(200, r#"{"status":"aborted"}"#)));
        let asking = Arc::clone(&engine);
        let generating = scope.spawn("asking", async move { asking.generate("s", request("r-1")).await });
        assert!(matches!(server.next_seen().await, Seen::Request { .. }));

        let asking = Arc::clone(&engine);
        let interrupting =
            scope.spawn("interrupting", async move { asking.interrupt("s", &"r-1".into()).await });
        let Seen::Request { head, body, .. } = server.next_seen().await else { panic!("closed") };
        assert!(head.starts_with("POST /inference/v1/abort_requests "), "{head}");
        assert_eq!(body, r#"{"request_ids":["generate-tokens-r-1"]}"#);
        let started = tokio::time::Instant::now();
        if request_ends {
            drop(generating);
        }
        tokio::time::timeout(PATIENCE, interrupting).await.expect("the interrupt hangs").unwrap();
        let took = started.elapsed();
        engine.settle(PATIENCE).await;
        let mut sent = 1;
        while let Ok(more) = server.seen.try_recv() {
            sent += u32::from(matches!(more, Seen::Request { .. }));
        }
        // Two aborts are sent 100 ms apart.
        if request_ends {
            assert!(sent < 5, "{sent} aborts after the end");
        } else {
            assert!(sent == 5 && took >= Duration::from_millis(400), "{sent} aborts in {took:?}");
        }
    }
}
