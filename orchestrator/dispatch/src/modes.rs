//! The modes of a rollout. They decide when a step ends, what happens to running groups then, and how prompts
//! are sent out. They also decide what the rollout does about stale groups, about a biased choice of groups,
//! and about a long time without progress.
//!
//! The rollout applies the modes. The crate of recipes uses these types and does not depend on the rollout.
//! Recipes name each mode in snake case, and so does `Display` where a mode implements it.

mod early_stop;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use early_stop::{AtTarget, DecisionOrder, EarlyStop, StopRule};

/// What happens to running groups at an early stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStop {
    /// The groups are discarded.
    Discard,
    /// Their prompts are sent out first in the next step.
    #[default]
    Requeue,
    /// Their tokens are kept, and the next step continues from them.
    Carry,
}

impl fmt::Display for OnStop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// How many prompts are sent out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// Prompts are sent out in generation batches of a fixed size.
    #[default]
    Batch,
    /// Prompts are sent out one by one as long as the probability that the groups under way reach the target is below
    /// the recipe's `launch_confidence`.
    OnDemand,
}

impl fmt::Display for Launch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// What a worker counts when it decides whether to start another group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Samples in flight. Beyond the published rule, a group starts when there are places for all of its samples and the
    /// fleet is not full, in at most twice as many groups.
    #[default]
    Samples,
    /// Running groups: the published rule. A group starts when another group has ended.
    Groups,
}

/// What happens to the last samples of a step on slow or full servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stragglers {
    /// They stay on their servers.
    Stay,
    /// They continue with their tokens on servers that are expected to finish them sooner and that have free
    /// permits.
    #[default]
    Move,
    /// They stay, and a faster server with a free permit is asked for them a second time. Of the two answers, the one
    /// that is ahead counts.
    Hedge,
}

/// The samples that one request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestShape {
    /// One sample.
    #[default]
    Sample,
    /// All samples of a group.
    Group,
}

/// What happens to a group that exceeds the staleness bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStale {
    /// The group is discarded, and its prompt too.
    Drop,
    /// The group is discarded, and its prompt is sent out again, up to a maximum number of times.
    #[default]
    Requeue,
    /// The group is delivered, and the tokens that are too old are masked.
    MaskTokens,
    /// The group is delivered, and marked as too old.
    DeliverFlagged,
}

/// The action if the run has made no progress for `timeouts.silence`. Such a time is called a *silence*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSilence {
    /// The silence is reported.
    #[default]
    Report,
    /// If the run waits for an engine, an environment or a reward, the group that waits there is given up. Its prompt is
    /// sent out again, up to a maximum number of times.
    CancelAndRequeue,
    /// The run ends with the report. Accepted groups are kept.
    Stop,
}

/// `[rollout.stop_unlikely]`: groups that are unlikely to become valid are stopped, except for a share of them that runs
/// on and stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StopUnlikely {
    /// A group is unlikely to become valid if the probability that its samples will differ is below this one; above 0
    /// and below 1.
    pub below: f64,
    /// The share of these groups that run on, above 0 and below 1. Their importance weight is the inverse of it.
    #[serde(default = "default_run_on")]
    pub run_on: f64,
}

fn default_run_on() -> f64 {
    0.25
}

/// The guard against a preference for short answers: its threshold and its action.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BiasGuard {
    /// The share by which accepted responses may be shorter than dispatched ones, above 0 and below 1.
    pub share: f64,
    /// The action if accepted responses are shorter by more than `share`, and the difference is significant.
    #[serde(default)]
    pub action: GuardAction,
}

/// The action of the guard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// From the next step on, accept groups in dispatch order.
    #[default]
    Fifo,
    /// From the next step on, await all groups of each step. This ends after a step in which the bias is no
    /// longer seen.
    LongRound,
}
