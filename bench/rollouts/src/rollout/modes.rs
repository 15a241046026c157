//! The settings of the rollout that are compared.

use rolldock::rollout::{EarlyStop, Fill, Launch, OnStop, Stragglers};

/// How the groups of a step are collected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    /// The synchronous baseline: a step waits for its whole batch.
    Off,
    /// As in `recipes/dapo_qwen3_8b.toml`: a step stops at the first valid groups and discards the rest.
    First,
    /// Groups are accepted in dispatch order.
    Fifo,
    /// As `Fifo`, with as many prompts as the running groups require.
    OnDemand,
    /// As `OnDemand`, with as many permits as the servers are measured to hold.
    Measured,
    /// As `Measured`, and faster servers are asked for copies of the last samples of a step.
    Hedging,
    /// As `Measured`, and the last samples of a step leave slow and full servers: the defaults of this project.
    Moving,
}

impl Mode {
    pub(super) const ALL: [Self; 7] =
        [Self::Off, Self::First, Self::Fifo, Self::OnDemand, Self::Measured, Self::Hedging, Self::Moving];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::First => "first",
            Self::Fifo => "fifo",
            Self::OnDemand => "fifo, on demand",
            Self::Measured => "fifo, on demand, auto",
            Self::Hedging => "fifo, on demand, auto, hedging",
            Self::Moving => "fifo, on demand, auto, moving",
        }
    }

    pub(super) fn settings(self) -> (EarlyStop, OnStop, Launch) {
        match self {
            Self::Off => (EarlyStop::Off, OnStop::Requeue, Launch::Batch),
            Self::First => (EarlyStop::First, OnStop::Discard, Launch::Batch),
            Self::Fifo => (EarlyStop::Fifo, OnStop::Requeue, Launch::Batch),
            Self::OnDemand | Self::Measured | Self::Hedging | Self::Moving => {
                (EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand)
            }
        }
    }

    /// The permits of a server; measured if absent.
    pub(super) fn permits(self) -> Option<u32> {
        match self {
            Self::Measured | Self::Hedging | Self::Moving => None,
            Self::Off | Self::First | Self::Fifo | Self::OnDemand => Some(super::PERMITS),
        }
    }

    /// What a worker counts: groups in the settings that others publish, else samples.
    pub(super) fn fill(self) -> Fill {
        match self {
            Self::Off | Self::First => Fill::Groups,
            _ => Fill::Samples,
        }
    }

    pub(super) fn stragglers(self) -> Stragglers {
        match self {
            Self::Hedging => Stragglers::Hedge,
            Self::Moving => Stragglers::Move,
            _ => Stragglers::Stay,
        }
    }
}
