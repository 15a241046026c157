//! Compares the queue with a very simple reference model, a list of rows that is searched from the front.
//!
//! Queue and model get the same random operations. The queue must agree with the model on every answer, on
//! the rows of a take and their order, on every byte of their payload, and on the rows that are left. The
//! queue is in memory or on disk, leases expire, and processes die and restart.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod clients;
#[path = "../support/copied.rs"]
mod copied;
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
/// The number of consumers. Each of them holds its own leases.
const CLIENTS: usize = 3;
/// The smallest number of operations of a case.
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

/// Checks `cases` random lists of operations. `ROLLDOCK_QUEUE_CASES` sets another number of cases.
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
