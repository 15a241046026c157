//! Defaults and checks that the configurations of several runners share.

use std::time::Duration;

use crate::RewardError;

/// Maximum number of processes of a pool.
pub(super) const WORKERS_MAX: usize = 1024;
/// The longest time limit: one week.
const SECONDS_MAX: f64 = 604_800.0;
const MEBIBYTE: u64 = 1 << 20;

/// The default of `interpreter`.
pub(super) fn interpreter() -> String {
    "python3".to_owned()
}

/// The default of `workers`.
pub(super) fn workers() -> usize {
    4
}

/// The default of `start_s`.
pub(super) fn start_s() -> f64 {
    120.0
}

/// Checks a time limit that is given in seconds.
pub(super) fn seconds(key: &'static str, value: f64) -> Result<Duration, RewardError> {
    let wrong = || RewardError::Misconfigured {
        key,
        expected: "seconds above 0, at most a week",
        found: value.to_string(),
    };
    match value > 0.0 && value <= SECONDS_MAX {
        true => Duration::try_from_secs_f64(value).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

/// Checks that `value` is from 1 to `most`.
pub(super) fn count(key: &'static str, value: usize, most: usize) -> Result<usize, RewardError> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    let found = format!("{value} (the maximum is {most})");
    Err(RewardError::Misconfigured { key, expected: "a number from 1 to the maximum", found })
}

/// The value of the environment variable `name`; `None` if the recipe names no variable. A variable that is
/// unset or empty is an error, and so is a value that no HTTP header can have.
pub(super) fn api_key(key: &'static str, name: Option<&str>) -> Result<Option<String>, RewardError> {
    let Some(name) = name else { return Ok(None) };
    match std::env::var(name) {
        Ok(value) if value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) => {
            Err(RewardError::Misconfigured {
                key,
                expected: "a variable whose value is printable ASCII, without a line feed",
                found: format!("other characters in {name}"),
            })
        }
        Ok(value) if !value.is_empty() => Ok(Some(value)),
        _ => Err(RewardError::Misconfigured {
            key,
            expected: "the name of an environment variable that is set",
            found: format!("{name:?}"),
        }),
    }
}

/// Checks a memory limit, which only Linux supports.
pub(super) fn check_memory(key: &'static str, memory_mb: Option<u64>) -> Result<(), RewardError> {
    let Some(memory_mb) = memory_mb else { return Ok(()) };
    if memory_mb == 0 || !cfg!(target_os = "linux") {
        let expected = "MiB above 0, on Linux";
        return Err(RewardError::Misconfigured { key, expected, found: memory_mb.to_string() });
    }
    Ok(())
}

/// MiB as bytes.
pub(super) fn bytes_of_mb(mebibytes: u64) -> u64 {
    mebibytes.saturating_mul(MEBIBYTE)
}
