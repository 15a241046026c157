use std::collections::BTreeMap;

use super::*;
use crate::report::WaitLimits;
use crate::rollout::Counts;

fn wait(phase: Phase, age_s: f64, sample: Option<u32>, server: Option<&str>) -> WaitLook {
    let server = server.map(str::to_owned);
    WaitLook { phase, age_s, dispatch: Some(705), sample, server, tokens: None, detail: None }
}

fn server(name: &str, tokens_per_second: f64) -> ServerStatus {
    ServerStatus {
        name: name.to_owned(),
        state: "active".to_owned(),
        reason: None,
        in_use: 64,
        capacity: 64,
        tokens_per_second: Some(tokens_per_second),
    }
}

/// A step with one group on a slow server.
fn status() -> Status {
    let oldest = GroupLook {
        dispatch: 705,
        number: 691,
        prompt_uid: "00000000000002b3".to_owned(),
        row: 17,
        age_s: Some(86.2),
        behind: 22,
        waits: vec![
            wait(Phase::Engine, 86.1, Some(3), Some("slow")),
            wait(Phase::Permit, 4.25, Some(7), None),
        ],
    };
    let counts =
        Counts { target: 64, accepted: 19, valid: 41, running: 40, batches_opened: 2, ..Counts::default() };
    Status {
        run_id: "rd1l1".to_owned(),
        stage: Stage::Collecting,
        step_age_s: 91.0,
        step: StepLook {
            step: 12,
            is_open: true,
            wants_new: false,
            data_has_ended: false,
            workers_without_places: 0,
            workers_at_full_fleet: 0,
            early_stop: EarlyStop::Fifo,
            counts,
            policy_version: 11,
            oldest: Some(oldest),
            waiting: BTreeMap::new(),
            oldest_waits: Vec::new(),
        },
        samples_per_prompt: 16,
        request: RequestShape::Sample,
        servers: vec![server("fast-1", 40.0), server("slow", 2.0), server("fast-2", 38.0)],
        waiting_for_permits: 12,
        queue: QueueStatus {
            rows: 700,
            capacity_rows: 768,
            leases: 1,
            tasks: vec![TaskStats {
                task: "train".to_owned(),
                incomplete_rows: 0,
                ready_rows: 600,
                ready_groups: 60,
                leased_rows: 100,
                away_rows: 0,
                acked_rows: 0,
            }],
        },
        full_disk: None,
        put_lacks: None,
        announced_version: Some(11),
        own_trainer_groups: None,
        update_failure: None,
        limits: WaitLimits { sample_s: 3600.0, permit_s: 3600.0, stall_s: 60.0 },
    }
}

fn assert_says(status: &Status, words: &[&str]) {
    let text = why(status);
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
}

#[test]
fn a_slow_server_is_named_with_its_rate_and_what_would_help() {
    assert_says(
        &status(),
        &[
            "Step 12 has run for 91 s: 19 of 64 groups accepted, 22 more valid, 23 missing.",
            "It ends when 45 more groups are accepted, in dispatch order; 22 valid groups wait for the oldest one.",
            "dispatch 705 (number 691, prompt 00000000000002b3, row 17).",
            "  It has run for 86 s. 14 of its 16 samples have finished. It waits for:",
            "    sample 3: an answer of slow, for 86 s",
            "    sample 7: a permit on a server, for 4.2 s",
            "slow is active, with 64 of 64 permits taken.\n  It generates 2.0 tokens/s for each sample, and the others \
             40 tokens/s (median), 20 times as fast.",
            "timeouts.stall=60 s",
            "`rolldock fleet remove slow`",
            "12 requests wait for a permit: 192 of 192 are taken on 3 active servers of 3.",
        ],
    );
    let mut even = status();
    even.servers[1].tokens_per_second = Some(39.0);
    let text = why(&even);
    assert!(text.contains("about as fast") && !text.contains("fleet remove"), "{text}");
    even.servers[1].tokens_per_second = Some(80.0);
    let text = why(&even);
    assert!(text.contains("slower than this one") && !text.contains("fleet remove"), "{text}");
    even.servers[1].tokens_per_second = Some(0.0);
    assert_says(&even, &["while this one generates nothing", "`rolldock fleet remove slow`"]);
    even.servers[1].tokens_per_second = None;
    assert_says(&even, &["Its rate is not known yet"]);
}

