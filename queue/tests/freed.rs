//! The newest segment is deleted when all of its rows are consumed and no put follows. A process that is killed around
//! the deletion leaves a queue that opens, is sound and has every row that was not acked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use support::copied::copy_at_one_moment;
use support::{on_disk, rows};
use tokio::time::Instant;

/// The environment variable that tells the child the directory of its queue.
const DIR: &str = "ROLLDOCK_TEST_FREED_DIR";
/// The longest time until a segment is deleted, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The tokens of a row. A put of two rows has 128 KiB.
const TOKENS: i32 = 16 << 10;

async fn train(queue: &TransferQueue) -> Partition {
    queue.declare(PartitionSpec::new("train", ["train"], 1 << 16)).await.unwrap()
}

async fn put(partition: &Partition, group: i64) {
    let put = Put::group(format!("group-{group}"), rows(group * 2, 2, TOKENS));
    partition.put(put, None).await.unwrap();
}

/// Takes and acks a group, and returns its name.
async fn consume(partition: &Partition) -> Option<String> {
    let lease = partition.take(&Take::groups("train", 1)).await.unwrap()?;
    let group = lease.groups()[0].clone();
    lease.ack().await.unwrap();
    Some(group)
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        files.filter(|file| file.extension() == Some("arrow".as_ref())).collect();
    segments.sort();
    segments
}

async fn until_no_segment(dir: &Path) {
    let limit = Instant::now() + PATIENCE;
    while !segments(dir).is_empty() {
        assert!(Instant::now() < limit, "the segment of consumed rows stays: {:?}", segments(dir));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The files are sound, and the queue opens with these groups, accepts a put and gives it out.
async fn is_whole(dir: &Path, groups: &[&str]) {
    let found = TransferQueue::verify_dir(dir).unwrap();
    assert!(found.is_sound(), "{:?}", found.problems);
    let queue = on_disk(dir);
    let partition = train(&queue).await;
    for group in groups {
        assert_eq!(consume(&partition).await.as_deref(), Some(*group));
    }
    assert_eq!(consume(&partition).await, None);
    put(&partition, 1000).await;
    assert_eq!(consume(&partition).await.as_deref(), Some("group-1000"));
    assert!(queue.verify().await.unwrap().is_sound());
    queue.close();
}

#[tokio::test]
async fn consuming_everything_frees_the_newest_segment_without_a_put() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = |name: &str| {
        let to = copies.path().join(name);
        copy_at_one_moment(dir.path(), &to);
        to
    };
    let queue = on_disk(dir.path());
    let partition = train(&queue).await;
    for group in 0..3 {
        put(&partition, group).await;
    }
    consume(&partition).await.unwrap();
    consume(&partition).await.unwrap();
    let live = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(segments(dir.path()).len(), 1, "one group in the segment is live");
    let with_live = copy("live");
    live.ack().await.unwrap();
    // The segment is still there, unless the machine is so busy that the copy is half a second late.
    let before = copy("before");
    until_no_segment(dir.path()).await;
    let after = copy("after");
    assert!(queue.verify().await.unwrap().is_sound());

    // The next put begins another segment, which is freed in the same way.
    put(&partition, 3).await;
    assert_eq!(segments(dir.path()).len(), 1);
    let again = copy("again");
    assert_eq!(consume(&partition).await.as_deref(), Some("group-3"));
    until_no_segment(dir.path()).await;
    queue.close();
    drop((partition, queue));

    // The directories are those that a process leaves which is killed at these moments.
    is_whole(&with_live, &["group-2"]).await;
    is_whole(&before, &[]).await;
    is_whole(&after, &[]).await;
    is_whole(&again, &["group-3"]).await;
    is_whole(dir.path(), &[]).await;
}

#[tokio::test]
async fn a_small_segment_stays_for_the_next_puts() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let partition = train(&queue).await;
    partition.put(Put::group("small", rows(0, 2, 16)), None).await.unwrap();
    consume(&partition).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(segments(dir.path()).len(), 1);
}

/// Puts two groups, consumes both, and waits until their segment is deleted, until the process is killed. Each third
/// time it does not wait. A file beside the queue gets a line after each put and each ack.
#[tokio::test]
#[ignore = "the child of the test below"]
async fn victim() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = PathBuf::from(dir);
    let mut log = OpenOptions::new().create(true).append(true).open(dir.with_extension("log")).unwrap();
    let mut note = |what: &str, group: &str| log.write_all(format!("{what} {group}\n").as_bytes()).unwrap();
    let config = QueueConfig { dir: Some(dir.clone()), ..QueueConfig::default() };
    let partition = train(&TransferQueue::open(config).unwrap()).await;
    let first = i64::from(std::process::id()) << 16;
    for round in 0.. {
        while let Some(group) = consume(&partition).await {
            note("acked", &group);
        }
        if round % 3 != 2 {
            until_no_segment(&dir).await;
        }
        for group in [first + 2 * round, first + 2 * round + 1] {
            put(&partition, group).await;
            note("put", &format!("group-{group}"));
        }
    }
}

/// A child that is killed with SIGKILL when this is dropped.
struct Victim(Child);

impl Victim {
    fn start(dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "victim"]).env(DIR, dir);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The groups that the children have put and not acked, as far as they have noted it.
fn noted(dir: &Path) -> BTreeSet<String> {
    let mut noted = BTreeSet::new();
    for line in std::fs::read_to_string(dir.with_extension("log")).unwrap_or_default().lines() {
        match line.split_once(' ').unwrap() {
            ("put", group) => assert!(noted.insert(group.to_owned()), "{line}"),
            (_, group) => _ = noted.remove(group),
        }
    }
    noted
}

/// Waits until a child has deleted a segment.
fn until_deleted(dir: &Path) {
    let limit = Instant::now() + PATIENCE;
    for is_there in [true, false] {
        while segments(dir).is_empty() == is_there {
            assert!(Instant::now() < limit, "no segment was made and deleted");
            std::hint::spin_loop();
        }
    }
}

/// Every second child is killed at the moment at which it deletes a segment. The others are killed while they open the
/// queue and put, and in the quiet time.
#[tokio::test]
async fn a_process_that_is_killed_around_the_deletion_leaves_a_sound_queue() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("queue");
    train(&on_disk(&dir)).await;
    for kill in 0..12 {
        let victim = Victim::start(&dir);
        if kill % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(200 + 130 * kill)).await;
        } else {
            until_deleted(&dir);
        }
        drop(victim);
        let found = TransferQueue::verify_dir(&dir).unwrap();
        assert!(found.is_sound(), "kill={kill}: {:?}", found.problems);
        let queue = on_disk(&dir);
        assert!(queue.verify().await.unwrap().is_sound(), "kill={kill}");
        let (partition, noted) = (queue.partition("train").unwrap(), noted(&dir));
        let mut left = BTreeSet::new();
        while let Some(group) = consume(&partition).await {
            left.insert(group);
        }
        // The kill can come between a change and its note.
        let differ: Vec<_> = left.symmetric_difference(&noted).collect();
        assert!(differ.len() <= 1, "kill={kill}: left={left:?}, expected {noted:?}");
        let _ = std::fs::remove_file(dir.with_extension("log"));
        queue.close();
    }
}
