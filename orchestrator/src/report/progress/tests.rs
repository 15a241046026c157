use super::*;

fn figures() -> Figures {
    Figures {
        step: 2,
        counts: Counts {
            target: 64,
            accepted: 9,
            valid: 21,
            running: 32,
            not_put: 0,
            hold: None,
            queued: 0,
            batches_opened: 1,
        },
        totals: Totals { filtered: 9, ..Totals::default() },
        on_engines: 201,
        waiting: 55,
        oldest: None,
        tokens_per_s: 4811.4,
    }
}

#[test]
fn eighty_columns_have_the_counts_that_matter() {
    let line = figures().line(79);
    assert_eq!(line, "step 2 [=>  ] 21/64 valid, 32 groups, 201 on engines, 55 waiting, 4811 tokens/s");
    let wide = figures().line(200);
    assert!(wide.ends_with("21/64 valid, 32 groups, 201 on engines, 55 waiting, 4811 tokens/s, 9 filtered"));
    assert!(wide.starts_with("step 2 [=========>                  ] 21/64"), "{wide}");
}

#[test]
fn failures_and_the_reason_of_a_pause_come_before_what_can_be_left_out() {
    let mut figures = figures();
    figures.counts.hold = Some(Hold::Trainer);
    figures.totals.failed = 1024;
    let line = figures.line(79);
    assert!(line.contains("21/64 valid, held back by the trainer, 1024 failed, 32 groups"), "{line}");
    figures.counts.hold = Some(Hold::Reward);
    let line = figures.line(79);
    assert!(line.contains("21/64 valid, held back by an outage of the reward, 1024 failed"), "{line}");
}

/// A group with one sample that waits for a permit and two samples on servers.
fn oldest(age_s: f64) -> GroupLook {
    let wait = |phase: Phase, age_s: f64, server: Option<&str>| WaitLook {
        phase,
        age_s,
        dispatch: Some(705),
        sample: Some(0),
        server: server.map(str::to_owned),
        tokens: None,
        detail: None,
    };
    GroupLook {
        dispatch: 705,
        number: 691,
        prompt_uid: "00000000000002b3".to_owned(),
        row: 691,
        age_s: Some(age_s),
        behind: 12,
        waits: vec![
            wait(Phase::Permit, age_s, None),
            wait(Phase::Engine, age_s / 2.0, Some("10.0.0.2:8000")),
            wait(Phase::Engine, age_s / 4.0, Some("10.0.0.1:8000")),
        ],
    }
}

#[test]
fn the_oldest_group_is_named_when_it_is_old() {
    let line = |age_s: f64| Figures { oldest: Some(oldest(age_s)), ..figures() }.line(79);
    assert!(!line(4.0).contains("oldest"), "{}", line(4.0));
    let old = line(86.4);
    assert!(old.contains("21/64 valid, oldest is 705 after 86 s on 10.0.0.2:8000, 32 groups"), "{old}");
    let queued = GroupLook { age_s: None, waits: Vec::new(), ..oldest(0.0) };
    let line = Figures { oldest: Some(queued), ..figures() }.line(79);
    assert!(!line.contains("oldest"), "it waits to be sent out again: {line}");
}

#[test]
fn no_line_is_wider_than_the_given_width() {
    let many = Figures {
        step: 1_000_000,
        counts: Counts { target: 20_480, valid: 20_480, running: 4_096, ..figures().counts },
        totals: Totals { filtered: 1 << 40, cancelled: 1 << 40, failed: 1 << 40, ..Totals::default() },
        on_engines: 1 << 20,
        waiting: 1 << 20,
        oldest: Some(oldest(1e7)),
        tokens_per_s: 1e12,
    };
    let none = Figures { counts: Counts { target: 0, valid: 0, ..figures().counts }, ..figures() };
    for figures in [figures(), many, none] {
        for room in 0..200 {
            let line = figures.line(room);
            assert!(line.len() <= room, "{room}: {line}");
            assert!(room < 40 || line.contains(" valid"), "{room}: {line}");
        }
    }
}
