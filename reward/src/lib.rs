//! Scores responses, filters groups that teach nothing, and turns rewards into advantages.
//!
//! A [`Scorer`] scores one response against its ground truth; [`ScorerConfig`] builds it from a recipe.
//! [`Gates`] decide whether a group is accepted. [`Shaping`] and [`Estimator`] turn the rewards of a group
//! into advantages. Rewards that another process computes are in [`external`].
//!
//! A scorer with a published reference implementation returns the reference's results, quirks included: a
//! model that was trained with the reference must get the same rewards here. Where Python treats text
//! differently from Rust (code points, white space, digits), this crate follows Python; see [`python_text`].
//!
//! ```
//! use rolldock_reward::{ScoreInput, ScorerConfig};
//!
//! let scorer = ScorerConfig::from_name("math_dapo")?.build()?;
//! let input = ScoreInput {
//!     response: "2 + 2 is four.\nAnswer: 4",
//!     ground_truth: "4",
//!     data_source: "math_dapo",
//!     extra: None,
//! };
//! let score = scorer.score(&input)?;
//! assert_eq!((score.score, score.acc), (1.0, 1.0));
//! assert_eq!(score.pred.as_deref(), Some("4"));
//! # Ok::<(), rolldock_reward::RewardError>(())
//! ```
//!
//! # Invariants
//! - Scoring is total and deterministic: every text gets a score, and equal texts get equal scores. The time
//!   is linear in the part of the text that counts.
//! - Only two parts wait, lock or do I/O: [`external`], and the outside gates, which call [`external`]. The
//!   module [`external`] states its own invariants.
//!
//! # Deliberately absent
//! This crate does not decide when to score: callers choose the threads and the order of samples.

pub mod advantage;
pub mod external;
pub mod filter;
pub mod gates;
pub mod invariants;
pub mod overlong;
pub mod policy_loss;
pub mod python_text;
pub mod scorer;
pub mod shaping;

mod error;
mod tasks;

pub use advantage::{Advantage, Estimator, TurnEstimator, TurnRewards};
pub use error::{ErrorClass, RewardError};
pub use external::{
    ExternalConfig, LeasedWorker, OnFailure, RewardHealth, RewardJob, RewardRunner, RewardState, WorkerPool,
};
pub use filter::{FilterMetric, GroupFilter};
pub use gates::{
    Finished, GateConfig, GateCounts, GateRow, GateRule, Gates, GatesConfig, GroupView, Rejection,
};
pub use overlong::Overlong;
pub use scorer::{
    Gsm8k, Gsm8kMethod, Math, MathDapo, Parts, Score, ScoreInput, Scorer, ScorerConfig, Variant,
};
pub use shaping::Shaping;
