#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::{PermissionsExt, symlink};

use rolldock_dispatch::PromptUid;

use super::*;
use crate::{LifeRecord, Next, QueueRecord, fixture, ledger_file, read_carried, read_log};

const THREADED: LedgerConfig = LedgerConfig { fsync: true, inline: false, full_disk_wait: Duration::ZERO };
const INLINE: LedgerConfig = LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO };

fn open(dir: &Path, config: LedgerConfig) -> LedgerWriter {
    LedgerWriter::open(dir, config).unwrap().writer
}

fn records(dir: &Path) -> Vec<Record> {
    let mut records = Vec::new();
    read_log(dir, |_, record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    records
}

fn may_be_sent(_: &impl Send) {}

fn beginning() -> Vec<Record> {
    vec![fixture::run(), fixture::life(1), fixture::step(1), fixture::dispatch(0, 0, 1)]
}

#[tokio::test]
async fn what_is_synced_is_there() {
    let dir = tempfile::tempdir().unwrap();
    for fsync in [false, true] {
        for inline in [false, true] {
            let out = dir.path().join(format!("{fsync}-{inline}"));
            let writer = open(&out, LedgerConfig { fsync, inline, full_disk_wait: Duration::ZERO });
            for record in beginning() {
                writer.append(record);
            }
            let last = writer.append(Record::end(DispatchId(0), Fate::Accepted));
            let syncing = writer.sync(last);
            may_be_sent(&syncing);
            syncing.await.unwrap();
            assert_eq!(records(&out).len(), 5, "{fsync} {inline}");
            writer.sync_all().await.unwrap();
            writer.close().unwrap();
            let opened = LedgerWriter::open(&out, THREADED).unwrap();
            assert_eq!((opened.state.totals().accepted, opened.torn_bytes), (1, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn inline_nothing_waits_for_a_thread() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), INLINE);
    let mut last = Sequence::default();
    for record in beginning() {
        last = writer.append(record);
    }
    assert_eq!(records(dir.path()), beginning());
    let synced = tokio::time::timeout(Duration::from_millis(1), writer.sync(last)).await;
    assert_eq!(synced, Ok(Ok(())));
    writer.close().unwrap();
    let after = writer.append(fixture::dispatch(1, 1, 1));
    assert_eq!(writer.sync(after).await, Err(LedgerError::Closed));
    assert_eq!(writer.sync(last).await, Ok(()), "what was written stays so");
}

#[test]
fn records_are_written_also_if_no_call_waits() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), THREADED);
    for record in beginning() {
        writer.append(record);
    }
    drop(writer);
    assert_eq!(records(dir.path()), beginning());
}

#[test]
fn records_of_many_threads_keep_the_order_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let writer =
        open(dir.path(), LedgerConfig { fsync: false, inline: false, full_disk_wait: Duration::ZERO });
    for record in [fixture::run(), fixture::life(1), fixture::step(1)] {
        writer.append(record);
    }
    let count = 3 * RECORDS_MAX as u64;
    for id in 0..count {
        writer.append(fixture::dispatch(id, id, 1));
    }
    std::thread::scope(|threads| {
        for start in 0..4 {
            let writer = &writer;
            threads.spawn(move || {
                for id in (start..count).step_by(4) {
                    writer.append(Record::end(DispatchId(id), Fate::Filtered("no_variance")));
                }
            });
        }
    });
    writer.close().unwrap();
    let (state, _) = LedgerState::read(dir.path()).unwrap();
    assert_eq!((state.totals().filtered, state.totals().in_flight), (count, 0));
    state.check().unwrap();
}

#[test]
fn a_second_writer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), INLINE);
    assert!(matches!(LedgerWriter::open(dir.path(), INLINE), Err(LedgerError::InUse { .. })));
    assert!(is_being_written(dir.path()).unwrap());
    let owner = || match check_unused(dir.path()) {
        Err(LedgerError::InUse { owner, .. }) => owner,
        other => panic!("{other:?}"),
    };
    assert_eq!(owner(), "another process", "it has not written its first record");
    writer.append(fixture::run());
    writer.append(Record::Life(LifeRecord { number: 1, pid: std::process::id(), started_s: 0 }));
    assert_eq!(owner(), format!("process {}", std::process::id()));
    drop(writer);
    assert!(!is_being_written(dir.path()).unwrap());
    check_unused(dir.path()).unwrap();
    check_unused(&dir.path().join("absent")).unwrap();
    open(dir.path(), INLINE);
}

