//! CPU time, which depends little on the machine's other load.

use std::process::Child;
use std::time::Duration;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process so far.
pub fn own() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// CPU time of this thread so far.
pub fn of_this_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of a running child so far. The resolution is a clock tick of `/proc` (10 ms on Linux).
pub fn of(child: &Child) -> anyhow::Result<Duration> {
    let path = format!("/proc/{}/stat", child.id());
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The name may contain any character and ends at the last parenthesis. User and system time are fields 14
    // and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
