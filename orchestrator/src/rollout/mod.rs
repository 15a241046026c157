//! The rollout: prompts in, accepted groups out.
//!
//! [`AgentLoopManager::generate`] runs one step. Workers take prompts from a board (`board.rs`) that is the dispatch
//! queue, the early-stopping coordinator and the fate ledger in one lock; each sample asks the load balancer for
//! a permit, the engine for a response and the reward for a grade; a group is filtered when its last sample has
//! ended.
//!
//! ```text
//!  data set --draw--> board --next--> worker x workers
//!                       ^               | group: n samples
//!                       |               |   permit -> engine -> reward   (sample.rs)
//!                       +--- end -------+   filter, advantage            (worker.rs)
//!                       |
//!                       +--> accepted groups, in order, as soon as they are decided
//! ```
//!
//! # Invariants
//! [`invariants`] has them as functions: conservation of dispatches, exactly the target accepted, no dispatch
//! number accepted twice, no permit out after a step.
//!
//! # Deliberately absent
//! Wire formats (see [`crate::engine`]), rows and columns (see [`crate::rows`]), and the clock: only
//! `tokio::time`, so that tests can pause it.

mod accept_rate;
mod board;
mod config;
mod error;
mod feed;
mod grading;
mod group;
pub mod invariants;
mod ledger;
mod manager;
mod meter;
mod sample;
mod survival;
mod version;
mod worker;

pub use board::Counts;
pub use config::{RolloutConfig, RolloutTimeouts};
pub use error::RolloutError;
pub use feed::PromptFeed;
pub use grading::{Grade, Grader, Grading, OutsideGrader, TextGrader};
pub use group::{Group, Sample, Spent};
pub use ledger::{DispatchId, Entry, Fate, Ledger, Totals};
pub use manager::{AgentLoopManager, RolloutOutput, RolloutParts, RolloutView, StepEnd, StepMetrics};
pub use meter::{LengthBias, Phases, ServerLoad, StepCosts};
pub use sample::sample_seed;
