//! A scripted engine: it answers render, generate and derender over HTTP, with tokens that its own tokenizer
//! would not choose.
//!
//! The tokenizer has one token for each character. The engine draws tokens that stand for two characters, so
//! text that is encoded again never has the ids that were drawn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use rolldock_scope::Scope;
use rolldock_trajectory::{Chat, Template, TemplateError};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Ends each message.
pub(super) const END: char = '\u{3}';
/// The first token that stands for two characters.
const PAIRS: u32 = 2_000_000;

/// The template and the tokenizer of the engine. The gateway uses them too.
#[derive(Debug)]
pub(super) struct Letters;

impl Template for Letters {
    fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
        let mut text = chat.tools.map(|tools| format!("[tools]{tools}{END}")).unwrap_or_default();
        for message in chat.messages {
            let content = message["content"].as_str().unwrap_or_default();
            let calls = if message["tool_calls"].is_array() {
                message["tool_calls"].to_string()
            } else {
                String::new()
            };
            text += &format!("[{}]{content}{calls}{END}", message["role"].as_str().unwrap_or_default());
        }
        Ok(text + if chat.add_generation_prompt { "[assistant]" } else { "" })
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        Ok(text.chars().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> String {
        decode(ids)
    }

    fn is_end(&self, id: u32) -> bool {
        id == u32::from(END)
    }
}

fn decode(ids: &[u32]) -> String {
    let letter = |code: u32| char::from_u32(code).unwrap();
    let mut text = String::new();
    for id in ids {
        match id.checked_sub(PAIRS) {
            Some(pair) => text.extend([letter(pair >> 8), letter(pair & 0xff)]),
            None => text.push(letter(*id)),
        }
    }
    text
}

/// The ids of a text: one token for two characters if both have codes below 0x100.
pub(super) fn pairs(text: &str) -> Vec<u32> {
    let letters: Vec<u32> = text.chars().map(u32::from).collect();
    let pair = |letters: &[u32]| match letters {
        [first, second] if *first < 0x100 && *second < 0x100 => vec![PAIRS + (first << 8) + second],
        other => other.to_vec(),
    };
    letters.chunks(2).flat_map(pair).collect()
}

/// What the engine draws for one request.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) text: String,
    pub(super) finish: &'static str,
    pub(super) stop_reason: Option<String>,
    pub(super) version: &'static str,
    /// The HTTP status. With a status other than 200, `text` is the message of an error.
    pub(super) status: u16,
}

pub(super) fn says(text: &str) -> Reply {
    Reply { text: format!("{text}{END}"), finish: "stop", stop_reason: None, version: "step-1", status: 200 }
}

#[derive(Debug, Default)]
struct Script {
    replies: VecDeque<Reply>,
    /// The bodies of all requests for tokens, and the tokens that were drawn.
    drawn: Vec<(Value, Vec<u32>)>,
    renders: usize,
    reasoning_ended: Value,
    derenders: Vec<Value>,
    without_ids: bool,
}

/// The engine.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    script: Arc<Mutex<Script>>,
    /// Each request for tokens takes a place. There are many places, unless a test removes them.
    places: Arc<Semaphore>,
    /// Requests for tokens that have not been answered and whose client is still there.
    running: Arc<AtomicUsize>,
    pub(super) url: String,
}

/// Counts a request for tokens until this is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(running: &'a AtomicUsize) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const PLACES: usize = 1 << 16;

