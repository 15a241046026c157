//! The modes of a rollout: when a step ends, what becomes of running groups then, how prompts are sent out,
//! and what happens to stale groups, to a biased choice of groups, and when nothing happens.
//!
//! The rollout applies them. A recipe consists of them and does not depend on the rollout. Recipes and
//! displays name each mode in snake case.

mod early_stop;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use early_stop::{AtTarget, DecisionOrder, EarlyStop, StopRule};

/// What becomes of running groups at an early stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStop {
    /// They are thrown away.
    Discard,
    /// Their prompts go first in the next step.
    #[default]
    Requeue,
    /// Their tokens are kept and resumed.
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
    /// Generation batches of a fixed size.
    #[default]
    Batch,
    /// As many prompts as the target still needs, by the measured accept rate.
    OnDemand,
}

impl fmt::Display for Launch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// What one request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestShape {
    /// One sample.
    #[default]
    Sample,
    /// All samples of a group.
    Group,
}

/// What becomes of work that is more versions behind than it may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStale {
    /// It is thrown away, and its prompt with it.
    Drop,
    /// It is thrown away, and its prompt is sent out again.
    #[default]
    Requeue,
    /// It is delivered, and the trainer learns nothing from the tokens that are too old.
    MaskTokens,
    /// It is delivered, and marked as too old.
    DeliverFlagged,
}

/// What happens when nothing has happened for too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSilence {
    /// A report says what is waited for.
    #[default]
    Report,
    /// The group that is waited for is given up, and its prompt is sent out again.
    CancelAndRequeue,
    /// The run ends with the report; accepted groups are kept.
    Stop,
}

/// When the guard against a preference for short answers acts, and how.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BiasGuard {
    /// The share by which accepted responses may be shorter than dispatched ones, above 0 and below 1.
    pub share: f64,
    /// What happens if they are shorter by more.
    #[serde(default)]
    pub action: GuardAction,
}

/// What the guard does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// It accepts groups in dispatch order from now on.
    #[default]
    Fifo,
    /// It awaits every group of a step until the bias has gone.
    LongRound,
}
