//! The least time of given work on one server: no schedule is faster, even if it knows every length
//! beforehand.
//!
//! A server decodes in steps. A step costs a fixed time, a time per sample, and a time per token of the KV cache
//! that it reads. The costs per sample and per token are sums over the tokens, so a schedule can only save
//! steps. A step yields at most one token of each sample that has a place; the first token of a sample comes from the
//! step of its prefill. The samples of a step hold at most as many tokens as the KV cache. For each decoded token, count the response tokens that its sample then
//! holds. The number of steps is at least the sum of these counts divided by the size of the cache in tokens.
//!
//! # Deliberately absent
//! Prefill, the prompts' part of the cache (samples may share it), the rounding to blocks, and the end of a
//! rollout step, where few samples are left. All of them would raise the bound.

use rolldock_simengine::ServerConfig;

/// The work of a set of samples, in the units of a server's costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    /// Response tokens.
    tokens: f64,
    /// Tokens after the first one of each sample. The prefill yields the first one.
    decoded: f64,
    /// The sum, over all decoded tokens, of the tokens in the cache that a step reads for them.
    read: f64,
    /// The part of `read` that consists of response tokens: the sum, over all decoded tokens, of the response
    /// tokens before them in their sample.
    held: f64,
    longest_s: f64,
}

/// The limits of a server that a bound considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// The number of samples in a step.
    Places,
    /// The number of samples, and the tokens of the KV cache.
    Cache,
}

impl Work {
    /// Adds a sample of `tokens` response tokens after a prompt of `prompt` tokens.
    pub(super) fn add(&mut self, server: &ServerConfig, prompt: u32, tokens: u32) {
        let (prompt, tokens) = (f64::from(prompt), f64::from(tokens));
        let decoded = (tokens - 1.0).max(0.0);
        let held = tokens * decoded / 2.0;
        let read = held + decoded * prompt;
        self.tokens += tokens;
        self.decoded += decoded;
        self.held += held;
        self.read += read;
        let alone_ns = tokens * server.decode_base_ns as f64 + own_ns(server, decoded, read);
        self.longest_s = self.longest_s.max(alone_ns * 1e-9);
    }

    /// Adds the samples of `other`.
    pub(super) fn join(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.decoded += other.decoded;
        self.read += other.read;
        self.held += other.held;
        self.longest_s = self.longest_s.max(other.longest_s);
    }

    /// Seconds of the longest sample alone on a server of speed 1.
    pub(super) fn longest_s(&self) -> f64 {
        self.longest_s
    }

    /// A lower bound on the seconds that a server of speed 1 needs for all samples together, with at most `places` of
    /// them in a step.
    pub(super) fn seconds(&self, server: &ServerConfig, places: u32, limit: Limit) -> f64 {
        let by_places = self.tokens / f64::from(places);
        let cache_tokens = f64::from(server.kv_blocks) * f64::from(server.block_tokens);
        let steps = match limit {
            Limit::Places => by_places,
            Limit::Cache => by_places.max(self.held / cache_tokens),
        };
        (steps * server.decode_base_ns as f64 + own_ns(server, self.decoded, self.read)) * 1e-9
    }
}

/// The costs per sample and per token of the cache that is read, in ns. No schedule can save them.
fn own_ns(server: &ServerConfig, decoded: f64, read: f64) -> f64 {
    decoded * server.decode_ns_per_seq as f64 + read * server.decode_ns_per_kv_token as f64
}
