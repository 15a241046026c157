//! A relay in front of a server. It keeps all requests and answers, so tests can compare the rows of a run
//! with the answers of the engine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

const GENERATE: &str = "POST /inference/v1/generate ";

/// The bytes that passed on one connection, in both directions.
#[derive(Default)]
struct Passed {
    asked: Vec<u8>,
    answered: Vec<u8>,
}

type Conversations = Arc<Mutex<Vec<Arc<Mutex<Passed>>>>>;

/// A relay in front of one server. Its thread runs until the process ends.
pub(crate) struct Relay {
    pub(crate) url: String,
    conversations: Conversations,
}

/// A request for a sample and the answer of the engine.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) prompt_ids: Vec<u64>,
    pub(crate) max_tokens: u64,
    pub(crate) token_ids: Vec<u64>,
    pub(crate) logprobs: Vec<f64>,
    /// The version of each token.
    pub(crate) versions: Vec<String>,
    pub(crate) finish_reason: String,
}

impl Relay {
    /// Starts a relay on a free port for the server at `url`.
    pub(crate) fn before(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own_url = format!("http://{}", listener.local_addr().unwrap());
        let host = url.trim_start_matches("http://").to_owned();
        let conversations = Conversations::default();
        let kept = Arc::clone(&conversations);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If no server listens, the connection of the client is closed.
                let Ok(server) = TcpStream::connect(&host) else { continue };
                let passed = Arc::default();
                kept.lock().push(Arc::clone(&passed));
                pass(client, server, &passed);
            }
        });
        Self { url: own_url, conversations }
    }

    /// All requests for tokens that the engine has answered so far, in no particular order.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let conversations = self.conversations.lock();
        conversations.iter().flat_map(|passed| exchanges(&passed.lock())).collect()
    }
}

/// Copies in both directions, each in its own thread, until one side closes. Then both connections are
/// closed.
fn pass(client: TcpStream, server: TcpStream, passed: &Arc<Mutex<Passed>>) {
    let (from_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (asked, answered) = (Arc::clone(passed), Arc::clone(passed));
    std::thread::spawn(move || copy(from_client, server, |bytes| asked.lock().asked.extend(bytes)));
    std::thread::spawn(move || copy(from_server, client, |bytes| answered.lock().answered.extend(bytes)));
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        keep(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // An error only means that the connection is closed already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// The requests for tokens on one connection that were answered, in the order in which they were sent.
fn exchanges(passed: &Passed) -> Vec<Exchange> {
    let (asked, answered) = (messages(&passed.asked), messages(&passed.answered));
    let mut exchanges = Vec::new();
    for ((asked, body), (answered, answer)) in asked.into_iter().zip(answered) {
        if asked.starts_with(GENERATE) && answered.starts_with("HTTP/1.1 200 ") {
            let (asked, answer) =
                (serde_json::from_slice(body).unwrap(), serde_json::from_slice(answer).unwrap());
            exchanges.push(exchange(&asked, &answer));
        }
    }
    exchanges
}

fn exchange(asked: &Value, answer: &Value) -> Exchange {
    let choice = &answer["choices"][0];
    let token_ids = numbers(&choice["token_ids"]);
    let logprobs = choice["logprobs"]["content"].as_array().into_iter().flatten();
    Exchange {
        prompt_ids: numbers(&asked["token_ids"]),
        max_tokens: asked["sampling_params"]["max_tokens"].as_u64().unwrap(),
        logprobs: logprobs.map(|token| token["logprob"].as_f64().unwrap()).collect(),
        versions: versions_of_tokens(&choice["weight_versions"], token_ids.len()),
        finish_reason: choice["finish_reason"].as_str().unwrap().to_owned(),
        token_ids,
    }
}

/// A list of whole numbers.
pub(crate) fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// The version of each token. Checks that the spans cover all tokens in order.
pub(crate) fn versions_of_tokens(spans: &Value, tokens: usize) -> Vec<String> {
    let mut versions = Vec::new();
    for span in spans.as_array().unwrap() {
        let (start, end) = (span["start"].as_u64().unwrap(), span["end"].as_u64().unwrap());
        assert_eq!(start, versions.len() as u64, "{spans}");
        assert!(end > start, "{spans}");
        versions.resize(end as usize, span["version"].as_str().unwrap().to_owned());
    }
    assert_eq!(versions.len(), tokens, "{spans}");
    versions
}

/// The complete messages of one direction, each as head and body.
fn messages(mut bytes: &[u8]) -> Vec<(&str, &[u8])> {
    let mut found = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let (head, rest) = bytes.split_at(end + 4);
        let head = std::str::from_utf8(head).unwrap();
        let length = content_length(head);
        if rest.len() < length {
            break;
        }
        let (body, next) = rest.split_at(length);
        found.push((head, body));
        bytes = next;
    }
    found
}

fn content_length(head: &str) -> usize {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        assert!(
            !name.eq_ignore_ascii_case("transfer-encoding"),
            "expected a content-length, found a chunked body: {head}"
        );
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    };
    head.lines().find_map(value).unwrap_or(0)
}
