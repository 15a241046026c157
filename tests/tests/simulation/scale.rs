//! The measured runs of `rolldock-bench scale`, at a small size.

use rolldock_bench_rollouts::scale::{Cost, Fleet, Point, engines_alone, in_virtual_time, rollout};

#[test]
fn a_small_run_finishes_its_samples_and_measures_permits() {
    let point = Point { groups_per_worker: 1, servers: 4 };
    let engines = in_virtual_time(engines_alone(point, Fleet::Simulated, 16)).unwrap();
    let whole = in_virtual_time(rollout(point, Fleet::Simulated, 16)).unwrap();
    assert!(engines.cpu > 0.0 && whole.cpu > 0.0);
    // Other tests of the process may free more memory than a run takes, so one of several runs has to show it.
    let takes_memory = |cost: &Cost| cost.memory > 0.0;
    let again = || in_virtual_time(rollout(point, Fleet::Simulated, 16)).unwrap();
    assert!(takes_memory(&whole) || (0..10).any(|_| takes_memory(&again())), "{whole:?}");
    assert!(whole.request_seconds > 1.0, "{whole:?}");
    assert!(whole.permits.len() > 100 && whole.permit(0.5) <= whole.permit(0.99));
}

#[test]
fn servers_that_only_take_time_finish_the_same_samples() {
    let point = Point { groups_per_worker: 1, servers: 4 };
    let engines = in_virtual_time(engines_alone(point, Fleet::Timed, 16)).unwrap();
    let whole = in_virtual_time(rollout(point, Fleet::Timed, 16)).unwrap();
    assert!(engines.cpu > 0.0 && whole.cpu > 0.0);
    assert!((24.0..36.0).contains(&whole.request_seconds), "{whole:?}");
    assert!(whole.permits.is_empty());
}
