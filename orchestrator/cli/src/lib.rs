//! The command line: its arguments, and the commands that need neither a run nor the simulated model.
//!
//! # Deliberately absent
//! The commands `run`, `why`, `report`, `simulate` and `simengine`, and the function `main`, are in the crate
//! `rolldock`, which imports this one.

pub mod args;
pub mod calibrate;
pub mod consume;
pub mod data;
mod file;
pub mod fleet;
pub mod gateway;
pub mod generate;
pub mod history;
pub mod proxy;
pub mod queue;
pub mod reward;
mod usage;

pub use args::{Cli, Command, LogFormat};
pub use usage::{UsageError, seconds, sendable};