#[test]
fn a_writer_waits_for_a_process_that_looks_at_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), INLINE));
    let looking = std::fs::File::open(ledger_file(dir.path())).unwrap();
    looking.lock_shared().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(move || drop(looking));
        open(dir.path(), INLINE);
    });
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_and_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), THREADED);
    for record in beginning() {
        writer.append(record);
    }
    writer.sync_all().await.unwrap();
    writer.append(fixture::dispatch(1, 1, 1));
    writer.close().unwrap();
    let path = ledger_file(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let Opened { writer, state, torn_bytes } = LedgerWriter::open(dir.path(), THREADED).unwrap();
    assert!(torn_bytes > 0);
    assert_eq!(state.open().count(), 1);
    writer.append(fixture::dispatch(1, 7, 1));
    writer.close().unwrap();
    assert_eq!(records(dir.path())[4..], [fixture::dispatch(1, 7, 1)]);
}

#[tokio::test]
async fn an_error_stays() {
    let dir = tempfile::tempdir().unwrap();
    for config in [THREADED, INLINE] {
        let out = dir.path().join(format!("{}", config.inline));
        let writer = open(&out, config);
        let mut last_good = Sequence::default();
        for record in beginning() {
            last_good = writer.append(record);
        }
        writer.sync(last_good).await.unwrap();
        // The record contradicts earlier records. This stops the writer like a failing disk.
        let bad = writer.append(Record::end(DispatchId(9), Fate::Accepted));
        let error = writer.sync(bad).await.unwrap_err();
        assert!(matches!(&error, LedgerError::Contradiction(_)), "{error}");
        let after = writer.append(fixture::dispatch(1, 1, 1));
        assert_eq!(writer.sync(after).await, Err(error.clone()));
        assert_eq!(writer.sync(last_good).await, Ok(()));
        assert_eq!((writer.error(), writer.failed().await), (Some(error.clone()), error.clone()));
        assert_eq!(writer.close(), Err(error));
        assert_eq!(records(&out), beginning(), "nothing of it is in the file");
    }
}

#[tokio::test]
async fn tokens_that_cannot_be_written_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), THREADED);
    for record in beginning() {
        writer.append(record);
    }
    writer.sync_all().await.unwrap();
    // A folder has the name of the file that the writer would create.
    std::fs::create_dir(dir.path().join("tokens-1.bin")).unwrap();
    let last = writer.append_carried(DispatchId(0), Fate::Carried, Box::new(fixture::carried(0, 0)));
    let error = writer.sync(last).await.unwrap_err();
    assert!(error.to_string().contains("tokens-1.bin"), "{error}");
    assert_eq!(records(dir.path()), beginning());
}

#[tokio::test]
async fn tokens_live_as_long_as_their_number_is_not_settled() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), INLINE);
    for record in beginning() {
        writer.append(record);
    }
    writer.append_carried(DispatchId(0), Fate::Carried, Box::new(fixture::carried(0, 0)));
    writer.append(fixture::step(2));
    writer.append(fixture::continued(1, 0, 0, 2));
    let file = dir.path().join("tokens-1.bin");
    assert!(file.exists(), "its dispatch may be lost");
    drop(writer);

    let Opened { writer, mut state, .. } = LedgerWriter::open(dir.path(), INLINE).unwrap();
    let resumed = state.reconcile(&[]).unwrap();
    let place = resumed.queued[0].tokens.unwrap();
    assert_eq!(read_carried(dir.path(), place).unwrap(), fixture::carried(0, 0));
    for record in resumed.records {
        writer.append(record);
    }
    writer.append(fixture::continued(2, 1, 0, 2));
    writer.append(Record::end(DispatchId(2), Fate::Accepted));
    assert!(file.exists(), "its put may be lost");
    writer.append(Record::Settled { ids: vec![DispatchId(2)] });
    assert!(!file.exists(), "no dispatch needs the file any more");
    writer.sync_all().await.unwrap();
}

