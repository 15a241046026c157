//! These tests check which error each kind of failure becomes.

use std::path::PathBuf;

use super::*;

#[tokio::test]
async fn a_body_cut_at_any_byte_is_a_fault_that_may_have_been_admitted() {
    let bytes = http(200, "", &completion(&[5, 6]).to_string());
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::Completions).await;
    for end in 0..bytes.len() {
        server.push(Script::AnswerAndClose(bytes[..end].to_vec()));
        let error = engine.generate("s", request("r-1")).await.unwrap_err();
        assert!(matches!(error, EngineError::Failed { .. }), "cut at {end}: {error}");
        assert_eq!(error.admission(), Admission::Possible);
    }
}

#[tokio::test]
async fn each_status_becomes_its_kind_of_error() {
    let error_of = |code: u16, headers: &'static str, body: &'static str| async move {
        ask(Script::Answer { bytes: http(code, headers, body), piece_bytes: usize::MAX }).await.unwrap_err()
    };
    let busy = error_of(503, "retry-after: 7\r\n", r#"{"error":{"message":"full"}}"#).await;
    assert!(matches!(&busy, EngineError::Busy { retry_after: Some(after), reason, .. }
        if *after == Duration::from_secs(7) && reason == "full"));
    assert_eq!(error_of(429, "", "").await.class(), ErrorClass::Backpressure);
    let nan = r#"{"error":{"message":"Out of range float values are not JSON compliant"}}"#;
    let poisoned = error_of(400, "", nan).await;
    assert!(matches!(&poisoned, EngineError::BadAnswer { reason, .. } if reason.contains("poisoned")));
    for code in [400, 401, 403, 404, 422] {
        let refused = error_of(code, "", r#"{"detail":"no"}"#).await;
        assert!(matches!(&refused, EngineError::Refused { status, .. } if *status == code));
        assert_eq!((refused.class(), refused.admission()), (ErrorClass::Client, Admission::Never));
    }
    for code in [500, 502, 504] {
        let failed = error_of(code, "", "<html><title>oops</title><body>a long page").await;
        assert_eq!((failed.class(), failed.admission()), (ErrorClass::Fault, Admission::Possible));
        assert!(failed.to_string().ends_with("an HTML page, \"oops\""), "{failed}");
    }
}

#[tokio::test]
async fn answers_that_break_the_protocol_are_bad_answers() {
    let poisoned = completion(&[5, 6]).to_string().replace("-0.5", "-9999.0");
    let other_prompt = completion(&[5, 7]).to_string();
    for body in ["garbage", "", "{}", "[]", &poisoned, &other_prompt, &format!("{} x", completion(&[5, 6]))] {
        let error = ask(status(200, body)).await.unwrap_err();
        assert!(matches!(error, EngineError::BadAnswer { .. }), "{body}: {error}");
    }
    let aborted = completion(&[5, 6]).to_string().replace("length", "abort");
    let error = ask(status(200, &aborted)).await.unwrap_err();
    assert!(matches!(error, EngineError::Aborted { tokens: 2, .. }), "{error}");
}

#[tokio::test]
async fn an_answer_with_an_id_outside_the_vocabulary_is_a_bad_answer_and_leaves_no_tokens() {
    let event = |id: u32, reason: Option<&str>| {
        json!({"choices": [{
            "index": 0, "token_ids": [id], "finish_reason": reason, "logprobs": {"token_logprobs": [-0.5]},
        }]})
    };
    let events =
        [event(7, None), event(1 << 31, Some("stop"))].map(|event| format!("data: {event}\n\n")).concat();
    let whole = completion(&[5, 6]).to_string().replace("[7,8]", "[7,2147483648]");
    for dialect in [Dialect::Generate, Dialect::Completions] {
        let scope = Scope::new();
        let mut server = ScriptedServer::start(&scope).await;
        let engine = engine(&scope, |config| config.vocab_size = Some(151_936));
        server.join(&engine, dialect).await;
        for (body, stream) in [(&whole, false), (&events, true)] {
            server.push(status(200, body));
            let progress = Progress::new();
            let asked = GenerateRequest { stream, progress: Some(progress.clone()), ..request("r-1") };
            let error = engine.generate("s", asked).await.unwrap_err();
            assert!(matches!(error, EngineError::BadAnswer { .. }), "{error}");
            assert!(error.to_string().contains("token id=2147483648 at token="), "{error}");
            assert_eq!(error.admission(), Admission::Possible);
            assert!(progress.take().is_empty());
        }
    }
}

#[tokio::test]
async fn an_api_key_that_no_header_can_hold_is_refused_and_not_shown() {
    let scope = Scope::new();
    for key in ["hush\n", "hush\r\nx-other: 1", "hush\0"] {
        let config = HttpConfig { api_key: Some(key.to_owned()), ..config() };
        let error = HttpEngine::new(config, None, scope.clone()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Client);
        let words = error.to_string();
        assert!(words.contains("the api key has a line break") && !words.contains("hush"), "{words}");
    }
}

#[tokio::test]
async fn a_body_beyond_its_bound_is_refused_whether_announced_or_not() {
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |config| config.body_bytes_max = 4096);
    server.join(&engine, Dialect::Completions).await;
    let long = format!("{{\"x\":\"{}\"}}", "y".repeat(100_000));
    let announced = http(200, "", &long);
    let chunk = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    for bytes in [announced, chunk.into_bytes()] {
        server.push(Script::AnswerAndClose(bytes));
        let error = engine.generate("s", request("r-1")).await.unwrap_err();
        assert!(error.to_string().contains("body_bytes_max=4096"), "{error}");
    }
}

#[test]
fn a_connection_that_this_machine_cannot_open_is_not_the_servers_fault() {
    let server = Server::new("s", "http://a:1").unwrap();
    let error_of = |code: i32| transport::unreachable(&server, &std::io::Error::from_raw_os_error(code));
    let full = error_of(rustix::io::Errno::MFILE.raw_os_error());
    assert_eq!((full.class(), full.admission()), (ErrorClass::Backpressure, Admission::Never));
    assert_eq!(error_of(rustix::io::Errno::CONNREFUSED.raw_os_error()).class(), ErrorClass::Retryable);
}

#[tokio::test]
async fn a_close_before_the_answer_is_possibly_admitted() {
    let error = ask(Script::Close).await.unwrap_err();
    assert!(matches!(error, EngineError::Failed { .. }), "{error}");
    assert_eq!(error.admission(), Admission::Possible);
}

/// The message of each recorded error is found in its body.
#[test]
fn the_messages_of_recorded_errors_are_found() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vllm/captures");
    let cases = [
        ("err_401.json", "Unauthorized"),
        ("err_503_queue_full.json", "currently busy"),
        ("err_unknown_path.json", "Not Found"),
        ("err_unknown_model.json", "does not exist"),
        ("err_engine_dead.json", "EngineCore encountered an issue"),
        ("err_oov_token.json", "out of vocabulary"),
        ("err_prompt_too_long.json", "maximum context length"),
        ("err_bad_json.json", "JSON"),
    ];
    for (name, words) in cases {
        let Ok(text) = std::fs::read_to_string(folder.join(name)) else {
            eprintln!("skipped: no recorded traffic at {}", folder.display());
            return;
        };
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let body = recorded.pointer("/response/body").unwrap_or(&recorded["body"]);
        let found = transport::error_words(body.to_string().as_bytes());
        assert!(found.contains(words), "{name}: {found}");
    }
}
