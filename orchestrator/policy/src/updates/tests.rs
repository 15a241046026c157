#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;

/// The duration of an update.
const UPDATE: Duration = Duration::from_secs(10);

/// A fleet whose updates take `UPDATE` and fail as often as the test asks for.
#[derive(Default)]
struct Fleet {
    applied: Mutex<Vec<u64>>,
    failures: AtomicUsize,
    misses: AtomicUsize,
    recovered: AtomicUsize,
    needs_path: AtomicBool,
    phase: Mutex<Option<String>>,
}

fn count_down(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl ApplyVersion for Fleet {
    fn apply<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, Applied> {
        async move {
            self.applied.lock().push(announcement.version);
            *self.phase.lock() = Some("update".to_owned());
            tokio::time::sleep(UPDATE).await;
            *self.phase.lock() = None;
            let missed = |server: &str| Missed { server: server.to_owned(), reason: "no answer".to_owned() };
            if count_down(&self.failures) {
                return Applied::Asked { updated: 0, missed: vec![missed("a"), missed("b")] };
            }
            if count_down(&self.misses) {
                return Applied::Asked { updated: 1, missed: vec![missed("b")] };
            }
            if announcement.path.is_none() && self.needs_path.load(Ordering::Relaxed) {
                return Applied::Refused { reason: "it has no path".to_owned() };
            }
            Applied::Asked { updated: 2, missed: Vec::new() }
        }
        .boxed()
    }

    fn recover(&self) -> BoxFuture<'_, ()> {
        self.recovered.fetch_add(1, Ordering::Relaxed);
        future::ready(()).boxed()
    }

    fn progress(&self) -> UpdateProgress {
        UpdateProgress { phase: self.phase.lock().clone(), behind: Vec::new() }
    }
}

