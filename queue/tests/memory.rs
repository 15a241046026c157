//! Checks that the memory of freed rows is freed. A counting allocator measures the memory in use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait; it only passes on and adds up")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use futures::future::try_join_all;
use rolldock_queue::{
    Durability, PartitionSpec, Put, QueueConfig, RowHandle, Take, TransferQueue, VerifyReport,
};

struct Counting;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static HELD_BYTES_MAX: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed unchanged to the system's allocator, and the counters are atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        HELD_BYTES_MAX.fetch_max(held, Ordering::Relaxed);
        ALLOCATED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TOKENS: i64 = 1024;

fn batch(first: i64, rows: i64) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let tokens = (0..rows).map(|_| Some((0..TOKENS as i32).map(Some)));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens));
    RecordBatch::try_from_iter([("id", id), ("tokens", tokens)]).unwrap()
}

/// All checks are in one test, because the counters measure the whole process.
#[tokio::test]
async fn memory_follows_what_is_live() {
    freed_rows_free_their_memory_and_a_take_copies_no_payload().await;
    a_partition_on_disk_serves_in_bounded_memory().await;
    kept_bytes_are_at_most_one_and_a_half_times_live_bytes().await;
    rows_that_are_put_one_by_one_need_little_additional_memory().await;
    tokens_of_freed_rows_need_almost_no_memory().await;
    what_a_partition_remembers_is_small_and_is_shared_by_all_that_read_it().await;
}

/// The number of bytes that may be held in addition to one and a half times the live bytes. The queue's own
/// limit for payload is 16 MiB.
const WASTE_BYTES_MAX: usize = 24 << 20;

/// Short rows and one row of a mebibyte.
fn ragged(rows: usize) -> RecordBatch {
    let long = (1 << 20) / 4;
    let tokens = (0..rows).map(|row| Some((0..if row == 7 { long } else { 16 }).map(Some)));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens));
    RecordBatch::try_from_iter([("tokens", tokens)]).unwrap()
}

async fn kept_bytes_are_at_most_one_and_a_half_times_live_bytes() {
    let puts = 128;
    let even_rows = 256_usize;
    let even_bytes = even_rows * TOKENS as usize * 4;
    type Stays = fn(usize) -> bool;
    let patterns: [(&str, bool, Stays); 5] = [
        ("every second row", false, |at| at % 2 == 0),
        ("two of three rows", false, |at| at % 3 > 0),
        ("three of five rows, in stretches", false, |at| at % 100 < 60),
        ("one row of each put", false, |at| at == 100),
        ("all but the long row of each put", true, |at| at != 7),
    ];
    for (what, is_ragged, stays) in patterns {
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
        let before = HELD_BYTES.load(Ordering::Relaxed);
        let mut gone = Vec::new();
        for group in 0..puts {
            let rows = if is_ragged { ragged(even_rows) } else { batch(0, even_rows as i64) };
            let handles = partition.put(Put::group(format!("g{group}"), rows), None).await.unwrap();
            gone.extend(handles.into_iter().enumerate().filter(|(at, _)| !stays(*at)).map(|(_, row)| row));
        }
        let full = HELD_BYTES.load(Ordering::Relaxed) - before;
        // The rows are cleared in several calls.
        let (first, second) = gone.split_at(gone.len() / 3);
        partition.clear(first).await.unwrap();
        for some in second.chunks(1000) {
            partition.clear(some).await.unwrap();
        }
        let stay = (0..even_rows).filter(|at| stays(*at)).count();
        let live = puts * if is_ragged { stay * 64 } else { even_bytes / even_rows * stay };
        let held = HELD_BYTES.load(Ordering::Relaxed) - before;
        assert!(held <= live + live / 2 + WASTE_BYTES_MAX, "{what}: of {full} bytes {held} for {live}");
        let lease = partition.take(&Take::rows("t", 65_536)).await.unwrap().unwrap();
        assert_eq!(lease.rows().len(), puts * stay, "{what}");
    }
}