#[tokio::test]
async fn a_held_group_that_is_too_old_is_dispatched_again() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), INLINE);
    for record in beginning() {
        writer.append(record);
    }
    writer.append_carried(DispatchId(0), Fate::Held, Box::new(fixture::carried(0, 0)));
    writer.append(fixture::step(2));
    writer.append(fixture::continued(1, 0, 0, 2));
    let last = writer.append(Record::end_anew(DispatchId(1), Fate::Stale, 2));
    writer.sync(last).await.unwrap();
    let (mut state, _) = LedgerState::read(dir.path()).unwrap();
    let resumed = state.reconcile(&[]).unwrap();
    assert_eq!(resumed.records, []);
    let queued = &resumed.queued[0];
    assert_eq!((queued.parent, queued.first_attempt, queued.tokens), (DispatchId(1), 2, None));
    assert!(!dir.path().join("tokens-1.bin").exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    if std::fs::write(closed.join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write everywhere");
        return;
    }
    let error = LedgerWriter::open(&closed, INLINE).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_queue_record_is_decoded_as_it_was_encoded() {
    let record = QueueRecord::new(DispatchId(7), 5, 2, PromptUid(0xab));
    assert_eq!(QueueRecord::parse(&record.to_json()).unwrap(), record);
    assert_eq!(record.uid(), Some(PromptUid(0xab)));
    for foreign in ["", "{}", r#"{"dispatch":1,"number":1,"step":1,"prompt_uid":"xyz"}"#] {
        assert!(matches!(QueueRecord::parse(foreign), Err(LedgerError::ForeignRecord { .. })), "{foreign}");
    }
    assert!(matches!(Record::end(DispatchId(0), Fate::Held), Record::End { next: Next::Again, .. }));
}

#[test]
fn tokens_without_their_log_are_refused_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), INLINE);
    for record in beginning() {
        writer.append(record);
    }
    writer.append_carried(DispatchId(0), Fate::Carried, Box::new(fixture::carried(0, 0)));
    writer.close().unwrap();
    let tokens = dir.path().join("tokens-1.bin");
    let before = std::fs::read(&tokens).unwrap();
    for left in [None, Some(&b""[..]), Some(b"ROLLDOCK-LED")] {
        match left {
            None => std::fs::remove_file(ledger_file(dir.path())).unwrap(),
            Some(bytes) => std::fs::write(ledger_file(dir.path()), bytes).unwrap(),
        }
        let error = LedgerWriter::open(dir.path(), INLINE).unwrap_err();
        assert!(matches!(&error, LedgerError::Lost { found, .. } if found == "tokens-1.bin"), "{error}");
        assert!(error.to_string().contains("ledger.log is missing or empty"), "{error}");
        assert_eq!(ledger_file(dir.path()).exists(), left.is_some(), "no log is made");
        assert_eq!(std::fs::read(&tokens).unwrap(), before);
    }
}

/// `/dev/full` is a disk that never has room.
#[tokio::test]
async fn a_full_disk_is_waited_for_until_the_time_is_over_or_the_writer_is_hurried() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let end = |writer: &LedgerWriter, how: &str| match how {
        "hurried" => writer.stop_waiting(),
        "closed" => assert!(matches!(writer.close(), Err(LedgerError::DiskFull { .. }))),
        _ => {}
    };
    for (how, full_disk_wait, inline) in [
        ("the time is over", Duration::ZERO, false),
        ("hurried", hour, false),
        ("closed", hour, false),
        ("inline", hour, true),
    ] {
        let out = dir.path().join(how);
        let writer = open(&out, LedgerConfig { fsync: false, inline, full_disk_wait });
        for record in beginning() {
            writer.append(record);
        }
        writer.sync_all().await.unwrap();
        symlink("/dev/full", out.join("tokens-1.bin")).unwrap();
        let last = writer.append_carried(DispatchId(0), Fate::Carried, Box::new(fixture::carried(0, 0)));
        end(&writer, how);
        let error = writer.sync(last).await.unwrap_err();
        assert!(matches!(&error, LedgerError::DiskFull { .. }), "{how}: {error}");
        assert!(error.to_string().contains("tokens-1.bin is full (write failed: "), "{how}: {error}");
        assert_eq!(records(&out), beginning(), "{how}");
    }
}

#[test]
fn a_write_is_repeated_only_on_a_full_disk() {
    let full = || LedgerError::DiskFull { file: "f".into(), reason: "r".to_owned() };
    let mut outcomes = vec![Ok(7), Err(full()), Err(full())];
    let mut waits = 0;
    let repeated = sink::repeat(
        &mut |_: &LedgerError| {
            waits += 1;
            true
        },
        || outcomes.pop().unwrap(),
    );
    assert_eq!((repeated, waits), (Ok(7), 2));
    let mut never = |_: &LedgerError| panic!("it is not asked");
    assert_eq!(sink::repeat(&mut never, || Err::<(), _>(LedgerError::Closed)), Err(LedgerError::Closed));
}
