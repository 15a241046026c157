//! The names of turns.

use std::fmt;

/// The number of a turn in its trajectory, from 0, in the order in which turns were recorded. A turn that was
/// recorded and never applied leaves a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnId(pub u32);

impl fmt::Display for TurnId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}
