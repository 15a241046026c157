use proptest::prelude::*;

use super::*;

const TRUTH: Fit =
    Fit { overhead_s: 0.004, prefill_s: 32e-6, base_s: 5.5e-3, per_seq_s: 12e-6, per_kv_token_s: 44e-9 };

/// The batches that a calibration measures, more or less.
fn batches(noise: impl Fn(usize) -> f64) -> Vec<Measured> {
    let mut batches = Vec::new();
    for seqs in [1, 4, 16, 64, 128] {
        for (prompt_tokens, tokens) in [(16, 32), (16, 256), (512, 32), (1024, 256)] {
            let batch = Measured { seqs, prompt_tokens, tokens, seconds: 0.0 };
            batches.push(Measured { seconds: TRUTH.seconds(&batch) * noise(batches.len()), ..batch });
        }
    }
    batches
}

fn is_near(found: f64, truth: f64, tolerance: f64) -> bool {
    (found / truth - 1.0).abs() < tolerance
}

#[test]
fn exact_times_give_the_exact_constants() {
    // The time is written out here, so that a wrong formula does not confirm itself.
    let batch = Measured { seqs: 2, prompt_tokens: 100, tokens: 10, seconds: 0.0 };
    let expected = 0.004 + 200.0 * 32e-6 + 10.0 * 5.5e-3 + 20.0 * 12e-6 + 20.0 * 105.0 * 44e-9;
    assert!(is_near(TRUTH.seconds(&batch), expected, 1e-12));
    let fit = Fit::new(&batches(|_| 1.0)).unwrap();
    for (found, truth) in [
        (fit.overhead_s, TRUTH.overhead_s),
        (fit.prefill_s, TRUTH.prefill_s),
        (fit.base_s, TRUTH.base_s),
        (fit.per_seq_s, TRUTH.per_seq_s),
        (fit.per_kv_token_s, TRUTH.per_kv_token_s),
    ] {
        assert!(is_near(found, truth, 1e-4), "{found} {truth}");
    }
    let model = fit.model();
    assert_eq!((model.decode_base_ns, model.prefill_ns_per_token), (Some(5_500_000), Some(32_000)));
}

#[test]
fn a_constant_is_never_negative() {
    // Larger batches are measured as if they were faster.
    let batches: Vec<Measured> = batches(|_| 1.0)
        .iter()
        .map(|batch| Measured { seconds: 1.0 / f64::from(batch.seqs), ..*batch })
        .collect();
    let fit = Fit::new(&batches).unwrap();
    for constant in [fit.overhead_s, fit.prefill_s, fit.base_s, fit.per_seq_s, fit.per_kv_token_s] {
        assert!(constant >= 0.0, "{fit:?}");
    }
}

#[test]
fn batches_that_do_not_differ_determine_nothing() {
    let same = vec![Measured { seqs: 1, prompt_tokens: 16, tokens: 32, seconds: 0.2 }; 9];
    assert_eq!(Fit::new(&same), Err(FitError::TooFew { found: 9, needed: 5 }));
    assert_eq!(Fit::new(&same[..2]), Err(FitError::TooFew { found: 2, needed: 5 }));
}

/// The standard error is compared with the spread of the fits of many measurements.
#[test]
fn the_standard_error_is_the_spread_of_the_fitted_cost() {
    let measurements = 200_u32;
    let (mut squares, mut errors) = (0.0, 0.0);
    for measurement in 0..measurements {
        // Noise of 1 %, spread evenly by multiples of the golden ratio.
        let noise = |place: usize| {
            let turns = f64::from(measurement * 20 + place as u32) * 0.618_033_988_749_895;
            1.0 + 0.01 * 3.0_f64.sqrt() * (2.0 * turns.fract() - 1.0)
        };
        let measured = batches(noise);
        let fit = Fit::new(&measured).unwrap();
        squares += (fit.per_kv_token_s / TRUTH.per_kv_token_s - 1.0).powi(2);
        errors += (fit.per_kv_token_error_s(&measured).unwrap() / TRUTH.per_kv_token_s).powi(2);
    }
    let ratio = (errors / squares).sqrt();
    assert!((0.7..1.4).contains(&ratio), "{ratio}: {squares} {errors}");
    let exact = batches(|_| 1.0);
    let fit = Fit::new(&exact).unwrap();
    assert!(fit.per_kv_token_error_s(&exact).unwrap() < 1e-12);
    assert_eq!(fit.per_kv_token_error_s(&exact[..5]), None);
}

proptest! {
    /// With noise of up to 2 %, the times of batches are predicted within a few per cent, and so are the
    /// constants that make up most of the time.
    #[test]
    fn noise_changes_little(noise in prop::collection::vec(0.98..1.02_f64, 20)) {
        let fit = Fit::new(&batches(|place| noise[place])).unwrap();
        for batch in batches(|_| 1.0) {
            prop_assert!(is_near(fit.seconds(&batch), batch.seconds, 0.04), "{:?} {:?}", fit, batch);
        }
        prop_assert!(is_near(fit.base_s, TRUTH.base_s, 0.05), "{:?}", fit);
        prop_assert!(is_near(fit.prefill_s, TRUTH.prefill_s, 0.1), "{:?}", fit);
    }
}
