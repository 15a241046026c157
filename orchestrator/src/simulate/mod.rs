//! Simulated rollouts of a recipe: the rollout itself, on simulated servers and in virtual time.
//!
//! A simulation runs the rollout of a run (board, workers, load balancer, monitor) on servers of
//! [`rolldock_simengine`]. A paused clock jumps from event to event, so hours of a fleet take seconds. A
//! simulated trainer takes batches from a queue in memory, trains for a given time, and announces versions.
//!
//! The length and the correctness of a sample are pure functions of its identity. So the bias of the accepted
//! groups is exact, and the [bounds](rolldock_simulate::bounds) are computed from the drawn samples.
//!
//! # Invariants
//! Equal settings give equal outcomes on every machine. The simulation awaits no real event while the clock
//! is paused.
//!
//! # Deliberately absent
//! No text is generated or scored, so the recipe's scorer is not called. Rewards take no time. The time of a
//! weight update and of the network is not simulated. Validations are left out.

mod model;
mod outcome;
mod pictures;
mod prompts;
mod replay;
mod table;
mod trainer;
mod world;

use std::sync::Arc;
use std::time::Duration;

use rolldock_simulate::sweep::{Change, label};

use crate::recipe::Recipe;

pub use outcome::{Outcome, Times};
pub use pictures::{PARETO_FILE, pareto, requests};
pub use replay::Replay;
pub use table::{json, table};

/// Default number of steps of a simulation.
pub const STEPS: u64 = 20;

/// A recipe to simulate.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The values of the swept keys.
    pub changes: Vec<Change>,
    /// The recipe with these values. It has a simulated fleet.
    pub recipe: Recipe,
}

impl Setting {
    /// The values of the swept keys, for people.
    pub fn label(&self) -> String {
        label(&self.changes)
    }
}

/// The prompts of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// The recipe's data and tokenizer.
    Data,
    /// Prompts with this number of tokens.
    Prompts(usize),
    /// The prompts of a recorded run, with the lengths and the results of its samples.
    Recorded(Arc<Replay>),
}

/// The settings of a simulation that are not in the recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// Number of steps.
    pub steps: u64,
    /// The time that the trainer needs for a step.
    pub training: Duration,
    /// The prompts (see [`Workload`]).
    pub workload: Workload,
}

/// Simulates a setting. Blocks, and must not be called by a task of a runtime.
///
/// # Errors
/// Returns an error if the data cannot be read, if a part of the recipe cannot be simulated, or if a step
/// fails.
pub fn simulate(setting: &Setting, terms: &Terms) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(world::run(setting, terms))
}

#[cfg(test)]
mod tests;
