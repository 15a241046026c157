use std::collections::BTreeMap;
use std::sync::Arc;

use rolldock_dispatch::{TokenTotals, Totals};

use super::*;
use crate::dispatch::bias::{Bias, BiasReading, Unknown};
use crate::rollout::{Counts, EarlyStop, ServerLoad, StepCosts};

#[test]
fn validation_counts_samples_and_prompts() {
    let line = validation_line(10, 2, &[vec![1.0, 0.0], vec![0.0, 0.0]]);
    assert_eq!(line, "validation after step 10: 2 prompts, mean@2 0.250, best@2 0.500");
}

/// A step with the batch size of the published recipe, on a fleet of two servers. The step has groups with
/// several fates and tokens in every bucket.
fn large_step() -> StepMetrics {
    let load = ServerLoad { samples: 8192, tokens: 33_554_432, cancelled: 1024, failures: 16 };
    let servers =
        [("10.200.100.100:8000".into(), load.clone()), ("gateway/models/qwen3-8b-base".into(), load)];
    let costs = StepCosts {
        samples: 16_384,
        tokens: 67_108_864,
        samples_cancelled: 4096,
        servers: servers.into(),
        ..StepCosts::default()
    };
    let bias = Bias { accepted: 4096.0, dispatched: 4096.5, standard_error: 0.0123 };
    let unknown = BiasReading::default();
    StepMetrics {
        step: 1000,
        end: StepEnd::OutOfBatches,
        elapsed: Duration::from_secs(4000),
        counts: Counts {
            target: 512,
            accepted: 500,
            valid: 500,
            running: 0,
            not_put: 0,
            hold: None,
            queued: 0,
            batches_opened: 20,
        },
        totals: Totals { dispatched: 20_480, accepted: 500, failed: 1024, ..Totals::default() },
        // Every bucket has tokens.
        tokens: TokenTotals {
            accepted: 40_000_000,
            filtered: 27_108_864,
            ..TokenTotals::from_counts([1_234_567; 18])
        },
        tokens_run: TokenTotals::default(),
        costs,
        bias: BiasReading { length: Some(bias), accuracy: Some(bias), accept_rate: Some(bias), ..unknown },
        policy_version: 1000,
        history: None,
        ages: (0..12).map(|age| (age, 100)).collect::<BTreeMap<u64, u64>>(),
        guarded: Some(EarlyStop::Off),
        timeline: Arc::default(),
    }
}

#[test]
fn a_table_fits_eighty_columns_and_splits_no_word() {
    let table = step_table(&large_step());
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}\n{table}");
    }
    for words in
        ["(rollout.max_gen_batches)", "10.200.100.100:8000:", "gateway/models/qwen3-8b-base:", "40,000,000"]
    {
        assert!(table.contains(words), "{words} in\n{table}");
    }
}

#[test]
fn a_bias_has_its_standard_error_or_the_reason_why_it_is_not_known() {
    let mut step = large_step();
    let table = step_table(&step);
    assert!(table.contains("1.00 ± 0.01 (accepted 4096 / dispatched 4096 tokens)"), "{table}");
    for unknown in [Unknown::NotYet, Unknown::Unaudited, Unknown::Undecided { number: 1 << 20, step: 900 }] {
        step.bias = BiasReading { unknown: Some(unknown), ..BiasReading::default() };
        let table = step_table(&step);
        assert!(table.contains("length bias   not known"), "{table}");
        assert!(!table.contains("difficulty"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