#[test]
fn the_line_shows_when_the_rule_of_the_step_ends_it() {
    let mut first = status();
    first.step.early_stop = EarlyStop::First;
    assert_says(&first, &["It ends when 45 more groups are valid, whichever they are."]);
    let mut off = status();
    off.step.early_stop = EarlyStop::Off;
    assert_says(
        &off,
        &["It ends when every group that was sent out has ended; 22 valid groups wait for the oldest one."],
    );
    let mut again = status();
    if let Some(oldest) = &mut again.step.oldest {
        (oldest.age_s, oldest.waits) = (None, Vec::new());
    }
    assert_says(&again, &["  Its prompt waits to be sent out again; 40 groups run."]);
}

#[test]
fn the_reason_that_holds_groups_back_is_named() {
    let mut held = status();
    held.waiting_for_permits = 0;
    held.step.oldest = None;
    held.step.counts.hold = Some(Hold::Queue);
    assert_says(
        &held,
        &["No group is in flight.", "until the queue has room. The queue has 700 rows and a capacity of 768"],
    );
    assert_says(&held, &["task train still has to ack 700 (100 leased)"]);
    held.step.counts.hold = Some(Hold::Trainer);
    assert_says(
        &held,
        &["they would be too old", "The servers have version 11, and 11 is the last one announced."],
    );
    held.own_trainer_groups = Some(64);
    assert_says(&held, &["is the last one announced. The trainer is the run's own consumer"]);
    held.own_trainer_groups = None;
    held.step.counts.hold = Some(Hold::Reward);
    assert_says(&held, &["until the outage of the reward ends"]);
    held.step.counts.hold = None;
    held.servers[1].state = "dead".to_owned();
    held.servers[1].reason = Some("stalled for 60 s".to_owned());
    assert_says(&held, &["slow is dead: stalled for 60 s."]);
    held.servers[1].state = "active".to_owned();
    assert_says(&held, &["No new group is sent out: the groups in flight may be enough."]);
    held.step.wants_new = true;
    assert_says(&held, &["Nothing holds new groups back."]);
    (held.step.wants_new, held.step.data_has_ended) = (false, true);
    held.step.counts.hold = Some(Hold::Trainer);
    assert_says(&held, &["No new group is sent out: the data has no more prompts."]);
    assert!(!why(&held).contains("New groups are held back"), "no version brings further prompts");
}

#[test]
fn a_full_disk_is_named_instead_of_room_in_the_queue() {
    let mut full = status();
    full.full_disk = Some("the disk of file=run/tokens-11.bin is full (write failed: no space)".to_owned());
    assert_says(
        &full,
        &["The ledger waits until its disk has room: the disk of file=run/tokens-11.bin is full"],
    );
    full.step.is_open = false;
    full.step.oldest_waits = vec![wait(Phase::Queue, 3.4, None, None)];
    assert_says(&full, &["until its disk has room: the disk of file=run/tokens-11.bin is full"]);
    let text = why(&full);
    assert!(!text.contains("still has to ack") && !text.contains("waited for the queue"), "{text}");
    full.full_disk = None;
    full.put_lacks = Some("the disk of file=run/queue/segment-3.arrow is full".to_owned());
    let lack = "A group waits until it can be put into the queue: the disk of file=run/queue/segment-3.arrow is full.";
    assert_says(&full, &[lack]);
    assert!(!why(&full).contains("waited for the queue"), "{}", why(&full));
    full.put_lacks = None;
    assert_says(&full, &["The run has waited for the queue for 3.4 s: no detail. The queue has 700 rows"]);
}