impl Engine {
    pub(super) async fn start(scope: &Scope) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let places = Arc::new(Semaphore::new(PLACES));
        let engine = Self { script: Arc::default(), places, running: Arc::default(), url };
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions/render", post(render_chat))
            .route("/v1/completions/render", post(render_text))
            .route("/inference/v1/generate", post(generate))
            .route("/v1/chat/completions/derender", post(derender_chat))
            .route("/v1/completions/derender", post(derender_text))
            .route("/v1/chat/completions", post(converse))
            .with_state(engine.clone());
        scope.spawn_detached("test engine", async move { axum::serve(listener, router).await.unwrap() });
        engine
    }

    /// Makes the engine answer the next requests with `replies`, and all further ones with "ok".
    pub(super) fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.script.lock().replies.extend(replies);
    }

    /// From now on, the engine has no endpoints that take ids.
    pub(super) fn takes_no_ids(&self) {
        self.script.lock().without_ids = true;
    }

    /// The number of rendered conversations.
    pub(super) fn renders(&self) -> usize {
        self.script.lock().renders
    }

    /// From now on, the engine answers each render with `reasoning_ended`, like a server with a reasoning
    /// parser.
    pub(super) fn says_of_reasoning(&self, ended: bool) {
        self.script.lock().reasoning_ended = json!(ended);
    }

    /// Makes requests for tokens wait until `go` is called.
    pub(super) fn hold(&self) {
        self.places.forget_permits(PLACES);
    }

    pub(super) fn go(&self) {
        self.places.add_permits(PLACES);
    }

    /// The number of requests for tokens that have not been answered and whose client is still there.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// The requests for tokens so far.
    pub(super) fn requests(&self) -> Vec<Value> {
        self.script.lock().drawn.iter().map(|(request, _)| request.clone()).collect()
    }

    /// For each request for tokens, the ids of its prompt.
    pub(super) fn prompts(&self) -> Vec<Vec<u32>> {
        let ids = |request: &Value| serde_json::from_value(request["token_ids"].clone()).unwrap();
        self.requests().iter().map(ids).collect()
    }

    /// For each request for tokens, what was drawn.
    pub(super) fn drawn(&self) -> Vec<Vec<u32>> {
        self.script.lock().drawn.iter().map(|(_, drawn)| drawn.clone()).collect()
    }

    pub(super) fn derenders(&self) -> Vec<Value> {
        self.script.lock().derenders.clone()
    }

    async fn draw(&self, request: Value) -> (Reply, Vec<u32>) {
        let _counted = Counted::new(&self.running);
        // If the client disconnects during the wait, this future is dropped and nothing has been drawn.
        self.places.acquire().await.unwrap().forget();
        self.places.add_permits(1);
        let mut script = self.script.lock();
        let reply = script.replies.pop_front().unwrap_or_else(|| says("ok"));
        let ids = pairs(&reply.text);
        script.drawn.push((request, ids.clone()));
        (reply, ids)
    }
}

async fn models() -> Json<Value> {
    Json(json!({ "object": "list", "data": [{ "id": "letters", "max_model_len": 4096 }] }))
}

fn missing() -> Response {
    let error = json!({ "error": { "message": "scale-out is off", "type": "PermissionDeniedError" } });
    (StatusCode::FORBIDDEN, Json(error)).into_response()
}

fn rendered(request: &Value, text: &str) -> Value {
    // The defaults of a generation config, which the gateway must not pass on.
    json!({
        "request_id": "r", "token_ids": Letters.encode(text).unwrap(), "features": null,
        "reasoning_ended": null, "reasoning_parser_kwargs": null, "cache_salt": null,
        "sampling_params": {
            "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05,
            "stop": request["stop"], "max_tokens": request["max_tokens"],
            "structured_outputs": grammar(request),
        },
    })
}

/// What the parameters of a request say about the form of its answer.
fn grammar(request: &Value) -> Value {
    let schema = &request["response_format"]["json_schema"]["schema"];
    match (request["tool_choice"] == "required", schema.is_object()) {
        (true, _) => json!({ "structural_tag": "x" }),
        (false, true) => json!({ "json": schema }),
        (false, false) => Value::Null,
    }
}

async fn render_chat(State(engine): State<Engine>, Json(request): Json<Value>) -> Response {
    let mut script = engine.script.lock();
    script.renders += 1;
    if script.without_ids {
        return missing();
    }
    let mut rendered = rendered(&request, &as_text(&request));
    rendered["reasoning_ended"] = script.reasoning_ended.clone();
    if request["messages"].to_string().contains("image_url") {
        rendered["features"] = json!({ "image": 1 });
    }
    Json(rendered).into_response()
}

fn as_text(request: &Value) -> String {
    let messages = request["messages"].as_array().unwrap();
    let tools = request.get("tools");
    let chat = Chat { messages, tools, arguments: None, add_generation_prompt: true };
    Letters.render(&chat).unwrap()
}

