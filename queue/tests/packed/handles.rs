//! In a restored copy, rows share chunks. When rows are freed, their memory and their disk space are freed
//! too.

use std::path::Path;
use std::time::Duration;

use arrow_array::RecordBatch;
use rolldock_queue::{Durability, Put, QueueConfig, RowHandle, TransferQueue};

use super::support::copied::copy_at_one_moment;
use super::support::{in_memory, on_disk, restore, rows, snapshot};
use super::{Words, put_singly, row_bytes};

/// The number of tokens of a row. One row in fifty is large.
fn ragged(row: i64) -> i32 {
    if row % 50 == 7 { 12_500 } else { 16 }
}

#[tokio::test]
async fn a_copy_gives_back_the_memory_of_rows_that_lay_together() {
    const ROWS: i64 = 4_000;
    let queue = in_memory();
    let (_, handles) = put_singly(&queue, ROWS, ragged, Words::None).await;
    let copy = in_memory();
    restore(&copy, &snapshot(&queue, None).await).await.unwrap();
    let partition = copy.partition("train").unwrap();
    let mut live: u64 = (0..ROWS).map(|row| row_bytes(ragged(row)) as u64).sum();
    let held = copy.inspect().payload_bytes;
    assert!(held * 10 <= live * 11, "{held} bytes for {live}");
    // First the long rows are cleared, then most of the other rows. Each turn clears some rows of each chunk.
    type Goes = fn(i64) -> bool;
    let turns: [Goes; 3] = [|row| ragged(row) > 16, |row| row % 3 == 0, |row| row % 16 > 0];
    let mut gone = vec![false; ROWS as usize];
    for goes in turns {
        let going: Vec<i64> = (0..ROWS).filter(|row| !gone[*row as usize] && goes(*row)).collect();
        for some in going.chunks(100) {
            let rows: Vec<RowHandle> = some.iter().map(|row| handles[*row as usize]).collect();
            partition.clear(&rows).await.unwrap();
        }
        going.iter().for_each(|row| gone[*row as usize] = true);
        live -= going.iter().map(|row| row_bytes(ragged(*row)) as u64).sum::<u64>();
        let held = copy.inspect().payload_bytes;
        // As long as the waste of the partition is small, a chunk may keep up to twice its live bytes.
        assert!(held <= live * 2 + 8192, "{held} bytes for {live}");
        assert!(copy.verify().await.unwrap().is_sound());
    }
    let left: Vec<RowHandle> =
        handles.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(row, _)| *row).collect();
    assert_eq!(rows_at(&queue, &left).await, rows_at(&copy, &left).await);
    partition.clear_all().await.unwrap();
    assert_eq!(copy.inspect().payload_bytes, 0);
}

fn segment_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let segments = files.filter(|file| file.file_name().to_string_lossy().starts_with("segment"));
    segments.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

#[tokio::test]
async fn a_copy_gives_back_the_disk_of_rows_that_lay_together_also_after_a_restart() {
    const ROWS: i64 = 4_000;
    let queue = in_memory();
    let (original, handles) = put_singly(&queue, ROWS, |_| 253, Words::None).await;
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Os,
        segment_bytes: 512 << 10,
        journal_bytes: 64 << 10,
        ..QueueConfig::default()
    };
    let open = || TransferQueue::open(config.clone()).unwrap();
    let copy = open();
    restore(&copy, &snapshot(&queue, None).await).await.unwrap();
    let all = ROWS as u64 * row_bytes(253) as u64;
    assert!(segment_bytes(dir.path()) * 10 <= all * 11);
    // These are the files that a process leaves if it is killed now.
    let killed = tempfile::tempdir().unwrap();
    copy_at_one_moment(dir.path(), killed.path());
    assert_same_handles(&queue, &on_disk(killed.path()), &handles).await;
    copy.close();
    drop(copy);
    let copy = open();
    let partition = copy.partition("train").unwrap();
    let (left, gone): (Vec<_>, Vec<_>) = handles.iter().copied().enumerate().partition(|(at, _)| at % 8 == 0);
    for some in gone.chunks(500) {
        let rows: Vec<RowHandle> = some.iter().map(|(_, row)| *row).collect();
        partition.clear(&rows).await.unwrap();
        original.clear(&rows).await.unwrap();
    }
    let live = left.len() as u64 * row_bytes(253) as u64;
    for turn in 0.. {
        let held = segment_bytes(dir.path());
        // The newest segment is still open, and may have 512 KiB.
        if held <= live * 2 + (512 << 10) {
            break;
        }
        assert!(turn < 200, "{held} bytes for {live}");
        // Rows are moved out of old segments at the next write.
        let put = partition.put(Put::group("more", rows(0, 1, 4)), None).await.unwrap();
        partition.clear(&put).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left: Vec<RowHandle> = left.into_iter().map(|(_, row)| row).collect();
    assert_same_handles(&queue, &copy, &left).await;
    copy.close();
    drop((partition, copy));
    assert_same_handles(&queue, &open(), &left).await;
    assert!(TransferQueue::verify_dir(dir.path()).unwrap().is_sound());
}

async fn assert_same_handles(queue: &TransferQueue, copy: &TransferQueue, handles: &[RowHandle]) {
    let (one, other) = (queue.partition("train").unwrap(), copy.partition("train").unwrap());
    assert_eq!(one.stats().rows, other.stats().rows);
    assert_eq!(rows_at(queue, handles).await, rows_at(copy, handles).await);
    let report = copy.verify().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    // Many rows share a chunk, and each chunk is verified once.
    assert!(report.chunks * 16 < report.rows, "{report:?}");
}

async fn rows_at(queue: &TransferQueue, handles: &[RowHandle]) -> RecordBatch {
    let batches = queue.partition("train").unwrap().get(handles, None).await.unwrap();
    arrow_select::concat::concat_batches(&batches[0].schema(), &batches).unwrap()
}