/// A chunk uses about two kilobytes besides its rows. A group and a row use half a kilobyte.
async fn rows_that_are_put_one_by_one_need_little_additional_memory() {
    let (rows, tokens) = (32_000_i64, 256);
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
    let before = HELD_BYTES.load(Ordering::Relaxed);
    for number in 0..rows {
        let id: ArrayRef = Arc::new(Int64Array::from_iter_values([number]));
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some((0..tokens).map(Some))]);
        let row = RecordBatch::try_from_iter([("id", id), ("tokens", Arc::new(list))]).unwrap();
        partition.put(Put::group(format!("group {number}"), row), None).await.unwrap();
    }
    let live = rows as usize * (8 + 8 + tokens as usize * 4);
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held * 10 <= live * 17, "{rows} rows of {live} bytes hold {held}");
    let lease = partition.take(&Take::rows("t", rows as usize)).await.unwrap().unwrap();
    let ids = lease.batches().iter().flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values());
    assert!(ids.copied().eq(0..rows));
    let batches = lease.batches().len();
    assert!(batches < rows as usize / 30, "{batches} batches");
    lease.ack().await.unwrap();
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held < live / 20, "of {live} bytes {held} are held by an empty partition");
}

async fn tokens_of_freed_rows_need_almost_no_memory() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
    let before = HELD_BYTES.load(Ordering::Relaxed);
    let put_rows = 16_384;
    for number in 0..200_i64 {
        let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..put_rows));
        let rows = RecordBatch::try_from_iter([("id", id)]).unwrap();
        let put = Put { token: Some(number.to_string()), ..Put::group(number.to_string(), rows) };
        let handles = partition.put(put, None).await.unwrap();
        partition.clear(&handles).await.unwrap();
    }
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held < 16 << 20, "200 tokens of {put_rows} rows that are gone hold {held}");
}

async fn a_partition_on_disk_serves_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let queue = TransferQueue::open(QueueConfig { durability: Durability::Os, ..config.clone() }).unwrap();
    let (puts, put_rows) = (64, 512);
    let put_bytes = put_rows as usize * TOKENS as usize * 4;
    let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
    let before = HELD_BYTES.load(Ordering::Relaxed);
    HELD_BYTES_MAX.store(before, Ordering::Relaxed);
    for group in 0..puts {
        partition
            .put(Put::group(format!("g{group}"), batch(group * put_rows, put_rows)), None)
            .await
            .unwrap();
    }
    let most = HELD_BYTES_MAX.load(Ordering::Relaxed) - before;
    assert!(most < 16 * put_bytes, "{puts} puts of {put_bytes} bytes held {most}");

    // Rows are read from mapped files, so neither reading nor holding them allocates memory for them.
    queue.close();
    drop((partition, queue));
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.partition("p").unwrap();
    let before = HELD_BYTES.load(Ordering::Relaxed);
    HELD_BYTES_MAX.store(before, Ordering::Relaxed);
    let lease = partition.take(&Take::groups("t", puts as usize)).await.unwrap().unwrap();
    let ids = lease.batches().iter().flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values());
    assert!(ids.copied().eq(0..puts * put_rows));
    let most = HELD_BYTES_MAX.load(Ordering::Relaxed) - before;
    assert!(most < 2 * put_bytes, "taking {puts} puts of {put_bytes} bytes held {most}");
    // The ack deletes the segments, and the rows stay readable.
    lease.ack().await.unwrap();
}

