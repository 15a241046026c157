//! Why there is no score.

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

/// Errors of this crate.
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
}

/// Code points of a value that an error shows.
pub const EXCERPT_CODE_POINTS: usize = 200;

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
            | Self::Unknown { .. }
            | Self::Invalid { .. }
            | Self::NeedsOptions { .. } => ErrorClass::Client,
        }
    }
}
