//! A snapshot is restored completely or not at all, even if the snapshot is damaged or the process dies
//! during the restore.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::{Cursor, Read};

use proptest::prelude::*;
use rolldock_queue::{Durability, PartitionSpec, Put, QueueConfig, QueueError, Take, TransferQueue};
use support::copied::copy_at_one_moment;
use support::{advantages, assert_same, furnish, in_memory, on_disk, restore, rows, snapshot, spec};

#[tokio::test]
async fn a_snapshot_that_is_cut_or_damaged_anywhere_restores_nothing() {
    let source = in_memory();
    let partition = source.declare(spec("train", 64)).await.unwrap();
    let put = Put { token: Some("t".to_owned()), ..Put::group("a", rows(0, 4, 8)) };
    let handles = partition.put(put, None).await.unwrap();
    partition.write_columns(&handles, advantages(4)).await.unwrap();
    // In the snapshot, the rows of several puts share one payload.
    for group in 0..3 {
        let single =
            Put { token: Some(format!("t{group}")), ..Put::group(group.to_string(), rows(4 + group, 1, 8)) };
        let handles = partition.put(single, None).await.unwrap();
        partition.write_columns(&handles, advantages(1)).await.unwrap();
    }
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
        let mut earlier = sound.clone();
        earlier[18] = b'1';
        let error = restore(&queue, &earlier).await.unwrap_err().to_string();
        assert!(error.contains("a snapshot of format=1, expected format=2"), "{error}");
        let mut longer = sound.clone();
        longer.push(b'\n');
        assert!(matches!(restore(&queue, &longer).await, Err(QueueError::BadSnapshot { .. })));
        restore(&queue, &sound).await.unwrap();
        assert_same(&source, &queue, "train").await;
    }
}

/// A reader that returns the first bytes, then calls a function, and then returns the other bytes.
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
        // A process that is killed at this moment leaves these files.
        let copy = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().to_owned(), copy.path().to_owned());
        let then = move || {
            copy_at_one_moment(&from, &to);
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
    // While a partition is restored, no other partition can get its name.
    let declaring = queue.clone();
    let runtime = tokio::runtime::Handle::current();
    let then = move || {
        let declared = runtime.block_on(declaring.declare(spec("train", 4096)));
        assert!(matches!(declared, Err(QueueError::PartitionExists { .. })), "{declared:?}");
        Ok(())
    };
    let source_again =
        Interrupted { bytes: Cursor::new(bytes.clone()), at: bytes.len() as u64 / 2, then: Some(then) };
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
        ..QueueConfig::default()
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The frames have correct checksums and random content.
    #[test]
    fn records_that_were_made_up_are_an_error_or_a_sound_queue(
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

/// The first line of a snapshot, and its frames. Each frame has its records and the payload that follows.
fn frames(sound: &[u8]) -> (&[u8], Vec<(String, Vec<u8>)>) {
    let (magic, mut rest) = sound.split_at(sound.iter().position(|byte| *byte == b'\n').unwrap() + 1);
    let mut frames: Vec<(String, Vec<u8>)> = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        let (body, behind) = rest[12..].split_at(length);
        let body = String::from_utf8(zstd::decode_all(body).unwrap()).unwrap();
        let last: serde_json::Value = serde_json::from_str(body.lines().last().unwrap()).unwrap();
        let payloads = last["payloads"].as_array().into_iter().flatten();
        let length = payloads.map(|payload| payload["length"].as_u64().unwrap()).sum::<u64>() as usize;
        let (payload, behind) = behind.split_at(length);
        frames.push((body, payload.to_vec()));
        rest = behind;
    }
    (magic, frames)
}

/// Assembles a snapshot from frames, with correct checksums.
fn assembled(magic: &[u8], frames: Vec<(String, Vec<u8>)>) -> Vec<u8> {
    let mut assembled = magic.to_vec();
    for (body, payload) in frames {
        let body = zstd::encode_all(body.as_bytes(), 1).unwrap();
        let mut head = (body.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
        assembled.extend_from_slice(&head);
        assembled.extend_from_slice(&body);
        assembled.extend_from_slice(&payload);
    }
    assembled
}

/// Removes, repeats or changes frames of a snapshot, and corrects its checksums.
fn forge(sound: &[u8], edits: &[(prop::sample::Index, usize, u32)]) -> Vec<u8> {
    let (magic, mut frames) = frames(sound);
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
    assembled(magic, frames)
}

#[tokio::test]
async fn each_row_of_a_payload_belongs_to_one_record_of_one_partition() {
    let source = in_memory();
    for name in ["a", "b"] {
        let partition = source.declare(PartitionSpec::new(name, ["train"], 64)).await.unwrap();
        for row in 0..3 {
            partition.put(Put::group(row.to_string(), rows(row, 1, 8)), None).await.unwrap();
        }
    }
    let sound = snapshot(&source, None).await;
    let (magic, sound) = frames(&sound);
    // Each partition has a frame for its declaration and a frame for its three puts. The last frame marks the
    // end.
    assert_eq!(sound.len(), 5);
    let put = sound[1].0.lines().next().unwrap().to_owned() + "\n";
    let later = put.replace("[[0,", "[[9,").replace("\"group\":\"0\"", "\"group\":\"9\"");
    assert_ne!(put, later);
    type Edit<'a> = &'a dyn Fn(&mut Vec<(String, Vec<u8>)>);
    let cases: [(&str, Edit<'_>); 7] = [
        ("rows that no record has", &|frames| frames[1].0 = frames[1].0.replacen(&put, "", 1)),
        ("payload of rows=0", &|frames| frames[1].0.insert_str(0, &later)),
        ("without its payload", &|frames| {
            frames[1].0 = frames[1].0.replacen("\"chunk\":0", "\"chunk\":1", 1)
        }),
        ("other columns", &|frames| frames[1].0 = frames[1].0.replacen("\"id\"", "\"di\"", 1)),
        ("payload of two partitions", &|frames| {
            frames[3].0 = frames[3].0.replacen("\"partition\":\"b\"", "\"partition\":\"a\"", 1);
            frames[3].0 = frames[3].0.replacen("[[0,", "[[9,", 1);
        }),
        ("at most bytes_max", &|frames| {
            let largest = "\"payloads\":[{\"length\":18446744073709551615,\"checksum\":0},";
            frames[1].0 = frames[1].0.replacen("\"payloads\":[", largest, 1);
        }),
        ("not alone", &|frames| frames[4].0.insert_str(0, &put)),
    ];
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let before = queue.inspect();
        for (expected, edit) in &cases {
            let mut frames = sound.clone();
            edit(&mut frames);
            let error = restore(&queue, &assembled(magic, frames)).await.unwrap_err();
            assert!(matches!(error, QueueError::BadSnapshot { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "expected {expected:?}, found {error}");
            assert_eq!(queue.inspect(), before, "{expected}");
        }
        restore(&queue, &assembled(magic, sound.clone())).await.unwrap();
        assert!(queue.verify().await.unwrap().is_sound());
    }
}