/// The calls that the run received, in order.
#[derive(Default)]
struct Told(Mutex<Vec<(&'static str, u64)>>);

impl FollowVersion for Told {
    fn before_update(&self, version: u64) -> BoxFuture<'_, ()> {
        self.0.lock().push(("before", version));
        future::ready(()).boxed()
    }

    fn publish<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, ()> {
        self.0.lock().push(("published", announcement.version));
        future::ready(()).boxed()
    }
}

struct Rig {
    scope: Scope,
    fleet: Arc<Fleet>,
    told: Arc<Told>,
    updates: Updates,
}

async fn rig(mode: PolicyMode) -> Rig {
    let scope = Scope::new();
    let (fleet, told) = (Arc::new(Fleet::default()), Arc::new(Told::default()));
    let state = PolicyState::new(PolicyTerms { mode, max_staleness: 1 }, 0);
    let (updater, run) = (Arc::clone(&fleet), Arc::clone(&told));
    let updates = Updates::start(state, updater, run, &scope).await;
    Rig { scope, fleet, told, updates }
}

impl Rig {
    fn announce(&self, version: u64) {
        self.updates.state().announce(Announcement::new(version)).unwrap();
    }

    async fn boundary(&self) -> u64 {
        self.updates.at_boundary().await.unwrap()
    }

    fn applied(&self) -> Vec<u64> {
        self.fleet.applied.lock().clone()
    }
}

async fn seconds(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn fully_async_updates_at_once_and_the_newest_wins() {
    let rig = rig(PolicyMode::FullyAsync).await;
    assert_eq!(rig.fleet.recovered.load(Ordering::Relaxed), 1);
    rig.announce(1);
    seconds(1.0).await;
    assert_eq!((rig.applied(), rig.updates.status().state), (vec![1], UpdateState::Updating));
    assert_eq!(rig.updates.status().phase.as_deref(), Some("update"));
    for version in [2, 3, 4] {
        rig.announce(version);
    }
    assert_eq!(rig.boundary().await, 0, "this mode does not wait for a boundary");
    let started_at = Instant::now();
    rig.updates.state().until_served(2).await;
    assert_eq!(started_at.elapsed().as_secs(), 19, "what was left of one update, and another");
    assert_eq!(rig.applied(), [1, 4]);
    let told = [("before", 1), ("published", 1), ("before", 4), ("published", 4)];
    assert_eq!(*rig.told.0.lock(), told);
    let status = rig.updates.status();
    assert_eq!((status.version, status.announced, status.state), (4, 4, UpdateState::Idle));
    assert_eq!(status.phase, None);
}

#[tokio::test(start_paused = true)]
async fn the_other_modes_wait_for_a_boundary() {
    for mode in [PolicyMode::Sync, PolicyMode::OneStepOff] {
        let rig = rig(mode).await;
        assert_eq!(rig.boundary().await, 0);
        rig.announce(1);
        rig.announce(2);
        seconds(100.0).await;
        assert_eq!((rig.applied(), rig.updates.status().state), (vec![], UpdateState::Pending));
        let started_at = Instant::now();
        assert_eq!(rig.boundary().await, 2);
        assert_eq!(started_at.elapsed(), UPDATE);
        assert_eq!(rig.boundary().await, 2, "nothing is pending");
        assert_eq!((rig.applied(), started_at.elapsed()), (vec![2], UPDATE));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_boundary_ends_its_update() {
    let rig = rig(PolicyMode::Sync).await;
    rig.announce(1);
    assert!(tokio::time::timeout(UPDATE / 2, rig.updates.at_boundary()).await.is_err());
    rig.announce(2);
    seconds(60.0).await;
    assert_eq!((rig.updates.state().served(), rig.applied()), (1, vec![1]));
    assert_eq!(rig.boundary().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_no_server_has_is_not_published_and_tried_again() {
    let rig = rig(PolicyMode::FullyAsync).await;
    rig.fleet.failures.store(2, Ordering::Relaxed);
    rig.announce(1);
    seconds(10.5).await;
    let status = rig.updates.status();
    assert_eq!((status.version, status.state), (0, UpdateState::Failed));
    assert_eq!(status.failure.as_deref(), Some("server=a: no answer"));
    assert_eq!(*rig.told.0.lock(), [("before", 1)]);
    let started_at = Instant::now();
    rig.updates.state().until_served(1).await;
    // The expected time is half a second of the first pause, an update, two seconds of the second pause, and
    // an update.
    assert_eq!(started_at.elapsed().as_secs_f64(), 22.5);
    assert_eq!(rig.applied(), [1, 1, 1]);
    assert_eq!(rig.updates.status().failure, None);
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_does_not_wait_for_the_pause_after_a_failure() {
    let rig = rig(PolicyMode::FullyAsync).await;
    rig.fleet.failures.store(8, Ordering::Relaxed);
    rig.announce(1);
    // The expected time is seven attempts, the pauses between them, and one second of the next pause.
    seconds(7.0 * 10.0 + 1.0 + 2.0 + 4.0 + 8.0 + 16.0 + 32.0 + 1.0).await;
    assert_eq!(rig.applied(), [1; 7]);
    rig.announce(2);
    seconds(1.0).await;
    assert_eq!(rig.applied()[7..], [2]);
    seconds(10.5).await;
    assert_eq!(rig.applied()[8..], [2], "after one second again, not after a minute");
}

#[tokio::test(start_paused = true)]
async fn a_failed_boundary_is_the_old_version_and_the_next_one_tries_again() {
    let rig = rig(PolicyMode::OneStepOff).await;
    rig.fleet.failures.store(1, Ordering::Relaxed);
    rig.announce(1);
    assert_eq!(rig.boundary().await, 0);
    assert_eq!(rig.updates.status().state, UpdateState::Failed);
    assert_eq!(rig.boundary().await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_an_announcement_names_the_missing_key() {
    let rig = rig(PolicyMode::Sync).await;
    rig.fleet.needs_path.store(true, Ordering::Relaxed);
    rig.announce(1);
    assert_eq!(rig.boundary().await, 0);
    assert_eq!(rig.updates.status().failure.as_deref(), Some("it has no path"));
    let whole = Announcement { path: Some("/step-2".to_owned()), ..Announcement::new(2) };
    rig.updates.state().announce(whole).unwrap();
    assert_eq!(rig.boundary().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_misses_the_update_does_not_delay_the_others() {
    let rig = rig(PolicyMode::FullyAsync).await;
    rig.fleet.misses.store(1, Ordering::Relaxed);
    rig.announce(1);
    rig.updates.state().until_served(1).await;
    assert_eq!(*rig.told.0.lock(), [("before", 1), ("published", 1)]);
    assert_eq!(rig.applied(), [1]);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_an_update_and_is_seen_at_the_next_boundary() {
    let rig = rig(PolicyMode::FullyAsync).await;
    rig.announce(1);
    seconds(1.0).await;
    rig.announce(2);
    assert!(rig.scope.close(Duration::from_secs(60)).await, "the driver ends by itself");
    assert_eq!((rig.updates.state().served(), rig.applied()), (1, vec![1]));
    assert!(matches!(rig.updates.at_boundary().await, Err(PolicyError::Ended)));
}
