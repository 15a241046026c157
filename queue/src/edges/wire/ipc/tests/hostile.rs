//! Streams of every type with every kind of damage. Arrow's reader must not panic, because each panic costs a
//! record in the log, its backtrace, and milliseconds.
//!
//! `ROLLDOCK_FUZZ_STREAMS` sets the number of streams, and `ROLLDOCK_FUZZ_SEED` the seed of the damage.

use std::cell::RefCell;
use std::collections::BTreeMap;

use arrow_array::types::{Int8Type, Int16Type, Int64Type};
use arrow_array::*;
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions};
use arrow_schema::{DataType, Field, UnionFields};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::messages::Messages;
use super::super::*;

thread_local! {
    /// The place of the last panic of this thread, whether or not it was caught.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn note_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        PANIC.set(Some(place));
        usual(panic);
    }));
}

fn asked(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn nested() -> Vec<ArrayRef> {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5, 6]));
    let item = || Arc::new(Field::new_list_field(DataType::Int32, true));
    let offsets = || OffsetBuffer::new(ScalarBuffer::from(vec![0, 2, 2, 6]));
    let lists: ArrayRef = Arc::new(ListArray::new(item(), offsets(), Arc::clone(&numbers), None));
    let views = ListViewArray::new(
        item(),
        ScalarBuffer::from(vec![0, 2, 1]),
        ScalarBuffer::from(vec![2, 4, 3]),
        Arc::clone(&numbers),
        None,
    );
    let pairs = StructArray::from(vec![
        (Arc::new(Field::new("keys", DataType::Int32, false)), Arc::clone(&numbers)),
        (Arc::new(Field::new("values", DataType::Int32, true)), Arc::clone(&numbers)),
    ]);
    let entries = Arc::new(Field::new("entries", pairs.data_type().clone(), false));
    let lists_of_lists = ListArray::new(
        Arc::new(Field::new_list_field(lists.data_type().clone(), true)),
        OffsetBuffer::new(ScalarBuffer::from(vec![0, 1, 3, 3])),
        Arc::clone(&lists),
        None,
    );
    vec![
        lists,
        Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>([
            Some([Some(1)]),
            None,
            Some([None]),
        ])),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Int16Type, _, _>(
            [Some([Some(1), None]), None, Some([Some(3), Some(4)])],
            2,
        )),
        Arc::new(views),
        Arc::new(MapArray::new(entries, offsets(), pairs.clone(), None, false)),
        Arc::new(pairs.slice(0, 3)),
        Arc::new(lists_of_lists),
    ]
}

fn unions() -> Vec<ArrayRef> {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "bb", "ccc"]));
    let fields = UnionFields::from_fields([
        Field::new("number", DataType::Int32, true),
        Field::new("word", DataType::Utf8, true),
    ]);
    let kinds = ScalarBuffer::from(vec![0_i8, 1, 0]);
    let children = vec![numbers, words];
    let places = ScalarBuffer::from(vec![0, 2, 1]);
    vec![
        Arc::new(UnionArray::try_new(fields.clone(), kinds.clone(), None, children.clone()).unwrap()),
        Arc::new(UnionArray::try_new(fields, kinds, Some(places), children).unwrap()),
    ]
}

fn plain() -> Vec<ArrayRef> {
    let runs = Int16Array::from(vec![1, 3]);
    vec![
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        Arc::new(Float32Array::from(vec![0.5, f32::NAN, -1.0])),
        Arc::new(StringArray::from(vec![Some("ä"), None, Some("one")])),
        Arc::new(LargeBinaryArray::from(vec![&b"\xff"[..], b"", b"x"])),
        Arc::new(StringViewArray::from(vec!["short", "one that is longer than twelve bytes", ""])),
        Arc::new(FixedSizeBinaryArray::try_from_iter([[1_u8, 2], [3, 4], [5, 6]].into_iter()).unwrap()),
        Arc::new(Decimal128Array::from(vec![1, -2, 3]).with_precision_and_scale(5, 2).unwrap()),
        Arc::new(TimestampMicrosecondArray::from(vec![0, i64::MIN, i64::MAX]).with_timezone("UTC")),
        Arc::new(NullArray::new(3)),
        Arc::new([Some("a"), None, Some("a")].into_iter().collect::<DictionaryArray<Int8Type>>()),
        Arc::new(RunArray::<Int16Type>::try_new(&runs, &Int32Array::from(vec![7, 8])).unwrap()),
    ]
}

