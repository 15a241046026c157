use super::*;
use crate::draw::uniform;

fn group(tokens: u64, right: f64) -> GroupFigures {
    GroupFigures { samples: 2, tokens, right }
}

impl BiasMeter {
    fn decided(&mut self, number: u64, decision: Decision) {
        self.learn(number, BiasEvent::Decided(decision));
    }
}

/// The figures after one cohort for each list of decisions. Steps are counted from 1, numbers from 0.
fn after(audits: bool, cohorts: &[Vec<Decision>]) -> BiasReading {
    let mut meter = BiasMeter::default();
    let mut number = 0;
    for (step, decisions) in (1..).zip(cohorts) {
        let first = number;
        for _ in decisions {
            meter.sent(step, number, 1.0);
            number += 1;
        }
        for (number, decision) in (first..).zip(decisions) {
            meter.decided(number, *decision);
        }
        meter.close(step);
    }
    meter.reading(audits)
}

#[test]
fn groups_that_are_all_decided_are_known_exactly() {
    let cohort = vec![
        Decision::Accepted(group(100, 1.0)),
        Decision::Filtered,
        Decision::Accepted(group(300, 1.5)),
        Decision::Accepted(group(201, 0.5)),
    ];
    let reading = after(false, &[cohort.clone(), cohort]);
    assert_eq!((reading.steps, reading.unknown), (Some((1, 2)), None));
    for bias in [reading.length, reading.accuracy, reading.accept_rate] {
        let bias = bias.unwrap();
        assert_eq!((bias.ratio(), bias.standard_error), (1.0, 0.0), "{bias:?}");
    }
    assert_eq!(reading.length.unwrap().accepted, 601.0 / 6.0);
    assert_eq!(reading.accept_rate.unwrap().dispatched, 0.75);
}

#[test]
fn a_cohort_counts_when_its_last_number_is_decided() {
    let mut meter = BiasMeter::default();
    for number in 0..3 {
        meter.sent(1, number, 1.0);
    }
    meter.sent(2, 3, 1.0);
    meter.decided(2, Decision::Accepted(group(10, 1.0)));
    meter.decided(0, Decision::Accepted(group(20, 1.0)));
    meter.decided(3, Decision::Accepted(group(1000, 1.0)));
    meter.close(2);
    assert_eq!(meter.reading(false).unknown, Some(Unknown::NotYet), "number 1 may be longer than any other");
    meter.decided(1, Decision::Accepted(group(900, 1.0)));
    meter.decided(1, Decision::Failed);
    meter.close(1);
    assert_eq!(meter.reading(false).length.unwrap().dispatched, 930.0 / 6.0, "step 2 may send out more");
    meter.close(2);
    assert_eq!(meter.reading(false).steps, Some((1, 2)));
}

#[test]
fn groups_after_the_first_that_was_passed_over_do_not_count() {
    let prefix = vec![Decision::Accepted(group(100, 1.0)), Decision::Filtered];
    let behind = [Decision::PassedOver, Decision::Filtered, Decision::Failed, Decision::PassedOver];
    let alone = after(false, std::slice::from_ref(&prefix));
    let reading = after(false, &[[prefix, behind.to_vec()].concat()]);
    assert_eq!(
        reading, alone,
        "after a number that was passed over, only groups that ended early have a decision"
    );
}

