//! Snapshots: one moment of a queue, as large as what is live, and back again whole or not at all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use parking_lot::Mutex;
use proptest::prelude::*;
use rolldock_queue::{
    Durability, Partition, PartitionSpec, Put, QueueConfig, QueueError, RowHandle, Sampler, Take, TaskSpec,
    TransferQueue,
};
use tokio::time::Instant;

const TOKENS: i32 = 1024;

fn rows(first: i64, count: i64, tokens: i32) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + count));
    let lists = (0..count).map(|row| Some((0..tokens).map(move |at| Some(at + row as i32))));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    RecordBatch::try_from_iter([("id", id), ("response_ids", lists)]).unwrap()
}

fn advantages(count: usize) -> RecordBatch {
    let column: ArrayRef = Arc::new(Float32Array::from_iter_values((0..count).map(|row| row as f32 / 8.0)));
    RecordBatch::try_from_iter([("advantage", column)]).unwrap()
}

fn in_memory() -> TransferQueue {
    TransferQueue::open(QueueConfig::default()).unwrap()
}

fn on_disk(dir: &Path) -> TransferQueue {
    let config =
        QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

fn spec(name: &str, capacity: usize) -> PartitionSpec {
    let mut spec = PartitionSpec::new(name, ["train", "score"], capacity);
    spec.tasks[1] = TaskSpec { name: "score".to_owned(), columns: vec!["advantage".to_owned()] };
    spec.length_columns = vec!["response_ids".to_owned()];
    spec
}

/// Where a snapshot goes in a test.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn snapshot(queue: &TransferQueue, partition: Option<&str>) -> Vec<u8> {
    let bytes = Bytes::default();
    queue.snapshot(partition, bytes.clone()).await.unwrap();
    std::mem::take(&mut *bytes.0.lock())
}

async fn restore(queue: &TransferQueue, bytes: &[u8]) -> Result<(), QueueError> {
    queue.restore(Cursor::new(bytes.to_vec())).await.map(drop)
}

/// A row as a consumer sees it: handle, group, version and values.
type Seen = (RowHandle, String, u64, RecordBatch);

/// What a task can take, in the order of `sampler`; nothing is consumed.
async fn seen(partition: &Partition, task: &str, sampler: Sampler) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut held = Vec::new();
    while let Some(lease) = partition.take(&Take { sampler, ..Take::rows(task, 7) }).await.unwrap() {
        let mut at = 0;
        for batch in lease.batches() {
            for row in 0..batch.num_rows() {
                let (handle, group) = (lease.rows()[at], lease.groups()[at].clone());
                seen.push((handle, group, lease.policy_versions()[at], batch.slice(row, 1)));
                at += 1;
            }
        }
        held.push(lease);
    }
    for lease in held {
        lease.nack().await.unwrap();
    }
    seen
}

/// All that a queue's user can see of a partition.
async fn all_of(queue: &TransferQueue, name: &str) -> Vec<Vec<Seen>> {
    let partition = queue.partition(name).unwrap();
    let mut all = Vec::new();
    for task in ["train", "score"] {
        for sampler in [Sampler::Fifo, Sampler::Priority, Sampler::Freshest] {
            all.push(seen(&partition, task, sampler).await);
        }
    }
    all
}

async fn assert_same(left: &TransferQueue, right: &TransferQueue, name: &str) {
    assert_eq!(all_of(left, name).await, all_of(right, name).await);
    let (one, other) = (left.partition(name).unwrap(), right.partition(name).unwrap());
    assert_eq!(one.inspect(), other.inspect());
    assert_eq!(one.records(), other.records());
    assert_eq!(one.spec(), other.spec());
    let (one, other) = (left.verify().await.unwrap(), right.verify().await.unwrap());
    assert!(one.is_sound() && other.is_sound(), "{one:?} {other:?}");
}

