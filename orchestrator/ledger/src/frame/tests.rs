#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use rolldock_dispatch::bias::{BiasEvent, Decision, GroupFigures};
use rolldock_dispatch::history::{Chance, GradedGroup};
use rolldock_dispatch::{DispatchId, Fate, Position, PromptUid, StepEnd, TokenTotals};
use rolldock_frames::HEAD_BYTES;

use super::*;
use crate::codec::{Encoder, SETTLED_MAX, encode};
use crate::{DispatchRecord, GateRecord, MetersRecord, Next, StepEndRecord, TokensPlace, fixture};

fn frame_of(records: &[Record]) -> Vec<u8> {
    let mut body = Encoder::default();
    records.iter().for_each(|record| encode(record, &mut body));
    FORMAT.frame(&body.0).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Record>, LogEnd), LedgerError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(ledger_file(dir.path()), bytes).unwrap();
    let mut records = Vec::new();
    let end = read_log(dir.path(), |_, record| {
        records.push(record);
        Ok(())
    })?;
    Ok((records, end))
}

fn all_kinds() -> Vec<Record> {
    let id = DispatchId(u64::MAX - 1);
    let far = DispatchRecord {
        id,
        number: u64::MAX,
        parent: Some(DispatchId(u64::MAX - 2)),
        row: u64::MAX,
        visit: u32::MAX,
        first_attempt: u32::MAX,
        returns: u32::MAX,
        drawn_to: Some(Position { epoch: u32::MAX, offset: u64::MAX }),
        ..fixture::dispatched(0, 0, u64::MAX)
    };
    let chance = Some(Chance { keep: 0.25, valid: 1.0 });
    let chosen = DispatchRecord { chance, ..fixture::dispatched(0, 0, 1) };
    let mut records = vec![
        fixture::run(),
        fixture::life(3),
        fixture::step(1),
        fixture::dispatch(0, 0, 1),
        Record::Dispatch(far),
        Record::Dispatch(chosen),
        Record::Version { version: u64::MAX },
        Record::Weights { announcement: "\u{e9}".repeat(10_000).into() },
        Record::Settled { ids: (0..SETTLED_MAX as u64).map(DispatchId).collect() },
        Record::end_anew(id, Fate::Stale, 7),
        Record::Tokens(TokenTotals::default()),
        Record::Tokens(TokenTotals::from_counts(std::array::from_fn(|place| u64::MAX - place as u64))),
        Record::Tokens(TokenTotals { generated: 7, hedges: 7, ..TokenTotals::default() }),
        Record::Meters(MetersRecord::default()),
        Record::Meters(MetersRecord {
            accept_rate: [0.1_f64.to_bits(), f64::MAX.to_bits()],
            overlong_dropped: 1,
            overlong_truncated: u64::MAX,
            gates: [0, 1]
                .map(|gate| GateRecord {
                    name: format!("gate {gate}").into(),
                    passed: gate,
                    rejected: 300,
                    kept: 2,
                })
                .to_vec(),
        }),
        Record::End {
            id,
            fate: Fate::Carried,
            next: Next::From(TokensPlace { file: 9, offset: u64::MAX, length: u32::MAX }),
        },
    ];
    let fates = [
        Fate::Accepted,
        Fate::Filtered("no_variance"),
        Fate::Stale,
        Fate::Cancelled,
        Fate::Requeued,
        Fate::Carried,
        Fate::Held,
        Fate::Failed("server=a was lost, ünd so weiter".to_owned()),
    ];
    let group = GroupFigures { samples: u32::MAX, tokens: u64::MAX, right: 0.1 };
    records.extend([false, true].map(|is_valid| {
        let (prompt_uid, visit, number) = (PromptUid(u64::MAX), u32::MAX, u64::MAX);
        Record::Graded(GradedGroup { prompt_uid, visit, number, figures: group, is_valid })
    }));
    let decisions = [
        Decision::Accepted(group),
        Decision::Missed(group),
        Decision::Filtered,
        Decision::Stopped,
        Decision::PassedOver,
        Decision::Failed,
        Decision::Cut,
        Decision::Audited(None),
        Decision::Audited(Some(group)),
    ];
    let others = [BiasEvent::AuditBegan, BiasEvent::AuditLost, BiasEvent::TakenBack, BiasEvent::RunsOn(0.25)];
    let events = decisions.map(BiasEvent::Decided).into_iter().chain(others);
    records.extend(events.map(|event| Record::Bias { number: u64::MAX, event }));
    records.push(Record::Rule { early_stop: "fifo".into() });
    records.extend(
        [vec![], vec![0.5_f64.to_bits(), u64::MAX]].map(|bits| Record::Outlook { bits: bits.into() }),
    );
    records.extend(fates.map(|fate| Record::end(id, fate)));
    let ends = [StepEnd::Reached, StepEnd::OutOfBatches, StepEnd::OutOfPrompts, StepEnd::Interrupted];
    records.extend(ends.map(|end| Record::StepEnd(StepEndRecord { step: 5, end })));
    records
}

