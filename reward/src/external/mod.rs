//! Rewards that are computed outside this process: by a server, a judge model, a Python function, a command,
//! or unit tests of the code in a response.
//!
//! This module also starts the programs of agents ([`Programs`]), because they need the limits and the
//! clean-up of the processes that compute rewards.
//!
//! A [`RewardRunner`] scores one job. [`ExternalConfig::build`] makes the runner that a recipe configures and
//! wraps it in a guard (`guarded.rs`), which bounds concurrency, rate, attempts and time. A runner that
//! hangs, answers nonsense or dies can therefore fail samples, but cannot block a step.
//!
//! # Invariants
//! - Dropping a runner's future cancels its work: the connection is closed, or the busy worker process is
//!   killed with its process group.
//! - As long as the reward answers other jobs, a job ends within two deadlines of its first attempt, with a
//!   score or an error. An outage of the reward has its own deadline.
//! - Answers, queues, restarts, retries, processes and the cache are bounded by named constants or by
//!   settings.
//! - A score that leaves this module is finite in 32 bits, and its `acc` is between 0 and 1; see
//!   [`crate::invariants::score_is_sound`].
//!
//! # Deliberately absent
//! There is no TLS, because the binary has none. Reward functions and commands run without a sandbox, because
//! they are the user's own code. Code that a model has written runs in a sandbox (`sandbox.rs`). Agents run
//! in a sandbox if the recipe asks for one (`programs/sandbox.rs`). There are no metrics, because callers
//! count the fates of samples. Virtual time is not supported: real sockets and processes do not wait for a
//! paused clock.

mod answer;
mod child;
mod code;
mod command;
mod config;
mod guarded;
mod http;
mod judge;
mod leftovers;
mod processes;
mod programs;
mod python;
mod sandbox;
mod settings;
mod short_form;
#[cfg(test)]
mod test_server;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::watch;
use xxhash_rust::xxh3::Xxh3Default;

use crate::{RewardError, Score};

pub use code::CodeConfig;
pub use command::CommandConfig;
pub use config::ExternalConfig;
pub use guarded::OnFailure;
pub use http::HttpConfig;
pub use judge::JudgeConfig;
pub use processes::{LeasedWorker, WorkerPool};
pub use programs::{
    Place, Program, ProgramEnd, ProgramSandbox, ProgramView, Programs, Ran, end_marked, find_program,
};
pub use python::{PYTHON_LOADING, PythonConfig};
pub use sandbox::SandboxChoice;
pub use short_form::{ShortForm, short_or_table};

/// One response that an external reward scores. It is cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardJob {
    /// The whole response.
    pub response: Arc<str>,
    /// The right answer.
    pub ground_truth: Arc<str>,
    /// The name of the row's data source.
    pub data_source: Arc<str>,
    /// The prompt that the model was given.
    pub prompt: Arc<str>,
    /// The row's other fields; null when there are none.
    pub extra: Arc<Value>,
}

impl RewardJob {
    /// A hash of all fields: equal jobs have equal hashes, and different jobs have different ones, apart from
    /// collisions of 128 bits.
    pub fn content_hash(&self) -> u128 {
        let extra = self.extra.to_string();
        let mut hasher = Xxh3Default::new();
        for text in [&self.response, &self.ground_truth, &self.data_source, &self.prompt, extra.as_str()] {
            // The length comes first; otherwise different splits of one text would have equal hashes.
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.digest128()
    }
}

/// Scores jobs outside this process.
pub trait RewardRunner: Send + Sync + 'static {
    /// Scores one job.
    ///
    /// Cancel-safe: dropping the future cancels the work of this job only.
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>>;

    /// Checks, without a job, that jobs can be scored. A run calls this before its first step. The call also
    /// starts workers that take long to start. The only time limit is the runner's own limit for a start.
    ///
    /// Cancel-safe.
    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Checks that jobs are answered, by asking about `job`. An error that is the job's own counts as an
    /// answer. A run calls this before its first step. The guard calls this while the guard suspects an
    /// outage. A runner that refuses jobs after earlier failures does not refuse a probe.
    ///
    /// Cancel-safe.
    fn probe<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<(), RewardError>> {
        Box::pin(async move { answers(self.score(job).await) })
    }

    /// The health of the reward. Callers send out no new work while the reward is out. `None` if the runner
    /// does not watch the health.
    fn health(&self) -> Option<watch::Receiver<RewardHealth>> {
        None
    }
}

/// Whether the reward has answered, given the result of a job.
fn answers(result: Result<Score, RewardError>) -> Result<(), RewardError> {
    match result {
        Err(error) if error.may_be_outage() || error == RewardError::Cancelled => Err(error),
        _ => Ok(()),
    }
}

/// The health of a reward.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RewardHealth {
    /// Whether the reward answers.
    pub state: RewardState,
    /// The number of outages so far, the present one included.
    pub outages: u64,
    /// The total time of the outages that are over.
    pub out: Duration,
}

/// Whether a reward answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum RewardState {
    /// The reward answers, as far as is known.
    #[default]
    Answering,
    /// Several jobs in a row have failed, and a probe is being sent.
    Suspected,
    /// The reward does not answer. Jobs wait until it answers again.
    Out,
    /// The reward was out for too long, and the run has to end with this error.
    GivenUp(RewardError),
}