/// A queue with a bit of everything: groups whole, open, half acked, half cleared, leased; columns of many groups;
/// priorities, versions, tokens, records; and a second partition.
async fn furnish(queue: &TransferQueue) -> Vec<RowHandle> {
    let partition = queue.declare(spec("train", 4096)).await.unwrap();
    let mut handles = Vec::new();
    for group in 0..12_i64 {
        let put = Put {
            policy_version: (group % 4) as u64,
            priority: group * 7 % 5,
            token: Some(format!("token {group}")),
            record: Some(format!("record {group}, ünïcode")),
            ..Put::group(format!("g{group}"), rows(group * 8, 8, 16))
        };
        handles.push(partition.put(put, None).await.unwrap());
    }
    let several: Vec<RowHandle> = handles[2..9].concat();
    partition.write_columns(&several, advantages(several.len())).await.unwrap();
    partition.write_columns(&handles[10], advantages(8)).await.unwrap();
    partition.take(&Take::groups("score", 2)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::rows("train", 11)).await.unwrap().unwrap().ack().await.unwrap();
    partition.clear(&handles[4][1..6]).await.unwrap();
    partition.clear(&handles[5]).await.unwrap();
    for part in 0..2 {
        let batch = rows(900 + part * 3, 3, 16);
        partition.put(Put { group_size: 8, ..Put::group("open", batch) }, None).await.unwrap();
    }
    partition.forget_records(2).await.unwrap();
    let other = queue.declare(PartitionSpec::new("other", ["train", "score"], 16)).await.unwrap();
    other.put(Put::group("x", rows(5_000, 2, 4)), None).await.unwrap();
    handles.concat()
}

#[tokio::test]
async fn from_memory_to_disk_and_back_everything_is_as_it_was() {
    let first = in_memory();
    furnish(&first).await;
    let held = first.partition("train").unwrap().take(&Take::groups("train", 3)).await.unwrap().unwrap();
    let bytes = snapshot(&first, None).await;
    held.nack().await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let second = on_disk(dir.path());
    restore(&second, &bytes).await.unwrap();
    assert_same(&first, &second, "train").await;
    assert_same(&first, &second, "other").await;
    let again = snapshot(&second, None).await;
    second.close();
    drop(second);
    let second = on_disk(dir.path());
    assert_same(&first, &second, "train").await;

    let third = in_memory();
    restore(&third, &again).await.unwrap();
    assert_same(&first, &third, "train").await;
    // Tokens are remembered, the open group goes on, and the room is what is left.
    for queue in [&second, &third] {
        let partition = queue.partition("train").unwrap();
        let rows_before = partition.stats().rows;
        let repeated = Put { token: Some("token 5".to_owned()), ..Put::group("again", rows(0, 8, 16)) };
        partition.put(repeated, None).await.unwrap();
        assert_eq!(partition.stats().rows, rows_before);
        let ready = partition.ready_groups("train").unwrap();
        partition.put(Put { group_size: 8, ..Put::group("open", rows(906, 2, 16)) }, None).await.unwrap();
        assert_eq!(partition.ready_groups("train").unwrap(), ready + 1);
        let late = Some(Instant::now() + Duration::from_millis(10));
        let full = partition.put(Put::group("full", rows(0, 4096, 1)), late).await;
        assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");
    }
}

#[tokio::test]
async fn one_partition_is_a_snapshot_too_and_is_not_restored_over_another() {
    let queue = in_memory();
    furnish(&queue).await;
    let bytes = snapshot(&queue, Some("other")).await;
    let before = queue.inspect();
    assert_eq!(restore(&queue, &bytes).await, Err(QueueError::PartitionExists { name: "other".to_owned() }));
    assert_eq!(queue.inspect(), before);
    queue.remove("other").await.unwrap();
    restore(&queue, &bytes).await.unwrap();
    assert_eq!(queue.inspect().partitions, before.partitions);
    let unknown = queue.snapshot(Some("nobody"), Vec::new()).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })));
    // One that is there keeps the others of the snapshot out too.
    let all = snapshot(&queue, None).await;
    queue.remove("train").await.unwrap();
    assert!(matches!(restore(&queue, &all).await, Err(QueueError::PartitionExists { .. })));
    assert!(matches!(queue.partition("train"), Err(QueueError::UnknownPartition { .. })));
}

