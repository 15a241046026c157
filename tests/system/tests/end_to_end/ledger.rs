//! Tests of `rolldock ledger`, on ledgers that the library wrote.

use std::path::Path;
use std::time::Duration;

use rolldock_dispatch::{DispatchId, Fate, Position, PromptUid, StepEnd};
use rolldock_ledger::{
    DispatchRecord, FORMAT, LedgerConfig, LedgerWriter, LifeRecord, Record, RunRecord, StepEndRecord,
    StepRecord,
};
use tempfile::TempDir;

use crate::support::Rolldock;

fn dispatch(id: u64, number: u64, parent: Option<u64>) -> Record {
    Record::Dispatch(DispatchRecord {
        id: DispatchId(id),
        number,
        parent: parent.map(DispatchId),
        prompt_uid: PromptUid(0xfeed_0000_0000_0000 + number),
        row: 100 + number,
        visit: 0,
        step: 1,
        policy_version: 3,
        first_attempt: 0,
        returns: 0,
        drawn_to: parent.is_none().then_some(Position { epoch: 0, offset: 101 + number }),
        chance: None,
    })
}

fn end(id: u64, fate: Fate) -> Record {
    Record::end(DispatchId(id), fate)
}

/// A step that has not reached its target. Of its seven dispatches, two were accepted, four ended otherwise,
/// and one is still open.
fn short_step(dir: &Path) -> LedgerWriter {
    let config = LedgerConfig { fsync: true, inline: true, full_disk_wait: Duration::ZERO };
    let writer = LedgerWriter::open(dir, config).unwrap().writer;
    let lost = || Fate::Failed("server=b was lost".to_owned());
    let records = [
        Record::Run(RunRecord { run_id: "rd77".to_owned(), started_s: 1_700_000_000, format: FORMAT }),
        Record::Life(LifeRecord { number: 1, pid: 1, started_s: 1_700_000_000 }),
        Record::Step(StepRecord { step: 1, target: 4, policy_version: 3 }),
        dispatch(0, 0, None),
        dispatch(1, 1, None),
        dispatch(2, 2, None),
        dispatch(3, 3, None),
        end(0, Fate::Accepted),
        end(1, Fate::Filtered("no_variance")),
        end(2, lost()),
        end(3, Fate::Requeued),
        dispatch(4, 3, Some(3)),
        dispatch(5, 5, None),
        end(5, lost()),
        end(4, Fate::Accepted),
        dispatch(6, 6, None),
    ];
    for record in records {
        writer.append(record);
    }
    assert_eq!(writer.error(), None);
    writer
}

fn ledger(dir: &Path, more: &[&str]) -> Rolldock {
    more.iter().fold(Rolldock::new(&["ledger"]).arg(dir), |command, argument| command.arg(argument))
}

#[test]
fn totals_steps_and_conservation_of_a_run_at_work() {
    let dir = TempDir::new().unwrap();
    let _at_work = short_step(dir.path());
    let words = ledger(dir.path(), &[]).succeeds().stdout;
    assert!(words.contains("run rd77: life 1, 1 step, policy version 3"), "{words}");
    assert!(words.contains("7 = 1 in flight + 2 accepted + 1 filtered"), "{words}");
    assert!(words.contains("filtered for: no_variance 1"), "{words}");
    assert!(words.contains("next: dispatch 7, number 7, data at epoch 0 position 107"), "{words}");
    assert!(words.contains("in progress") && words.contains("conservation holds"), "{words}");
    assert!(words.contains("queue: cannot be read"), "there is none: {words}");
    let table: Vec<&str> = words.lines().filter(|line| line.starts_with(['\u{2502}', '\u{250c}'])).collect();
    assert!(table.len() > 2 && table.iter().all(|line| line.chars().count() <= 80), "{words}");
    assert!(!table[1].contains("stale"), "no dispatch was stale: {words}");
}

#[test]
fn a_prompt_is_found_by_its_name_and_its_row() {
    let dir = TempDir::new().unwrap();
    short_step(dir.path());
    let by_uid = ledger(dir.path(), &["--prompt", "feed000000000003"]).succeeds().stdout;
    assert!(by_uid.contains("prompt feed000000000003: 2 dispatches"), "{by_uid}");
    assert!(by_uid.contains("requeued") && by_uid.contains("accepted"), "{by_uid}");
    let by_row = ledger(dir.path(), &["--row", "103", "--json"]).succeeds().stdout;
    let answer: serde_json::Value = serde_json::from_str(&by_row).unwrap();
    let of = |key: &str| [&answer["dispatches"][0][key], &answer["dispatches"][1][key]].map(Clone::clone);
    assert_eq!(of("dispatch"), [3, 4]);
    assert_eq!(of("number"), [3, 3]);
    assert_eq!(of("fate"), ["requeued", "accepted"]);
    assert_eq!(answer["dispatches"][1]["parent"], 3);
    let unsent = ledger(dir.path(), &["--row", "9"]).succeeds().stdout;
    assert!(unsent.contains("the prompt in row 9 was never sent out"), "{unsent}");
}

#[test]
fn why_a_step_is_short() {
    let dir = TempDir::new().unwrap();
    let writer = short_step(dir.path());
    let words = ledger(dir.path(), &["--step", "1"]).succeeds().stdout;
    assert!(words.contains("2 groups accepted of 4 wanted, 2 to go (valid groups without"), "{words}");
    writer.append(end(6, Fate::Failed("a reward said no".to_owned())));
    writer.append(Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::OutOfBatches }));
    let words = ledger(dir.path(), &["--step", "1"]).succeeds().stdout;
    assert!(words.contains("step 1: 2 groups accepted of 4 wanted, 2 short"), "{words}");
    assert!(words.contains("every generation batch is used up"), "{words}");
    assert!(words.contains("failed 2: server=b was lost\nfailed 1: a reward said no"), "{words}");
    let json = ledger(dir.path(), &["--step", "1", "--json"]).succeeds().stdout;
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["step"]["end"], "out_of_batches");
    assert_eq!(answer["failures"][0]["groups"], 2);
    assert_eq!(answer["dispatches"].as_array().unwrap().len(), 7);
    let ended = ledger(dir.path(), &["--step", "2"]).fails(2);
    assert!(
        ended.stderr.contains("step 2 has not begun; the last step of the ledger is 1"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_is_wrong_is_named() {
    let dir = TempDir::new().unwrap();
    let nothing = ledger(dir.path(), &[]).fails(1);
    assert!(nothing.stderr.contains("holds no ledger"), "{}", nothing.stderr);
    short_step(dir.path());
    let wrong = ledger(dir.path(), &["--prompt", "feed"]).fails(2);
    assert!(wrong.stderr.contains("found --prompt feed; expected 16 hexadecimal digits"), "{}", wrong.stderr);
    let file = dir.path().join("ledger.log");
    let sound = std::fs::read(&file).unwrap();
    std::fs::write(&file, &sound[..sound.len() - 5]).unwrap();
    let torn = ledger(dir.path(), &[]).succeeds().stdout;
    assert!(torn.contains("the last write is incomplete"), "{torn}");
    assert_eq!(std::fs::read(&file).unwrap().len(), sound.len() - 5, "a reader cuts nothing off");
    let mut damaged = sound;
    damaged[40] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    let refused = ledger(dir.path(), &[]).fails(1);
    assert!(refused.stderr.contains("is damaged at offset="), "{}", refused.stderr);
}
