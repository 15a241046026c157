#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::record::Record;

/// The bytes of a journal. They must not change, because existing journals have this format.
const JOURNAL: &[u8] = b"ROLLDOCK-QUEUE-3\n\
    \x3b\x00\x00\x00\x28\xa8\x8a\x72\x9a\x7b\x0f\x70\
    {\"is\":\"floor\",\"generation\":7}\n{\"is\":\"end\",\"partition\":\"p\"}\n";

fn records() -> [Record; 2] {
    [Record::Floor { generation: 7, rewrites: 0, file: None }, Record::End { partition: "p".to_owned() }]
}

fn read(bytes: &[u8]) -> Result<(Vec<Record>, u64), QueueError> {
    let mut read = Vec::new();
    let sound = read_frames(Path::new("journal.log"), bytes, |record| {
        read.push(record);
        Ok(())
    })?;
    Ok((read, sound))
}

#[test]
fn the_bytes_of_a_journal_on_disk_do_not_change() {
    let mut body = Body::default();
    records().iter().for_each(|record| body.push(record).unwrap());
    assert_eq!([MAGIC, &body.into_frame().unwrap()].concat(), JOURNAL);
    assert_eq!(read(JOURNAL), Ok((records().to_vec(), JOURNAL.len() as u64)));
    assert_eq!(look_behind(JOURNAL.len() as u64, &[]), Tail::Unfinished { bytes: 0 });
}

#[test]
fn a_torn_frame_is_passed_over_and_other_damage_is_refused_at_its_offset() {
    let frame = &JOURNAL[MAGIC.len()..];
    let twice = [JOURNAL, frame].concat();
    let first = JOURNAL.len() as u64;
    for end in JOURNAL.len()..twice.len() {
        assert_eq!(read(&twice[..end]), Ok((records().to_vec(), first)), "{end}");
        assert_eq!(
            look_behind(first, &twice[JOURNAL.len()..end]),
            Tail::Unfinished { bytes: end as u64 - first }
        );
    }
    let mut changed = twice.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(read(&changed), Ok((records().to_vec(), first)));
    assert_eq!(look_behind(first, &changed[JOURNAL.len()..]), Tail::Damaged(Damage::Body));
    changed[MAGIC.len()] ^= 1;
    *changed.last_mut().unwrap() ^= 1;
    let refused = read(&changed);
    assert!(
        matches!(&refused, Err(QueueError::Corrupt { offset: 17, reason, .. })
            if reason == "the checksum of a frame's head does not match"),
        "{refused:?}"
    );
}

#[test]
fn a_journal_that_ends_in_its_first_bytes_is_empty_and_other_first_bytes_are_refused() {
    for end in 0..MAGIC.len() {
        assert_eq!(read(&MAGIC[..end]), Ok((Vec::new(), 0)), "{end}");
        assert_eq!(look_behind(0, &MAGIC[..end]), Tail::Unfinished { bytes: end as u64 });
    }
    assert!(matches!(read(b"ROLLDOCK-QUEUE-2\n"), Err(QueueError::Corrupt { offset: 0, .. })));
}

#[test]
fn a_file_is_read_like_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.log");
    let mut changed = JOURNAL.to_vec();
    changed[MAGIC.len()] ^= 1;
    let torn = [JOURNAL, &JOURNAL[MAGIC.len()..50]].concat();
    for bytes in [&JOURNAL[..5], JOURNAL, &torn[..], &changed[..]] {
        std::fs::write(&file, bytes).unwrap();
        let mut found = Vec::new();
        let scanned = scan_frames(&file, |record: Record| {
            found.push(record);
            Ok(())
        });
        let (records, sound) = read(bytes).unwrap();
        assert_eq!(scanned, Ok((sound, bytes[sound as usize..].to_vec())));
        assert_eq!(found, records);
    }
    let twice = [&changed[..], &JOURNAL[MAGIC.len()..]].concat();
    std::fs::write(&file, twice).unwrap();
    let refused = scan_frames(&file, |_: Record| Ok(()));
    assert!(matches!(refused, Err(QueueError::Corrupt { offset: 17, .. })), "{refused:?}");
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(scan_frames(&file, |_: Record| Ok(())), Err(QueueError::Io { .. })));
}
