//! Reads the wall clock, for times that only people read and for templates that print the date.

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "start times in records and metrics, and the date of a template"
)]
pub fn unix_seconds() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |elapsed| elapsed.as_secs())
}
