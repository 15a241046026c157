#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;
use crate::fixture::carried;

#[test]
fn groups_come_back_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = TokenFiles::open(dir.path()).unwrap();
    let empty = KeptGroup { number: 5, parent: DispatchId(6), samples: Vec::new() };
    let places = [
        (files.append(1, &carried(0, 1)).unwrap(), carried(0, 1)),
        (files.append(1, &carried(2, 3)).unwrap(), carried(2, 3)),
        (files.append(2, &empty).unwrap(), empty),
    ];
    files.sync().unwrap();
    for (place, group) in places {
        assert_eq!(read_carried(dir.path(), place).unwrap(), group);
    }
    assert!(!carried(0, 1).is_finished(3), "its first sample continues");
}

#[test]
fn a_resumed_run_appends_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let first = TokenFiles::open(dir.path()).unwrap().append(1, &carried(0, 1)).unwrap();
    let path = tokens_file(dir.path(), 1);
    let torn = [std::fs::read(&path).unwrap(), vec![1, 2, 3]].concat();
    std::fs::write(&path, torn).unwrap();
    let second = TokenFiles::open(dir.path()).unwrap().append(1, &carried(2, 3)).unwrap();
    assert_eq!(read_carried(dir.path(), first).unwrap(), carried(0, 1));
    assert_eq!(read_carried(dir.path(), second).unwrap(), carried(2, 3));
}

#[test]
fn damage_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = TokenFiles::open(dir.path()).unwrap();
    files.append(1, &carried(0, 1)).unwrap();
    let place = files.append(1, &carried(2, 3)).unwrap();
    let path = tokens_file(dir.path(), 1);
    let sound = std::fs::read(&path).unwrap();
    for at in place.offset as usize..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        let error = read_carried(dir.path(), place).unwrap_err();
        assert!(matches!(&error, LedgerError::Corrupt { offset, .. } if *offset == place.offset), "{error}");
    }
    std::fs::write(&path, &sound[..sound.len() - 1]).unwrap();
    assert!(matches!(read_carried(dir.path(), place), Err(LedgerError::Io { .. })));
}

#[test]
fn files_that_no_dispatch_needs_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = TokenFiles::open(dir.path()).unwrap();
    for step in 1..=3 {
        files.append(step, &carried(step, step)).unwrap();
    }
    files.delete_unused(3, |file| file == 1);
    let there = |step| tokens_file(dir.path(), step).exists();
    assert_eq!([there(1), there(2), there(3)], [true, false, true]);
    TokenFiles::open(dir.path()).unwrap().delete_unused(9, |_| false);
    assert_eq!([there(1), there(2), there(3)], [false, false, false]);
}
