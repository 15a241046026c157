//! Rewards that come from outside: a server, a judge model, a Python function, any command, unit tests of code.
//!
//! A [`RewardRunner`] asks once; [`Guarded`] around it keeps the promises that a step depends on, so that an outside
//! that hangs, lies or dies costs samples and never the step. [`ExternalConfig::build`] makes both from a recipe.
//!
//! # Invariants
//! - Dropping a future of a runner cancels its work: a connection is closed, a busy worker process is killed with its
//!   process group. Nothing is scored for nobody.
//! - A job asked of [`Guarded`] ends within its deadline, in a score or in an error.
//! - Answers, queues, restarts, retries, processes and the cache are bounded by named constants or by settings.
//! - A score that leaves this module is finite in 32 bits and its `acc` is a share; see [`crate::invariants::score_is_sound`].
//!
//! # Deliberately absent
//! TLS, because the binary has none; sandboxes around reward functions and commands, because those are the user's own
//! code: only what a model has written runs in one ([`CodeRunner`]). Metrics, because callers count fates. Virtual time:
//! real sockets and processes do not wait for a paused clock.

mod answer;
mod code;
mod command;
mod config;
mod guarded;
mod http;
mod judge;
mod processes;
mod python;
mod sandbox;
#[cfg(test)]
mod test_server;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

use crate::{RewardError, Score};

pub use code::CodeRunner;
pub use config::{
    CodeConfig, CommandConfig, ExternalConfig, HttpConfig, JudgeConfig, PythonConfig, SandboxChoice,
    short_or_table,
};
pub use guarded::{Guard, Guarded, OnFailure};
pub use http::{HttpBatch, HttpSingle};
pub use judge::{Judge, Verdict};
pub use processes::{PoolSpec, ProcessPool};

/// What an external reward is asked about. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardJob {
    /// The whole response.
    pub response: Arc<str>,
    /// The right answer.
    pub ground_truth: Arc<str>,
    /// Where the row comes from.
    pub data_source: Arc<str>,
    /// The prompt as the model saw it.
    pub prompt: Arc<str>,
    /// The row's other fields; null when there are none.
    pub extra: Arc<Value>,
}

impl RewardJob {
    /// The same for equal jobs and, but for accidents of 128 bits, for no others.
    pub fn content_hash(&self) -> u128 {
        let extra = self.extra.to_string();
        let mut hasher = Xxh3Default::new();
        for text in [&self.response, &self.ground_truth, &self.data_source, &self.prompt, extra.as_str()] {
            // The length first, or texts could be cut at another place and give the same bytes.
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.digest128()
    }
}

/// Scores jobs outside of this process.
pub trait RewardRunner: Send + Sync + 'static {
    /// The score of one job.
    ///
    /// Cancel-safe: dropping the future cancels the work, and the runner goes on with other jobs.
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>>;

    /// Whether jobs can be scored at all, as far as that can be known without one: worth asking before a run begins,
    /// also because a worker that takes long to start is then there. Has no deadline of its own beyond the runner's
    /// limit for a start.
    ///
    /// Cancel-safe.
    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
