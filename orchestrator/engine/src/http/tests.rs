//! Tests of the client with a server on a real socket, which answers each request with its next script.

use std::collections::VecDeque;
use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::{Admission, ErrorClass, SamplingParams};

mod aborts;
mod partial;
mod refusals;

/// This time is longer than every test takes, so only a test that hangs exceeds it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The server's reaction to one request.
#[derive(Debug, Clone)]
enum Script {
    /// Writes the bytes in pieces of this size, and keeps the connection open.
    Answer { bytes: Vec<u8>, piece_bytes: usize },
    /// Writes the bytes and closes the connection.
    AnswerAndClose(Vec<u8>),
    /// Closes the connection without an answer.
    Close,
    /// Writes the bytes, and then neither writes nor closes until the client closes.
    Hang(Vec<u8>),
}

/// The requests and closes that the server has seen.
#[derive(Debug, PartialEq)]
enum Seen {
    Request {
        /// The client's address on the connection of the request.
        client: SocketAddr,
        head: String,
        body: String,
    },
    /// The client closed the connection while the server owed an answer.
    Closed,
}

struct ScriptedServer {
    url: String,
    scripts: Arc<Mutex<VecDeque<Script>>>,
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl ScriptedServer {
    async fn start(scope: &Scope) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let scripts: Arc<Mutex<VecDeque<Script>>> = Arc::default();
        let (sender, seen) = mpsc::unbounded_channel();
        let tracker = scope.tracker().clone();
        let queue = Arc::clone(&scripts);
        scope.tracker().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tracker.spawn(serve(stream, Arc::clone(&queue), sender.clone()));
            }
        });
        Self { url, scripts, seen }
    }

    fn push(&self, script: Script) {
        self.scripts.lock().push_back(script);
    }

    /// Adds this server to `engine` and answers the probe as a server of `dialect` does. Removes the requests
    /// of the probe from `seen`.
    async fn join(&mut self, engine: &HttpEngine, dialect: Dialect) {
        self.push(status(200, r#"{"data":[{"id":"tiny","max_model_len":2048}]}"#));
        self.push(status(200, r#"{"version":"0.32.0"}"#));
        match dialect {
            Dialect::Generate => self.push(status(400, r#"{"error":{"message":"token_ids missing"}}"#)),
            Dialect::Completions => {
                self.push(status(403, r#"{"error":{"message":"off"}}"#));
                self.push(status(200, &completion(&[1]).to_string()));
            }
            Dialect::TextOnly => {
                self.push(status(404, r#"{"detail":"Not Found"}"#));
                let text = json!({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]});
                self.push(status(200, &text.to_string()));
                self.push(status(200, &text.to_string()));
            }
        }
        let facts = engine.add("s", &self.url).await.unwrap();
        let expected = ServerFacts {
            dialect,
            model: "tiny".to_owned(),
            max_model_len: Some(2048),
            version: Some("0.32.0".to_owned()),
        };
        assert_eq!(facts, expected);
        while self.seen.try_recv().is_ok() {}
    }

    async fn next_seen(&mut self) -> Seen {
        tokio::time::timeout(PATIENCE, self.seen.recv())
            .await
            .expect("the client sent and closed nothing in time")
            .unwrap()
    }
}

async fn serve(
    mut stream: TcpStream,
    scripts: Arc<Mutex<VecDeque<Script>>>,
    seen: mpsc::UnboundedSender<Seen>,
) {
    stream.set_nodelay(true).unwrap();
    while let Some(request) = read_request(&mut stream).await {
        let _ = seen.send(request);
        let script = scripts.lock().pop_front().unwrap_or_else(|| status(500, "no script is left"));
        match script {
            Script::Answer { bytes, piece_bytes } => {
                for piece in bytes.chunks(piece_bytes) {
                    if stream.write_all(piece).await.is_err() {
                        return;
                    }
                    // Lets the client read these bytes before the next piece arrives.
                    tokio::task::yield_now().await;
                }
            }
            Script::AnswerAndClose(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Script::Close => return,
            Script::Hang(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.read(&mut [0; 16]).await;
                let _ = seen.send(Seen::Closed);
                return;
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    while bytes.len() < head_end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let client = stream.peer_addr().ok()?;
    Some(Seen::Request { client, head, body: String::from_utf8(bytes[head_end..].to_vec()).unwrap() })
}

fn http(code: u16, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {code} Words\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn status(code: u16, body: &str) -> Script {
    Script::Answer { bytes: http(code, "", body), piece_bytes: usize::MAX }
}

/// A complete answer to a prompt, with the tokens 7 and 8. The answer to a probe has one token.
fn completion(prompt_ids: &[u32]) -> Value {
    let response: &[u32] = if prompt_ids.len() == 1 { &[7] } else { &[7, 8] };
    let logprobs: Vec<f32> = response.iter().map(|_| -0.5).collect();
    json!({"id": "cmpl-x", "choices": [{
        "index": 0, "text": "hi", "finish_reason": "length", "token_ids": response, "prompt_token_ids": prompt_ids,
        "logprobs": {"token_logprobs": logprobs, "tokens": ["h", "i"]},
    }]})
}

fn config() -> HttpConfig {
    HttpConfig {
        model: "tiny".to_owned(),
        api_key: None,
        connect_max: Duration::from_secs(2),
        probe_max: Duration::from_secs(5),
        vocab_size: None,
        body_bytes_max: 1 << 20,
    }
}

fn engine(scope: &Scope, change: impl FnOnce(&mut HttpConfig)) -> HttpEngine {
    let mut config = config();
    change(&mut config);
    let encode: Encode = Arc::new(|text| text.bytes().map(u32::from).collect());
    HttpEngine::new(config, Some(encode), scope.clone()).unwrap()
}

fn request(id: &str) -> GenerateRequest {
    let sampling = SamplingParams { temperature: 0.6, top_p: 1.0, top_k: -1, stop_token_ids: vec![151_643] };
    GenerateRequest {
        request_id: id.into(),
        prompt_ids: [5, 6].into(),
        prompt_text: "say \"hi\"".into(),
        n: 1,
        seed: u64::MAX,
        max_tokens: 16,
        sampling: Arc::new(sampling),
        progress: None,
        stream: false,
        resumed: None,
        cache_salt: None,
    }
}

/// Sends one request in the completions dialect to a server that follows `script`.
async fn ask(script: Script) -> Result<Generation, EngineError> {
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::Completions).await;
    server.push(script);
    tokio::time::timeout(PATIENCE, engine.generate("s", request("r-1"))).await.expect("the request hangs")
}

#[tokio::test]
async fn an_answer_is_read_however_its_bytes_arrive() {
    let bytes = http(200, "", &completion(&[5, 6]).to_string());
    for piece_bytes in [1, 2, 3, 17, usize::MAX] {
        let generation = ask(Script::Answer { bytes: bytes.clone(), piece_bytes }).await.unwrap();
        assert_eq!(generation.samples[0].response_ids, [7, 8]);
        assert_eq!(generation.samples[0].logprobs, [-0.5, -0.5]);
    }
}

#[tokio::test]
async fn a_server_of_text_only_gets_no_prompt_that_is_only_ids() {
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::TextOnly).await;
    let of_turn = GenerateRequest { prompt_text: "".into(), ..request("r-1") };
    let error = engine.generate("s", of_turn).await.unwrap_err();
    assert!(matches!(&error, EngineError::Unfit { reason, .. } if reason.contains("token ids")), "{error}");
}

#[tokio::test]
async fn requests_are_written_in_the_servers_dialect() {
    for dialect in [Dialect::Generate, Dialect::Completions, Dialect::TextOnly] {
        let scope = Scope::new();
        let mut server = ScriptedServer::start(&scope).await;
        let engine = engine(&scope, |config| config.api_key = Some("secret".to_owned()));
        server.join(&engine, dialect).await;
        server.push(status(200, &completion(&[5, 6]).to_string()));
        let sample = engine.generate("s", request("r-1")).await.unwrap().samples.remove(0);

        let Seen::Request { head, body, .. } = server.next_seen().await else { panic!("closed") };
        assert!(head.contains("x-request-id: r-1"), "{head}");
        assert!(head.contains("authorization: Bearer secret"), "{head}");
        let sent: Value = serde_json::from_str(&body).unwrap();
        let sampling = if dialect == Dialect::Generate { &sent["sampling_params"] } else { &sent };
        assert_eq!(sent["model"], "tiny");
        assert_eq!((&sampling["max_tokens"], &sampling["n"]), (&json!(16), &json!(1)));
        assert_eq!(sampling["temperature"].to_string(), "0.6");
        assert_eq!(sampling["seed"], json!((1_u64 << 62) - 1));
        match dialect {
            Dialect::Generate => assert_eq!(sent["token_ids"], json!([5, 6])),
            Dialect::Completions => assert_eq!(sent["prompt"], json!([5, 6])),
            Dialect::TextOnly => assert_eq!(sent["prompt"], "say \"hi\""),
        }
        if dialect == Dialect::TextOnly {
            assert_eq!(sampling.get("top_k"), None);
            assert_eq!((sample.response_ids, sample.logprobs), (vec![104, 105], vec![]));
        } else {
            assert_eq!(sampling["stop_token_ids"], json!([151_643]));
            assert_eq!((&sampling["top_k"], &sampling["logprobs"]), (&json!(-1), &json!(0)));
            assert_eq!((sample.response_ids, sample.logprobs), (vec![7, 8], vec![-0.5, -0.5]));
        }
    }
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let whole = http(200, "", &completion(&[5, 6]).to_string());
    // The request is dropped before the answer begins, and in the middle of the answer.
    for bytes in [Vec::new(), whole[..whole.len() / 2].to_vec()] {
        let scope = Scope::new();
        let mut server = ScriptedServer::start(&scope).await;
        let engine = engine(&scope, |_| {});
        server.join(&engine, Dialect::Generate).await;
        server.push(Script::Hang(bytes));
        let patience = Duration::from_millis(300);
        let waiting = tokio::time::timeout(patience, engine.generate("s", request("r-1")));
        assert!(waiting.await.is_err(), "the request ended");
        assert!(matches!(server.next_seen().await, Seen::Request { .. }));
        assert_eq!(server.next_seen().await, Seen::Closed);
    }
}

#[tokio::test]
async fn a_server_without_a_listener_is_unreachable_and_never_admits() {
    let scope = Scope::new();
    let engine = engine(&scope, |_| {});
    let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    let url = format!("http://{address}");
    let error = engine.add("s", &url).await.unwrap_err();
    assert_eq!((error.class(), error.admission()), (ErrorClass::Retryable, Admission::Never));
    assert!(error.to_string().contains(&url), "{error}");
    let named = engine.add(&address.to_string(), &url).await.unwrap_err().to_string();
    assert_eq!(named.matches(&address.to_string()).count(), 1, "the address occurs more than once: {named}");
    assert!(engine.facts("s").is_none());
    let unknown = engine.generate("s", request("r-1")).await.unwrap_err();
    assert!(matches!(unknown, EngineError::UnknownServer { .. }));
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_replaced_without_an_error() {
    let scope = Scope::new();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&scope, |_| {});
    server.join(&engine, Dialect::Completions).await;
    let whole = completion(&[5, 6]).to_string();
    for round in 0..20 {
        // The server closes the connection after each answer without announcing it.
        server.push(Script::AnswerAndClose(http(200, "", &whole)));
        // Lets the end of the stream arrive, so the pool can notice it.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = engine.generate("s", request("r-1")).await;
        assert!(answer.is_ok(), "round {round}: {answer:?}");
    }
}

#[tokio::test]
async fn the_probe_refuses_a_server_that_does_not_fit() {
    let models = r#"{"data":[{"id":"other"},{"id":"third"}]}"#;
    let cases = [
        (vec![status(200, models)], "serves models=[\"other\", \"third\"]"),
        (
            vec![status(200, "<html><title>Welcome</title><body>a long page</body></html>")],
            "expected a list of models at /v1/models, found an HTML page, \"Welcome\"; is it a vLLM server?",
        ),
        (vec![status(404, "<html>nothing</html>")], "found status=404: an HTML page; is it a vLLM server?"),
        (vec![status(200, r#"{"models":[]}"#)], r#"found {"models":[]}; is it"#),
        (vec![status(401, r#"{"error":"Unauthorized"}"#)], "API key"),
    ];
    for (scripts, words) in cases {
        let scope = Scope::new();
        let server = ScriptedServer::start(&scope).await;
        scripts.into_iter().for_each(|script| server.push(script));
        let error = engine(&scope, |_| {}).add("s", &server.url).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("a long page"), "{error}");
        assert_eq!(error.class(), ErrorClass::Client);
    }
    let scope = Scope::new();
    for url in ["https://10.0.0.1:8000", "10.0.0.1:8000", "http://", "ftp://x", "http://x/?q=1", "http://a b"]
    {
        let error = engine(&scope, |_| {}).add("s", url).await.unwrap_err();
        assert!(matches!(error, EngineError::Unfit { .. }), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_transient_failure_of_the_probe_does_not_reject_the_server() {
    let models = || status(200, r#"{"data":[{"id":"tiny","max_model_len":2048}]}"#);
    let probed = || vec![models(), status(200, "{}"), status(400, "{}")];
    let busy = || status(503, r#"{"error":{"message":"full"}}"#);
    let cut = || Script::AnswerAndClose(http(200, "", r#"{"data":[{"id":"tiny"}]}"#)[..60].to_vec());
    let cut_unseen = || Script::AnswerAndClose(b"HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\":".to_vec());
    let cases = [
        vec![busy()],
        vec![cut()],
        vec![cut_unseen()],
        vec![Script::Close],
        vec![Script::Hang(Vec::new())],
        vec![models(), status(200, "{}"), busy()],
        vec![models(), status(200, "{}"), status(500, "oops")],
        vec![models(), status(200, "{}"), status(403, "{}"), status(200, r#"{"choices":[{"index":0,"tok"#)],
        [probed(), vec![busy()]].concat(),
        [probed(), vec![Script::Hang(Vec::new())]].concat(),
    ];
    for scripts in cases {
        let scope = Scope::new();
        let server = ScriptedServer::start(&scope).await;
        scripts.iter().for_each(|script| server.push(script.clone()));
        let engine = engine(&scope, |config| config.probe_max = Duration::from_millis(300));
        let error = engine.add("s", &server.url).await.unwrap_err();
        assert_ne!(error.class(), ErrorClass::Client, "{scripts:?}: {error}");
        // The next attempt to add the server succeeds. The tokenizers are not compared, because the server does
        // not offer the call.
        [probed(), vec![status(404, "{}")]].concat().into_iter().for_each(|script| server.push(script));
        engine.add("s", &server.url).await.unwrap();
    }
}

#[tokio::test]
async fn the_scopes_end_closes_idle_connections() {
    let scope = Scope::new();
    let client_scope = scope.child();
    let mut server = ScriptedServer::start(&scope).await;
    let engine = engine(&client_scope, |_| {});
    server.join(&engine, Dialect::Generate).await;
    assert!(client_scope.close(Duration::from_secs(1)).await, "connections outlived their scope");
}
