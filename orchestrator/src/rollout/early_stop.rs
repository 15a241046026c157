//! The meaning of each early-stop mode, in one place. A mode is defined by its arm in [`EarlyStop::rule`].
//! Every decision that depends on the mode reads a field of that rule.

use crate::rollout::EarlyStop;

/// The order in which valid groups are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionOrder {
    /// A group is decided when it ends.
    AsGroupsEnd,
    /// A group is decided when every group before it in dispatch order has ended.
    Dispatch,
}

/// How a step ends that has reached its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtTarget {
    /// The step ends immediately, and groups that still run are cut off.
    Stop,
    /// The step ends when every dispatched group has ended.
    AwaitAll,
}

/// The rule of an early-stop mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopRule {
    pub(crate) order: DecisionOrder,
    /// The end of a step outside a flow that reaches its target. A step of a flow never awaits its groups,
    /// because the next steps decide them.
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

    /// Whether a step ends only when every group that it sent out has ended.
    pub fn awaits_all(self) -> bool {
        self.rule().at_target == AtTarget::AwaitAll
    }
}
