//! The phases of an update, and failures in each of them.

use super::fake::{Fault, announcement, failures, fixture, reloading};
use super::*;

const CALLS: [&str; 6] = ["pause keep", "load", "recompute", "label", "resume", "check"];

#[tokio::test(start_paused = true)]
async fn a_fleet_gets_new_weights_in_six_phases() {
    let fixture = fixture(2, reloading());
    let report = fixture.update(7).await;
    assert_eq!((report.outcome, report.servers.len()), (UpdateOutcome::Complete, 2));
    let calls = fixture.fake.calls.lock().clone();
    let expected: Vec<String> =
        CALLS.iter().flat_map(|what| [format!("s0 {what}"), format!("s1 {what}")]).collect();
    assert_eq!(calls, expected);
    for name in ["s0", "s1"] {
        let engine = fixture.fake.engine(name);
        assert_eq!((engine.weights.as_deref(), &*engine.label), (Some("/v7"), "7"));
        assert!(!engine.is_paused && !engine.is_cache_old);
        let server = fixture.server(name);
        assert_eq!((server.state, server.weights_version), (ServerState::Active, Some(7)));
    }
    assert_eq!(fixture.updater.phase(), None);
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn an_update_grants_no_permit_and_keeps_granted_ones() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "load", Fault::Takes(30));
    let held = fixture.permit().unwrap();
    let update = fixture.update(7);
    tokio::pin!(update);
    assert!(update.as_mut().now_or_never().is_none());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let phase = fixture.updater.phase().unwrap();
    assert_eq!((phase.phase, phase.version), (Phase::Update, Some(7)));
    assert_eq!(phase.awaited, [Arc::from("s0")]);
    assert_eq!((phase.since.elapsed().as_secs(), phase.deadline.as_secs()), (5, 600));
    let server = fixture.server("s0");
    assert_eq!((server.state, server.hold), (ServerState::Paused, Some(Hold::Updating)));
    assert_eq!(server.reason.as_deref(), Some("is being updated to weights version=7"));
    assert!(fixture.permit().is_none());
    assert_eq!(update.await.outcome, UpdateOutcome::Complete);
    assert!(held.revoked().now_or_never().is_none(), "its request continues with the new weights");
    assert_eq!(held.epoch(), fixture.server("s0").epoch);
    held.finish(Outcome::Success { tokens: 1 });
    assert!(fixture.permit().is_some());
}

/// The call that fails on one server, its phase, and whether the server's permits are revoked.
const FAULTS: [(&str, Phase, bool); 6] = [
    ("pause keep", Phase::Pause, false),
    ("load", Phase::Update, true),
    ("recompute", Phase::Reset, true),
    ("label", Phase::Label, true),
    ("resume", Phase::Resume, false),
    ("check", Phase::Check, true),
];

