//! White-box multi-turn rollouts: an [`Environment`] reacts to what the model says, and [`Driver::run`] runs
//! one trajectory in it.
//!
//! The driver writes the same [`Trajectory`](rolldock_trajectory::Trajectory) as the gateway does for agents
//! that are black boxes, so its rows have the same form. [`Calculator`] and [`NumberGame`] are environments.
//!
//! # Invariants
//! - A permit is taken for each call of the model and returned before the environment takes its step, so no
//!   tool holds a place on a server.
//! - The prompt of a turn is the stored ids of the turns before it, and what the environment added.
//! - A trajectory ends: its turns, sampled tokens, context and time are bounded by [`Limits`].
//! - Equal recipes, tasks and answers give equal trajectories: a turn's seed depends on the trajectory's seed,
//!   the turn and the attempt.
//!
//! # Deliberately absent
//! The driver computes no rewards beyond those of the environment. It runs one trajectory; groups, filters and
//! steps belong to the rollout. [`turn_advantages`] is for callers that have a group.

mod advantages;
mod calculator;
mod driver;
mod environment;
mod error;
mod game;
mod limits;

pub use advantages::{TurnAdvantages, token_advantages, turn_advantages};
pub use calculator::Calculator;
pub use driver::{Driver, Finished, TrajectorySeed};
pub use environment::{Action, Begun, Environment, Observation, Step, Task};
pub use error::{EnvironmentError, ErrorClass, RunError};
pub use game::NumberGame;
pub use limits::{End, Limits};