#[test]
fn audited_groups_stand_for_all_that_were_cut_off() {
    let short = || (0..40).map(|place| Decision::Accepted(group(90 + place % 21, 1.0)));
    let long = |place: u64| group(280 + place % 41, 1.0);
    let sampled =
        (0..60).map(|place| if place < 30 { Decision::Cut } else { Decision::Audited(Some(long(place))) });
    let cohort: Vec<Decision> = short().chain(sampled).collect();
    let bias = after(true, std::slice::from_ref(&cohort)).length.unwrap();
    assert!((bias.accepted - 50.0).abs() < 1.0 && (bias.dispatched - 110.0).abs() < 2.0, "{bias:?}");
    assert!(bias.standard_error > 0.0 && bias.standard_error < 0.01, "{bias:?}");

    let all = (0..60).map(|place| Decision::Audited(Some(long(place))));
    let complete = after(true, &[short().chain(all).collect()]).length.unwrap();
    assert_eq!(complete.standard_error, 0.0, "nothing is left to be estimated");
    assert!((complete.ratio() - bias.ratio()).abs() < 2.0 * bias.standard_error);

    // Cut-off groups that a gate would have rejected do not count as responses.
    let filtered = (0..60).map(|place| match place {
        0..30 => Decision::Audited(None),
        place => Decision::Audited(Some(long(place))),
    });
    let half = after(true, &[short().chain(filtered).collect()]);
    assert!((half.length.unwrap().dispatched - (40.0 * 50.0 + 30.0 * 150.0) / 70.0).abs() < 2.0);
    assert_eq!(half.accept_rate.unwrap().dispatched, 0.7);
}

#[test]
fn a_reason_is_given_where_no_figure_is_known() {
    let cut = vec![Decision::Accepted(group(100, 1.0)), Decision::Cut];
    let unknown = |audits: bool, cohort: Vec<Decision>| {
        let reading = after(audits, &[cohort]);
        assert!(reading.length.is_none() && reading.accuracy.is_none() && reading.accept_rate.is_none());
        reading.unknown
    };
    assert_eq!(unknown(false, cut.clone()), Some(Unknown::Unaudited));
    assert_eq!(unknown(true, cut.clone()), Some(Unknown::NotYet));
    let few = [cut, vec![Decision::Audited(Some(group(100, 1.0))); 5]].concat();
    assert_eq!(unknown(true, few), Some(Unknown::NotYet));
    assert_eq!(unknown(false, vec![Decision::Filtered]), Some(Unknown::NotYet));
    let failed = vec![Decision::Accepted(group(100, 1.0)), Decision::Failed];
    assert_eq!(
        unknown(false, failed),
        Some(Unknown::NotYet),
        "a single complete group gives no estimate for the failed group"
    );
}

#[test]
fn failed_groups_widen_the_interval() {
    let groups = (0..100).map(|place| Decision::Accepted(group(50 + place, 1.0)));
    let sound = after(false, &[groups.clone().collect()]).length.unwrap();
    let failing = groups.chain(std::iter::repeat_n(Decision::Failed, 4)).collect();
    let failing = after(false, &[failing]).length.unwrap();
    assert_eq!((sound.standard_error, failing.ratio()), (0.0, 1.0));
    assert!(failing.standard_error > 0.001 && failing.standard_error < 0.01, "{failing:?}");
}

#[test]
fn an_audit_is_the_last_decision_of_a_group_that_was_cut_off() {
    let mut meter = BiasMeter::default();
    (0..3).for_each(|number| meter.sent(1, number, 1.0));
    for number in 0..3 {
        meter.learn(number, BiasEvent::AuditBegan);
        meter.decided(number, Decision::Cut);
    }
    meter.close(1);
    assert_eq!(meter.reading(true).steps, None, "three audits are under way");
    meter.decided(0, Decision::Audited(None));
    meter.learn(1, BiasEvent::AuditLost);
    // Another process continues without the third audit.
    let happened = meter.after_restart(|_| false);
    assert_eq!(happened, [(2, BiasEvent::AuditLost)]);
    meter.learn(2, BiasEvent::AuditLost);
    assert_eq!(meter.after_restart(|_| false), []);
    meter.close(1);
    assert_eq!(meter.reading(true).steps, Some((1, 1)));
}

