//! The trajectories of a gateway: their state, their limits, and their way from the first call to rows.
//!
//! ```text
//!   open --complete, a limit, cancelled--> ended --reward, or its deadline--> settled --group ended--> put
//! ```
//!
//! - `open`: calls are served. Each limit is an end with its own name, and ends are counted by name.
//! - `ended`: no calls are served. The reward may still arrive.
//! - `settled`: the reward is known, or known never to come.
//! - `put`: the rows of the group are in the queue. What is left of the trajectory is a [`Tombstone`].
//!
//! A change is durable before it is acknowledged: [`event`] has the records.
//!
//! # Invariants
//! - A trajectory ends exactly once, and its end has one name.
//! - Calls in flight together stay within the limits of turns and tokens, because each call reserves what it may
//!   use. Tokens that a call draws within the limits are kept, whatever other calls draw.
//! - A reward is given once. Repeating the reward changes nothing, and a different reward is refused.
//! - A group ends when all its trajectories are settled or its own deadline has passed, so an abandoned
//!   session never blocks its group.
//! - The state in memory can be rebuilt from the log.

mod book;
mod drawn_by;
pub(crate) mod event;
mod group;
mod in_flight;
mod live;
mod meter;
mod one;

use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

pub(crate) use book::{Book, Found, Settled};
pub(crate) use event::Event;
pub(crate) use in_flight::InFlight;
pub(crate) use live::{Admitted, Live};
pub use meter::CallMeter;
pub(crate) use one::One;

/// Why a trajectory takes no more calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A control call has completed the trajectory.
    Completed,
    /// A call came after the last turn that the limit allows.
    Turns,
    /// A call came after the trajectory had drawn all tokens that the limit allows.
    Tokens,
    /// The trajectory's time was over.
    Wall,
    /// No call came for too long.
    Idle,
    /// A control call has cancelled the trajectory.
    Cancelled,
}

impl End {
    /// The name, as in rows and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::Wall => "wall",
            Self::Idle => "idle",
            Self::Cancelled => "cancelled",
        }
    }

    /// The refusal of a call to the trajectory `uid` after this end.
    pub(crate) fn refusal(self, uid: &str) -> Refusal {
        Refusal::Ended { uid: uid.to_owned(), reason: self.reason().to_owned() }
    }

    /// The explanation for an agent that calls after the end.
    fn reason(self) -> &'static str {
        match self {
            Self::Completed => "it is complete",
            Self::Turns => "its limit of turns is reached",
            Self::Tokens => "its limit of tokens is reached",
            Self::Wall => "its time is over",
            Self::Idle => "no call came for too long",
            Self::Cancelled => "it was cancelled",
        }
    }
}

/// The reward of a trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reward {
    pub(crate) reward: f32,
    /// The rewards of single turns, by the number of the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) turns: Vec<(u32, f32)>,
}

/// What is left of a trajectory after its rows were put or left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tombstone {
    pub(crate) uid: String,
    pub(crate) capability: String,
    pub(crate) group: String,
    pub(crate) end: End,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reward: Option<Reward>,
    /// The number of rows in the queue; 0 if the trajectory was left out.
    pub(crate) rows: u32,
    /// Why the queue refused the rows of the group, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    pub(crate) turns: u32,
}
