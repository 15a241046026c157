//! The figures that a run reports about itself, compared with the truth.

use rolldock::dispatch::TokenTotals;
use rolldock::rollout::EarlyStop;
use rolldock_bench_rollouts::truth::bias::{
    Coverage, SEEDS, SEEDS_QUICK, STEPS_QUICK, TOLD_STEPS, cases, compare, run, told, what_an_audit_changes,
};
use rolldock_bench_rollouts::truth::tokens::{self, Case};

/// Tests the meter in every configuration, with fewer runs than `rolldock-bench truth`.
#[test]
fn the_meter_agrees_with_the_truth_in_every_configuration() {
    let mut all = Coverage::default();
    for (first, case) in (0..).step_by(SEEDS as usize).zip(cases()) {
        let compared = compare(&case, first..first + SEEDS_QUICK, STEPS_QUICK).unwrap();
        let (name, coverage) = (case.name(), compared.coverage);
        assert_eq!(coverage.unknown, 0, "{name}: {compared:?}");
        assert_eq!(coverage.exact, coverage.exact_true, "{name}: {compared:?}");
        if case.is_unbiased() {
            let by_chance = if case.stop_unlikely.is_some() { 3.0 * compared.standard_error } else { 0.02 };
            assert_eq!(compared.guarded, 0, "{name}: {compared:?}");
            assert!((compared.ratio - 1.0).abs() < 1e-12, "{name}: {compared:?}");
            assert!((compared.truth - 1.0).abs() < by_chance, "{name}: {compared:?}");
        } else {
            assert!(compared.truth < 0.99, "{name}: {compared:?}");
        }
        if case.is_fifo() {
            assert!(compared.off_one <= 0.005, "{name}: {compared:?}");
        }
        all.join(&coverage);
    }
    assert!(all.estimated > 100, "{all:?}");
    assert!((0.9..=0.99).contains(&all.share_of_estimates()), "{} of {all:?}", all.share_of_estimates());
}

#[test]
fn an_audit_counts_for_the_meter_and_for_nothing_else() {
    assert_eq!(what_an_audit_changes(10).unwrap(), (0, 0));
}

#[test]
fn a_bias_of_0_96_is_distinguished_from_none_within_100_steps() {
    let outcome = run(&told(), 0, TOLD_STEPS).unwrap();
    let [length, ..] = outcome.readings.unwrap();
    assert!((0.94..0.98).contains(&length.truth), "{length:?}");
    assert!(outcome.told_at.is_some(), "{length:?}");
}

/// Runs the cases of an early stop. Every bucket has tokens at the end of some step, and no tokens are in
/// flight at the end of a run.
fn check_tokens(early_stop: EarlyStop) {
    let (mut run_buckets, mut step_buckets) = ([0; 18], [0; 18]);
    let (mut cases, mut with_bias) = (0, 0);
    for case in Case::all().into_iter().filter(|case| case.early_stop == early_stop) {
        let outcome = tokens::run(case).unwrap();
        if let Err(violation) = outcome.check() {
            panic!("{}: {violation}: {outcome:?}", case.name());
        }
        cases += 1;
        with_bias += usize::from(outcome.covers_both_lives());
        let (of_run, of_steps) = (outcome.tokens.to_counts(), outcome.by_steps.to_counts());
        run_buckets = std::array::from_fn(|place| run_buckets[place] + of_run[place]);
        step_buckets = std::array::from_fn(|place| step_buckets[place] + of_steps[place]);
    }
    // Under `first`, a valid group is accepted when it ends, so no group is held.
    let mut absent = vec!["wasted_audit", "probes", "hedges"];
    absent.extend((early_stop == EarlyStop::First).then_some("held"));
    for (bucket, tokens) in TokenTotals::from_counts(step_buckets).buckets() {
        assert!(tokens > 0 || absent.contains(&bucket), "no case puts a token into {bucket}");
    }
    // With `first` and `discard`, the meter has figures only if there is an audit.
    assert!(2 * with_bias > cases, "the bias is known in {with_bias} of {cases} cases");
    let of_runs = TokenTotals::from_counts(run_buckets);
    assert_eq!((of_runs.in_flight, of_runs.earlier), (0, 0), "every life has ended");
}

#[test]
fn every_token_of_an_audit_that_outlives_the_last_step_is_in_one_bucket() {
    for case in Case::audited() {
        let outcome = tokens::run(case).unwrap();
        assert_eq!(outcome.check(), Ok(()), "{}: {outcome:?}", case.name());
        assert!(outcome.tokens.wasted.audit > 0, "{}: {outcome:?}", case.name());
    }
}

#[test]
fn under_first_every_token_of_the_engines_is_in_one_bucket() {
    check_tokens(EarlyStop::First);
}

#[test]
fn under_fifo_every_token_of_the_engines_is_in_one_bucket() {
    check_tokens(EarlyStop::Fifo);
}

#[test]
fn under_off_every_token_of_the_engines_is_in_one_bucket() {
    check_tokens(EarlyStop::Off);
}
