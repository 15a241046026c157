//! Checks that values of every type that trainers use are returned unchanged: from memory, from disk, over
//! HTTP and after a snapshot.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::*;
use half::f16;
use parking_lot::Mutex;
use rolldock_queue::{
    PartitionSpec, Put, Queue, QueueConfig, QueueError, RemoteConfig, RemoteQueue, ServiceConfig, Take,
    TransferQueue, serve,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const ROWS: usize = 4;

fn ragged(values: ArrayRef) -> ArrayRef {
    let offsets = OffsetBuffer::new(ScalarBuffer::from(vec![0, 1, 1, 3, 6]));
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Arc::new(ListArray::new(item, offsets, values, Some(NullBuffer::from(vec![true, true, false, true]))))
}

/// Six values of each fixed-width type. Four of them become rows of a column, and all of them become items of
/// a ragged column.
fn numbers() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("bool", Arc::new(BooleanArray::from(vec![true, false, true, true, false, false]))),
        ("u8", Arc::new(UInt8Array::from(vec![0, 1, u8::MAX, 3, 4, 5]))),
        ("u16", Arc::new(UInt16Array::from(vec![0, 1, u16::MAX, 3, 4, 5]))),
        ("u32", Arc::new(UInt32Array::from(vec![0, 1, u32::MAX, 3, 4, 5]))),
        ("u64", Arc::new(UInt64Array::from(vec![0, 1, u64::MAX, 3, 4, 5]))),
        ("i8", Arc::new(Int8Array::from(vec![i8::MIN, 1, i8::MAX, 3, 4, 5]))),
        ("i16", Arc::new(Int16Array::from(vec![i16::MIN, 1, i16::MAX, 3, 4, 5]))),
        ("i32", Arc::new(Int32Array::from(vec![i32::MIN, 1, i32::MAX, 3, 4, 5]))),
        ("i64", Arc::new(Int64Array::from(vec![i64::MIN, 1, i64::MAX, (1 << 53) + 1, 4, 5]))),
        (
            "f16",
            Arc::new(Float16Array::from_iter_values([0.5, -1.0, 65504.0, 1e-4, 0.0, 2.0].map(f16::from_f32))),
        ),
        ("f32", Arc::new(Float32Array::from(vec![f32::MIN_POSITIVE, -0.0, f32::INFINITY, 3.5, 4.0, 5.0]))),
        (
            "f64",
            Arc::new(Float64Array::from(vec![f64::MIN_POSITIVE, -0.0, f64::NEG_INFINITY, 0.1, 4.0, 5.0])),
        ),
    ]
}

fn extension(name: &str, metadata: &str) -> HashMap<String, String> {
    HashMap::from([
        ("ARROW:extension:name".to_owned(), name.to_owned()),
        ("ARROW:extension:metadata".to_owned(), metadata.to_owned()),
    ])
}

/// One column of each type.
fn columns() -> Vec<(Field, ArrayRef)> {
    let mut columns: Vec<(Field, ArrayRef)> = Vec::new();
    let mut add = |name: &str, array: ArrayRef, metadata: HashMap<String, String>| {
        columns.push((Field::new(name, array.data_type().clone(), true).with_metadata(metadata), array));
    };
    for (name, values) in numbers() {
        add(name, values.slice(1, ROWS), HashMap::new());
        add(&format!("ragged_{name}"), ragged(values), HashMap::new());
    }
    let plain = HashMap::new;
    add("string", Arc::new(StringArray::from(vec![Some("ä"), None, Some(""), Some("x\0y")])), plain());
    add("large_string", Arc::new(LargeStringArray::from(vec!["a", "", "ccc", "d"])), plain());
    add(
        "string_view",
        Arc::new(StringViewArray::from(vec!["short", "one that is longer than twelve bytes", "", "d"])),
        plain(),
    );
    add("binary", Arc::new(BinaryArray::from(vec![&b"\xff\0"[..], b"", b"x", b"y"])), plain());
    add("json", Arc::new(StringArray::from(vec!["{}", "[1]", "null", "\"x\""])), extension("arrow.json", ""));
    let inner = ListArray::from_iter_primitive::<Int32Type, _, _>((0..6).map(|at| Some((0..at).map(Some))));
    add("nested", ragged(Arc::new(inner)), plain());
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let pixels = Arc::new(Float32Array::from_iter_values((0..ROWS * 6).map(|at| at as f32)));
    let tensors = FixedSizeListArray::new(item, 6, pixels, None);
    add("tensor", Arc::new(tensors), extension("arrow.fixed_shape_tensor", "{\"shape\":[2,3]}"));
    let halves = FixedSizeBinaryArray::try_from_iter((0..ROWS).map(|row| [row as u8, 0x3f])).unwrap();
    add("bf16", Arc::new(halves), extension("rolldock.dtype", "bfloat16"));
    add("when", Arc::new(TimestampMicrosecondArray::from(vec![0, 1, -1, i64::MAX])), plain());
    let fields = vec![
        Arc::new(Field::new("a", DataType::Int32, true)),
        Arc::new(Field::new("b", DataType::Utf8, true)),
    ];
    let parts: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![1, 2, 3, 4])),
        Arc::new(StringArray::from(vec!["a", "b", "c", "d"])),
    ];
    add("struct", Arc::new(StructArray::new(fields.into(), parts, None)), plain());
    add("nothing", Arc::new(NullArray::new(ROWS)), plain());
    columns
}

