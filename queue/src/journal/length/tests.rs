#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn extent(bytes: u64, records: u64) -> Extent {
    Extent { bytes, records }
}

fn note() -> LengthNote {
    let (synced, written) = (extent(100, 4), extent(160, 6));
    LengthNote { rewrites: 3, synced, written, boot: "this".to_owned() }
}

fn missing(boot: &str, bytes: u64, records: u64, rewrites: u64) -> Option<(u64, u64)> {
    match note().check_at(Path::new("d"), extent(bytes, records), rewrites, boot) {
        Ok(()) => None,
        Err(QueueError::JournalCut { bytes_missing, records_missing, .. }) => {
            Some((bytes_missing, records_missing))
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn unsynced_bytes_of_a_note_count_until_the_next_boot() {
    assert_eq!(missing("this", 160, 6, 3), None);
    assert_eq!(missing("this", 200, 9, 3), None, "the journal may be ahead of its note");
    assert_eq!(missing("this", 159, 5, 3), Some((1, 1)));
    for boot in ["another", ""] {
        assert_eq!(missing(boot, 100, 4, 3), None, "a power cut may take what was not synced");
        assert_eq!(missing(boot, 90, 2, 3), Some((10, 2)));
    }
    let unknown = LengthNote { boot: String::new(), ..note() };
    assert_eq!(unknown.check_at(Path::new("d"), extent(100, 4), 3, ""), Ok(()));
}

#[test]
fn a_note_says_nothing_about_a_later_journal_and_refuses_an_earlier_one() {
    assert_eq!(missing("this", 17, 0, 4), None);
    let error = note().check_at(Path::new("d"), extent(900, 90), 2, "this").unwrap_err().to_string();
    assert!(error.contains("rewritten 2 times, expected 3") && error.contains("journal.length"), "{error}");
}

#[test]
fn a_note_is_one_sector_and_every_flipped_bit_of_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let longest = extent(u64::MAX, u64::MAX);
    let boot = "00000000-0000-0000-0000-000000000000".to_owned();
    let longest = LengthNote { rewrites: u64::MAX, synced: longest, written: longest, boot };
    for note in [note(), longest] {
        let bytes = note.to_bytes().unwrap();
        assert_eq!(bytes.len(), NOTE_BYTES);
        std::fs::write(dir.path().join(FILE), &bytes).unwrap();
        assert_eq!(LengthNote::read(dir.path()), Ok(Some(note)));
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for at in 0..=used {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(LengthNote::parse(&damaged), None, "at={at}");
        }
    }
    std::fs::write(dir.path().join(FILE), b"").unwrap();
    assert!(matches!(LengthNote::read(dir.path()), Err(QueueError::Corrupt { .. })));
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    assert_eq!(LengthNote::read(dir.path()), Ok(None));
}

#[test]
fn a_length_file_returns_the_stored_length() {
    let dir = tempfile::tempdir().unwrap();
    let read = || LengthNote::read(dir.path()).unwrap().unwrap();
    let mut file = LengthFile::open(dir.path(), extent(17, 0), 2);
    assert_eq!((read().written, read().synced, file.due_in()), (extent(17, 0), extent(17, 0), None));
    file.say(extent(50, 1), extent(17, 0));
    assert!(file.due_in().is_some_and(|left| left <= PERIOD));
    file.close();
    assert_eq!((read().written, read().synced, file.due_in()), (extent(50, 1), extent(17, 0), None));
    file.say(extent(50, 1), extent(17, 0));
    assert_eq!(file.due_in(), None, "nothing is new");
    file.rewritten(extent(30, 1));
    assert_eq!((read().rewrites, read().synced, file.rewrites()), (3, extent(30, 1), 3));
}
