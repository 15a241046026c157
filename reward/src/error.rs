//! The errors of this crate.

use std::time::Duration;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// A later attempt may succeed.
    Retryable,
    /// The server is overloaded; a later attempt at a lower rate may succeed.
    Backpressure,
    /// The input or the configuration is wrong.
    Client,
    /// The scorer failed.
    Fault,
    /// The caller cancelled the work.
    Cancelled,
}

/// Errors of this crate. In the errors of external rewards, `what` names the runner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewardError {
    /// The routed scorer has no scorer for the row's source.
    #[error("no scorer for data_source={data_source:?}; expected one of: {known}")]
    UnknownSource {
        /// The row's source.
        data_source: String,
        /// The sources that have a scorer.
        known: &'static str,
    },
    /// Verl has a scorer for the row's source, but this crate has no exact counterpart of it.
    #[error("no exact scorer for data_source={data_source:?}, which verl scores by {verl}: {instead}")]
    SourceElsewhere {
        /// The row's source.
        data_source: String,
        /// Verl's scorer.
        verl: &'static str,
        /// What to configure instead.
        instead: &'static str,
    },
    /// A configuration has a name that this crate does not know.
    #[error("unknown {what}={name:?}; expected one of: {known}")]
    Unknown {
        /// The kind of thing that is named.
        what: &'static str,
        /// The unknown name.
        name: String,
        /// The names that exist.
        known: &'static str,
    },
    /// A configuration or a row has a value that cannot be used.
    #[error("invalid {what}={value:?}: {reason}")]
    Invalid {
        /// The kind of value.
        what: &'static str,
        /// The value as it was found, cut to 200 code points.
        value: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The scorer has options without defaults, so its name alone does not configure it.
    #[error("scorer={scorer:?} expects the options: {options}")]
    NeedsOptions {
        /// The scorer.
        scorer: &'static str,
        /// The options that have no default.
        options: &'static str,
    },
    /// A key of a configuration has a value that is not allowed.
    #[error("{key}: expected {expected}, found {found}")]
    Misconfigured {
        /// The key, with its table.
        key: &'static str,
        /// The values that are allowed.
        expected: &'static str,
        /// The value that was found.
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
    /// A server answered with an HTTP status other than success.
    #[error("{what} answered status={status}: {quote:?}")]
    Refused {
        /// The runner.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The pause that the server asked for before the next attempt.
        retry_after: Option<Duration>,
        /// The beginning of the answer.
        quote: String,
    },
    /// An answer is invalid: for example, it has no readable score or is too long.
    #[error("{what}: {reason}; it said {quote:?}")]
    Nonsense {
        /// The runner.
        what: String,
        /// What was expected of the answer.
        reason: String,
        /// The beginning of the answer. For a judge, this is the end of the answer. For an unsound score, this is the
        /// violated invariant.
        quote: String,
    },
    /// A reward function or a sandbox failed.
    #[error("{what} failed: {reason}")]
    Raised {
        /// The runner.
        what: String,
        /// The error message.
        reason: String,
    },
    /// A reward reports a failure with a reason outside of the sample, or this machine could not run a
    /// sandbox.
    #[error("{what} is unavailable: {reason}")]
    Unavailable {
        /// The runner.
        what: String,
        /// The error message.
        reason: String,
    },
    /// A command, a function or a sandbox does not exist or cannot be started. Later attempts would fail too.
    #[error("{what} cannot be started: {reason}")]
    Unloadable {
        /// The runner.
        what: String,
        /// The reason of the failed start.
        reason: String,
    },
    /// Two workers died while they scored the same job, a worker did not start in time, or the process of a
    /// sandbox ended before its candidate began.
    #[error("{what}: the worker died, {how}; stderr: {stderr:?}")]
    WorkerDied {
        /// The runner.
        what: String,
        /// The exit status or signal of the worker.
        how: String,
        /// The end of the worker's standard error.
        stderr: String,
    },
    /// Several workers in a row died without an answer. Jobs are refused until the next start is allowed.
    #[error("{what}: deaths={deaths} in a row without an answer, the last one {how}; stderr: {stderr:?}")]
    WorkersKeepDying {
        /// The runner.
        what: String,
        /// The number of deaths in a row.
        deaths: u32,
        /// The exit status or signal of the last worker.
        how: String,
        /// The end of the last worker's standard error.
        stderr: String,
    },
    /// One attempt exceeded its time limit.
    #[error("no answer within attempt_s={}", after.as_secs_f64())]
    TimedOut {
        /// The limit.
        after: Duration,
    },
    /// A job waited for its turn, and the runner answered no job during that time.
    #[error("no job was answered for {} s: this one waited for {waiting_for}", after.as_secs_f64())]
    NoTurn {
        /// The time without an answer.
        after: Duration,
        /// What the job waited for last.
        waiting_for: &'static str,
    },
    /// The attempts and pauses of a job exceeded the deadline, which counts from the job's first attempt.
    #[error("no score within deadline_s={}: the job waited for {waiting_for}; {last_error}", after.as_secs_f64())]
    Deadline {
        /// The limit.
        after: Duration,
        /// What the job waited for last.
        waiting_for: &'static str,
        /// The error of the previous attempt, or a remark that no attempt has failed.
        last_error: String,
    },
    /// The reward has answered no job for so long that the run has to end.
    #[error("no score for outage_deadline_s={}; the last error: {last_error}", after.as_secs_f64())]
    Outage {
        /// The limit.
        after: Duration,
        /// How the last probe failed.
        last_error: String,
    },
    /// The runner was closed before the job had a score.
    #[error("scoring was cancelled")]
    Cancelled,
    /// A job failed, and `on_failure = "stop"` ends the run.
    #[error("a reward failed and on_failure=\"stop\": {reason}")]
    Stop {
        /// The job's error.
        reason: String,
    },
}

/// Maximum number of code points of a value that an error shows.
const EXCERPT_CODE_POINTS: usize = 200;

/// The HTTP statuses with which a server refuses a single question: 400 "Bad Request", 413 "Content Too
/// Large" and 422 "Unprocessable Content".
const STATUSES_OF_A_SAMPLE: [u16; 3] = [400, 413, 422];

/// HTTP 429, "Too Many Requests".
const STATUS_BACKPRESSURE: u16 = 429;
/// HTTP 408, "Request Timeout".
const STATUS_TIMEOUT: u16 = 408;

impl RewardError {
    /// A [`RewardError::Invalid`]; `reason` says what was expected.
    pub(crate) fn invalid(what: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        let value = value.to_string().chars().take(EXCERPT_CODE_POINTS).collect();
        Self::Invalid { what, value, reason: reason.into() }
    }

    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::UnknownSource { .. }
            | Self::SourceElsewhere { .. }
            | Self::Unknown { .. }
            | Self::Misconfigured { .. }
            | Self::Invalid { .. }
            | Self::NeedsOptions { .. }
            | Self::Unloadable { .. } => ErrorClass::Client,
            Self::Unreachable { .. } | Self::Unavailable { .. } | Self::TimedOut { .. } => {
                ErrorClass::Retryable
            }
            Self::Refused { status, .. } => match *status {
                STATUS_BACKPRESSURE => ErrorClass::Backpressure,
                STATUS_TIMEOUT | 500.. => ErrorClass::Retryable,
                _ => ErrorClass::Client,
            },
            // The input may be right, but another attempt would probably fail too.
            Self::Nonsense { .. }
            | Self::Raised { .. }
            | Self::WorkerDied { .. }
            | Self::WorkersKeepDying { .. }
            | Self::Deadline { .. }
            | Self::NoTurn { .. }
            | Self::Outage { .. }
            | Self::Stop { .. } => ErrorClass::Fault,
            Self::Cancelled => ErrorClass::Cancelled,
        }
    }

    /// Whether the failure may have a reason outside of the sample, so that the sample may get a score later. Only the
    /// answers to other samples can show whether the reason lies outside.
    pub fn may_be_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Unavailable { .. }
            | Self::Unloadable { .. }
            | Self::WorkerDied { .. }
            | Self::WorkersKeepDying { .. }
            | Self::TimedOut { .. }
            | Self::NoTurn { .. }
            | Self::Deadline { .. } => true,
            Self::Refused { status, .. } => !STATUSES_OF_A_SAMPLE.contains(status),
            Self::UnknownSource { .. }
            | Self::SourceElsewhere { .. }
            | Self::Unknown { .. }
            | Self::Invalid { .. }
            | Self::NeedsOptions { .. }
            | Self::Misconfigured { .. }
            | Self::Nonsense { .. }
            | Self::Raised { .. }
            | Self::Outage { .. }
            | Self::Cancelled
            | Self::Stop { .. } => false,
        }
    }

    /// Whether the runner refused the job without scoring it, because of the failures of earlier jobs. A
    /// refusal shows nothing about the job or the reward.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::WorkersKeepDying { .. })
    }

    /// Whether the run has to end because of the failure.
    pub fn ends_run(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::Outage { .. })
    }

    /// The pause that the server asked for before the next attempt, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
