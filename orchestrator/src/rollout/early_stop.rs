//! The meaning of each early-stop mode, in one place. A mode is defined by its arm in [`EarlyStop::rule`],
//! and every decision that depends on a mode asks for a part of that rule.

use crate::rollout::EarlyStop;

/// In which order valid groups are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionOrder {
    /// A group is decided when it ends.
    AsGroupsEnd,
    /// A group is decided when every group before it in dispatch order has ended.
    Dispatch,
}

/// The end of a step that has reached its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtTarget {
    /// The step ends at once, and what still runs is cut off.
    Stop,
    /// The step ends when every dispatched group has ended.
    AwaitAll,
}

/// What an early-stop mode decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopRule {
    pub(crate) order: DecisionOrder,
    /// What happens when a step outside a flow reaches its target. In a flow every group is decided in some
    /// step, so nothing has to be awaited.
    pub(crate) at_target: AtTarget,
}

impl EarlyStop {
    /// The mode's rule.
    pub(crate) fn rule(self) -> StopRule {
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

    /// Whether a step ends only when everything that it sent out has ended.
    pub fn awaits_all(self) -> bool {
        self.rule().at_target == AtTarget::AwaitAll
    }
}
