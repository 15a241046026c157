//! The modes of a rollout: when a step ends, what becomes of running groups then, and how prompts are sent
//! out.
//!
//! Recipes and displays name each mode in snake case.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

/// When a step ends; [`crate::rollout`] says how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStop {
    /// The step ends when as many groups as the target have ended and are valid. This is the published
    /// recipe; it prefers short answers.
    First,
    /// The step ends when a prefix of the dispatch order has ended and holds the target.
    #[default]
    Fifo,
    /// The step ends when every group that was sent out has ended.
    Off,
}

impl EarlyStop {
    /// The mode with this name; `None` if there is none.
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
