//! Restoring: whole or not at all, whatever the snapshot is and whenever the process dies.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::{Cursor, Read};

use proptest::prelude::*;
use rolldock_queue::{Durability, PartitionSpec, Put, QueueConfig, QueueError, Take, TransferQueue};
use support::{advantages, assert_same, furnish, in_memory, on_disk, restore, rows, snapshot, spec};

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
