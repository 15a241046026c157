#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use super::*;

fn encoded() -> Encoded {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("id", column)]).unwrap();
    Encoded::of(&Chunk::new(vec![batch]).unwrap()).unwrap()
}

/// Each chunk has its own segment, which is deleted with the chunk while another thread reads.
#[test]
fn a_chunk_that_goes_while_it_is_read_is_gone_and_nothing_is_missing() {
    const CHUNKS: u64 = 4_000;
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(DiskStore::new(dir.path(), 1));
    let mut writer = store.opened().unwrap().unwrap();
    let done = AtomicBool::new(false);
    let newest = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = encoded();
            for chunk in 0..CHUNKS {
                let note = writer.append(ChunkId(chunk), &bytes).unwrap();
                store.keep(ChunkId(chunk), &note).unwrap();
                writer.settle(ChunkId(chunk));
                newest.store(chunk, Ordering::Release);
                if let Some(before) = chunk.checked_sub(1) {
                    store.free(&[ChunkId(before)]);
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let (mut whole, mut gone) = (0, 0);
            while !done.load(Ordering::Acquire) {
                match store.load(ChunkId(newest.load(Ordering::Acquire))) {
                    Ok(chunk) => {
                        assert_eq!(chunk.rows(), 3);
                        whole += 1;
                    }
                    Err(QueueError::ChunkGone { .. }) => gone += 1,
                    Err(error) => panic!("after {whole} whole and {gone} gone chunks: {error}"),
                }
            }
        });
    });
    assert!(store.strays().unwrap().is_empty());
}
