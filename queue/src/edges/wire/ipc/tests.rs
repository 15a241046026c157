//! Streams that are cut or damaged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod hostile;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float32Array, ListArray, StringArray};
use proptest::prelude::*;

use super::*;

fn decode(body: Bytes) -> Result<usize, QueueError> {
    let mut decoder = Decoder::new();
    let mut rows = 0;
    decoder.feed(body, |batch| {
        // Whatever the result is, reading it is safe.
        let words = format!("{batch:?}");
        assert!(words.len() > 10);
        rows += batch.num_rows();
        Ok(())
    })?;
    decoder.finish()?;
    if rows == 0 { Err(QueueError::Empty) } else { Ok(rows) }
}

fn stream() -> Vec<u8> {
    let ids =
        ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), Some(2)]), None, Some(vec![])]);
    let words = StringArray::from(vec![Some("a"), None, Some("ccc")]);
    let rewards = Float32Array::from(vec![1.0, -1.0, 0.5]);
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("ids", Arc::new(ids) as ArrayRef, true),
        ("words", Arc::new(words) as ArrayRef, true),
        ("reward", Arc::new(rewards) as ArrayRef, false),
    ]);
    encode(&batch.unwrap()).unwrap().to_vec()
}

#[test]
fn a_stream_cut_anywhere_is_an_error() {
    let whole = stream();
    assert_eq!(decode(whole.clone().into()).unwrap(), 3);
    // The last eight bytes mark the end of the stream, and may be missing.
    for length in 0..whole.len() - 8 {
        let cut = decode(Bytes::copy_from_slice(&whole[..length]));
        assert!(cut.is_err(), "{length} of {} bytes", whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn damaged_streams_end_in_rows_or_an_error(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = stream();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // Both an error and rows are acceptable.
        let _ = decode(bytes.into());
    }

    #[test]
    fn any_bytes_end_in_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(bytes.into()).is_err());
    }
}

/// Segments are read as for a socket: a few bytes at a time, from several buffers at once.
#[test]
fn segments_are_the_bytes_that_they_consist_of() {
    let whole: Vec<u8> = (0..=255).collect();
    let cuts = [0, 1, 1, 7, 100, 256];
    let segments = || {
        let mut segments = Segments::default();
        for cut in cuts.windows(2) {
            segments.0.push_back(Bytes::copy_from_slice(&whole[cut[0]..cut[1]]));
        }
        segments
    };
    assert_eq!(Bytes::from(segments()), whole);
    for step in 1..40 {
        let (mut left, mut read) = (segments(), Vec::new());
        while left.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = left.chunks_vectored(&mut slices);
            let ahead = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
            assert_eq!(ahead.len(), left.remaining());
            let taken = step.min(ahead.len());
            read.extend_from_slice(&ahead[..taken]);
            left.advance(taken);
        }
        assert_eq!(read, whole);
    }
}

/// Three batches of more than half a megabyte, as one stream.
fn long_stream() -> (Vec<RecordBatch>, Vec<u8>) {
    let batch = |first: i32| {
        let ids = arrow_array::Int32Array::from_iter_values(first..first + 150_000);
        RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..3).map(|number| batch(number * 7)).collect();
    let mut pieces = Pieces::new(batches[0].schema(), batches.clone());
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().unwrap() {
        bytes.extend_from_slice(&Bytes::from(piece));
    }
    (batches, bytes)
}

fn read_into(blocks: &Arc<Blocks>, bytes: &[u8], step: usize) -> Result<Vec<RecordBatch>, QueueError> {
    let (mut decoder, mut batches) = (Decoder::into_blocks(blocks), Vec::new());
    for piece in bytes.chunks(step) {
        decoder.feed(Bytes::copy_from_slice(piece), |batch| {
            batches.push(batch);
            Ok(())
        })?;
    }
    decoder.finish()?;
    Ok(batches)
}

#[test]
fn a_stream_in_any_pieces_is_the_same_and_its_memory_is_used_again() {
    let (batches, bytes) = long_stream();
    let places = |read: &[RecordBatch]| -> Vec<usize> {
        read.iter().map(|batch| batch.column(0).to_data().buffers()[0].as_ptr().addr()).collect()
    };
    for step in [5, 4096, 70_001, bytes.len()] {
        let blocks = Arc::default();
        let first = read_into(&blocks, &bytes, step).unwrap();
        assert_eq!(first, batches);
        // The blocks are not reused while a batch in them exists.
        let second = read_into(&blocks, &bytes, step).unwrap();
        assert_eq!((&first, &second), (&batches, &batches));
        let lain = [places(&first), places(&second)].concat();
        drop((first, second));
        let third = read_into(&blocks, &bytes, step).unwrap();
        assert_eq!(third, batches);
        // A message that arrives whole stays in the buffer in which it arrived.
        let is_used_again = places(&third).iter().all(|place| lain.contains(place));
        assert!(is_used_again || step == bytes.len());
        let cut = read_into(&blocks, &bytes[..bytes.len() / 2], step);
        assert!(matches!(cut, Err(QueueError::BadRequest { .. })), "{cut:?}");
    }
}

proptest! {
    #[test]
    fn bytes_that_are_no_stream_are_refused_without_more_memory_than_they_say(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        claimed in any::<u32>(),
    ) {
        let marked = [&[0xff; 4][..], &claimed.to_le_bytes(), &bytes].concat();
        for bytes in [&bytes, &marked] {
            let _ = read_into(&Arc::default(), bytes, 3);
        }
    }
}
