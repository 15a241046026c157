//! Mistakes on the command line.

use std::time::Duration;

/// A mistake on the command line that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The largest time that an option accepts, about four months.
pub(crate) const SECONDS_MAX: f64 = 1e7;

/// Parses the seconds of `option`, which must be above 0.
pub fn seconds(option: &str, seconds: f64) -> Result<Duration, UsageError> {
    let duration = Duration::try_from_secs_f64(seconds).ok();
    let is_sound = |duration: &Duration| !duration.is_zero() && duration.as_secs_f64() <= SECONDS_MAX;
    duration.filter(is_sound).ok_or_else(|| {
        UsageError(format!(
            "{option}: expected seconds, more than 0 and at most {SECONDS_MAX}, found {seconds}"
        ))
    })
}
