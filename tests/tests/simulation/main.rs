//! Rollouts on a simulated fleet, in virtual time.
//!
//! All simulations are one program, because each program that is linked with the whole of Rolldock takes
//! seconds to build after every change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod capacities;
mod fill;
mod flow;
mod hanging;
mod history;
mod outage;
mod placement;
mod scale;
mod steps;
mod stragglers;
mod strangers;
mod support;
mod surplus;
mod trajectories;
mod truth;
mod unlikely;
mod watchdog;

/// Counts the bytes that the tests of `scale` measure.
#[global_allocator]
static ALLOCATOR: rolldock_bench_figures::Counting = rolldock_bench_figures::Counting;