#[tokio::test(start_paused = true)]
async fn a_failed_server_is_kept_out_and_only_a_failed_resume_leaves_its_engine_paused() {
    for fault in [Fault::Fails, Fault::Hangs] {
        for (what, phase, is_revoked) in FAULTS {
            let fixture = fixture(2, reloading());
            let held = [fixture.permit().unwrap(), fixture.permit().unwrap()];
            let on_bad = held.iter().find(|permit| &*permit.server_name() == "s1").unwrap();
            fixture.fake.fault("s1", what, fault);
            let began = Instant::now();
            let report = fixture.update(7).await;
            assert_eq!(failures(&report.servers), [("s1".to_owned(), phase)], "{what} {fault:?}");
            assert_eq!(report.outcome, UpdateOutcome::Partial);
            let most = Deadlines::default().of(phase);
            assert!(began.elapsed() <= most, "{what} {fault:?}: {:?}", began.elapsed());
            if fault == Fault::Hangs && phase != Phase::Resume {
                assert_eq!(began.elapsed(), most, "{what}");
            }
            assert!(!fixture.fake.engine("s0").is_paused);
            assert_eq!(fixture.fake.engine("s1").is_paused, phase == Phase::Resume, "{what}");
            assert_eq!(on_bad.revoked().now_or_never().is_some(), is_revoked, "{what} {fault:?}");
            let server = fixture.server("s1");
            assert_eq!(server.state, ServerState::Paused, "{what}");
            let reason = server.reason.unwrap();
            assert!(reason.contains("version=7") && reason.contains(phase.as_str()), "{reason}");
            fixture.check(Some(7));
            for _ in 0..3 {
                assert_eq!(&*fixture.permit().unwrap().server_name(), "s0", "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn running_requests_on_unknown_weights_are_aborted_before_the_engine_resumes() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "load", Fault::Fails);
    fixture.update(7).await;
    let calls = fixture.fake.calls.lock().clone();
    assert_eq!(calls, ["s0 pause keep", "s0 load", "s0 pause abort", "s0 resume"]);
}

#[tokio::test(start_paused = true)]
async fn no_permit_is_granted_before_the_check_and_a_failed_check_asks_for_another_load() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "check", Fault::Takes(30));
    let update = fixture.update(7);
    tokio::pin!(update);
    assert!(update.as_mut().now_or_never().is_none());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.updater.phase().unwrap().phase, Phase::Check);
    assert!(!fixture.fake.engine("s0").is_paused);
    assert!(fixture.permit().is_none(), "the check has not ended");
    assert_eq!(update.await.outcome, UpdateOutcome::Complete);
    assert!(fixture.permit().is_some());

    fixture.fake.fault("s0", "check", Fault::Fails);
    assert_eq!(fixture.update(8).await.outcome, UpdateOutcome::Partial);
    assert!(fixture.permit().is_none());
    let reason = fixture.server("s0").reason.unwrap();
    assert_eq!(&*reason, "awaits weights version=8: check: server=s0 failed at check: told to");
    fixture.fake.heal();
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.updater.catch_up().await;
    assert!(fixture.permit().is_some());
    assert_eq!(fixture.fake.count("s0 load"), 3, "weights that do not work are loaded again");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_checked_is_let_in_and_a_check_can_be_turned_off() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "check", Fault::Unknown);
    assert_eq!(fixture.update(7).await.outcome, UpdateOutcome::Complete);
    assert!(fixture.permit().is_some());

    let unchecked = super::fake::fixture(1, UpdateConfig { check_generation: false, ..reloading() });
    assert_eq!(unchecked.update(7).await.outcome, UpdateOutcome::Complete);
    assert_eq!(unchecked.fake.count("s0 check"), 0);
    assert!(unchecked.permit().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_load_that_the_engine_does_not_offer_leaves_its_weights_untouched() {
    let fixture = fixture(1, reloading());
    let held = fixture.permit().unwrap();
    fixture.fake.fault("s0", "load", Fault::Unknown);
    let report = fixture.update(7).await;
    assert_eq!(failures(&report.servers), [("s0".to_owned(), Phase::Update)]);
    assert!(held.revoked().now_or_never().is_none());
    let server = fixture.server("s0");
    assert_eq!((server.state, server.hold), (ServerState::Paused, Some(Hold::Outdated)));
    let reason = server.reason.unwrap();
    assert_eq!(&*reason, "awaits weights version=7: update: server=s0 does not offer load");
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_names_for_weights_needs_none() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "label", Fault::Unknown);
    assert_eq!(fixture.update(7).await.outcome, UpdateOutcome::Complete);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_running_requests_takes_as_long_as_they_run_and_no_longer_than_the_deadline() {
    let config = UpdateConfig { pause: Some(PauseMode::Wait), ..reloading() };
    let in_time = fixture(1, config.clone());
    in_time.fake.fault("s0", "pause wait", Fault::Takes(50));
    let report = in_time.update(7).await;
    assert_eq!((report.outcome, report.took.as_secs()), (UpdateOutcome::Complete, 50));
    assert_eq!(in_time.fake.count("s0 reset"), 1, "no running request has cache blocks to recompute");
    let too_late = fixture(1, config);
    too_late.fake.fault("s0", "pause wait", Fault::Takes(70));
    let report = too_late.update(7).await;
    assert_eq!(failures(&report.servers), [("s0".to_owned(), Phase::Pause)]);
    assert_eq!(too_late.fake.engine("s0").weights.as_deref(), Some("base"));
    assert!(!too_late.fake.engine("s0").is_paused);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_ends_no_update() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "load", Fault::Takes(30));
    assert!(tokio::time::timeout(Duration::from_secs(5), fixture.update(7)).await.is_err());
    assert!(fixture.fake.engine("s0").is_paused);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!fixture.fake.engine("s0").is_paused);
    assert_eq!(fixture.server("s0").weights_version, Some(7));
    assert!(fixture.permit().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_scope_cuts_the_update_short_and_resumes_the_engine() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "load", Fault::Hangs);
    let update = fixture.update(7);
    tokio::pin!(update);
    assert!(tokio::time::timeout(Duration::from_secs(5), update.as_mut()).await.is_err());
    fixture.end.cancel();
    fixture.tracker.close();
    let began = Instant::now();
    fixture.tracker.wait().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!fixture.fake.engine("s0").is_paused);
    assert_eq!(update.await.outcome, UpdateOutcome::Ended);
    assert_eq!(fixture.update(8).await.outcome, UpdateOutcome::Ended);
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_of_several_waiting_announcements_is_carried_out() {
    let fixture = fixture(1, reloading());
    fixture.fake.fault("s0", "load", Fault::Takes(30));
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::join!(fixture.update(8), fixture.update(10), fixture.update(9))
    };
    let (first, (skipped, newest, stale)) = tokio::join!(fixture.update(7), later);
    let outcomes = [first, skipped, newest, stale].map(|report| report.outcome);
    let superseded = UpdateOutcome::Superseded { by: 10 };
    assert_eq!(
        outcomes,
        [UpdateOutcome::Complete, superseded.clone(), UpdateOutcome::Complete, superseded.clone()]
    );
    assert_eq!(fixture.fake.count("s0 load"), 2);
    assert_eq!(fixture.update(6).await.outcome, superseded);
    assert_eq!(fixture.server("s0").weights_version, Some(10));
    assert_eq!(fixture.updater.current().unwrap().version, 10);
    fixture.check(Some(10));
}