#[tokio::test]
async fn a_checkpoint_writes_what_is_live_and_no_more() {
    for tokens in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        for queue in [in_memory(), on_disk(dir.path())] {
            let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
            for group in 0..1_000 {
                let token = tokens.then(|| format!("{group:032x}"));
                let put = Put { token, ..Put::group(format!("group {group}"), rows(group * 8, 8, TOKENS)) };
                partition.put(put, None).await.unwrap();
            }
            for _ in 0..860 {
                partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
            }
            // Of the next eighty groups half of the rows, of each.
            for group in 0..80 {
                let lease = partition.take(&Take::rows("train", 8)).await.unwrap().unwrap();
                let at = |parity: usize| move |(at, _): &(usize, &RowHandle)| (at + group) % 2 == parity;
                let rows = || lease.rows().iter().enumerate();
                let gone: Vec<RowHandle> = rows().filter(at(0)).map(|(_, row)| *row).collect();
                let kept: Vec<RowHandle> = rows().filter(at(1)).map(|(_, row)| *row).collect();
                lease.nack().await.unwrap();
                partition.clear(&gone).await.unwrap();
                // What is left of the group is held, so that the next one is looked at.
                let lease = partition.take(&Take::rows("train", 4)).await.unwrap().unwrap();
                assert_eq!(lease.rows(), kept);
                std::mem::forget(lease);
            }
            let live = partition.stats().rows;
            assert_eq!(live, 80 * 4 + 60 * 8, "a tenth of 8000");
            let live_bytes = live * (8 + 4 + TOKENS as usize * 4);
            let held = queue.inspect().payload_bytes;
            let size = snapshot(&queue, None).await.len();
            println!(
                "live {live_bytes} bytes, held {held}, snapshot {size}: {:.3}",
                size as f64 / live_bytes as f64
            );
            assert!(size * 10 <= live_bytes * 11, "live {live_bytes} bytes, snapshot {size}");
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_is_cut_or_damaged_anywhere_restores_nothing() {
    let source = in_memory();
    let partition = source.declare(spec("train", 64)).await.unwrap();
    let put = Put { token: Some("t".to_owned()), ..Put::group("a", rows(0, 4, 8)) };
    let handles = partition.put(put, None).await.unwrap();
    partition.write_columns(&handles, advantages(4)).await.unwrap();
    partition.take(&Take::rows("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    let sound = snapshot(&source, None).await;
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let step = if queue.durability() == Durability::None { 1 } else { 7 };
        let before = queue.inspect();
        for length in (0..sound.len()).step_by(step) {
            let cut = restore(&queue, &sound[..length]).await;
            assert!(matches!(cut, Err(QueueError::BadSnapshot { .. })), "length={length}: {cut:?}");
            assert_eq!(queue.inspect(), before, "length={length}");
        }
        for at in (0..sound.len()).step_by(step) {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << (at % 8);
            let error = restore(&queue, &damaged).await.unwrap_err();
            assert!(matches!(error, QueueError::BadSnapshot { .. }), "at={at}: {error:?}");
            assert_eq!(queue.inspect(), before, "at={at}");
        }
        let mut longer = sound.clone();
        longer.push(b'\n');
        assert!(matches!(restore(&queue, &longer).await, Err(QueueError::BadSnapshot { .. })));
        restore(&queue, &sound).await.unwrap();
        assert_same(&source, &queue, "train").await;
    }
}

/// Gives the first bytes, then does something, then gives the rest.
struct Interrupted<F> {
    bytes: Cursor<Vec<u8>>,
    at: u64,
    then: Option<F>,
}

impl<F: FnOnce() -> std::io::Result<()>> Read for Interrupted<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = self.at.saturating_sub(self.bytes.position()) as usize;
        if left == 0
            && let Some(then) = self.then.take()
        {
            then()?;
        }
        let length = if left > 0 { left.min(into.len()) } else { into.len() };
        self.bytes.read(&mut into[..length])
    }
}

#[tokio::test]
async fn a_death_in_the_middle_of_a_restoration_leaves_nothing() {
    let source = in_memory();
    furnish(&source).await;
    let bytes = snapshot(&source, None).await;
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    queue.declare(PartitionSpec::new("mine", ["train"], 8)).await.unwrap();
    let before = queue.inspect();
    for percent in [10, 50, 99] {
        // The directory as it is at that moment is what a killed process would leave.
        let copy = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().to_owned(), copy.path().to_owned());
        let then = move || {
            for entry in std::fs::read_dir(&from)? {
                let entry = entry?;
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
            Err(std::io::Error::other("the source went away"))
        };
        let at = bytes.len() as u64 * percent / 100;
        let source = Interrupted { bytes: Cursor::new(bytes.clone()), at, then: Some(then) };
        let error = queue.restore(source).await.unwrap_err().to_string();
        assert!(error.contains("the source went away"), "{error}");
        assert_eq!(queue.inspect(), before, "percent={percent}");
        let survivor = on_disk(copy.path());
        assert_eq!(survivor.inspect(), before, "percent={percent}");
        assert!(survivor.verify().await.unwrap().is_sound());
        restore(&survivor, &bytes).await.unwrap();
        assert_eq!(survivor.inspect().partitions.len(), 3);
    }
    assert!(queue.verify().await.unwrap().is_sound());
    // While a partition is restored its name belongs to nobody else.
    let declaring = queue.clone();
    let runtime = tokio::runtime::Handle::current();
    let then = move || {
        let declared = runtime.block_on(declaring.declare(spec("train", 4096)));
        assert!(matches!(declared, Err(QueueError::PartitionExists { .. })), "{declared:?}");
        Ok(())
    };
    let source_again = Interrupted { bytes: Cursor::new(bytes.clone()), at: 40_000, then: Some(then) };
    queue.restore(source_again).await.unwrap();
    assert_same(&source, &queue, "train").await;
}

#[tokio::test]
async fn a_restored_queue_survives_rewriting_its_journal() {
    let source = in_memory();
    furnish(&source).await;
    let bytes = snapshot(&source, None).await;
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Os,
        journal_bytes: 1,
        segment_bytes: 1,
    };
    let queue = TransferQueue::open(config).unwrap();
    let busy = queue.declare(PartitionSpec::new("busy", ["train"], 64)).await.unwrap();
    let traffic = async {
        for group in 0..300 {
            busy.put(Put::group(group.to_string(), rows(0, 2, 8)), None).await.unwrap();
            busy.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
        }
    };
    let (restored, ()) = tokio::join!(restore(&queue, &bytes), traffic);
    restored.unwrap();
    assert_same(&source, &queue, "train").await;
    queue.close();
    drop((busy, queue));
    let queue = on_disk(dir.path());
    assert_same(&source, &queue, "train").await;
    assert!(TransferQueue::verify_dir(dir.path()).unwrap().is_sound());
}

