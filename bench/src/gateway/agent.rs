//! An agent that uses OpenAI's chat completions, and the least number of bytes that its trajectory needs.

use std::ops::AddAssign;
use std::time::Duration;

use anyhow::Context;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The text of a user message, about ten tokens long.
const ASKED: &str = "and then what was the result of it";

/// The contents of trajectories, as counts of tokens and as bytes of text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Need {
    pub(super) sampled: usize,
    other: usize,
    texts: usize,
}

impl Need {
    /// 8 bytes for each sampled token, 4 bytes for each other token, and the texts of messages.
    pub(super) fn bytes(self) -> usize {
        8 * self.sampled + 4 * self.other + self.texts
    }
}

impl AddAssign for Need {
    fn add_assign(&mut self, more: Self) {
        self.sampled += more.sampled;
        self.other += more.other;
        self.texts += more.texts;
    }
}

/// An agent with a trajectory.
pub(super) struct Agent {
    client: Client,
    url: String,
    messages: Vec<Value>,
    need: Need,
}

impl Agent {
    /// Makes an agent with a new trajectory. Agents with different numbers ask different questions.
    pub(super) async fn open(url: &str, number: usize) -> anyhow::Result<Self> {
        let client = Client::builder().no_proxy().tcp_nodelay(true).build()?;
        let made: Value = client.post(format!("{url}/trajectories")).send().await?.json().await?;
        let base = made["base_url"].as_str().with_context(|| format!("the gateway said {made}"))?;
        let url = format!("{base}/chat/completions");
        let mut agent = Self { client, url, messages: Vec::new(), need: Need::default() };
        agent.ask(&format!("question {number}: {ASKED}"));
        Ok(agent)
    }

    fn ask(&mut self, text: &str) {
        self.messages.push(json!({ "role": "user", "content": text }));
    }

    /// Makes the first message so long that the prompt has about `tokens` tokens.
    pub(super) fn ask_for_context(&mut self, tokens: usize) {
        self.messages.clear();
        self.ask(&"x ".repeat(tokens));
    }

    /// Sends the request of the next turn. Returns the answer, and the time until the whole answer had
    /// arrived.
    async fn call(&self, url: &str, sampled: usize) -> anyhow::Result<(Value, Duration)> {
        let body = json!({ "model": "any", "messages": self.messages, "max_tokens": sampled }).to_string();
        let request = self.client.post(url).header("content-type", "application/json").body(body);
        let started = Instant::now();
        let answer = request.send().await?;
        let status = answer.status();
        let body = answer.bytes().await?;
        let took = started.elapsed();
        anyhow::ensure!(status.is_success(), "{url} said {}", String::from_utf8_lossy(&body));
        Ok((serde_json::from_slice(&body)?, took))
    }

    /// Sends the request of the next turn twice to the engine's endpoint that does no work. Returns the time of
    /// the second call, for which the connection is already open.
    pub(super) async fn bare_call(&self, engine: &str) -> anyhow::Result<Duration> {
        let url = format!("{engine}/bare");
        self.call(&url, 1).await?;
        Ok(self.call(&url, 1).await?.1)
    }

    /// Makes a turn of `sampled` tokens, and adds the next question. Returns the time until the whole answer
    /// had arrived.
    pub(super) async fn turn(&mut self, sampled: usize) -> anyhow::Result<Duration> {
        self.need.texts += self.messages.last().map_or(0, |message| message.to_string().len());
        let (completion, took) = self.call(&self.url, sampled).await?;
        let content = &completion["choices"][0]["message"]["content"];
        let said = json!({ "role": "assistant", "content": content });
        let tokens = |key: &str| completion["usage"][key].as_u64().context("the answer has no usage");
        let (prompt, drawn) = (tokens("prompt_tokens")? as usize, tokens("completion_tokens")? as usize);
        // The tokens of the prompt that no turn so far has sampled.
        self.need.other = prompt - self.need.sampled;
        self.need.sampled += drawn;
        self.need.texts += said.to_string().len();
        self.messages.push(said);
        self.ask(ASKED);
        Ok(took)
    }

    pub(super) fn need(&self) -> Need {
        self.need
    }
}
