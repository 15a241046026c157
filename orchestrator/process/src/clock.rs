//! Reads the wall clock. Only times that people read, and templates that print the date, use this clock.
//!
//! Builds with debug assertions add the seconds in the file that [`OFFSET_FILE`] names, so that a test can
//! set the clock of one process forward or back.

/// The environment variable that names a file with a number of seconds.
const OFFSET_FILE: &str = "ROLLDOCK_CLOCK_OFFSET_FILE";

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "start times in records and metrics, and the date of a template"
)]
pub fn unix_seconds() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since_epoch.map_or(0, |elapsed| elapsed.as_secs());
    if cfg!(debug_assertions) { seconds.saturating_add_signed(offset_s()) } else { seconds }
}

/// The number of seconds by which a test has shifted the clock of this process; 0 without an offset file.
fn offset_s() -> i64 {
    let file = std::env::var_os(OFFSET_FILE).and_then(|file| std::fs::read_to_string(file).ok());
    file.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