#[tokio::test(start_paused = true)]
async fn without_a_method_servers_stay_active_even_if_their_label_fails() {
    let config = UpdateConfig { pause: Some(PauseMode::Keep), ..UpdateConfig::default() };
    let fixture = fixture(2, config);
    fixture.fake.fault("s1", "label", Fault::Fails);
    let report = fixture.update(7).await;
    assert_eq!(failures(&report.servers), [("s1".to_owned(), Phase::Label)]);
    assert_eq!(fixture.fake.engine("s0").label, "7");
    assert_eq!([fixture.state("s0"), fixture.state("s1")], [ServerState::Active; 2]);
    assert!(fixture.fake.paused().is_empty());
    fixture.fake.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(failures(&fixture.updater.catch_up().await), []);
    assert_eq!(fixture.fake.engine("s1").label, "7");
    fixture.restart("s0");
    fixture.revive("s0");
    assert!(fixture.updater.catch_up().await.is_empty(), "the weights of a fresh process are unknown");
}

#[tokio::test(start_paused = true)]
async fn all_servers_receive_a_transfer_together_whatever_the_limit_of_calls() {
    let config = UpdateConfig { method: UpdateMethod::Transfer, concurrency: 1, ..reloading() };
    let fixture = fixture(3, config);
    for name in ["s0", "s1", "s2"] {
        fixture.fake.fault(name, "receive", Fault::Takes(10));
        fixture.fake.fault(name, "pause keep", Fault::Takes(10));
    }
    let refused = fixture.update(7).await.outcome;
    assert!(matches!(refused, UpdateOutcome::Refused { .. }), "{refused:?}");
    assert_eq!(fixture.balancer.snapshot().weights_required, None, "nothing has changed");
    let payload = Some(serde_json::Value::from("/v7"));
    let report = fixture.updater.update(Announcement { payload, ..Announcement::new(7) }).await;
    assert_eq!((report.outcome, report.took.as_secs()), (UpdateOutcome::Complete, 30 + 10));
    fixture.check(Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_phase_ends_at_its_deadline_for_servers_that_were_not_called_yet() {
    let config = UpdateConfig { concurrency: 1, ..reloading() };
    let fixture = fixture(3, config);
    fixture.fake.fault("s0", "load", Fault::Takes(400));
    fixture.fake.fault("s1", "load", Fault::Takes(400));
    let report = fixture.update(7).await;
    assert_eq!((report.outcome, report.took.as_secs()), (UpdateOutcome::Partial, 600));
    assert_eq!(
        failures(&report.servers),
        [("s1".to_owned(), Phase::Update), ("s2".to_owned(), Phase::Update)]
    );
    assert_eq!(fixture.fake.engine("s2").weights.as_deref(), Some("base"), "it was not asked");
    assert!(fixture.fake.paused().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_last_version_can_be_announced_again_for_servers_that_lack_it() {
    let fixture = fixture(2, reloading());
    fixture.fake.fault("s1", "load", Fault::Fails);
    fixture.update(7).await;
    fixture.fake.heal();
    let report = fixture.updater.update(announcement(7)).await;
    assert_eq!((report.outcome, report.servers.len()), (UpdateOutcome::Complete, 1));
    assert_eq!((fixture.fake.count("s0 load"), fixture.fake.count("s1 load")), (1, 2));
    fixture.check(Some(7));
}
