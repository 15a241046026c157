//! The limits of a server's connections.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// The default maximum of connections, even if the limit of open files allows more.
const MAX_DEFAULT: usize = 65_536;
/// By default, the connections of one server may use one in this many of the process's file descriptors. A
/// proxy needs a second descriptor for each connection, and the other descriptors are for files.
const DESCRIPTORS_SHARE: usize = 3;
/// By default, one in this many connections may be unauthenticated.
const UNAUTHENTICATED_SHARE: usize = 4;

/// The limits of the connections of one server. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionLimits {
    /// Maximum number of open connections. If absent, a third of the process's limit of open files, but at
    /// most 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// Maximum number of open connections without authentication. If absent, a quarter of the maximum of all
    /// connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unauthenticated_max: Option<usize>,
    /// Longest time for the head of a request to arrive. A connection that is not authenticated also has to
    /// begin its first request within this time, and may pause for at most this time between two requests.
    pub head_timeout: f64,
    /// Longest wait for the next byte of a request's body.
    pub body_timeout: f64,
    /// Longest time between two requests, and longest time that a client may take no byte of an answer.
    pub keep_alive: f64,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: None,
            unauthenticated_max: None,
            head_timeout: 30.0,
            body_timeout: 60.0,
            keep_alive: 600.0,
        }
    }
}

/// The limits as numbers and times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max: usize,
    pub(crate) unauthenticated_max: usize,
    pub(crate) head: Duration,
    pub(crate) body: Duration,
    pub(crate) keep_alive: Duration,
}

impl ConnectionLimits {
    pub(crate) fn bounds(&self) -> Bounds {
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
        let by_files = files.map_or(MAX_DEFAULT, |files| (files / DESCRIPTORS_SHARE).min(MAX_DEFAULT));
        let max = self.max.unwrap_or(by_files).max(1);
        let unauthenticated_max = self.unauthenticated_max.unwrap_or(max / UNAUTHENTICATED_SHARE);
        Bounds {
            max,
            unauthenticated_max: unauthenticated_max.clamp(1, max),
            head: seconds(self.head_timeout),
            body: seconds(self.body_timeout),
            keep_alive: seconds(self.keep_alive),
        }
    }
}

/// A time that is not a valid `Duration` (negative or too large) means no limit.
fn seconds(seconds: f64) -> Duration {
    /// The longest time for which a timer is set.
    const LONGEST: Duration = Duration::from_secs(1 << 30);
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |duration| duration.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_follows_from_the_limit_of_open_files() {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let by_default = ConnectionLimits::default().bounds();
        assert_eq!(by_default.max as u64, (files / 3).min(65_536));
        assert_eq!(by_default.unauthenticated_max, by_default.max / 4);
        let given = ConnectionLimits { max: Some(8), ..ConnectionLimits::default() }.bounds();
        assert_eq!((given.max, given.unauthenticated_max), (8, 2));
        let odd = ConnectionLimits {
            max: Some(0),
            unauthenticated_max: Some(9),
            head_timeout: -1.0,
            ..given_times()
        };
        let odd = odd.bounds();
        assert_eq!((odd.max, odd.unauthenticated_max, odd.head.as_secs()), (1, 1, 1 << 30));
    }

    fn given_times() -> ConnectionLimits {
        ConnectionLimits { keep_alive: 2.5, ..ConnectionLimits::default() }
    }
}
