//! The modes of a rollout: when a step ends, what happens to running groups at that time, and how prompts are
//! sent out.
//!
//! Recipes and displays name each mode in snake case.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

/// When a step ends. The documentation of `board.rs` describes each mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStop {
    /// The step ends when the target number of valid groups have ended. This is the published recipe. It
    /// prefers short answers.
    First,
    /// The step ends when a prefix of the dispatch order has ended and has the target number of valid groups.
    #[default]
    Fifo,
    /// The step ends when every group that was sent out has ended.
    Off,
}

impl EarlyStop {
    /// The mode with this name; `None` if no mode has the name.
    pub fn named(name: &str) -> Option<Self> {
        let name: StrDeserializer<'_, ValueError> = name.into_deserializer();
        Self::deserialize(name).ok()
    }
}

impl fmt::Display for EarlyStop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

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
    /// As many prompts are sent out as the target still needs at the measured accept rate.
    OnDemand,
}

impl fmt::Display for Launch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
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
