//! What a response is worth, which groups teach nothing, and how far each sample is from its group.
//!
//! Scorers are exact to the field's reference implementations, quirks included: a model that was trained against
//! the reference must not see another reward because the code is in another language. Where Python's idea of text
//! differs from Rust's (code points, white space, digits) this crate follows Python; see [`python_text`].
//!
//! # Invariants
//! - Scoring is total and deterministic: any text gives a score, the same one every time, in time linear in the
//!   part of the text that counts.
//! - Nothing in here waits, locks, or does I/O, except for what is in [`external`], which keeps its own invariants.
//!
//! # Deliberately absent
//! Deciding when to score: callers own threads and the order of samples.

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

pub use advantage::{Advantage, Estimator, expand};
pub use error::{EXCERPT_CODE_POINTS, ErrorClass, RewardError};
pub use external::{ExternalConfig, Guarded, OnFailure, RewardJob, RewardRunner};
pub use filter::{FilterMetric, FilterReason, GroupFilter};
pub use gates::{
    Gate, GateConfig, GateCounts, GateRow, GateRule, Gates, GatesConfig, GroupView, KeepIfShort, Refusal,
    Rejection,
};
pub use overlong::Overlong;
pub use scorer::{
    Choice, ExactMatch, Format, Gsm8k, Gsm8kMethod, JsonSchema, JsonSchemaConfig, Length, Math, MathDapo,
    MathEquiv, Part, Parts, Pattern, PatternConfig, Ramp, Repetition, RepetitionUnit, Routed, Rubric,
    RubricConfig, RubricPart, Score, ScoreInput, Scorer, ScorerConfig, Variant,
};
pub use shaping::{Normalise, Shaping};
