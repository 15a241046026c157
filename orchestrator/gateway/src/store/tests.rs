#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod churn;

use std::collections::HashSet;
use std::path::Path;

use rolldock_queue::Durability;

use super::file::{LogFile, REWRITE_BYTES, put_entry};
use super::{Entry, Store, StoreError};

type Read = Vec<(u64, bool, Vec<u8>)>;

/// Opens a log, and tries again while it is locked. A child process that another test starts holds the locks of
/// this process until it executes its own program.
fn opened<T>(mut open: impl FnMut() -> Result<T, StoreError>) -> T {
    loop {
        match open() {
            Err(StoreError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn read(dir: &Path) -> Read {
    let mut all = Read::new();
    opened(|| {
        LogFile::open(dir, false, REWRITE_BYTES, |entry| {
            all.push((entry.number, entry.is_last, entry.body.to_vec()));
            Ok(())
        })
    });
    all
}

fn entry(number: u64, is_last: bool, body: &[u8]) -> Entry<'_> {
    Entry { number, is_last, body }
}

#[tokio::test]
async fn what_is_kept_is_read_back_in_order() {
    for durability in [Durability::None, Durability::Os, Durability::Fsync] {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), durability, |_| Ok(())).unwrap();
        let mut expected = Read::new();
        for number in 0..100_u64 {
            let body = number.to_string().into_bytes();
            let sequence = store.append(entry(number % 7, number % 10 == 9, &body));
            expected.push((number % 7, number % 10 == 9, body));
            if durability == Durability::None || number % 3 == 0 {
                store.kept(sequence).await.unwrap();
            }
        }
        let in_use = Store::open(folder.path(), durability, |_| Ok(()));
        assert!(matches!(in_use, Err(StoreError::InUse { .. })));
        store.close();
        assert_eq!(store.error(), Some(StoreError::Closed));
        assert_eq!(read(folder.path()), expected);
        let late = store.append(entry(1, false, b"late"));
        assert_eq!(store.kept(late).await, Err(StoreError::Closed));
    }
}

/// Some records are written by the threads that append them, and some by the thread of the log.
#[test]
fn records_of_several_threads_are_kept_in_the_order_of_each() {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 500;
    for durability in [Durability::None, Durability::Os] {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_with(folder.path(), durability, 4 << 10, |_| Ok(())).unwrap();
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    for record in 0..RECORDS {
                        let sequence = store.append(entry(number, false, &record.to_le_bytes()));
                        if record % 3 == 0 {
                            futures::executor::block_on(store.kept(sequence)).unwrap();
                        }
                    }
                });
            }
        });
        store.close();
        let all = read(folder.path());
        for number in 0..THREADS {
            let of_thread = all.iter().filter(|(of, _, _)| *of == number);
            let records: Vec<_> = of_thread.map(|(_, _, body)| body.clone()).collect();
            let expected: Vec<_> = (0..RECORDS).map(|record| record.to_le_bytes().to_vec()).collect();
            assert_eq!(records, expected, "{durability:?}");
        }
    }
}

#[test]
fn a_rewrite_keeps_what_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = LogFile::open(folder.path(), true, REWRITE_BYTES, |_| Ok(())).unwrap();
    let mut body = Vec::new();
    for (number, is_last, text) in
        [(1, false, "a"), (2, false, "b"), (1, true, "c"), (3, false, "d"), (1, false, "e"), (2, false, "f")]
    {
        put_entry(&mut body, entry(number, is_last, text.as_bytes()));
        file.append(&std::mem::take(&mut body)).unwrap();
    }
    file.rewrite(&HashSet::from([3])).unwrap();
    put_entry(&mut body, entry(4, false, b"after"));
    file.append(&body).unwrap();
    assert_eq!(file.sizes().rewrites, 1);
    assert_eq!(file.sizes().bytes, folder.path().join("trajectories.log").metadata().unwrap().len());
    drop(file);
    let texts: Vec<String> =
        read(folder.path()).into_iter().map(|(_, _, body)| String::from_utf8(body).unwrap()).collect();
    assert_eq!(texts, ["b", "c", "e", "f", "after"]);
}

#[test]
fn damage_in_the_middle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = LogFile::open(folder.path(), false, REWRITE_BYTES, |_| Ok(())).unwrap();
    let mut body = Vec::new();
    put_entry(&mut body, entry(1, false, b"some text"));
    file.append(&body).unwrap();
    file.append(&body).unwrap();
    drop(file);
    let path = folder.path().join("trajectories.log");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = opened(|| match LogFile::open(folder.path(), false, REWRITE_BYTES, |_| Ok(())) {
        Err(in_use @ StoreError::InUse { .. }) => Err(in_use),
        opened => Ok(opened.unwrap_err()),
    });
    assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("damaged at offset=24"), "{refused}");
}

#[tokio::test]
async fn forgotten_trajectories_leave_the_file_and_the_memory() {
    const REWRITE: u64 = 16 << 10;
    let folder = tempfile::tempdir().unwrap();
    for life in 0..3_u64 {
        let store = opened(|| Store::open_with(folder.path(), Durability::Os, REWRITE, |_| Ok(())));
        for number in life * 3000..(life + 1) * 3000 {
            store.append(entry(number, false, &[7; 100]));
            let buried = store.append(entry(number, true, b"buried"));
            if number >= 10 {
                store.forget(number - 10);
            }
            // Each write is a chance for a rewrite.
            if number % 20 == 0 {
                store.kept(buried).await.unwrap();
            }
        }
        store.close();
        assert!(store.sizes().rewrites > 3, "{:?}", store.sizes());
        // Only trajectories that were forgotten after the last rewrite are remembered. Without rewrites, all
        // 3,000 would be.
        let remembered = store.shared.gathered.lock().forgotten.len();
        assert!(remembered < 1000, "{remembered} forgotten trajectories are remembered");
    }
    let bytes = folder.path().join("trajectories.log").metadata().unwrap().len();
    // All records together have 1.2 MB.
    assert!(bytes < 8 * REWRITE, "{bytes}");
}

#[test]
fn a_log_that_is_opened_again_and_again_is_rewritten_as_if_it_had_stayed_open() {
    const REWRITE: u64 = 4 << 10;
    let folder = tempfile::tempdir().unwrap();
    let mut rewrites = 0;
    for number in 0..200 {
        let mut file = opened(|| LogFile::open(folder.path(), false, REWRITE, |_| Ok(())));
        let mut body = Vec::new();
        put_entry(&mut body, entry(number, false, &[1; 200]));
        put_entry(&mut body, entry(number, true, b"b"));
        file.append(&body).unwrap();
        if file.is_due() {
            file.rewrite(&(0..number).collect()).unwrap();
        }
        rewrites += file.sizes().rewrites;
        assert!(file.sizes().bytes < 3 * REWRITE, "{}", file.sizes().bytes);
    }
    assert!(rewrites > 5, "{rewrites}");
}
