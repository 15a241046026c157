//! Random operations against a reference model that is too simple to be wrong: a list of rows, searched from
//! the front.
//!
//! The queue must agree with it on every answer, on which rows a take gives and in which order, on every byte
//! of their payload, and on what is left, in memory and on disk, with leases that expire and processes that
//! come and go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod clients;
mod course;
mod reference;
mod rows;
mod world;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use course::{Op, operations};
use world::World;

const CAPACITY_ROWS: usize = 48;
const LEASE_MS: u64 = 1_000;
/// Consumers; each holds leases of its own.
const CLIENTS: usize = 3;
/// Minimum number of operations of a case.
const OPERATIONS_MIN: usize = 100;
const CASES_IN_MEMORY: u32 = 800;
const CASES_ON_DISK: u32 = 220;
const _: () = assert!(OPERATIONS_MIN as u32 * (CASES_IN_MEMORY + CASES_ON_DISK) >= 100_000);
const TASKS: [&str; 2] = ["plain", "needs_extra"];

fn run(operations: Vec<Op>, dir: Option<&Path>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(dir).await;
        for op in operations {
            world.apply(op).await;
            world.check().await;
        }
        world.end().await;
    });
}

/// Checks this many random courses; `ROLLDOCK_QUEUE_CASES` asks for another number. Says how many operations
/// they had.
fn check(cases: u32, root: impl Fn() -> Option<tempfile::TempDir>) {
    let asked = std::env::var("ROLLDOCK_QUEUE_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(cases);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let checked = AtomicUsize::new(0);
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        let count = operations.len();
        let root = root();
        run(operations, root.as_ref().map(tempfile::TempDir::path));
        checked.fetch_add(count, Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let checked = checked.into_inner();
    assert!(checked >= cases as usize * OPERATIONS_MIN, "operations={checked}");
}

#[test]
fn in_memory_it_agrees_with_the_model() {
    check(CASES_IN_MEMORY, || None);
}

#[test]
fn on_disk_it_agrees_with_the_model() {
    check(CASES_ON_DISK, || Some(tempfile::tempdir().unwrap()));
}