async fn freed_rows_free_their_memory_and_a_take_copies_no_payload() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
    let put_rows = 512;
    let row_bytes = TOKENS as usize * 4;

    // Rows that are a slice of a larger batch do not keep that batch in memory.
    let before = HELD_BYTES.load(Ordering::Relaxed);
    let large = batch(0, put_rows);
    partition.put(Put::group("cut", large.slice(0, 4)), None).await.unwrap();
    drop(large);
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held < 16 * row_bytes, "4 rows of {row_bytes} bytes hold {held}");

    // A take of whole chunks allocates only names and pointers.
    for group in 0..8 {
        partition
            .put(Put::group(format!("g{group}"), batch(group * put_rows, put_rows)), None)
            .await
            .unwrap();
    }
    let full = HELD_BYTES.load(Ordering::Relaxed) - before;
    let allocated = ALLOCATED_BYTES.load(Ordering::Relaxed);
    let lease = partition.take(&Take::groups("t", 9)).await.unwrap().unwrap();
    let took = ALLOCATED_BYTES.load(Ordering::Relaxed) - allocated;
    let rows: Vec<RowHandle> = lease.rows().to_vec();
    assert!(took < rows.len() * 256, "a take of {} rows of {row_bytes} bytes allocated {took}", rows.len());
    drop(lease);

    // Every eighth row stays. The held memory must depend on the live rows, not on the size of the puts.
    let gone: Vec<RowHandle> =
        rows.iter().enumerate().filter(|(at, _)| at % 8 != 0).map(|(_, row)| *row).collect();
    partition.clear(&gone).await.unwrap();
    let live = (rows.len() - gone.len()) * row_bytes;
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held < live * 3, "of {full} bytes {held} are held for {live} live ones");

    let lease = partition.take(&Take::rows("t", rows.len())).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), rows.len() - gone.len());
    lease.ack().await.unwrap();
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    assert!(held < full / 20, "of {full} bytes {held} are held by an empty partition");
}

/// Returns the maximum number of bytes that are held during `reading`, minus the bytes that were held before.
async fn most_while(reading: impl Future<Output = ()>) -> usize {
    let before = HELD_BYTES.load(Ordering::Relaxed);
    HELD_BYTES_MAX.store(before, Ordering::Relaxed);
    reading.await;
    HELD_BYTES_MAX.load(Ordering::Relaxed) - before
}

/// A server is asked for snapshots and verified for hours, by several clients at once. The data that it keeps
/// about freed rows must not be copied for each of these calls.
async fn what_a_partition_remembers_is_small_and_is_shared_by_all_that_read_it() {
    const PUTS: usize = 20_000;
    const RECORD_BYTES: usize = 500;
    let dir = tempfile::tempdir().unwrap();
    // The journal is rewritten during the test.
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Os,
        journal_bytes: 4 << 20,
        ..QueueConfig::default()
    };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("p", ["t"], 65_536)).await.unwrap();
    // The slots of these rows are used again.
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..PUTS as i64));
    let slots = Put::group("slots", RecordBatch::try_from_iter([("id", ids)]).unwrap());
    let slots = partition.put(slots, None).await.unwrap();
    partition.clear(&slots).await.unwrap();
    let before = HELD_BYTES.load(Ordering::Relaxed);
    for number in 0..PUTS {
        let put = Put {
            // This token is as long as the tokens that clients make.
            token: Some(format!("{number:032x}")),
            record: Some(format!("{number:0RECORD_BYTES$}")),
            ..Put::group(format!("group {number}"), batch(0, 1))
        };
        let handles = partition.put(put, None).await.unwrap();
        partition.clear(&handles).await.unwrap();
    }
    let held = HELD_BYTES.load(Ordering::Relaxed) - before;
    let each = held / PUTS;
    assert!(each < RECORD_BYTES + 120, "a put whose rows are gone keeps bytes={each}");

    let mut begun = Vec::new();
    let most = most_while(async {
        for _ in 0..8 {
            begun.push(queue.begin_snapshot(None).await.unwrap());
        }
    })
    .await;
    assert!(most < 1 << 20, "8 snapshots that have begun hold bytes={most} of {held}");
    drop(begun);

    let most = most_while(async {
        let verified = try_join_all((0..4).map(|_| queue.verify())).await.unwrap();
        assert!(verified.iter().all(VerifyReport::is_sound), "{verified:?}");
    })
    .await;
    assert!(most < 6 << 20, "4 verifications hold bytes={most} of {held}");

    let most = most_while(async {
        let written = (0..4).map(|_| queue.snapshot(None, std::io::sink()));
        try_join_all(written).await.unwrap();
    })
    .await;
    assert!(most < 6 << 20, "4 snapshots hold bytes={most} of {held}");

    partition.forget_records(PUTS).await.unwrap();
    let each = (HELD_BYTES.load(Ordering::Relaxed) - before) / PUTS;
    assert!(each < 120, "a token keeps bytes={each}");
}
