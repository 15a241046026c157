//! An engine with the endpoints that the gateway calls. It draws ids at random, and measures its own work.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rolldock::data::TextCodec;
use rolldock::scope::Scope;
use rolldock_trajectory::{Chat, Template};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::answering::{answer, answer_each};
use crate::serve::MODEL;

/// The first id that is not a special token.
const PLAIN: u32 = 3;
/// Number of leading characters of a request's id; they name its trajectory.
const NAME: usize = "t-0123456789abcdef".len();

/// The time that the engine has worked, by endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) render: Duration,
    pub(super) generate: Duration,
    pub(super) derender: Duration,
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            render: self.render - before.render,
            generate: self.generate - before.generate,
            derender: self.derender - before.derender,
        }
    }
}

/// What the engine found in the prompts of all turns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Checked {
    pub(super) turns: u64,
    /// Tokens of earlier turns that a later prompt of the same trajectory lacks or changes.
    pub(super) changed: u64,
    /// Turns whose sampled ids change when they are decoded and encoded again.
    pub(super) not_canonical: u64,
}

struct Inner {
    codec: TextCodec,
    random: Mutex<ChaCha8Rng>,
    work: Mutex<Work>,
    checked: Mutex<Checked>,
    /// For each trajectory, the ids that were sent and drawn in its last turn.
    paths: Mutex<HashMap<String, Vec<u32>>>,
    only_beginnings: AtomicBool,
}

/// The engine.
#[derive(Clone)]
pub(super) struct Engine {
    inner: Arc<Inner>,
    pub(super) url: String,
}

#[derive(Deserialize)]
struct Drawing {
    request_id: String,
    token_ids: Vec<u32>,
    sampling_params: Sampling,
}

#[derive(Deserialize)]
struct Sampling {
    max_tokens: usize,
}