#[test]
fn a_restart_takes_back_what_did_not_reach_the_queue_and_misses_no_number() {
    let mut meter = BiasMeter::default();
    (0..4).for_each(|number| meter.sent(1, number, 1.0));
    meter.decided(0, Decision::Accepted(group(100, 1.0)));
    meter.decided(1, Decision::Accepted(group(300, 1.0)));
    // Number 1 was accepted, but its rows are not in the queue. Number 2 is not sent out again, and its decision was
    // lost. Number 3 was in flight, and is sent out again.
    let happened = meter.after_restart(|number| [1, 3].contains(&number));
    let lost = BiasEvent::Decided(Decision::Failed);
    assert_eq!(happened, [(1, BiasEvent::TakenBack), (2, lost)]);
    happened.into_iter().for_each(|(number, event)| meter.learn(number, event));
    meter.close(1);
    assert_eq!(meter.reading(false).steps, None);
    meter.decided(1, Decision::Accepted(group(200, 1.0)));
    meter.decided(3, Decision::Filtered);
    let known = [Decision::Accepted(group(100, 1.0)), Decision::Accepted(group(200, 1.0))];
    let mut expected = BiasMeter::default();
    (0..4).for_each(|number| expected.sent(1, number, 1.0));
    for (number, decision) in (0..).zip(known.into_iter().chain([Decision::Failed, Decision::Filtered])) {
        expected.decided(number, decision);
    }
    assert_eq!(meter, expected);
}

#[test]
fn a_number_that_is_never_decided_is_given_up_and_memory_stays_bounded() {
    let mut meter = BiasMeter::default();
    let all = 3 * LAG_MAX as u64;
    for step in 1..=all {
        meter.sent(step, step, 1.0);
        if step != 5 {
            meter.decided(step, Decision::Accepted(group(step, 1.0)));
        }
        meter.close(step);
        assert!(meter.open.len() <= LAG_MAX && meter.window.len() <= WINDOW);
        if step == 5 + LAG_MAX as u64 {
            assert_eq!(meter.given_up, Some((5, 5)));
        }
    }
    assert_eq!(
        meter.reading(false).steps,
        Some((all - WINDOW as u64 + 1, all)),
        "the figures continue after the gap"
    );
    meter.decided(5, Decision::Accepted(group(1, 1.0)));
    meter.decided(10 * all, Decision::Filtered);
}

/// Of nine prompts of a kind, three are sent out, so each of the three stands for three: two are valid, and one is
/// filtered. The figures equal the figures of all eleven groups.
#[test]
fn groups_count_with_their_importance_weights() {
    let mut meter = BiasMeter::default();
    let sent =
        [(1.0, group(100, 2.0)), (3.0, group(400, 1.0)), (3.0, group(400, 1.0)), (1.0, group(100, 2.0))];
    for (number, (weight, _)) in (0..).zip(&sent) {
        meter.sent(1, number, *weight);
    }
    meter.sent(1, 4, 3.0);
    for (number, (_, group)) in (0..).zip(sent) {
        let missed = number == 2;
        let decision = if missed { Decision::Missed(group) } else { Decision::Accepted(group) };
        meter.learn(number, BiasEvent::Decided(decision));
    }
    meter.learn(4, BiasEvent::Decided(Decision::Filtered));
    meter.close(1);
    let BiasReading { length, accuracy, accept_rate, .. } = meter.reading(false);
    let (length, accuracy, accept_rate) = (length.unwrap(), accuracy.unwrap(), accept_rate.unwrap());
    // All valid groups: two with 100 tokens and six with 400. Accepted groups: two with 100 and three with 400. Each
    // group has two samples.
    assert!((length.dispatched - 2600.0 / 16.0).abs() < 1e-9, "{length:?}");
    assert!((length.accepted - 1400.0 / 10.0).abs() < 1e-9, "{length:?}");
    assert!((accuracy.dispatched - 10.0 / 16.0).abs() < 1e-9, "{accuracy:?}");
    assert!((accept_rate.dispatched - 8.0 / 11.0).abs() < 1e-9, "{accept_rate:?}");
}

