//! Samples that are trajectories: several calls of the model, with an environment or an agent between them.
//!
//! A [`TrajectoryRunner`] runs one trajectory for each sample of a group. The rollout treats a trajectory as
//! it treats an answer: it belongs to a group, it has one reward and one advantage, it counts once for gates
//! and for early stops, and a group of trajectories has one fate. Only its rows differ: a trajectory has one
//! row for each path of its forest.
//!
//! # What a runner must do
//! - It counts every token that a server samples for the trajectory exactly once: either it makes its turns
//!   by [`ModelCalls::turn`], which counts the tokens, or it calls [`ModelCalls::sampled`] and
//!   [`ModelCalls::wasted`] as soon as the number is known.
//! - Its future is dropped when the group is cut off, becomes stale, is given up, or exceeds the time-out of
//!   samples. Dropping the future must end the whole trajectory: engine calls are aborted, permits are
//!   returned, and processes end.
//! - It enters each wait by [`ModelCalls::enter`], so that `rolldock why` and the watchdog see the wait.
//!
//! # Deliberately absent
//! A trajectory that is cut off is not carried: its environment cannot be continued from tokens. Its tokens
//! are wasted, and under `requeue` its prompt starts again with the same seed. Trajectories that were
//! complete before the cut are kept while the process lives.

use std::sync::Arc;

use futures::future::BoxFuture;
use rolldock_dispatch::Spent;
use rolldock_trajectory::{Trajectory, TurnId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::calls::{ModelCalls, TrajectoryFailure};
use crate::data::Prompt;
use crate::engine::SamplingParams;

/// Runs trajectories. One runner serves all samples of a run, many at a time.
pub trait TrajectoryRunner: Send + Sync + 'static {
    /// Runs the trajectory of one sample to its end. Cancel-safe: dropping the future ends the trajectory.
    fn run(&self, job: TrajectoryJob) -> BoxFuture<'_, Result<EndedTrajectory, TrajectoryFailure>>;
}

/// The sample whose trajectory is to be run.
#[derive(Clone)]
pub struct TrajectoryJob {
    /// The identity of the trajectory, unique over the run and all dispatches. Rows have it as
    /// `trajectory_uid`.
    pub uid: Arc<str>,
    /// The data-set row.
    pub prompt: Arc<Prompt>,
    /// The index of the sample in its group, from 0.
    pub index: u32,
    /// The seed of all random choices of this sample. A sample that starts again has the same seed.
    pub seed: u64,
    /// The seed that all samples of the group share. It determines what must be equal for all of them: the
    /// state in which their environments begin.
    pub group_seed: u64,
    /// The sampling parameters of all turns.
    pub sampling: Arc<SamplingParams>,
    /// The time at which the time limit of the sample ends. The future is dropped at that time.
    pub deadline: Instant,
    /// Cancelled when the group is cut off. The future is dropped at the same time, so this token is for
    /// tasks and processes that the runner has started elsewhere.
    pub cut: CancellationToken,
    /// Calls of the model, and the counts of calls that the runner makes itself.
    pub calls: ModelCalls,
}

/// A trajectory that has ended.
#[derive(Debug, Clone)]
pub struct EndedTrajectory {
    /// The turns, with the rewards that they have.
    pub trajectory: Trajectory,
    /// The reward of the whole trajectory. If it is `None`, the recipe's scorer grades the last answer of the
    /// trajectory.
    pub reward: Option<f32>,
    /// Why it ended, as rows and metrics name it: `done`, `turns`, `tokens`, `time`, or another
    /// reason that the runner names.
    pub end: &'static str,
    /// Whether a limit ended it before it was done. Its finish reason is then `length`.
    pub is_truncated: bool,
    /// Turns whose prompt a server encoded itself. The earlier tokens in such a prompt may differ from the
    /// sampled tokens.
    pub reencoded: Vec<TurnId>,
    /// Metadata of the trajectory, as the text of a JSON object. Rows have it as `metadata`.
    pub metadata: String,
    /// The time that it spent waiting for permits and on engines, as far as the runner knows.
    pub spent: Spent,
    /// The server of its last turn; empty if it is not known.
    pub server: Arc<str>,
}
