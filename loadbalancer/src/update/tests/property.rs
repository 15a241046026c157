//! Random failures, deaths, joins and announcements. The invariants hold at every moment. When the faults are
//! over, every server gets the newest weights and no engine is left paused.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fake::{FakeEngine, Fault, Fixture, announcement, fixture, reloading, spec};
use super::*;

const CALLS: [&str; 10] = [
    "pause keep",
    "pause abort",
    "pause wait",
    "load",
    "receive",
    "recompute",
    "reset",
    "label",
    "resume",
    "check",
];

fn config(rng: &mut ChaCha8Rng) -> UpdateConfig {
    let pauses = [None, Some(PauseMode::Keep), Some(PauseMode::Abort), Some(PauseMode::Wait)];
    let method = match rng.random_range(0..3) {
        0 => UpdateMethod::Transfer,
        _ => UpdateMethod::Reload(Reload::default()),
    };
    UpdateConfig {
        method,
        pause: pauses[rng.random_range(0..pauses.len())],
        reset_prefix_cache: rng.random_bool(0.5),
        concurrency: rng.random_range(1..4),
        ..reloading()
    }
}

fn injure(fixture: &Fixture, rng: &mut ChaCha8Rng, name: &str) {
    let what = CALLS[rng.random_range(0..CALLS.len())];
    let fault = match rng.random_range(0..5) {
        0 => Some(Fault::Fails),
        1 => Some(Fault::Hangs),
        2 => Some(Fault::Unknown),
        3 => Some(Fault::Takes(rng.random_range(1..90))),
        _ => None,
    };
    // An engine that does not offer resuming cannot have been paused.
    let is_real = what != "resume" || fault != Some(Fault::Unknown);
    if is_real {
        fixture.fake.fault(name, what, fault);
    }
}

/// Requests on unknown weights must not continue.
fn check_held(fixture: &Fixture, held: &[crate::Permit]) {
    for permit in held.iter().filter(|permit| permit.revoked().now_or_never().is_none()) {
        let engine = fixture.fake.engine(&permit.server_name());
        let server = fixture.server(&permit.server_name());
        let goes_on = !engine.is_paused && server.hold != Some(Hold::Updating);
        assert!(!goes_on || engine.weights.is_some(), "{server:?} {engine:?}");
    }
}

async fn play(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let fixture = fixture(3, config(&mut rng));
    let end = CancellationToken::new();
    fixture.tracker.spawn(fixture.updater.clone().run(end.clone()));
    let mut version = 0;
    let mut held = Vec::new();
    for event in 0..60 {
        let names: Vec<String> =
            fixture.balancer.snapshot().servers.iter().map(|server| server.name.to_string()).collect();
        let name = &names[rng.random_range(0..names.len())];
        match rng.random_range(0..10) {
            0 | 1 => {
                version += 1;
                let payload = Some(serde_json::Value::from(format!("/v{version}")));
                let announced = Announcement { payload, ..announcement(version) };
                let update = fixture.updater.update(announced);
                // Some callers stop waiting before the reply.
                let patience = Duration::from_secs(rng.random_range(0..200));
                let _ = tokio::time::timeout(patience, update).await;
            }
            2 | 3 => injure(&fixture, &mut rng, name),
            4 => fixture.restart(name),
            5 => names.iter().for_each(|name| fixture.revive(name)),
            6 if names.len() < 6 => {
                let joins = format!("n{event}");
                fixture.fake.set(&joins, |engine| *engine = FakeEngine::default());
                fixture.balancer.add(spec(&joins)).unwrap();
            }
            6 if names.len() > 2 => fixture.balancer.remove(fixture.server(name).id).unwrap(),
            7 => held.extend(fixture.permit()),
            8 if !held.is_empty() => drop(held.swap_remove(rng.random_range(0..held.len()))),
            _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..60_000))).await,
        }
        let required = fixture.balancer.snapshot().weights_required;
        fixture.check(required);
        check_held(&fixture, &held);
    }
    fixture.fake.heal();
    for server in fixture.balancer.snapshot().servers {
        fixture.revive(&server.name);
    }
    version += 1;
    let payload = Some(serde_json::Value::from(format!("/v{version}")));
    fixture.updater.update(Announcement { payload, ..announcement(version) }).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    fixture.check(Some(version));
    for server in fixture.balancer.snapshot().servers {
        assert_eq!((server.weights_version, server.hold), (Some(version), None), "{server:?}");
        let engine = fixture.fake.engine(&server.name);
        assert!(!engine.is_paused && engine.label == version.to_string(), "{} {engine:?}", server.name);
    }
    drop(held);
    invariants::all_returned(&fixture.balancer.snapshot()).unwrap();
    end.cancel();
    fixture.tracker.close();
    fixture.tracker.wait().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn whatever_fails_and_dies_the_invariants_hold(seed in any::<u64>()) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(seed));
    }
}
