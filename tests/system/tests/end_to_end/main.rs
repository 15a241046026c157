//! Tests of the binary as a process: its commands, its runs, and the servers that it starts. All of them are
//! in one test binary. It reads ledgers through `rolldock-ledger` and is not linked with the library
//! `rolldock`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod agents;
mod agents_elsewhere;
mod cli;
mod environment;
mod figures;
mod full_disk;
mod interrupts;
mod late_servers;
mod ledger;
mod metrics;
mod outside_rewards;
mod proxy;
mod queue_tools;
mod real_vllm;
mod refused_starts;
mod resume;
mod resumes;
mod reward;
mod served_queue;
mod signals;
mod support;
mod trainer;
mod why;