#[test]
fn every_kind_of_record_comes_back() {
    let records = all_kinds();
    let mut bytes = FORMAT.magic.to_vec();
    bytes.extend(frame_of(&records[..4]));
    bytes.extend(frame_of(&records[4..]));
    let (read, end) = read(&bytes).unwrap();
    assert_eq!(read, records);
    assert_eq!(end, LogEnd { sound_bytes: bytes.len() as u64, torn_bytes: 0 });
}

/// A ledger in the format that existing files have: these bytes must not change.
const LEDGER: &[u8] = b"ROLLDOCK-LEDGER-1\n\
    \x09\x00\x00\x00\x2d\x49\xf8\x0c\x70\x22\xad\x82\
    \x08\xac\x02\x05\xa0\x8d\x06\x00\x00";

#[test]
fn the_bytes_of_a_ledger_on_disk_do_not_change() {
    let records = [Record::Version { version: 300 }, Record::end(DispatchId(100_000), Fate::Accepted)];
    let bytes = [FORMAT.magic, &frame_of(&records)].concat();
    assert_eq!(bytes, LEDGER);
    assert_eq!(read(LEDGER).unwrap().0, records);
}

#[test]
fn a_dispatch_and_its_end_are_small() {
    let bytes = frame_of(&[fixture::dispatch(100_000, 90_000, 40)]).len() - HEAD_BYTES;
    assert!(bytes <= 40, "{bytes}");
    let end = frame_of(&[Record::end(DispatchId(100_000), Fate::Accepted)]).len() - HEAD_BYTES;
    assert!(end <= 8, "{end}");
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let reason = format!("x{}", "ü".repeat(2000));
    let mut bytes = FORMAT.magic.to_vec();
    bytes.extend(frame_of(&[Record::end(DispatchId(0), Fate::Failed(reason.clone()))]));
    let (records, _) = read(&bytes).unwrap();
    let Record::End { fate: Fate::Failed(kept), .. } = &records[0] else { panic!("{records:?}") };
    assert!(reason.starts_with(kept.as_str()) && kept.len() == 1023, "{}", kept.len());
}

#[test]
fn a_file_that_is_no_ledger_is_refused() {
    let error = read(b"something else entirely").unwrap_err();
    assert!(matches!(&error, LedgerError::Corrupt { offset: 0, .. }), "{error}");
    assert!(error.to_string().contains("expected a ledger of version 1"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(read_log(dir.path(), |_, _| Ok(())), Err(LedgerError::NoLedger { .. })));
}

#[test]
fn an_unknown_record_is_refused_with_its_place() {
    let mut bytes = FORMAT.magic.to_vec();
    bytes.extend(frame_of(&[fixture::run()]));
    let at = bytes.len() as u64;
    bytes.extend(FORMAT.frame(&[99]).unwrap());
    let error = read(&bytes).unwrap_err();
    let LedgerError::Corrupt { offset, expected, .. } = error else { panic!("{error}") };
    assert_eq!((offset, expected), (at, "a known kind of record"));
}

#[test]
fn zeros_after_the_last_frame_are_a_torn_tail() {
    let mut bytes = FORMAT.magic.to_vec();
    bytes.extend(frame_of(&[fixture::run()]));
    let sound = bytes.len() as u64;
    bytes.extend([0; 5000]);
    let (records, end) = read(&bytes).unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(end, LogEnd { sound_bytes: sound, torn_bytes: 5000 });
}

/// The bytes of a log, and the ends of its magic bytes and of each frame: the offset of the end, and the number of
/// records before it.
fn log_of_frames() -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut bytes = FORMAT.magic.to_vec();
    let mut ends = vec![(bytes.len(), 0)];
    let mut count = 0;
    for records in all_kinds().chunks(3) {
        bytes.extend(frame_of(records));
        count += records.len();
        ends.push((bytes.len(), count));
    }
    (bytes, ends)
}

proptest! {
    #[test]
    fn a_log_cut_anywhere_gives_the_records_of_its_whole_frames(cut in any::<prop::sample::Index>()) {
        let (bytes, ends) = log_of_frames();
        let cut = cut.index(bytes.len() + 1);
        let (records, end) = read(&bytes[..cut]).unwrap();
        let (sound, count) = ends.iter().rev().find(|(end, _)| *end <= cut).copied().unwrap_or((0, 0));
        prop_assert_eq!(records.as_slice(), &all_kinds()[..count]);
        prop_assert_eq!(end, LogEnd { sound_bytes: sound as u64, torn_bytes: (cut - sound) as u64 });
    }

    #[test]
    fn a_flipped_bit_is_refused_unless_it_is_in_the_last_frame(
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let (mut bytes, ends) = log_of_frames();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let last_begins = ends[ends.len() - 2].0;
        match read(&bytes) {
            Err(LedgerError::Corrupt { .. }) => prop_assert!(at < last_begins),
            Err(other) => prop_assert!(false, "{}", other),
            Ok((records, end)) => {
                prop_assert!(at >= last_begins, "a flipped bit of byte {at} was not found");
                prop_assert_eq!(records.as_slice(), &all_kinds()[..ends[ends.len() - 2].1]);
                prop_assert_eq!(end.sound_bytes, last_begins as u64);
            }
        }
    }
}
