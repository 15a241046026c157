//! The recipe's words that no room below knows.

use serde::{Deserialize, Serialize};

/// How the embedded fleet is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// By function calls.
    #[default]
    InProcess,
    /// The servers listen on loopback sockets.
    Http,
}

/// What a step short of its target does to the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnShort {
    /// It is reported and the run goes on.
    #[default]
    Short,
    /// The run ends with an error.
    Error,
}

/// How rewards become advantages: the published estimators by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// Relative to the group's mean, in units of its standard deviation.
    #[default]
    Grpo,
    /// Relative to the group's mean.
    GrpoNoStd,
    /// Relative to the group's mean; the trainer's loss must not divide by lengths either.
    DrGrpo,
    /// Relative to the mean of the others.
    Rloo,
    /// Relative to the group's mean, in units of the batch's standard deviation.
    ReinforcePlusPlusBaseline,
}
