#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::{GatesConfig, Score};

/// Always gives the same score, and counts the calls.
struct FixedScore {
    score: f64,
    calls: AtomicUsize,
}

impl RewardRunner for FixedScore {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let score = self.score;
        Box::pin(std::future::ready(Ok(Score { score, ..Score::default() })))
    }
}

/// Makes one outside gate for each pair of a score and whether the gate yields. The name of a gate is its index.
fn gates(outside: &[(f64, bool)]) -> (Gates, Vec<Arc<FixedScore>>) {
    let mut gates = Gates::new(&GatesConfig::default()).unwrap();
    let mut runners = Vec::new();
    for (index, (score, yields)) in outside.iter().enumerate() {
        let runner = Arc::new(FixedScore { score: *score, calls: AtomicUsize::new(0) });
        gates.push_outside(&index.to_string(), Arc::clone(&runner) as _, *yields).unwrap();
        runners.push(runner);
    }
    (gates, runners)
}

fn ask(gates: &Gates) -> Result<(), Rejection> {
    let row =
        GateRow { ground_truth: "1".into(), data_source: "".into(), prompt: "".into(), row: Value::Null };
    gates.ask(&GroupView::default(), &row, true).now_or_never().unwrap().unwrap()
}

#[test]
fn a_rejection_that_does_not_yield_is_reported_before_one_that_yields() {
    let (pass, refuse) = (1.0, 0.0);
    for (outside, expected, asked) in [
        (vec![(pass, false), (pass, true)], None, vec![1, 1]),
        (vec![(refuse, true), (refuse, false)], Some(("1", false)), vec![1, 1]),
        (vec![(refuse, true), (pass, false), (refuse, true)], Some(("0", true)), vec![1, 1, 1]),
        (vec![(refuse, false), (pass, false)], Some(("0", false)), vec![1, 0]),
    ] {
        let (gates, runners) = gates(&outside);
        let verdict = ask(&gates).err().map(|rejection| (rejection.gate.to_string(), rejection.yields));
        let expected = expected.map(|(gate, yields)| (gate.to_owned(), yields));
        assert_eq!(verdict, expected, "{outside:?}");
        let calls: Vec<usize> = runners.iter().map(|runner| runner.calls.load(Ordering::Relaxed)).collect();
        assert_eq!(calls, asked, "{outside:?}");
        for counts in gates.counts() {
            assert_eq!(counts.add_up(), Ok(()));
        }
    }
}

#[test]
fn outside_gates_are_asked_about_groups_that_only_yielding_gates_rejected() {
    let rejection = |gate: &str, yields| Rejection { gate: gate.into(), reason: "r", value: 0.0, yields };
    let (soft, hard) = (rejection("soft", true), rejection("hard", false));
    let (some, _) = gates(&[(1.0, false)]);
    assert!(some.asks_after(&Ok(())) && some.asks_after(&Err(soft.clone())));
    assert!(!some.asks_after(&Err(hard.clone())) && !Gates::default().asks_after(&Ok(())));
}

#[test]
fn a_rejection_that_does_not_yield_takes_precedence() {
    let rejection = |gate: &str, yields| Rejection { gate: gate.into(), reason: "r", value: 0.0, yields };
    let (soft, hard) = (rejection("soft", true), rejection("hard", false));
    let outside_soft = rejection("outside", true);
    for (inside, outside, expected) in [
        (Ok(()), Ok(()), Ok(())),
        (Ok(()), Err(&hard), Err(&hard)),
        (Err(&soft), Ok(()), Err(&soft)),
        (Err(&soft), Err(&hard), Err(&hard)),
        (Err(&soft), Err(&outside_soft), Err(&soft)),
        (Err(&hard), Err(&outside_soft), Err(&hard)),
    ] {
        let verdict = Rejection::of_both(inside.map_err(Rejection::clone), outside.map_err(Rejection::clone));
        assert_eq!(verdict, expected.map_err(Rejection::clone));
    }
}