fn batch() -> RecordBatch {
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns().into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn open(dir: Option<&Path>) -> TransferQueue {
    TransferQueue::open(QueueConfig { dir: dir.map(Path::to_owned), ..QueueConfig::default() }).unwrap()
}

fn spec() -> PartitionSpec {
    PartitionSpec::new("train", ["train", "again"], 64)
}

/// Takes and gets the rows, and compares them with the rows that were put.
async fn compare(queue: &dyn Queue) {
    for task in ["train", "again"] {
        let expected = batch();
        let lease = queue.take("train", &Take::rows(task, ROWS)).await.unwrap().unwrap();
        let taken = lease.concat().unwrap();
        for (field, (found, put)) in
            expected.schema().fields().iter().zip(taken.columns().iter().zip(expected.columns()))
        {
            assert_eq!(found, put, "{field}");
        }
        assert_eq!(taken.schema(), expected.schema());
        let part = queue
            .get("train", &lease.rows()[1..3], Some(&["tensor".to_owned(), "ragged_i64".to_owned()]))
            .await
            .unwrap();
        assert_eq!(part[0].column(1).to_data(), expected["ragged_i64"].slice(1, 2).to_data());
        lease.nack().await.unwrap();
    }
}

#[tokio::test]
async fn every_type_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    for place in [None, Some(dir.path())] {
        let queue = open(place);
        queue.declare(spec()).await.unwrap();
        Queue::put(&queue, "train", Put::group("g", batch()), None).await.unwrap();
        compare(&queue).await;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        queue.snapshot(None, Sink(Arc::clone(&bytes))).await.unwrap();
        let restored = open(None);
        let bytes = std::mem::take(&mut *bytes.lock());
        restored.restore(std::io::Cursor::new(bytes)).await.unwrap();
        compare(&restored).await;
        assert!(queue.verify().await.unwrap().is_sound());
        queue.close();
    }
    compare(&open(Some(dir.path()))).await;
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_type_goes_over_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = serve(open(None), listener, ServiceConfig::default(), CancellationToken::new());
    let _served = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    let client = RemoteQueue::new(RemoteConfig::new(url)).unwrap();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("g", batch()), None).await.unwrap();
    compare(&client).await;
}

#[tokio::test]
async fn the_type_of_a_column_is_read_back_for_every_width_and_tag() {
    let queue = open(None);
    let partition = queue.declare(spec()).await.unwrap();
    partition.put(Put::group("g", batch()), None).await.unwrap();
    for (number, (name, other)) in [
        ("i64", Arc::new(Int32Array::from(vec![1])) as ArrayRef),
        ("f16", Arc::new(Float32Array::from(vec![1.0]))),
        ("ragged_i64", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]))),
        ("string", Arc::new(LargeStringArray::from(vec!["x"]))),
    ]
    .into_iter()
    .enumerate()
    {
        let put = Put::group(format!("g{number}"), RecordBatch::try_from_iter([(name, other)]).unwrap());
        let refused = partition.put(put, None).await.unwrap_err();
        assert!(matches!(&refused, QueueError::WrongType { column, .. } if column == name), "{refused}");
    }
    // Columns with equal storage and different metadata have different types.
    let halves: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[0_u8, 1]].into_iter()).unwrap());
    let field = Field::new("bf16", halves.data_type().clone(), true);
    for metadata in [HashMap::new(), extension("rolldock.dtype", "float8x2")] {
        let schema = Arc::new(Schema::new(vec![field.clone().with_metadata(metadata)]));
        let put = Put::group("tagged", RecordBatch::try_new(schema, vec![Arc::clone(&halves)]).unwrap());
        let refused = partition.put(put, None).await.unwrap_err();
        assert!(matches!(refused, QueueError::WrongType { .. }), "{refused}");
    }
}
