//! The rollout, which turns prompts into accepted groups.
//!
//! [`AgentLoopManager::generate`] runs one step. Workers take prompts from a board (`board.rs`). The board
//! has the dispatch queue, the early-stopping coordinator and the ledger of fates behind one lock. Each
//! sample asks the load balancer for a permit, the engine for a response and the reward for a grade. The
//! gates judge a group when its last sample has ended.
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
//! Dispatches and response tokens are conserved. A step accepts at most its target, and no dispatch number is
//! accepted twice. No permit is in use after a step. [`invariants`] has the functions that check these rules.
//!
//! # Deliberately absent
//! The rollout knows no wire formats (see [`crate::engine`]), and no rows and columns (see [`crate::rows`]).
//! It does not read the system clock: time comes from `tokio::time`, so that tests can pause it.

mod accept_rate;
mod advantages;
mod board;
mod carry;
mod config;
mod control;
mod dispatches;
mod error;
mod feed;
mod grading;
mod group;
mod guard;
mod holding;
pub mod invariants;
mod look;
mod manager;
mod meter;
mod outage;
mod outlook;
mod reasons;
mod sample;
mod signal;
mod staleness;
mod step_ends;
mod stragglers;
mod timeline;
mod tokens;
mod versions;
mod waits;
mod watchdog;
mod worker;

pub use board::{Counts, Hold, Restored};
pub use carry::CarriedGroup;
pub use config::{CarryLimits, RolloutConfig, RolloutTimeouts};
pub use control::{RolloutControl, RolloutView};
pub use dispatches::{Dispatches, Entry};
pub use error::RolloutError;
pub use feed::PromptFeed;
pub use grading::{Grade, Grader, Grading, OutsideGrader, TextGrader, gate_row, probe_job};
pub use group::{Group, Sample, SampleRows};
pub use look::{GroupLook, StepLook, WaitLook};
pub use manager::{AgentLoopManager, RolloutOutput, RolloutParts};
pub use meter::{ServerLoad, StepCosts};
pub use rolldock_dispatch::GroupWeights;
pub use rolldock_dispatch::modes::{
    BiasGuard, EarlyStop, Fill, GuardAction, Launch, OnSilence, OnStale, OnStop, RequestShape, StopUnlikely,
    Stragglers,
};
pub use sample::{
    EndedTrajectory, ModelCalls, TrajectoryFailure, TrajectoryJob, TrajectoryRunner, TurnAnswer, TurnPrompt,
    sample_seed,
};
pub use staleness::Staleness;
pub use step_ends::{Handed, StepMetrics};
pub use timeline::{GroupRecord, HeldTimes, RequestEnd, RequestTimes, StepTimeline};
pub use waits::{InGroup, InWait, Phase, Subject, Waiting, Waits};
pub use watchdog::{Silence, Watchdog};
