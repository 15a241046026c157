//! The size and the speed of one simulated server.

use serde::{Deserialize, Serialize};

use crate::SimError;

/// The configuration of one server. The default resembles one H100 that serves a model of 8 billion
/// parameters in bfloat16.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The server's name in logs and errors. It also determines which requests an injected fault hits.
    pub name: String,
    /// The model name that the server reports.
    pub model: String,
    /// Maximum number of tokens of prompt and response together.
    pub max_model_len: u32,
    /// Maximum number of sequences in one batch.
    pub max_num_seqs: u32,
    /// Maximum number of prompt tokens computed in one engine step. A longer prompt is computed in a step
    /// without other prompts.
    pub max_num_batched_tokens: u32,
    /// KV-cache size, in blocks. It must hold more than `max_model_len` tokens.
    pub kv_blocks: u32,
    /// Number of tokens per KV block.
    pub block_tokens: u32,
    /// Whether sequences share full prompt blocks, which also stay in the cache when the sequences end.
    pub prefix_caching: bool,
    /// Cost of one prompt token that is not cached, in ns.
    pub prefill_ns_per_token: u64,
    /// Fixed cost of a decode step (reading the weights), in ns.
    pub decode_base_ns: u64,
    /// Cost of a decode step per sequence in the batch, in ns.
    pub decode_ns_per_seq: u64,
    /// Cost of a decode step per token of KV cache that the step reads, in ns.
    pub decode_ns_per_kv_token: u64,
    /// Divides every cost: a server with 2.0 is twice as fast.
    pub speed: f64,
    /// Maximum number of samples that wait, are held or run. A request that would exceed it is refused with
    /// 503. If absent (vLLM's default), the maximum is 2^20.
    pub queue_max: Option<u32>,
    /// Real seconds per simulated second. With 0.01 the simulation is a hundred times faster than real time.
    pub time_scale: f64,
    /// Whether the endpoints that take and return token ids (`/inference/v1/...`) are on.
    pub scale_out: bool,
    /// How long after its submission a request cannot be aborted by id, in simulated ms. On a real server
    /// such an abort is usually lost.
    pub abort_race_ms: u64,
    /// Longest time between two flushes of the streams, in simulated ms. All streams are flushed together.
    pub stream_interval_ms: u64,
    /// Bearer token that calls below `/v1` and `/inference` need; none if absent.
    pub api_key: Option<String>,
    /// Largest accepted body of an HTTP request, in bytes.
    pub body_bytes_max: usize,
}

/// Maximum number of samples that a server holds when `queue_max` sets no smaller bound.
pub(crate) const SEQUENCES_MAX: u32 = 1 << 20;

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            name: "sim-0".to_owned(),
            model: "rolldock-sim".to_owned(),
            max_model_len: 32_768,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            // About 55 GB of cache at 147 kB per token.
            kv_blocks: 24_000,
            block_tokens: 16,
            prefix_caching: true,
            prefill_ns_per_token: 32_000,
            decode_base_ns: 5_500_000,
            decode_ns_per_seq: 12_000,
            decode_ns_per_kv_token: 44,
            speed: 1.0,
            queue_max: None,
            time_scale: 1.0,
            scale_out: true,
            abort_race_ms: 10,
            stream_interval_ms: 50,
            api_key: None,
            body_bytes_max: 32 << 20,
        }
    }
}

impl ServerConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`SimError::Config`] with the first key whose value is invalid.
    pub fn validate(&self) -> Result<(), SimError> {
        let positive = [
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("kv_blocks", self.kv_blocks),
            ("block_tokens", self.block_tokens),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(config_error(key, "must be at least 1"));
            }
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(config_error("speed", "must be a positive number"));
        }
        if !(self.time_scale.is_finite() && self.time_scale >= 1e-6 && self.time_scale <= 1e6) {
            return Err(config_error("time_scale", "must be between 1e-6 and 1e6"));
        }
        if self.decode_base_ns == 0 {
            return Err(config_error("decode_base_ns", "must be at least 1: a step takes time"));
        }
        if self.stream_interval_ms == 0 {
            return Err(config_error("stream_interval_ms", "must be at least 1"));
        }
        let cache_tokens = u64::from(self.kv_blocks) * u64::from(self.block_tokens);
        // The cache must hold one token more than the model's length, since a step allocates room for the
        // token that it will write.
        if cache_tokens <= u64::from(self.max_model_len) {
            return Err(SimError::Config {
                key: "kv_blocks",
                reason: format!(
                    "must hold more than max_model_len={} tokens, holds tokens={cache_tokens}",
                    self.max_model_len
                ),
            });
        }
        Ok(())
    }
}

fn config_error(key: &'static str, reason: &str) -> SimError {
    SimError::Config { key, reason: reason.to_owned() }
}
