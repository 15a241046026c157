//! A queue in a process that is out of file descriptors. The test is alone in its program, because the limit
//! of descriptors applies to the whole process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs::File;

use rolldock_frames::descriptors;
use rolldock_queue::{
    ErrorClass, Partition, PartitionSpec, Put, QueueConfig, QueueError, Take, TransferQueue,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::rows;

const LIMIT: u64 = 128;
const HELD: usize = 8;

/// Opens files until the process has no descriptor left, as connections do.
fn connections() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

async fn put(partition: &Partition, number: i64) -> Result<(), QueueError> {
    partition.put(Put::group(number.to_string(), rows(number, 2, 4)), None).await.map(drop)
}

/// Takes and acks a group, and returns its number of rows.
async fn consume(partition: &Partition) -> Result<usize, QueueError> {
    let Some(lease) = partition.take(&Take::groups("train", 1)).await? else { return Ok(0) };
    let rows = lease.rows().len();
    lease.ack().await.map(|()| rows)
}

fn is_pressure<T: std::fmt::Debug>(outcome: Result<T, QueueError>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, QueueError::OutOfFiles { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Backpressure);
}

#[tokio::test]
async fn a_lack_of_descriptors_is_back_pressure_and_files_have_a_reserve() {
    let limit = Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Every put needs a new segment file.
    let config = QueueConfig { dir: Some(dir.path().to_owned()), segment_bytes: 1, ..QueueConfig::default() };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 1024)).await.unwrap();

    let mut busy = connections();
    is_pressure(put(&partition, 0).await);
    busy.pop();
    put(&partition, 1).await.expect("one descriptor is enough for a segment");
    busy.extend(connections());
    is_pressure(consume(&partition).await);
    drop(busy);
    put(&partition, 2).await.expect("no sync has failed, so the queue goes on");
    assert_eq!(consume(&partition).await.unwrap(), 2, "the rows of the failed take are given again");
    assert_eq!(consume(&partition).await.unwrap(), 2);

    descriptors::hold(HELD).unwrap();
    let busy = connections();
    for number in 3..20 {
        put(&partition, number).await.unwrap();
        assert_eq!(consume(&partition).await.unwrap(), 2, "number={number}");
    }
    drop(busy);
    assert!(queue.verify().await.unwrap().is_sound());
}
