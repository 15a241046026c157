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
}

impl RewardError {
    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::UnknownSource { .. } | Self::Unknown { .. } => ErrorClass::Client,
        }
    }
}
