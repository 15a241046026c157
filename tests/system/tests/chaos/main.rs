//! Runs the whole system under a seeded schedule of faults. Checks after each round that the system makes
//! progress and that no row was lost, duplicated or mixed with another.
//!
//! The system is a run with two engines, a reference worker that takes from the run's queue, a queue server
//! with two storage units, and a trainer. Processes are killed and stopped, disks are full, descriptors run
//! out, the run's wall clock is set, connections are cut and slow, and a unit loses its network. A round
//! begins one or two faults, ends them after some seconds, and waits until the trainer has received new
//! groups.
//!
//! `ROLLDOCK_CHAOS_ROUNDS` sets the number of rounds (10 by default), `ROLLDOCK_CHAOS_SEED` the schedule (1
//! by default), and `ROLLDOCK_CHAOS_WITHOUT=FillDisk,StandIn` leaves kinds of faults out. If the operating
//! system has no namespaces for unprivileged users, disks are never full, and a relay replaces the separate
//! network.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod audit;
mod ending;
mod faults;
mod isolation;
mod layout;
mod process;
mod reference;
mod relay;
mod schedule;
mod system;
mod trainer;

use std::path::Path;
use std::time::Duration;

use rolldock_tests::env_number;
use tempfile::TempDir;
use tokio::time::Instant;

use isolation::Place;
use schedule::Schedule;
use system::System;

const ROUNDS: u64 = 10;
/// New groups that the trainer must get after each round.
const ROUND_GROUPS: usize = 6;
/// The number of rounds between two checks that all permits are returned.
const PERMIT_ROUNDS: usize = 25;

/// Waits until `holds` returns true. Panics with the name `what` after the time `within`.
async fn until(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + within;
    while !holds().await {
        assert!(Instant::now() < give_up, "no {what} in {within:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rounds(home: &Path, has_namespaces: bool) {
    let count = env_number("ROLLDOCK_CHAOS_ROUNDS").unwrap_or(ROUNDS) as usize;
    let seed = env_number("ROLLDOCK_CHAOS_SEED").unwrap_or(1);
    let without = std::env::var("ROLLDOCK_CHAOS_WITHOUT").unwrap_or_default();
    eprintln!("{count} rounds of ROLLDOCK_CHAOS_SEED={seed} ROLLDOCK_CHAOS_WITHOUT={without}");
    let began = Instant::now();
    let mut system = System::start(home, has_namespaces).await;
    system.progress(ROUND_GROUPS, &[]).await;
    for (number, round) in (1..=count).zip(Schedule::new(seed, &without)) {
        let (at, trained) = (began.elapsed().as_secs_f64(), system.trained());
        eprintln!(
            "{at:.1} s: {trained} groups; round {number} of seed {seed}: {:?} for {} ms",
            round.faults, round.hold_ms
        );
        system.suffer(&round).await;
        system.progress(ROUND_GROUPS, &round.may_end()).await;
        if number % PERMIT_ROUNDS == 0 {
            system.check_permits().await;
        }
    }
    system.finish().await;
    eprintln!("{:.1} s: {count} rounds of seed {seed} without a violation", began.elapsed().as_secs_f64());
}

fn run(home: &Path, has_namespaces: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(rounds(home, has_namespaces));
}

#[test]
fn the_system_loses_and_doubles_nothing_in_chaos() {
    match isolation::enter("the_system_loses_and_doubles_nothing_in_chaos") {
        Place::Inside(home) => run(&home, true),
        Place::Ended(succeeded) => assert!(succeeded, "the rounds failed; see above"),
        Place::Outside(reason) => {
            eprintln!("without namespaces: {reason}");
            run(TempDir::new().unwrap().path(), false);
        }
    }
}