fn stream_of(columns: Vec<ArrayRef>, options: &IpcWriteOptions) -> Vec<u8> {
    let named = columns.into_iter().enumerate().map(|(at, array)| (format!("c{at}"), array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(named).unwrap();
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options.clone()).unwrap();
    writer.write(&batch).unwrap();
    writer.write(&batch.slice(1, 2)).unwrap();
    writer.into_inner().unwrap()
}

/// One stream for each type, one with columns of several types, and streams in the earlier format.
fn streams() -> Vec<Vec<u8>> {
    let present = IpcWriteOptions::default();
    let earlier = IpcWriteOptions::try_new(8, true, MetadataVersion::V4).unwrap();
    let all = [plain(), nested(), unions()].concat();
    let mut streams: Vec<_> = all.iter().map(|array| stream_of(vec![Arc::clone(array)], &present)).collect();
    streams.push(stream_of(plain(), &present));
    streams.push(stream_of(plain()[..4].to_vec(), &earlier));
    streams
}

/// Numbers that a length, an offset or a count may have.
fn number(rng: &mut SmallRng, length: usize) -> i64 {
    let numbers = [0, 1, 2, 7, 8, 127, 128, 129, 1 << 31, 1 << 32, 1 << 40, i64::MAX, i64::MIN, -1, -8];
    match rng.random_range(0..numbers.len() + 2) {
        at if at < numbers.len() => numbers[at],
        at if at == numbers.len() => length as i64,
        _ => rng.random_range(0..length as i64 + 1),
    }
}

fn damaged(rng: &mut SmallRng, sound: &[u8]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for _ in 0..rng.random_range(1..5) {
        if bytes.len() < 16 {
            break;
        }
        let at = rng.random_range(0..bytes.len() - 8);
        let value = number(rng, bytes.len());
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes[at] = value as u8,
            3 => bytes[at & !3..][..4].copy_from_slice(&(value as i32).to_le_bytes()),
            4 | 5 => bytes[at & !7..][..8].copy_from_slice(&value.to_le_bytes()),
            6 => drop(bytes.drain(at..at + rng.random_range(1..8))),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

/// Reads a stream in pieces. Returns the number of rows, and checks that they can be stored.
fn read(rng: &mut SmallRng, bytes: &[u8]) -> Result<usize, QueueError> {
    let step = if rng.random() { bytes.len().max(1) } else { rng.random_range(1..bytes.len() + 2) };
    let (mut decoder, mut rows) = (Decoder::new().rows_max(1_000), 0);
    for piece in bytes.chunks(step) {
        decoder.feed(Bytes::copy_from_slice(piece), |batch| {
            batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
            rows += batch.num_rows();
            encode(&batch).map(drop)
        })?;
    }
    decoder.finish().map(|()| rows)
}

#[test]
fn every_type_is_read_in_pieces_and_whole() {
    let mut rng = SmallRng::seed_from_u64(1);
    for stream in streams() {
        for _ in 0..20 {
            assert_eq!(read(&mut rng, &stream), Ok(5));
        }
    }
}

#[test]
fn arrow_does_not_panic_whatever_the_damage() {
    note_panics();
    let (seed, rounds) = (asked("ROLLDOCK_FUZZ_SEED", 17), asked("ROLLDOCK_FUZZ_STREAMS", 50_000));
    let streams = streams();
    let mut rng = SmallRng::seed_from_u64(seed);
    // The first stream that caused a panic, for each place of a panic.
    let mut panics: BTreeMap<String, (u64, Vec<u8>)> = BTreeMap::new();
    let mut refused = 0;
    for round in 0..rounds {
        let sound = &streams[rng.random_range(0..streams.len())];
        let bytes = damaged(&mut rng, sound);
        refused += u64::from(read(&mut rng, &bytes).is_err());
        if let Some(place) = PANIC.take() {
            panics.entry(place).or_insert((round, bytes));
        }
    }
    assert!(panics.is_empty(), "ROLLDOCK_FUZZ_SEED={seed}: {panics:?}");
    assert!(refused > rounds / 2, "refused={refused} of {rounds}");
}

#[test]
fn a_claimed_length_takes_no_memory_before_its_bytes_have_come() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let sound = stream_of(vec![numbers], &IpcWriteOptions::default());
    let (mut messages, mut bytes) = (Messages::new(None), Buffer::from(sound.as_slice()));
    messages.next(&mut bytes).unwrap().unwrap();
    let body_bytes = messages.next(&mut bytes).unwrap().unwrap().body.len() as i64;
    let mut claimed = sound;
    let at = claimed.windows(8).position(|word| word == body_bytes.to_le_bytes()).unwrap();
    claimed[at..][..8].copy_from_slice(&(1_i64 << 50).to_le_bytes());
    let mut decoder = Decoder::new();
    decoder.feed(Bytes::from(claimed), |_| Ok(())).unwrap();
    assert!(decoder.held_bytes() < 8 << 20, "held={}", decoder.held_bytes());
    assert!(decoder.finish().is_err());
}

/// A dictionary column whose second batch adds a value, and the stream that sends only that value.
fn stream_with_a_delta() -> Vec<u8> {
    let column = |words: &[&str]| -> ArrayRef {
        Arc::new(words.iter().copied().collect::<DictionaryArray<Int8Type>>())
    };
    let batch = |words: &[&str]| RecordBatch::try_from_iter([("word", column(words))]).unwrap();
    let options = IpcWriteOptions::default().with_dictionary_handling(DictionaryHandling::Delta);
    let first = batch(&["a", "b"]);
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &first.schema(), options).unwrap();
    writer.write(&first).unwrap();
    writer.write(&batch(&["a", "b", "c"])).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn types_that_the_queue_does_not_accept_are_refused_by_name() {
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let sound = stream_of(vec![words], &IpcWriteOptions::default());
    assert!(decode_batches(Buffer::from(sound.as_slice()), usize::MAX).is_ok());
    let cut = &sound[..sound.len() - 8];
    let cases = [
        ([cut, &sound[..]].concat(), "expected one schema"),
        ([&sound[..], &sound[..1]].concat(), "expected no bytes after its end"),
        (stream_with_a_delta(), "expected a whole dictionary, found a delta"),
    ];
    for (stream, expected) in cases {
        let refused = decode_batches(stream.into(), usize::MAX).unwrap_err().to_string();
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}