/// Of four unlikely groups one runs on and stands for all four. The figures equal those of a run that stops no group,
/// if the stopped groups have the same figures.
#[test]
fn groups_that_run_on_stand_for_those_that_are_stopped() {
    let mut meter = BiasMeter::default();
    (0..10).for_each(|number| meter.sent(1, number, 1.0));
    for number in [0, 5] {
        meter.learn(number, BiasEvent::RunsOn(0.25));
        (1..4).for_each(|next| meter.learn(number + next, BiasEvent::Decided(Decision::Stopped)));
    }
    for (number, decision) in [
        (0, Decision::Accepted(group(400, 1.0))),
        (4, Decision::Accepted(group(100, 2.0))),
        (5, Decision::Filtered),
        (9, Decision::Missed(group(100, 2.0))),
    ] {
        meter.learn(number, BiasEvent::Decided(decision));
        meter.learn(number, BiasEvent::RunsOn(0.5));
    }
    meter.close(1);
    let BiasReading { length, accept_rate, .. } = meter.reading(false);
    let (length, accept_rate) = (length.unwrap(), accept_rate.unwrap());
    // Four groups with 400 tokens and two with 100 are valid, and one with 100 was not accepted. Each group has two
    // samples.
    assert!((length.accepted - 1700.0 / 10.0).abs() < 1e-9, "{length:?}");
    assert!((length.dispatched - 1800.0 / 12.0).abs() < 1e-9, "{length:?}");
    assert!((accept_rate.dispatched - 6.0 / 10.0).abs() < 1e-9, "{accept_rate:?}");
}

/// Groups are stopped in many runs that differ only in the groups that ran on. The spread of the measured means is the
/// standard error.
#[test]
fn the_draw_of_the_groups_that_run_on_is_in_the_standard_error() {
    let (share, runs) = (0.25_f32, 400);
    let drawn = |run: u64, number: u64| {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        uniform(run, &key) < f64::from(share)
    };
    let readings = (0..runs).map(|run| {
        let mut meter = BiasMeter::default();
        (0..600).for_each(|number| meter.sent(1, number, 1.0));
        for number in 0..600 {
            // Every third group is unlikely, and half of the unlikely groups are valid and long.
            let figures = group(if number % 3 == 0 { 400 } else { 100 + number % 7 }, 1.0);
            let decision = match (number % 3 == 0, number % 2 == 0) {
                (true, _) if !drawn(run, number) => Decision::Stopped,
                (true, false) => Decision::Filtered,
                (true, true) | (false, _) => Decision::Accepted(figures),
            };
            if number % 3 == 0 && decision != Decision::Stopped {
                meter.learn(number, BiasEvent::RunsOn(share));
            }
            meter.learn(number, BiasEvent::Decided(decision));
        }
        meter.close(1);
        meter.reading(false)
    });
    let readings: Vec<BiasReading> = readings.collect();
    let of = |figure: fn(&BiasReading) -> Option<Bias>| {
        let biases: Vec<Bias> = readings.iter().filter_map(figure).collect();
        let mean = |of: &dyn Fn(&Bias) -> f64| biases.iter().map(of).sum::<f64>() / biases.len() as f64;
        let dispatched = mean(&|bias| bias.dispatched);
        let spread = mean(&|bias| (bias.dispatched / dispatched - 1.0).powi(2)).sqrt();
        assert_eq!(biases.len(), runs as usize);
        (dispatched, spread, mean(&|bias| bias.standard_error))
    };
    let (length, spread, standard_error) = of(|reading| reading.length);
    // 400 groups with about 51.5 tokens a sample, and 100 with 200.
    assert!((length - 81.2).abs() < 1.0, "{length}");
    assert!((standard_error / spread - 1.0).abs() < 0.1, "{standard_error} {spread}");
    let (accept_rate, spread, standard_error) = of(|reading| reading.accept_rate);
    assert!((accept_rate - 5.0 / 6.0).abs() < 0.01, "{accept_rate}");
    assert!((standard_error / spread - 1.0).abs() < 0.1, "{standard_error} {spread}");
}

#[test]
fn there_is_no_figure_while_no_group_stands_for_those_that_were_stopped() {
    let cohort = vec![Decision::Accepted(group(100, 1.0)), Decision::Stopped];
    assert_eq!(after(false, &[cohort]).unknown, Some(Unknown::NotYet));
}
