//! Why there is no score.

use std::time::Duration;

/// What a caller may do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Try again.
    Retryable,
    /// Too much at a time.
    Backpressure,
    /// The input or the configuration is wrong.
    Client,
    /// The scorer failed.
    Fault,
    /// Somebody asked for the end.
    Cancelled,
}

/// Errors of this crate. `what` names a runner as its configuration does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewardError {
    /// The routed scorer does not know where a row comes from.
    #[error("no scorer for data_source={data_source:?}; expected one of: {known}")]
    UnknownSource {
        /// The row's source.
        data_source: String,
        /// What is known.
        known: &'static str,
    },
    /// A row comes from where verl knows a scorer that has no exact counterpart here.
    #[error("no exact scorer for data_source={data_source:?}, which verl scores by {verl}: {instead}")]
    SourceElsewhere {
        /// The row's source.
        data_source: String,
        /// Verl's scorer.
        verl: &'static str,
        /// What to configure.
        instead: &'static str,
    },
    /// A configuration names something that is not there.
    #[error("unknown {what}={name:?}; expected one of: {known}")]
    Unknown {
        /// What kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
        /// What is known.
        known: &'static str,
    },
    /// A configuration or a row has a value that cannot be used.
    #[error("invalid {what}={value:?}: {reason}")]
    Invalid {
        /// What kind of thing.
        what: &'static str,
        /// As it was found, cut to [`EXCERPT_CODE_POINTS`].
        value: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A name alone does not say enough.
    #[error("scorer={scorer:?} cannot do without options: {options}")]
    NeedsOptions {
        /// The scorer.
        scorer: &'static str,
        /// The options.
        options: &'static str,
    },
    /// A key of a configuration has a value that it cannot have.
    #[error("{key}: expected {expected}, found {found}")]
    Misconfigured {
        /// The key, with its table.
        key: &'static str,
        /// What may stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A server gave no answer, or only a part of one.
    #[error("{what} gave no answer: {reason}")]
    Unreachable {
        /// The runner.
        what: String,
        /// The cause.
        reason: String,
    },
    /// A server refused.
    #[error("{what} answered status={status}: {quote:?}")]
    Refused {
        /// The runner.
        what: String,
        /// HTTP status.
        status: u16,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
        /// The beginning of its answer.
        quote: String,
    },
    /// An answer came that holds no score.
    #[error("{what}: {reason}; it said {quote:?}")]
    Nonsense {
        /// The runner.
        what: String,
        /// What is wrong with it.
        reason: String,
        /// The beginning of the answer, or its end where the end decides.
        quote: String,
    },
    /// The reward function ran and failed.
    #[error("{what} failed: {reason}")]
    Raised {
        /// The runner.
        what: String,
        /// Its own words.
        reason: String,
    },
    /// A command or a function is not there or cannot be started; it stays so.
    #[error("{what} cannot be started: {reason}")]
    Unloadable {
        /// The runner.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Two workers died of the same job, or one did not start in time.
    #[error("{what}: the worker died, {how}; stderr: {stderr:?}")]
    WorkerDied {
        /// The runner.
        what: String,
        /// Its exit status or signal.
        how: String,
        /// The last that it wrote there.
        stderr: String,
    },
    /// Workers die one after the other; the next start waits.
    #[error("{what}: deaths={deaths} in a row without an answer, the last one {how}; stderr: {stderr:?}")]
    WorkersKeepDying {
        /// The runner.
        what: String,
        /// How many.
        deaths: u32,
        /// Exit status or signal of the last one.
        how: String,
        /// The last that it wrote there.
        stderr: String,
    },
    /// One attempt took too long.
    #[error("no answer within attempt_s={}", after.as_secs_f64())]
    TimedOut {
        /// The limit.
        after: Duration,
    },
    /// Nobody was answered for too long while a job waited for its turn.
    #[error("nobody was answered for {} s: it waited for {waiting_for}", after.as_secs_f64())]
    NoTurn {
        /// How long.
        after: Duration,
        /// What it waited for last.
        waiting_for: &'static str,
    },
    /// All attempts, waits and pauses of a job, from its turn on, took too long.
    #[error("no score within deadline_s={}: it waited for {waiting_for}; {last_error}", after.as_secs_f64())]
    Deadline {
        /// The limit.
        after: Duration,
        /// What it waited for last.
        waiting_for: &'static str,
        /// How the attempt before failed, if there was one.
        last_error: String,
    },
    /// The runner was closed before there was a score.
    #[error("scoring was cancelled")]
    Cancelled,
    /// A job failed and the rule says that the run ends.
    #[error("a reward failed and on_failure=\"stop\": {reason}")]
    Stop {
        /// The job's error.
        reason: String,
    },
}

/// Code points of a value that an error shows.
pub const EXCERPT_CODE_POINTS: usize = 200;

/// "Too many requests".
const STATUS_BACKPRESSURE: u16 = 429;
/// "Request timeout".
const STATUS_TIMEOUT: u16 = 408;

impl RewardError {
    /// A value that cannot be used, and why.
    pub(crate) fn invalid(what: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        let value = value.to_string().chars().take(EXCERPT_CODE_POINTS).collect();
        Self::Invalid { what, value, reason: reason.into() }
    }

    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::UnknownSource { .. }
            | Self::SourceElsewhere { .. }
            | Self::Unknown { .. }
            | Self::Misconfigured { .. }
            | Self::Invalid { .. }
            | Self::NeedsOptions { .. }
            | Self::Unloadable { .. } => ErrorClass::Client,
            Self::Unreachable { .. } | Self::TimedOut { .. } => ErrorClass::Retryable,
            Self::Refused { status, .. } => match *status {
                STATUS_BACKPRESSURE => ErrorClass::Backpressure,
                STATUS_TIMEOUT | 500.. => ErrorClass::Retryable,
                _ => ErrorClass::Client,
            },
            // Nobody's input is proven wrong, and the same question would most likely get the same answer again.
            Self::Nonsense { .. }
            | Self::Raised { .. }
            | Self::WorkerDied { .. }
            | Self::WorkersKeepDying { .. }
            | Self::Deadline { .. }
            | Self::NoTurn { .. }
            | Self::Stop { .. } => ErrorClass::Fault,
            Self::Cancelled => ErrorClass::Cancelled,
        }
    }

    /// When the other side wants to be asked again, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