/// Puts, columns and acks go on; every snapshot is a moment between two of them.
async fn under_traffic(queue: TransferQueue) {
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
    let acknowledged = Arc::new(Mutex::new((0_i64, 0_i64)));
    let producing = async {
        for group in 0..400_i64 {
            let put = Put { group_size: 4, ..Put::group(group.to_string(), rows(group * 4, 4, 64)) };
            partition.put(put, None).await.unwrap();
            acknowledged.lock().0 = group + 1;
            if group % 8 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    };
    let consuming = async {
        for group in 0..200 {
            let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(20));
            partition.take(&take).await.unwrap().unwrap().ack().await.unwrap();
            acknowledged.lock().1 = group + 1;
        }
    };
    let watching = async {
        let mut moments = 0;
        while acknowledged.lock().0 < 400 {
            let before = *acknowledged.lock();
            let bytes = snapshot(&queue, None).await;
            let after = *acknowledged.lock();
            let copy = in_memory();
            restore(&copy, &bytes).await.unwrap();
            let copied = copy.partition("train").unwrap();
            let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
            for (_, group, _, row) in seen(&copied, "train", Sampler::Fifo).await {
                let id = row.column_by_name("id").unwrap().as_primitive::<Int64Type>().value(0);
                groups.entry(group.parse().unwrap()).or_default().push(id);
            }
            for (group, ids) in &groups {
                assert_eq!(*ids, (group * 4..group * 4 + 4).collect::<Vec<_>>(), "a group is whole");
            }
            let (first, last) = (*groups.keys().next().unwrap_or(&0), *groups.keys().last().unwrap_or(&-1));
            assert_eq!(groups.len() as i64, last - first + 1, "nothing is missing in between");
            if !groups.is_empty() {
                // What was acknowledged before is in it, and at most one more is on its way afterwards.
                assert!(before.0 <= last + 1 && last <= after.0, "{before:?} {last} {after:?}");
                assert!(before.1 <= first && first <= after.1 + 1, "{before:?} {first} {after:?}");
                assert_eq!(copied.stats().dispositions.acked, first as u64 * 4);
            }
            moments += 1;
        }
        moments
    };
    let ((), (), moments) = tokio::join!(producing, consuming, watching);
    assert!(moments > 2, "{moments}");
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_under_traffic_is_a_moment_of_the_queue() {
    under_traffic(in_memory()).await;
    let dir = tempfile::tempdir().unwrap();
    under_traffic(on_disk(dir.path())).await;
    let dir = tempfile::tempdir().unwrap();
    let small = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::None,
        segment_bytes: 4096,
        journal_bytes: 4096,
    };
    under_traffic(TransferQueue::open(small).unwrap()).await;
}

