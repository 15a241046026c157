//! The meaning of each early-stop mode, in one place. A mode is defined by its arm in [`EarlyStop::rule`].
//! Every decision that depends on the mode reads a field of that rule.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::OnStop;

/// When a step ends, and in which order its groups are decided.
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

/// The order in which valid groups are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionOrder {
    /// A group is decided when it ends.
    AsGroupsEnd,
    /// A group is decided when every group before it in dispatch order has ended.
    Dispatch,
}

/// How a step that has reached its target ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtTarget {
    /// The step ends immediately, and groups that still run are cut off.
    Stop,
    /// The step ends when every dispatched group has ended.
    AwaitAll,
}

/// The rule of an early-stop mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopRule {
    /// In which order valid groups are decided.
    pub order: DecisionOrder,
    /// How a step that does not belong to a flow ends once it has reached its target. A step of a flow never
    /// awaits its groups, because the next steps decide them.
    pub at_target: AtTarget,
}

impl EarlyStop {
    /// The mode with this name; `None` if no mode has the name.
    pub fn named(name: &str) -> Option<Self> {
        let name: StrDeserializer<'_, ValueError> = name.into_deserializer();
        Self::deserialize(name).ok()
    }

    /// The mode's rule.
    pub fn rule(self) -> StopRule {
        match self {
            Self::First => StopRule { order: DecisionOrder::AsGroupsEnd, at_target: AtTarget::Stop },
            Self::Fifo => StopRule { order: DecisionOrder::Dispatch, at_target: AtTarget::Stop },
            Self::Off => StopRule { order: DecisionOrder::Dispatch, at_target: AtTarget::AwaitAll },
        }
    }

    /// Whether groups are accepted in dispatch order, so that their length does not matter.
    pub fn keeps_dispatch_order(self) -> bool {
        self.rule().order == DecisionOrder::Dispatch
    }

    /// Whether a step ends only when every group that it sent out has ended.
    pub fn awaits_all(self) -> bool {
        self.rule().at_target == AtTarget::AwaitAll
    }

    /// Whether a step discards the groups that take longest. Their lengths are then never known, and only an
    /// audit can measure the bias.
    pub fn discards_long_groups(self, on_stop: OnStop) -> bool {
        on_stop == OnStop::Discard && !self.keeps_dispatch_order() && !self.awaits_all()
    }
}

impl fmt::Display for EarlyStop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_its_name() {
        for mode in [EarlyStop::First, EarlyStop::Fifo, EarlyStop::Off] {
            assert_eq!(EarlyStop::named(&mode.to_string()), Some(mode));
        }
        assert_eq!(EarlyStop::named("fairest"), None);
    }
}
