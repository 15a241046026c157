//! Values of recipe keys that no other module defines.

use rolldock_reward::{Advantage, Estimator, TurnEstimator};
use serde::{Deserialize, Serialize};

/// How requests reach the simulated fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Requests are function calls.
    #[default]
    InProcess,
    /// The servers listen on loopback sockets.
    Http,
}

/// What happens when a step ends short of its target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnShort {
    /// The short step is reported, and the run continues.
    #[default]
    Short,
    /// The run ends with an error.
    Error,
}

/// The published estimators of advantages from rewards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// Relative to the group's mean, in units of its standard deviation.
    #[default]
    Grpo,
    /// Relative to the group's mean.
    GrpoNoStd,
    /// Relative to the group's mean, as in `GrpoNoStd`. The trainer's loss must not divide by lengths.
    DrGrpo,
    /// Relative to the mean of the group's other samples.
    Rloo,
    /// Relative to the group's mean, in units of the batch's standard deviation.
    ReinforcePlusPlusBaseline,
    /// For each turn of a trajectory, from the rewards of turns.
    GrpoProcess,
}

impl AdvantageEstimator {
    /// The estimator with the epsilon of its reference.
    pub fn estimator(self) -> Estimator {
        match self {
            Self::Grpo => Estimator::PerGroup(Advantage::GRPO),
            Self::GrpoNoStd => Estimator::PerGroup(Advantage::GrpoNoStd),
            Self::DrGrpo => Estimator::PerGroup(Advantage::DR_GRPO),
            Self::Rloo => Estimator::PerGroup(Advantage::Rloo),
            Self::ReinforcePlusPlusBaseline => Estimator::REINFORCE_PLUS_PLUS_BASELINE,
            Self::GrpoProcess => Estimator::PerTurn(TurnEstimator::GRPO_PROCESS),
        }
    }
}
