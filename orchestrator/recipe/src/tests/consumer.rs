//! An embedded consumer that announces takes the groups of every version that the run waits for, and has room.
//!
//! The bounds agree with runs on a simulated fleet: the greatest accepted values end, and the least refused ones
//! wait for ever.

use super::{LoadOptions, MINIMAL, load_text};

/// Loads [`MINIMAL`], whose steps have 8 groups of 4 samples, in `mode` with `steps` steps and a consumer that
/// announces.
fn load(mode: &str, steps: u64, consumer: &str, sets: &[&str]) -> Result<(), String> {
    let mut set = vec![
        format!("policy.mode={mode}"),
        format!("run.steps={steps}"),
        format!("queue.consumer={{task=\"train\",announces=true,{consumer}}}"),
    ];
    set.extend(sets.iter().map(|set| (*set).to_owned()));
    load_text(MINIMAL, &LoadOptions { set, ..Default::default() }).map(drop)
}

const MODES: [&str; 3] = ["sync", "one_step_off", "fully_async"];

#[test]
fn a_batch_has_exactly_the_groups_of_a_version() {
    for mode in MODES {
        for sets in [&[][..], &["policy.max_staleness=4"], &["policy.on_stale=deliver_flagged"]] {
            for take_groups in [1, 4, 7, 9, 16, 20] {
                let error = load(mode, 6, &format!("take_groups={take_groups}"), sets).unwrap_err();
                let words = "`queue.consumer.take_groups`: ";
                assert!(
                    error.contains(words) && error.contains("expected 8 ("),
                    "{mode} {take_groups}: {error}"
                );
            }
            load(mode, 6, "take_groups=8", sets).unwrap_or_else(|error| panic!("{mode}: {error}"));
        }
        load(mode, 6, "take_groups=8", &["policy.steps_per_version=2"]).unwrap_err();
        load(mode, 6, "take_groups=16", &["policy.steps_per_version=2"]).unwrap();
        // A mistake in one key of the rule is named once.
        let error = load(mode, 6, "take_groups=8", &["policy.steps_per_version=0"]).unwrap_err();
        assert!(!error.contains("take_groups`: "), "{error}");
    }
}

/// The greatest number of kept steps that is accepted; `None` if every number is.
fn kept_max(mode: &str, steps: u64, take_groups: u64, sets: &[&str]) -> Option<u64> {
    let accepts = |kept: &u64| {
        load(mode, steps, &format!("take_groups={take_groups},keep_last_steps={kept}"), sets).is_ok()
    };
    let accepted: Vec<u64> = (0..steps + 2).filter(accepts).collect();
    let max = accepted.last().copied().unwrap();
    assert_eq!(accepted, (0..=max).collect::<Vec<_>>(), "{mode}");
    (max < steps).then_some(max)
}

#[test]
fn the_kept_steps_leave_the_version_that_the_last_step_needs() {
    for (mode, steps, max) in [
        ("sync", 1, None),
        ("sync", 2, Some(1)),
        ("sync", 5, Some(1)),
        ("one_step_off", 2, None),
        ("one_step_off", 5, Some(2)),
        ("fully_async", 2, None),
        ("fully_async", 5, Some(2)),
    ] {
        assert_eq!(kept_max(mode, steps, 8, &[]), max, "{mode} {steps}");
    }
    for (mode, max) in [("sync", Some(1)), ("one_step_off", Some(3)), ("fully_async", Some(3))] {
        assert_eq!(kept_max(mode, 7, 16, &["policy.steps_per_version=2"]), max, "{mode}");
    }
    let (twice, further) = ("policy.steps_per_version=2", "policy.max_staleness=2");
    assert_eq!(kept_max("fully_async", 7, 16, &[twice, further]), Some(5));
    assert_eq!(
        kept_max("sync", 5, 8, &[further]),
        Some(1),
        "the bound does not change what a step waits for"
    );
    assert_eq!(kept_max("one_step_off", 5, 8, &[further]), Some(2));
    for (on_stale, max) in [("drop", Some(2)), ("requeue", Some(2)), ("mask_tokens", None)] {
        let sets = ["policy.pacing=false", &format!("policy.on_stale={on_stale}")];
        assert_eq!(kept_max("fully_async", 5, 8, &sets), max, "{on_stale}");
    }
    let error = load("sync", 5, "take_groups=8,keep_last_steps=2", &[]).unwrap_err();
    assert!(error.contains("`queue.consumer.keep_last_steps`: "), "{error}");
    assert!(error.contains("expected at most 1, found 2"), "{error}");
    // The versions may come from another trainer.
    load("sync", 5, "take_groups=8,keep_last_steps=5", &["policy.listen=127.0.0.1:0"]).unwrap();
}

/// The least capacity that is accepted.
fn capacity_min(mode: &str, steps: u64, consumer: &str, sets: &[&str]) -> u64 {
    let accepts = |capacity: &u64| {
        let capacity = format!("queue.capacity_rows={capacity}");
        load(mode, steps, consumer, &[sets, &[&capacity]].concat()).is_ok()
    };
    let min = (0..400).find(accepts).unwrap();
    assert!((min..min + 40).all(|capacity| accepts(&capacity)), "{mode} {consumer}");
    min
}

/// A step has 32 rows.
#[test]
fn the_queue_has_room_for_the_groups_that_wait_for_an_ack() {
    for (mode, steps, consumer, min) in [
        ("sync", 5, "take_groups=8", 32),
        ("fully_async", 5, "take_groups=8", 32),
        ("one_step_off", 5, "take_groups=8", 64),
        ("one_step_off", 1, "take_groups=8", 32),
        ("fully_async", 5, "take_groups=8,keep_last_steps=2", 64),
        ("sync", 1, "take_groups=8,keep_last_steps=1", 32),
    ] {
        assert_eq!(capacity_min(mode, steps, consumer, &[]), min, "{mode} {steps} {consumer}");
    }
    // Step 5 and the two kept steps stay until the last put, and the consumer takes step 5 then.
    let (twice, further) = ("policy.steps_per_version=2", "policy.max_staleness=2");
    assert_eq!(capacity_min("fully_async", 7, "take_groups=16,keep_last_steps=2", &[twice, further]), 96);
    assert_eq!(capacity_min("sync", 5, "take_groups=8", &["queue.on_full=drop_oldest"]), 4);
}

/// A consumer that only waits in place of training takes whole batches too.
#[test]
fn a_batch_of_a_consumer_that_trains_fits_into_the_queue() {
    let with = |consumer: &str, capacity: u64| {
        let consumer = format!("queue.consumer={{task=\"train\",take_groups=20,{consumer}}}");
        let set = vec![consumer, format!("queue.capacity_rows={capacity}"), "run.steps=5".to_owned()];
        load_text(MINIMAL, &LoadOptions { set, ..Default::default() }).map(drop)
    };
    assert!(with("train_s=1.0", 79).unwrap_err().contains("expected at least 80, found 79"));
    with("train_s=1.0", 80).unwrap();
    with("train_s=0.0", 4).unwrap();
}
