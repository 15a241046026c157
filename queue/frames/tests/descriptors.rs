//! The held descriptors, in a separate process: the limit of descriptors belongs to the process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;

use rolldock_frames::descriptors::{hold, is_lack, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 64;
const HELD: usize = 8;

fn null() -> std::io::Result<File> {
    File::open("/dev/null")
}

#[test]
fn files_are_opened_after_connections_have_used_up_all_other_descriptors() {
    let limit = Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    hold(HELD).unwrap();
    let mut connections: Vec<File> = std::iter::from_fn(|| null().ok()).collect();
    assert!(is_lack(&null().unwrap_err()));

    let files: Vec<File> = (0..HELD).map(|_| open(null).unwrap()).collect();
    assert!(is_lack(&open(null).unwrap_err()), "no more than the held ones are there");
    drop(files);
    connections.extend(std::iter::from_fn(|| null().ok()));
    assert!(is_lack(&open(null).unwrap_err()), "connections have all of them");

    connections.truncate(connections.len() - HELD - 1);
    drop(open(null).unwrap());
    connections.extend(std::iter::from_fn(|| null().ok()));
    let files: Vec<File> = (0..HELD).map(|_| open(null).unwrap()).collect();
    assert_eq!(files.len(), HELD, "the held ones were taken back");
    assert_eq!(hold(LIMIT as usize).map_err(|error| is_lack(&error)), Err(true));
}
