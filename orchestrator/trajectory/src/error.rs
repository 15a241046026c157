//! The errors of a trajectory, and their classes.

use crate::TurnId;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The request is wrong. Trying again gives the same error.
    Client,
    /// A record is damaged, or the caller made calls in the wrong order.
    Fault,
}

/// An error of a chat template or a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub String);

/// Errors of a [`Trajectory`](crate::Trajectory).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrajectoryError {
    /// A message of a request does not have the form of a chat message.
    #[error("messages[{index}]: {reason}")]
    Message {
        /// The index of the message in the request.
        index: usize,
        /// What was found and what was expected.
        reason: String,
    },
    /// The template cannot render the conversation, or the tokenizer cannot encode it.
    #[error("cannot render the prompt: {0}")]
    Template(#[from] TemplateError),
    /// The parts of a turn do not fit together.
    #[error("turn is not sound: {reason}")]
    Unsound {
        /// What was found and what was expected.
        reason: String,
    },
    /// The trajectory has no turn with this number.
    #[error("unknown turn={turn}")]
    UnknownTurn {
        /// The number of the turn.
        turn: TurnId,
    },
    /// A durable record cannot be read.
    #[error("damaged record at byte={at}: {reason}")]
    Damaged {
        /// Where reading failed, in bytes from the start of the record.
        at: usize,
        /// What was found and what was expected.
        reason: String,
    },
    /// A record does not fit the trajectory to which it is applied.
    #[error("record of turn={turn} does not fit the trajectory: {reason}")]
    Misplaced {
        /// The turn of the record.
        turn: TurnId,
        /// What was found and what was expected.
        reason: String,
    },
}

impl TrajectoryError {
    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Message { .. } | Self::Template(_) => ErrorClass::Client,
            Self::Unsound { .. }
            | Self::UnknownTurn { .. }
            | Self::Damaged { .. }
            | Self::Misplaced { .. } => ErrorClass::Fault,
        }
    }
}