#[tokio::test]
async fn what_is_freed_while_a_snapshot_is_written_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let handles = furnish(&queue).await;
        let reference = in_memory();
        restore(&reference, &snapshot(&queue, None).await).await.unwrap();
        let mut begun = queue.begin_snapshot(None).await.unwrap();
        let mut bytes = begun.next_piece().unwrap().unwrap().to_vec();
        let partition = queue.partition("train").unwrap();
        assert!(partition.clear_all().await.unwrap() > 0);
        queue.remove("other").await.unwrap();
        assert_eq!(partition.stats().rows, 0);
        assert!(matches!(partition.clear(&handles[40..41]).await, Err(QueueError::StaleHandle { .. })));
        while let Some(piece) = begun.next_piece().unwrap() {
            bytes.extend_from_slice(&piece);
        }
        let copy = in_memory();
        restore(&copy, &bytes).await.unwrap();
        assert_same(&reference, &copy, "train").await;
    }
}

#[tokio::test]
async fn a_removed_partition_is_gone_for_everybody_and_a_later_one_is_another() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let handles = furnish(&queue).await;
        let partition = queue.partition("train").unwrap();
        let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
        let narrow = queue.declare(PartitionSpec::new("narrow", ["train"], 2)).await.unwrap();
        narrow.put(Put::group("a", rows(0, 2, 4)), None).await.unwrap();
        let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(20));
        let empty = queue.declare(PartitionSpec::new("empty", ["train"], 2)).await.unwrap();
        let removing = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for name in ["narrow", "empty", "train"] {
                queue.remove(name).await.unwrap();
                let again = queue.remove(name).await;
                assert!(matches!(again, Err(QueueError::UnknownPartition { .. })), "{again:?}");
            }
        };
        let (taken, put, ()) =
            tokio::join!(empty.take(&until), narrow.put(Put::group("b", rows(0, 1, 4)), None), removing);
        assert!(matches!(taken, Err(QueueError::UnknownPartition { .. })), "{taken:?}");
        assert!(matches!(put, Err(QueueError::Closed { .. })), "{put:?}");
        assert!(lease.ack().await.is_err());
        assert!(partition.put(Put::group("late", rows(0, 1, 4)), None).await.is_err());
        let payload = queue.inspect().payload_bytes;
        queue.remove("other").await.unwrap();
        assert_eq!(queue.inspect().payload_bytes, 0, "before the last one {payload}");
        let anew = queue.declare(spec("train", 4096)).await.unwrap();
        let fresh = anew.put(Put::group("a", rows(0, 8, 4)), None).await.unwrap();
        assert!(handles.iter().all(|handle| !fresh.contains(handle)), "handles are not used again");
        assert!(matches!(anew.clear(&handles[..1]).await, Err(QueueError::StaleHandle { .. })));
        assert!(queue.verify().await.unwrap().is_sound());
        queue.close();
    }
    let queue = on_disk(dir.path());
    assert_eq!(queue.partitions().len(), 1);
    assert_eq!(queue.partition("train").unwrap().stats().rows, 8);
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn puts_that_race_with_a_removal_never_land_in_a_later_partition() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    for round in 0..40 {
        let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
        let puts = (0..8).map(|at| partition.put(Put::group(format!("{round}/{at}"), rows(0, 1, 4)), None));
        let anew = async {
            queue.remove("train").await.unwrap();
            queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap()
        };
        let (_, anew) = tokio::join!(futures::future::join_all(puts), anew);
        assert_eq!(anew.stats().rows, 0, "round={round}");
        queue.remove("train").await.unwrap();
    }
    queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    assert_eq!(queue.inspect().payload_bytes, 0);
    queue.close();
    drop(queue);
    assert_eq!(on_disk(dir.path()).partition("train").unwrap().stats().rows, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Frames whose checksums are right, with anything in them.
    #[test]
    fn records_that_somebody_made_up_are_an_error_or_a_sound_queue(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, any::<u32>()), 1..4)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let source = in_memory();
            furnish(&source).await;
            let sound = snapshot(&source, None).await;
            let forged = forge(&sound, &edits);
            let queue = in_memory();
            match restore(&queue, &forged).await {
                Ok(()) => {
                    let report = queue.verify().await.unwrap();
                    prop_assert!(report.is_sound(), "{report:?}");
                }
                Err(_) => prop_assert!(queue.inspect().partitions.is_empty()),
            }
            if queue.partitions().is_empty() {
                prop_assert_eq!(queue.inspect().payload_bytes, 0);
            }
            Ok(())
        })?;
    }
}

