//! The server that is calibrated.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use reqwest::{Client, RequestBuilder, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::rounds::Batch;

/// The longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The first token id of prompts, and the number of ids. All vocabularies have these ids, and none of them is
/// an end-of-sequence token.
const IDS_FROM: u32 = 32;
const IDS: u64 = 200;
/// Number of ids that spell a `u64`.
const PLACES: u32 = 9;
/// The line of the metrics page with the size of the KV cache.
const CACHE_LINE: &str = "vllm:cache_config_info{";

/// What the server reports of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    /// The model's name.
    pub(super) model: String,
    /// Maximum number of tokens of prompt and response together.
    pub(super) max_model_len: Option<u32>,
    /// The size of the KV cache in blocks.
    pub(super) kv_blocks: Option<u32>,
    /// Number of tokens of a block.
    pub(super) block_tokens: Option<u32>,
}

impl Facts {
    /// The size of the KV cache in tokens.
    pub(super) fn cache_tokens(&self) -> Option<u32> {
        Some(self.kv_blocks?.saturating_mul(self.block_tokens?))
    }
}

/// A server, with what it reports of itself.
pub(super) struct Server {
    client: Client,
    url: String,
    api_key: Option<String>,
    pub(super) facts: Facts,
    /// The number that the first prompt spells.
    salt: u64,
    /// Number of prompts that were sent.
    prompts: AtomicU32,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    max_model_len: Option<u32>,
}

#[derive(Deserialize)]
struct Completion {
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u32,
}

impl Server {
    /// Asks the server for its model and the size of its cache. `salt` is random, so that the server has no
    /// prompt of an earlier calibration in its prefix cache. Each answer must be there within `limit`.
    pub(super) async fn open(
        url: &str,
        api_key: Option<&str>,
        salt: u64,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let client = Client::builder().connect_timeout(CONNECT_LIMIT).build()?;
        let mut server = Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            api_key: api_key.map(str::to_owned),
            facts: Facts::default(),
            salt,
            prompts: 0.into(),
        };
        let not_vllm = || format!("expected the base URL of a vLLM server, found {url}");
        let models = server.page("/v1/models", limit).await.with_context(not_vllm)?;
        let models: Models = serde_json::from_str(&models).with_context(not_vllm)?;
        let model = models.data.into_iter().next().context("the server has no model")?;
        let (kv_blocks, block_tokens) = cache(&server.page("/metrics", limit).await?).unzip();
        server.facts = Facts { model: model.id, max_model_len: model.max_model_len, kv_blocks, block_tokens };
        Ok(server)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The text of a page, which must be there within `limit`.
    async fn page(&self, path: &str, limit: Duration) -> anyhow::Result<String> {
        let fetching = async { Ok(self.answer(self.client.get(self.at(path))).await?.text().await?) };
        let late = || format!("{} did not answer GET {path} within {} s", self.url, limit.as_secs_f64());
        timeout(limit, fetching).await.with_context(late)?
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    async fn answer(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let request = match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let answer = request.send().await.with_context(|| format!("cannot reach {}", self.url))?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.unwrap_or_default();
            anyhow::bail!("{} answered {status}: {text}", self.url);
        }
        Ok(answer)
    }

    /// Sends a batch of requests together, and returns when the last one has ended. Cancel-safe: the connections
    /// of a cancelled batch are closed, which ends its requests.
    pub(super) async fn batch(&self, batch: Batch) -> anyhow::Result<()> {
        try_join_all((0..batch.seqs).map(|_| self.request(batch))).await?;
        Ok(())
    }

    async fn request(&self, batch: Batch) -> anyhow::Result<()> {
        let number = self.prompts.fetch_add(1, Ordering::Relaxed);
        let prompt = prompt(self.salt.wrapping_add(number.into()), batch.prompt_tokens);
        let body = json!({
            "model": self.facts.model,
            "prompt": prompt,
            "max_tokens": batch.tokens,
            "min_tokens": batch.tokens,
            "ignore_eos": true,
            "temperature": 1.0,
            "seed": number,
            // The requests of a run have these options, too. Log-probabilities cost a server time with each
            // token.
            "logprobs": 0,
            "return_token_ids": true,
        });
        let request = self.client.post(self.at("/v1/completions")).json(&body);
        let completion: Completion = self.answer(request).await?.json().await?;
        let found = completion.usage.completion_tokens;
        anyhow::ensure!(
            found == batch.tokens,
            "{} generated {found} tokens; expected {}, because the request sets min_tokens and ignore_eos",
            self.url,
            batch.tokens
        );
        Ok(())
    }
}

/// The prompt with this number. The first tokens spell the number, the lowest digit first, so that no two
/// prompts share a cached block.
pub(super) fn prompt(number: u64, tokens: u32) -> Vec<u32> {
    let digit = |place: u32| match place < PLACES {
        true => number / IDS.pow(place) % IDS,
        false => number.wrapping_add(place.into()) % IDS,
    };
    (0..tokens).map(|place| IDS_FROM + digit(place) as u32).collect()
}

/// The size of the KV cache in blocks, and the number of tokens of a block, in a page of metrics.
fn cache(metrics: &str) -> Option<(u32, u32)> {
    let line = metrics.lines().find(|line| line.starts_with(CACHE_LINE))?;
    let label = |name: &str| -> Option<u64> {
        // A label begins after the brace or after a comma.
        let value = [format!("{{{name}=\""), format!(",{name}=\"")]
            .iter()
            .find_map(|opening| Some(line.split_once(opening.as_str())?.1))?;
        value.split('"').next()?.parse().ok()
    };
    let block_tokens = label("block_size").filter(|tokens| *tokens > 0)?;
    let blocks = match label("kv_cache_size_tokens") {
        Some(tokens) => tokens / block_tokens,
        None => label("num_gpu_blocks")?,
    };
    Some((u32::try_from(blocks).ok()?, u32::try_from(block_tokens).ok()?))
}

#[cfg(test)]
mod tests {
    use super::{cache, prompt};

    #[test]
    fn prompts_with_different_numbers_differ_in_their_first_tokens() {
        let heads: std::collections::BTreeSet<Vec<u32>> =
            [0, 1, 200, 40_000, u64::MAX, u64::MAX / 200].map(|number| prompt(number, 9)).into();
        assert_eq!(heads.len(), 6);
        assert!(heads.iter().flatten().all(|id| (32..232).contains(id)), "{heads:?}");
        assert_eq!(prompt(7, 20).len(), 20);
        assert_ne!(prompt(7, 1), prompt(8, 1), "the lowest digit is first");
    }

    #[test]
    fn the_size_of_the_cache_is_in_the_labels_of_a_metric() {
        let line = |labels: &str| format!("# HELP vllm:x y\nvllm:cache_config_info{{{labels}}} 1.0\n");
        let labels = "block_size=\"128\",hash_block_size=\"None\",kv_cache_size_tokens=\"2097152\",num_gpu_blocks=\"9\"";
        assert_eq!(cache(&line(labels)), Some((16_384, 128)));
        assert_eq!(cache(&line("num_gpu_blocks=\"9\",block_size=\"16\"")), Some((9, 16)));
        assert_eq!(cache(&line("hash_block_size=\"16\",num_gpu_blocks=\"None\"")), None);
        assert_eq!(cache("vllm:kv_cache_usage_perc 0.5\n"), None);
    }
}
