//! Servers that miss an update, die, return or join, and engines that are left paused.

use super::fake::{FakeEngine, Fault, Fixture, announcement, failures, fixture, reloading, spec, with};
use super::*;

#[tokio::test(start_paused = true)]
async fn a_missed_update_is_tried_again_with_growing_pauses() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "load", Fault::Fails);
    fixture.update(7).await;
    assert!(fixture.updater.catch_up().await.is_empty(), "not at once");
    let end = CancellationToken::new();
    let looking = fixture.updater.clone().run(end.clone());
    let _ = tokio::time::timeout(Duration::from_secs(600), looking).await;
    let tries = fixture.fake.count("s1 load");
    assert!((10..=17).contains(&tries), "{tries} in ten minutes");
    assert_eq!(fixture.fake.count("s0 load"), 1);
    assert_eq!(fixture.state("s1"), ServerState::Paused);
    fixture.fake.heal();
    let _ = tokio::time::timeout(Duration::from_secs(61), fixture.updater.clone().run(end)).await;
    assert_eq!(fixture.server("s1").weights_version, Some(7));
    assert_ne!(fixture.state("s1"), ServerState::Paused);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_lacks_the_name_does_not_load_the_weights_again() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "label", Fault::Fails);
    fixture.update(7).await;
    fixture.fake.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let updated = fixture.updater.catch_up().await;
    assert_eq!((updated.len(), failures(&updated)), (1, Vec::new()));
    assert_eq!((fixture.fake.count("s0 load"), fixture.fake.count("s0 label")), (1, 2));
    assert_eq!(fixture.state("s0"), ServerState::Probing);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_takes_no_permit_before_it_has_the_announced_weights() {
    let fixture = fixture(1, reloading());
    fixture.update(7).await;
    fixture.restart("s0");
    fixture.revive("s0");
    let server = fixture.server("s0");
    assert_eq!((server.state, server.hold), (ServerState::Paused, Some(Hold::Outdated)));
    assert_eq!(server.reason.as_deref(), Some("awaits weights version=7"));
    assert!(fixture.permit().is_none());
    fixture.updater.catch_up().await;
    assert_eq!(fixture.state("s0"), ServerState::Probing, "it is on trial as after any death");
    fixture.permit().unwrap().finish(Outcome::Success { tokens: 1 });
    assert_eq!(fixture.state("s0"), ServerState::Active);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_joins_late_gets_the_weights_before_permits() {
    let fixture = fixture(1, reloading());
    fixture.update(7).await;
    fixture.balancer.add(spec("late")).unwrap();
    assert_eq!(fixture.state("late"), ServerState::Paused);
    let updated = fixture.updater.catch_up().await;
    assert_eq!(updated.len(), 1);
    assert_eq!(fixture.state("late"), ServerState::Active);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_death_in_the_middle_of_an_update_delays_no_other_server_and_is_made_up_for() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "load", Fault::Takes(30));
    let dies = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        fixture.restart("s1");
        fixture.fake.set("s1", |engine| engine.is_gone = true);
    };
    let (report, ()) = tokio::join!(fixture.update(7), dies);
    assert_eq!(
        (failures(&report.servers), report.took.as_secs()),
        (vec![("s1".to_owned(), Phase::Update)], 30)
    );
    assert_eq!((fixture.state("s0"), fixture.state("s1")), (ServerState::Active, ServerState::Dead));
    fixture.fake.heal();
    fixture.fake.set("s1", |engine| *engine = FakeEngine::default());
    fixture.revive("s1");
    fixture.check(Some(7));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let looking = fixture.updater.clone().run(CancellationToken::new());
    let _ = tokio::time::timeout(Duration::from_secs(5), looking).await;
    assert_eq!(fixture.state("s1"), ServerState::Probing);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_life_that_has_ended_does_not_count() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "label", Fault::Takes(8));
    let dies = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        fixture.restart("s0");
        fixture.revive("s0");
    };
    let (report, ()) = tokio::join!(fixture.update(7), dies);
    assert_eq!(report.outcome, UpdateOutcome::Partial, "the new process is not paused");
    assert_eq!(fixture.server("s0").hold, Some(Hold::Outdated));
    fixture.fake.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    fixture.updater.catch_up().await;
    fixture.check(Some(7));
    assert_eq!(fixture.state("s0"), ServerState::Probing);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_replaced_unnoticed_is_found_by_the_name_of_its_weights() {
    let fixture = fixture(1, reloading());
    fixture.update(7).await;
    fixture.fake.set("s0", |engine| *engine = FakeEngine::default());
    let lost = fixture.permit().unwrap();
    let updated = fixture.updater.catch_up().await;
    assert_eq!(updated.len(), 1);
    assert!(lost.revoked().now_or_never().is_some());
    assert_eq!(fixture.fake.engine("s0").label, "7");
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn engines_that_a_crashed_process_left_paused_are_found() {
    let former = fixture(3, reloading());
    former.fake.fault("s0", "load", Fault::Hangs);
    assert!(tokio::time::timeout(Duration::from_secs(5), former.update(7)).await.is_err());
    assert_eq!(former.fake.paused().len(), 3);
    // The next process has no memory of the former process. An operator has paused s2.
    let fake = Arc::clone(&former.fake);
    fake.heal();
    let specs = vec![spec("s0"), spec("s1"), spec("s2")];
    let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
    let now = with(balancer, fake, reloading());
    now.balancer.set_paused(now.server("s2").id, true).unwrap();
    let recovered: Vec<String> =
        now.updater.recover().await.iter().map(|server| server.name.to_string()).collect();
    assert_eq!(recovered, ["s0", "s1"]);
    assert_eq!(now.fake.paused(), ["s2".to_owned()].into());
    assert!(now.updater.recover().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_fails_to_resume_gets_no_permits_and_is_called_again() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "resume", Fault::Fails);
    let report = fixture.update(7).await;
    assert_eq!(failures(&report.servers), [("s1".to_owned(), Phase::Resume)]);
    let reason = fixture.server("s1").reason.unwrap();
    assert!(reason.starts_with("is being updated to weights version=7: resume:"), "{reason}");
    assert_eq!(fixture.state("s0"), ServerState::Active);
    fixture.fake.heal();
    let looking = fixture.updater.clone().run(CancellationToken::new());
    let _ = tokio::time::timeout(Duration::from_secs(5), looking).await;
    assert_eq!(fixture.state("s1"), ServerState::Active);
    assert_eq!(fixture.fake.count("s1 load"), 1, "its weights are there");
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn an_operators_pause_outlives_the_update_and_so_does_a_drain() {
    let fixture = fixture(3, reloading());
    fixture.balancer.set_paused(fixture.server("s0").id, true).unwrap();
    fixture.balancer.set_draining(fixture.server("s1").id).unwrap();
    assert_eq!(fixture.update(7).await.outcome, UpdateOutcome::Complete);
    let states = ["s0", "s1", "s2"].map(|name| fixture.state(name));
    assert_eq!(states, [ServerState::Paused, ServerState::Draining, ServerState::Active]);
    fixture.fake.fault("s0", "load", Fault::Fails);
    fixture.update(8).await;
    fixture.balancer.set_paused(fixture.server("s0").id, false).unwrap();
    assert_eq!(fixture.state("s0"), ServerState::Paused, "the operator lets it in, its weights do not");
    fixture.check(Some(8));
}

#[tokio::test(start_paused = true)]
async fn catching_up_gives_way_to_an_announcement() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "load", Fault::Hangs);
    fixture.update(7).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let catching_up = fixture.updater.catch_up();
    tokio::pin!(catching_up);
    assert!(tokio::time::timeout(Duration::from_secs(5), catching_up.as_mut()).await.is_err());
    fixture.fake.fault("s1", "load", None);
    let began = Instant::now();
    assert_eq!(fixture.update(8).await.outcome, UpdateOutcome::Complete);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(failures(&catching_up.await), [("s1".to_owned(), Phase::Update)]);
    fixture.check(Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_missed_transfer_is_repeated_from_a_path_or_not_at_all() {
    let config = UpdateConfig { method: UpdateMethod::Transfer, ..reloading() };
    let fixture = fixture(2, config);
    let payload = |version: u64| Some(serde_json::Value::from(format!("/v{version}")));
    fixture.fake.fault("s1", "receive", Fault::Fails);
    fixture.updater.update(Announcement { payload: payload(7), ..Announcement::new(7) }).await;
    assert_eq!(fixture.fake.count("s1 finish"), 1, "a transfer that has begun is closed");
    fixture.fake.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(fixture.updater.catch_up().await.is_empty());
    assert_eq!(fixture.server("s1").hold, Some(Hold::Outdated));
    fixture.fake.fault("s1", "receive", Fault::Fails);
    fixture.updater.update(Announcement { payload: payload(8), ..announcement(8) }).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(failures(&fixture.updater.catch_up().await), []);
    assert_eq!(fixture.fake.count("s1 load"), 1);
    fixture.check(Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_during_its_update_is_forgotten() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "load", Fault::Hangs);
    let leaves = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        fixture.balancer.remove(fixture.server("s1").id).unwrap();
    };
    let (report, ()) = tokio::join!(fixture.update(7), leaves);
    assert_eq!(report.outcome, UpdateOutcome::Partial);
    assert!(fixture.updater.catch_up().await.is_empty());
    assert!(fixture.updater.inner.book.lock().servers.owed().is_empty());
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_requires_the_announced_weights_before_its_first_request() {
    let fixture = fixture(2, reloading());
    fixture.updater.require(announcement(7));
    fixture.updater.require(announcement(6));
    assert!(fixture.permit().is_none());
    assert_eq!(failures(&fixture.updater.catch_up().await), []);
    assert!(fixture.permit().is_some());
    fixture.check(Some(7));
}

/// The call to `s0` at which its process is replaced, and the time of that call in seconds.
async fn replaced_at(what: &'static str, seconds: u64, replacement: FakeEngine) -> (Fixture, UpdateReport) {
    let fixture = fixture(2, reloading());
    fixture.update(6).await;
    fixture.fake.fault("s0", what, Fault::Takes(seconds));
    let dies = async {
        tokio::time::sleep(Duration::from_secs(seconds / 2)).await;
        fixture.fake.set("s0", |engine| *engine = replacement);
    };
    let (report, ()) = tokio::join!(fixture.update(7), dies);
    fixture.fake.heal();
    (fixture, report)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_replaced_the_one_with_the_weights_does_not_get_their_label() {
    let paused = FakeEngine { is_paused: true, ..FakeEngine::default() };
    // Its label, or that it runs, tells it from the process that has loaded the weights.
    for (what, replacement) in [("recompute", paused), ("label", FakeEngine::default())] {
        let (fixture, report) = replaced_at(what, 8, replacement).await;
        let failed = vec![("s0".to_owned(), Phase::Label)];
        assert_eq!((failures(&report.servers), report.outcome), (failed, UpdateOutcome::Partial), "{what}");
        assert_eq!(fixture.server("s0").hold, Some(Hold::Outdated), "{what}");
        fixture.check(Some(7));
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.updater.catch_up().await;
        assert_eq!(fixture.fake.engine("s0").weights.as_deref(), Some("/v7"), "{what}");
        assert_eq!(fixture.state("s0"), ServerState::Probing, "{what}");
        fixture.check(Some(7));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_returns_does_not_wait_for_one_that_loads() {
    let fixture = fixture(3, reloading());
    fixture.update(7).await;
    for name in ["s1", "s2"] {
        fixture.restart(name);
    }
    fixture.revive("s2");
    fixture.fake.fault("s2", "load", Fault::Takes(300));
    let returns = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        fixture.revive("s1");
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fixture.state("s1"), ServerState::Probing);
        assert_eq!(fixture.state("s2"), ServerState::Paused);
        fixture.check(Some(7));
    };
    let (updated, ()) = tokio::join!(fixture.updater.catch_up(), returns);
    assert_eq!((updated.len(), failures(&updated)), (2, Vec::new()));
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_replaced_while_another_server_loads_is_found() {
    let fixture = fixture(3, reloading());
    fixture.update(7).await;
    fixture.restart("s2");
    fixture.revive("s2");
    fixture.fake.fault("s2", "load", Fault::Takes(300));
    let replaced = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        fixture.fake.set("s0", |engine| *engine = FakeEngine::default());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fixture.fake.engine("s0").weights.as_deref(), Some("/v7"));
        fixture.check(Some(7));
    };
    tokio::join!(fixture.updater.catch_up(), replaced);
    assert_eq!((fixture.fake.count("s0 load"), fixture.fake.count("s1 load")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_take_its_label_is_tried_again_with_growing_pauses() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "label", Fault::Ignored);
    let report = fixture.update(7).await;
    assert_eq!(failures(&report.servers), vec![("s1".to_owned(), Phase::Label)]);
    let looking = fixture.updater.clone().run(CancellationToken::new());
    let _ = tokio::time::timeout(Duration::from_secs(600), looking).await;
    let tries = fixture.fake.count("s1 load");
    assert!((10..=17).contains(&tries), "{tries} in ten minutes");
    assert_eq!(fixture.state("s1"), ServerState::Paused);
}
