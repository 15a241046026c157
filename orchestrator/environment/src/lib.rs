//! White-box multi-turn rollouts: an [`Environment`] reacts to what the model says, and [`Driver::run`] runs
//! one trajectory in it.
//!
//! The driver writes the same type [`Trajectory`](rolldock_trajectory::Trajectory) as the gateway writes for
//! black-box agents, so the rows of both have the same form. [`Calculator`] and [`NumberGame`] are
//! environments.
//!
//! # Invariants
//! - The environment takes its step after the model has answered. The [`Model`] holds no permit during the
//!   step, so no tool occupies a place on a server.
//! - The prompt of a turn consists of the stored ids of the earlier turns, and of what the environment added.
//! - A trajectory ends: its turns, sampled tokens, context and time are bounded by [`Limits`].
//! - Equal tasks and equal answers of the model give equal trajectories.
//!
//! # Deliberately absent
//! The driver computes no rewards beyond those of the environment, and asks no servers: permits, attempts and
//! seeds belong to the [`Model`]. It runs one trajectory; groups, filters and steps belong to the rollout.

mod answer;
mod calculator;
mod config;
mod driver;
mod environment;
mod error;
mod game;
mod http;
mod limits;
mod model;
mod python;
mod source;

pub use calculator::Calculator;
pub use config::{BuiltIn, EnvironmentConfig, ScoredBy};
pub use driver::{Driver, Finished};
pub use environment::{Action, Begun, Environment, Observation, Step, Task};
pub use error::{EnvironmentError, ErrorClass, RunError};
pub use game::NumberGame;
pub use http::HttpConfig;
pub use limits::{End, Limits};
pub use model::{Model, ModelError, TurnRequest};
pub use python::PythonConfig;
pub use source::EnvironmentSource;