/// Changes numbers in the records of a snapshot and makes its checksums right again.
fn forge(sound: &[u8], edits: &[(prop::sample::Index, usize, u32)]) -> Vec<u8> {
    let magic = sound.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut frames: Vec<(String, Vec<u8>)> = Vec::new();
    let mut at = magic;
    while at < sound.len() {
        let length = u32::from_le_bytes(sound[at..at + 4].try_into().unwrap()) as usize;
        let body = String::from_utf8(sound[at + 12..at + 12 + length].to_vec()).unwrap();
        at += 12 + length;
        let payload = body.find("\"location\":{").map_or(0, |place| {
            let rest = &body[place..];
            let digits = &rest[rest.find("\"length\":").unwrap() + 9..];
            digits[..digits.find(',').unwrap()].parse().unwrap()
        });
        frames.push((body, sound[at..at + payload].to_vec()));
        at += payload;
    }
    for (index, kind, number) in edits {
        let place = index.index(frames.len());
        match kind {
            0 => drop(frames.remove(place)),
            1 => {
                let copy = frames[place].clone();
                frames.insert(place, copy);
            }
            2 => {
                let other = *number as usize % frames.len();
                frames.swap(place, other);
            }
            _ => {
                let body = &mut frames[place].0;
                let digits: Vec<usize> =
                    body.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(at, _)| at).collect();
                if let Some(digit) = digits.get(*number as usize % digits.len().max(1)) {
                    body.replace_range(*digit..digit + 1, &(number % 10).to_string());
                }
            }
        }
        if frames.is_empty() {
            break;
        }
    }
    let mut forged = sound[..magic].to_vec();
    for (body, payload) in frames {
        let mut head = (body.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&crc32fast::hash(body.as_bytes()).to_le_bytes());
        head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
        forged.extend_from_slice(&head);
        forged.extend_from_slice(body.as_bytes());
        forged.extend_from_slice(&payload);
    }
    forged
}