impl Engine {
    pub(super) async fn start(scope: &Scope) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let inner = Arc::new(Inner {
            codec: TextCodec::builtin()?,
            random: Mutex::new(ChaCha8Rng::seed_from_u64(1)),
            work: Mutex::default(),
            checked: Mutex::default(),
            paths: Mutex::default(),
            only_beginnings: AtomicBool::new(false),
        });
        let engine = Self { inner, url };
        let (serving, connections) = (engine.clone(), scope.child());
        scope.spawn_detached("bench engine", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let engine = serving.clone();
                connections.spawn_detached("bench engine", async move {
                    if let Err(error) = answer_each(stream, |path, body| engine.answer(path, body)).await {
                        eprintln!("the engine of the bench: {error:#}");
                    }
                });
            }
        });
        Ok(engine)
    }

    /// The work so far.
    pub(super) fn work(&self) -> Work {
        *self.inner.work.lock()
    }

    pub(super) fn checked(&self) -> Checked {
        *self.inner.checked.lock()
    }

    /// From now on, encodes only conversations of one message. The gateway itself has the ids of
    /// longer conversations.
    pub(super) fn renders_only_beginnings(&self) {
        self.inner.only_beginnings.store(true, Ordering::Relaxed);
    }

    fn answer(&self, path: &str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        let started = Instant::now();
        let body = match path {
            "/v1/chat/completions/render" => self.render(body)?.into_bytes(),
            "/inference/v1/generate" => self.generate(body)?.into_bytes(),
            "/v1/chat/completions/derender" => self.derender(body)?.into_bytes(),
            "/v1/models" => {
                json!({ "data": [{ "id": MODEL, "max_model_len": 131_072 }] }).to_string().into_bytes()
            }
            _ => return Ok(answer("200 OK", b"{}")),
        };
        let answer = answer("200 OK", &body);
        let took = started.elapsed();
        let mut work = self.inner.work.lock();
        match path {
            "/v1/chat/completions/render" => work.render += took,
            "/inference/v1/generate" => work.generate += took,
            "/v1/chat/completions/derender" => work.derender += took,
            _ => {}
        }
        Ok(answer)
    }

    fn render(&self, body: &[u8]) -> anyhow::Result<String> {
        let request: Value = serde_json::from_slice(body)?;
        let messages = request["messages"].as_array().context("the request has no messages")?;
        let ids = if messages.len() > 1 && self.inner.only_beginnings.load(Ordering::Relaxed) {
            vec![PLAIN]
        } else {
            let chat = Chat { messages, tools: None, arguments: None, add_generation_prompt: true };
            let text = Template::render(&self.inner.codec, &chat)?;
            self.inner.codec.encode(&text)?
        };
        // The sampling parameters that vLLM returns for a request that sets none.
        Ok(json!({
            "request_id": "render-0", "token_ids": ids, "features": null, "model": MODEL, "stream": false,
            "sampling_params": {
                "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
                "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": null, "stop": [],
                "stop_token_ids": [], "ignore_eos": false, "max_tokens": request["max_tokens"],
                "min_tokens": 0, "logprobs": null, "prompt_logprobs": null, "detokenize": true,
                "skip_special_tokens": true, "spaces_between_special_tokens": true, "bad_words": [],
                "include_stop_str_in_output": false, "structured_outputs": null,
            },
        })
        .to_string())
    }

    fn generate(&self, body: &[u8]) -> anyhow::Result<String> {
        let asked: Drawing = serde_json::from_slice(body)?;
        let tokens = asked.sampling_params.max_tokens;
        let drawn: Vec<u32> = {
            let mut random = self.inner.random.lock();
            let last = self.inner.codec.vocab_size();
            (0..tokens).map(|_| random.random_range(PLAIN..last)).collect()
        };
        let mut content = String::with_capacity(tokens * 120);
        for (place, id) in drawn.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(
                content,
                "{comma}{{\"token\":\"token_id:{id}\",\"logprob\":-{}.{:03}25,\"bytes\":null,\"token_id\":{id},\
                 \"rank\":1,\"top_logprobs\":[]}}",
                id % 7,
                id % 1000
            )?;
        }
        let ids = serde_json::to_string(&drawn)?;
        self.check(&asked, &drawn)?;
        Ok(format!(
            "{{\"request_id\":\"generate-tokens-{}\",\"choices\":[{{\"index\":0,\"logprobs\":{{\"content\":\
             [{content}]}},\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":{ids},\
             \"weight_versions\":[{{\"version\":\"1\",\"start\":0,\"end\":{tokens}}}]}}],\"usage\":null}}",
            asked.request_id
        ))
    }

    /// Compares a prompt with the ids that were sent and drawn before in its trajectory.
    fn check(&self, asked: &Drawing, drawn: &[u32]) -> anyhow::Result<()> {
        let name = asked.request_id.get(..NAME).context("the request's id names no trajectory")?;
        let again = self.inner.codec.encode(&self.inner.codec.decode(drawn))?;
        let path = [asked.token_ids.as_slice(), drawn].concat();
        let before = self.inner.paths.lock().insert(name.to_owned(), path).unwrap_or_default();
        let kept = before.iter().zip(&asked.token_ids).filter(|(before, now)| before == now).count();
        let mut checked = self.inner.checked.lock();
        checked.turns += 1;
        checked.changed += (before.len() - kept) as u64;
        checked.not_canonical += u64::from(again != drawn);
        Ok(())
    }

    fn derender(&self, body: &[u8]) -> anyhow::Result<String> {
        let request: Value = serde_json::from_slice(body)?;
        let ids: Vec<u32> =
            serde_json::from_value(request["generate_response"]["choices"][0]["token_ids"].clone())?;
        let message = json!({ "role": "assistant", "content": self.inner.codec.decode(&ids) });
        let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "length" });
        Ok(json!({ "id": "chatcmpl-0", "object": "chat.completion", "choices": [choice] }).to_string())
    }
}