async fn render_text(Json(request): Json<Value>) -> Json<Value> {
    Json(json!([rendered(&request, request["prompt"].as_str().unwrap_or_default())]))
}

fn choice(reply: &Reply, ids: &[u32]) -> Value {
    let logprobs: Vec<Value> = ids
        .iter()
        .map(|id| json!({ "token_id": id, "logprob": -0.25, "rank": 1, "top_logprobs": [] }))
        .collect();
    json!({
        "index": 0, "token_ids": ids, "finish_reason": reply.finish, "stop_reason": reply.stop_reason,
        "weight_versions": [{ "version": reply.version, "start": 0, "end": ids.len() }],
        "logprobs": { "content": logprobs },
    })
}

async fn generate(State(engine): State<Engine>, Json(request): Json<Value>) -> Response {
    let (reply, ids) = engine.draw(request).await;
    if reply.status != 200 {
        let error = json!({ "error": { "message": reply.text, "type": "x" } });
        return (StatusCode::from_u16(reply.status).unwrap(), Json(error)).into_response();
    }
    Json(json!({ "request_id": "generate-tokens-r", "choices": [choice(&reply, &ids)] })).into_response()
}

/// Reads `<think>..</think>`, and calls in the form `CALL name {..};`.
/// Keeps the end of the turn if it is a token of its own, as the real server does.
fn message(ids: &[u32]) -> Value {
    let all = decode(ids);
    let is_apart = ids.last() == Some(&u32::from(END));
    let text = if is_apart { all } else { all.trim_end_matches(END).to_owned() };
    let (reasoning, text) = match text.split_once("</think>") {
        Some((before, after)) => (json!(before.trim_start_matches("<think>")), after.to_owned()),
        None => (Value::Null, text),
    };
    let mut parts = text.split("CALL ");
    let content = parts.next().unwrap().to_owned();
    let calls: Vec<Value> = parts
        .enumerate()
        .map(|(index, call)| {
            let (name, arguments) = call.trim_end_matches(';').split_once(' ').unwrap();
            json!({ "id": format!("engine-{index}"), "type": "function", "function": { "name": name, "arguments": arguments } })
        })
        .collect();
    let mut message = json!({ "role": "assistant", "content": content, "reasoning": reasoning });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

fn ids_of(generated: &Value) -> Vec<u32> {
    serde_json::from_value(generated["choices"][0]["token_ids"].clone()).unwrap()
}

async fn derender_chat(State(engine): State<Engine>, Json(request): Json<Value>) -> Response {
    engine.script.lock().derenders.push(request.clone());
    let generated = &request["generate_response"];
    // The parser of the real server reads the prompt here, and refuses answers without tokens.
    assert!(generated["prompt_token_ids"].is_array() && request["prompt_token_ids"].is_array());
    let ids = ids_of(generated);
    assert!(!ids.is_empty());
    let finish = &generated["choices"][0]["finish_reason"];
    Json(json!({ "choices": [{ "index": 0, "message": message(&ids), "finish_reason": finish, "logprobs": null }] }))
        .into_response()
}

async fn derender_text(Json(request): Json<Value>) -> Json<Value> {
    let ids = ids_of(&request["generate_responses"][0]);
    let text = decode(&ids).trim_end_matches(END).to_owned();
    Json(json!({ "choices": [{ "index": 0, "text": text, "finish_reason": "stop" }] }))
}

async fn converse(State(engine): State<Engine>, Json(request): Json<Value>) -> Json<Value> {
    let prompt = Letters.encode(&as_text(&request)).unwrap();
    let (reply, ids) = engine.draw(json!({ "token_ids": prompt, "sampling_params": request })).await;
    let mut choice = choice(&reply, &ids);
    // In a chat answer, unlike in a derendered one, the server always leaves out the end of the turn.
    let shown = ids.strip_suffix(&[u32::from(END)]).unwrap_or(&ids);
    choice["message"] = message(shown);
    choice["weight_versions"] = Value::Null;
    Json(json!({ "prompt_token_ids": prompt, "choices": [choice] }))
}
