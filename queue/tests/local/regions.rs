//! Rows in shared regions are neither copied nor overwritten, and their memory is freed.

use std::sync::Arc;

use arrow_array::{Float32Array, RecordBatch};
use rolldock_queue::{LocalServiceConfig, Put, Queue, QueueConfig, Take, TransferQueue};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::{framed, large, serve_in, served, take, until};

#[tokio::test]
async fn large_rows_stay_in_the_region_that_they_were_put_in() {
    let served = served();
    let client = served.declared().await;
    let batch = large(1, 400);
    let handles = client.put("train", Put::group("a", batch.clone()), None).await.unwrap();
    let stats = served.regions.stats();
    assert_eq!((stats.in_use, stats.idle), (1, 0), "the chunk is in the region");
    assert!(served.queue.inspect().payload_bytes > 4_000_000);

    let lease = take(&client).await;
    assert_eq!(lease.concat().unwrap(), batch);
    assert_eq!(served.regions.stats(), stats, "a take of it needs no other");
    lease.nack().await.unwrap();

    // The takes read some of the rows, some of the columns, and a column that was written later.
    let advantage = Float32Array::from_iter_values((0..400).map(|row| row as f32));
    let advantage = RecordBatch::try_from_iter([("advantage", Arc::new(advantage) as _)]).unwrap();
    client.write_columns("train", &handles, advantage).await.unwrap();
    let columns = Some(["words", "tokens", "advantage"].map(str::to_owned).to_vec());
    for first in [0, 100, 200, 300] {
        let some = Take { columns: columns.clone(), ..Take::rows("train", 100) };
        let lease = client.take("train", &some).await.unwrap().unwrap();
        let rows = lease.concat().unwrap();
        assert_eq!(rows.column(0), &batch.column(2).slice(first, 100));
        assert_eq!(rows.column(1), &batch.column(0).slice(first, 100));
        assert_eq!(rows.num_columns(), 3);
        let kept = lease.batches()[0].clone();
        lease.ack().await.unwrap();
        // Rows that a client still holds keep their region after the queue has removed them.
        assert_eq!(kept.column(1), &batch.column(0).slice(first, 100));
    }
    until("the region is idle", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn rows_that_are_read_are_never_written_over() {
    let served = served();
    let client = served.declared().await;
    let first = large(1, 200);
    client.put("train", Put::group("a", first.clone()), None).await.unwrap();
    let lease = take(&client).await;
    let read = lease.batches()[0].clone();
    lease.ack().await.unwrap();
    assert_eq!(served.queue.partition("train").unwrap().stats().rows, 0);
    for round in 0..4 {
        client.put("train", Put::group(format!("{round}"), large(round + 2, 200)), None).await.unwrap();
        take(&client).await.ack().await.unwrap();
    }
    assert_eq!(read, first);
    let stats = served.regions.stats();
    assert!(stats.in_use <= 2 && stats.in_use + stats.idle <= 3, "{stats:?}");
    drop(read);
    until("the region is idle", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn a_queue_on_disk_gives_its_rows_through_a_region() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().join("queue")), ..QueueConfig::default() };
    let served = serve_in(dir, TransferQueue::open(config).unwrap(), LocalServiceConfig::default());
    let client = served.declared().await;
    let batch = large(3, 300);
    client.put("train", Put::group("a", batch.clone()), None).await.unwrap();
    until("the rows are on disk", || served.regions.stats().in_use == 0).await;
    let lease = take(&client).await;
    assert_eq!(served.regions.stats().in_use, 1);
    assert_eq!(lease.concat().unwrap(), batch);
    lease.ack().await.unwrap();
    until("the region is idle", || served.regions.stats().in_use == 0).await;
    let other = served.client();
    other.put("train", Put::group("b", batch.clone()), None).await.unwrap();
    let some = other.take("train", &Take::rows("train", 100)).await.unwrap().unwrap();
    assert_eq!(some.concat().unwrap(), batch.slice(0, 100));
}

#[tokio::test]
async fn a_damaged_stream_in_a_region_changes_nothing() {
    let served = served();
    let client = served.declared().await;
    client.put("train", Put::group("a", large(5, 200)), None).await.unwrap();
    take(&client).await.ack().await.unwrap();
    until("the region is idle", || served.regions.stats().in_use == 0).await;
    // The calls name a region without a valid stream, lengths beyond its end, and a loan that does not exist.
    let mut peer = UnixStream::connect(&served.path).await.unwrap();
    let room = br#"{"Call":{"id":1,"ask":{"Room":{"bytes":1000}}}}"#;
    peer.write_all(&framed(room)).await.unwrap();
    let rows = [(1, 0), (1, 1), (1, 64), (1, 5000), (1, 1 << 20), (1, 1 << 30), (2, 100)];
    for (call, (id, length)) in rows.into_iter().enumerate() {
        let words = format!(
            r#"{{"Call":{{"id":{},"ask":{{"Put":{{"partition":"train","query":{{"group":"g"}},"rows":{{"Loan":{{"id":{id},"length":{length}}}}}}}}}}}}}"#,
            call + 10
        );
        peer.write_all(&framed(words.as_bytes())).await.unwrap();
    }
    let mut answers = String::new();
    while answers.matches("Refusal").count() < 7 {
        // `read` does not work here: a read is also short if file descriptors follow, so a short read does
        // not mean that no data is left.
        let mut some = vec![0; 4096];
        match peer.try_read(&mut some) {
            Ok(count) => {
                assert!(count > 0, "{answers}");
                answers.push_str(&String::from_utf8_lossy(&some[..count]));
            }
            Err(_) => peer.readable().await.unwrap(),
        }
    }
    let stats = served.queue.partition("train").unwrap().stats();
    assert_eq!((stats.rows, stats.rows_reserved, stats.groups), (0, 0, 0));
    drop(peer);
    until("its region is gone", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn memory_stays_bounded_over_many_rounds() {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let idle_bytes_max = 12 << 20;
    let config = LocalServiceConfig { idle_bytes_max, ..LocalServiceConfig::default() };
    let served = serve_in(tempfile::tempdir().unwrap(), queue, config);
    let producer = served.declared().await;
    let consumer = served.client();
    let whole = large(1, 500);
    let mut most = 0;
    for round in 0..2000_usize {
        let rows = 1 + (round * 7919) % if round % 50 == 0 { 500 } else { 40 };
        let batch = whole.slice((round * 31) % (501 - rows), rows);
        producer.put("train", Put::group(format!("{round}"), batch.clone()), None).await.unwrap();
        let lease = take(&consumer).await;
        assert_eq!(lease.rows().len(), rows);
        if round % 100 == 0 {
            assert_eq!(lease.concat().unwrap(), batch);
        }
        lease.ack().await.unwrap();
        let stats = served.regions.stats();
        assert!(stats.idle_bytes <= idle_bytes_max, "{stats:?}");
        most = most.max(stats.in_use_bytes + stats.idle_bytes);
    }
    assert!(most <= 40 << 20, "{most}");
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
    // A client unmaps removed regions even if it gets no new rows.
    until("clients have forgotten", || mapped() <= 3 * 16).await;
}

/// The number of regions that are mapped in this process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("rolldock-rows")).count()
}

#[tokio::test]
async fn beyond_the_regions_that_may_be_in_use_rows_are_copied() {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let config = LocalServiceConfig { regions_max: 2, ..LocalServiceConfig::default() };
    let served = serve_in(tempfile::tempdir().unwrap(), queue, config);
    let client = served.declared().await;
    for group in 0..6 {
        client.put("train", Put::group(format!("{group}"), large(group, 20)), None).await.unwrap();
    }
    assert_eq!(served.regions.stats().in_use, 2);
    for group in 0..6 {
        let lease = take(&client).await;
        assert_eq!(lease.concat().unwrap(), large(group, 20));
        lease.ack().await.unwrap();
    }
}