#[test]
fn workers_that_start_no_group_are_named_while_the_step_needs_groups() {
    let mut held = status();
    held.waiting_for_permits = 0;
    held.step.workers_at_full_fleet = 3;
    assert_says(&held, &["No new group is sent out: the groups in flight may be enough."]);
    held.step.wants_new = true;
    let by_fleet =
        "The fleet is full, which holds further groups back on 3 workers: with rollout.fill = \"samples\",";
    assert_says(&held, &[by_fleet]);
    held.step.workers_without_places = 1;
    let by_places = "1 worker has as many groups as rollout.max_concurrent_prompts and rollout.fill allow.";
    assert_says(&held, &[by_fleet, by_places]);
    held.step.workers_at_full_fleet = 0;
    assert_says(&held, &[by_places]);
    let text = why(&held);
    assert!(!text.contains("Nothing holds") && !text.contains("The fleet is full"), "{text}");
}

#[test]
fn between_two_steps_the_trainer_or_an_update_is_named() {
    let mut between = status();
    between.step.is_open = false;
    between.step.oldest = None;
    between.step.counts.running = 0;
    let detail = Some("version=12 for step=13".to_owned());
    between.step.oldest_waits = vec![WaitLook { detail, ..wait(Phase::Trainer, 30.0, None, None) }];
    assert_says(
        &between,
        &[
            "Step 12 is over, and the next one has not begun.",
            "The run has waited for the trainer for 30 s: version=12 for step=13. The servers have version 11",
        ],
    );
    assert!(!why(&between).contains("own consumer"), "{}", why(&between));
    between.own_trainer_groups = Some(64);
    let own = "The trainer is the run's own consumer ([queue.consumer]), which announces a version after each batch of 64 \
               groups. The queue has 700 rows and a capacity of 768";
    assert_says(&between, &[own]);
    between.step.oldest_waits[0].phase = Phase::Update;
    assert_says(&between, &["The servers have been updating for 30 s: version=12 for step=13."]);
    between.update_failure = Some("server=sim-0 does not offer calls of its workers".to_owned());
    between.announced_version = Some(12);
    let failed = "No server has version 12: server=sim-0 does not offer calls of its workers. The update will be tried";
    assert_says(
        &between,
        &["The run has waited for an update of the servers for 30 s: version=12 for step=13.", failed],
    );
    assert_eq!(why(&between).matches(failed).count(), 1);
    let mut flow = status();
    (flow.update_failure, flow.announced_version) = (between.update_failure.clone(), Some(12));
    assert_says(&flow, &["Step 12 has run for 91 s", failed]);
    between.stage = Stage::Validating;
    assert_says(&between, &["A validation runs after step 12"]);
    between.stage = Stage::Serving;
    assert_says(&between, &["All steps are done", "It ends when consumers have acked every row"]);
}

#[test]
fn one_thing_is_singular() {
    let mut one = status();
    one.samples_per_prompt = 3;
    one.waiting_for_permits = 1;
    one.servers.truncate(1);
    (one.step.counts.target, one.step.counts.accepted, one.step.counts.valid) = (1, 0, 0);
    one.step.oldest.as_mut().unwrap().behind = 1;
    assert_says(
        &one,
        &[
            "Step 12 has run for 91 s: 0 of 1 group accepted",
            "It ends when 1 more group is accepted, in dispatch order; 1 valid group waits for the oldest one.",
            "1 of its 3 samples has finished.",
            "1 request waits for a permit: 64 of 64 are taken on 1 active server of 1.",
        ],
    );
    one.step.early_stop = EarlyStop::First;
    one.request = RequestShape::Group;
    one.samples_per_prompt = 1;
    assert_says(&one, &["when 1 more group is valid, whichever it is.", "Its 1 sample is one request."]);
    one.step.oldest.as_mut().unwrap().age_s = None;
    one.step.counts.running = 1;
    assert_says(&one, &["waits to be sent out again; 1 group runs."]);
    one.stage = Stage::Serving;
    one.queue.rows = 1;
    assert_says(&one, &["The queue has 1 row and a capacity of 768;"]);
}

#[test]
fn a_status_survives_its_json() {
    let status = status();
    let json = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
}
