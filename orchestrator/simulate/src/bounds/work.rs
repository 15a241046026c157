//! The least time of given work on one server: no schedule is faster, even if it knows every length
//! beforehand.
//!
//! A server decodes in steps. A step costs a fixed time, a time per sample, and a time per token of the KV cache
//! that it reads. The costs per sample and per token are sums over the tokens, so a schedule can only save
//! steps. Two limits give the least number of steps:
//! - A step yields at most one token of each sample that has a place. The first token of a sample comes from the
//!   step of its prefill.
//! - The samples of a step hold at most as many blocks as the KV cache has. A sample holds the blocks of its
//!   response, and its last, partly filled block of the prompt. The full blocks of a prompt are held once for all
//!   samples of the group, as long as any of them runs: at least for the decode steps of the longest one.
//!
//! Each sample computes at least the tokens of its prompt behind the last full block, or the whole last block if
//! there are none, because the last token yields the first one of the response. The other tokens of a prompt
//! are computed once for the group.
//!
//! # Deliberately absent
//! The beginning of a rollout step, where all samples are young, and its end, where few samples are left. Both would
//! raise the bound.

use rolldock_simengine::ServerConfig;

use super::prompt::PromptBlocks;

/// The work of a set of samples, in the units of a server's costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    /// Response tokens.
    tokens: f64,
    /// Tokens after the first one of each sample. The prefill yields the first one.
    decoded: f64,
    /// The sum, over all decoded tokens, of the tokens in the cache that a step reads for them.
    read: f64,
    /// The sum, over all decode steps, of the blocks that are held.
    pub(super) held: f64,
    /// Tokens of prompts that are computed.
    pub(super) prefilled: f64,
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
    /// Adds a group whose samples have these numbers of response tokens.
    pub(super) fn add(
        &mut self,
        server: &ServerConfig,
        prompt: PromptBlocks,
        samples: impl Iterator<Item = u32>,
    ) {
        let block = server.block_tokens;
        let cacheable = prompt.tokens.saturating_sub(1) / block;
        let uncached = f64::from(prompt.tokens - cacheable * block);
        let mut decoded_longest = 0;
        for tokens in samples {
            let decoded_tokens = tokens.saturating_sub(1);
            decoded_longest = decoded_longest.max(decoded_tokens);
            let decoded = f64::from(decoded_tokens);
            let read = decoded * (f64::from(tokens) / 2.0 + f64::from(prompt.tokens));
            self.tokens += f64::from(tokens);
            self.decoded += decoded;
            self.read += read;
            self.held += response_blocks(prompt.tokens % block, decoded_tokens, block);
            self.prefilled += uncached;
            let alone_ns =
                f64::from(tokens) * server.decode_base_ns as f64 + own_ns(server, decoded, read, uncached);
            self.longest_s = self.longest_s.max(alone_ns * 1e-9);
        }
        self.held += f64::from(prompt.own) * f64::from(decoded_longest);
        let computed_by_each = prompt.tokens / block - cacheable;
        self.prefilled += f64::from(prompt.own.saturating_sub(computed_by_each)) * f64::from(block);
    }

    /// Adds the samples of `other`.
    pub(super) fn join(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.decoded += other.decoded;
        self.read += other.read;
        self.held += other.held;
        self.prefilled += other.prefilled;
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
        let steps = match limit {
            Limit::Places => by_places,
            Limit::Cache => by_places.max(self.held / f64::from(server.kv_blocks)),
        };
        let own_ns = own_ns(server, self.decoded, self.read, self.prefilled);
        (steps * server.decode_base_ns as f64 + own_ns) * 1e-9
    }
}

/// The costs in ns that no schedule can save: those per decoded token, per token of the cache that is read, and per
/// token of a prompt.
fn own_ns(server: &ServerConfig, decoded: f64, read: f64, prefilled: f64) -> f64 {
    decoded * server.decode_ns_per_seq as f64
        + read * server.decode_ns_per_kv_token as f64
        + prefilled * server.prefill_ns_per_token as f64
}

/// The sum, over the decode steps of a sample, of the blocks that only this sample holds. `beside` tokens of its prompt
/// are in its first block.
fn response_blocks(beside: u32, decode_steps: u32, block: u32) -> f64 {
    blocks_up_to(beside + decode_steps, block) - blocks_up_to(beside, block)
}

/// The sum of the blocks of 1, 2, ..., `tokens` tokens.
fn blocks_up_to(tokens: u32, block: u32) -> f64 {
    let (full, partial) = (f64::from(tokens / block), f64::from(tokens % block));
    f64::from(block) * full * (full + 1.0) / 2.0 + partial * (full + 1.0)
}
