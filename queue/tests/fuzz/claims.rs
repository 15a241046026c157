//! Streams that declare more content than they have, values that are nested deeply, and requests with the
//! largest numbers.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, ListArray, NullArray, RecordBatch, StringArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use rolldock_queue::{PartitionSpec, QueueConfig, TransferQueue};

use super::{assert_no_panic, batch, count_panics, framed, say, served, served_here, stream_of};

fn column(name: &str, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)]).unwrap()
}

/// Streams that declare more rows than the partition may have and contain no bytes for these rows, and
/// streams with deeply nested values or types.
fn claims() -> Vec<(&'static str, Vec<u8>)> {
    let mut nested: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    for _ in 0..200 {
        let item = Arc::new(Field::new_list_field(nested.data_type().clone(), true));
        nested = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1]), nested, None));
    }
    let deep: ArrayRef = Arc::new(StringArray::from(vec!["[".repeat(200_000)]));
    let tagged =
        RecordBatch::try_from_iter([("id", batch(0, 1).column(0).clone()), ("_tags", deep)]).unwrap();
    let nulls = |rows: usize| stream_of(&column("nothing", Arc::new(NullArray::new(rows))));
    vec![
        ("a trillion rows", nulls(1 << 40)),
        ("the largest number of rows", nulls(i64::MAX as usize)),
        ("one row more than fits", nulls(65)),
        ("tags that are too deep", stream_of(&tagged)),
        ("a type that is too deep", stream_of(&column("nested", nested))),
    ]
}

#[tokio::test]
async fn claims_that_no_bytes_stand_behind_are_refused() {
    count_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let counting = PartitionSpec {
        capacity_bytes: Some(1 << 20),
        row_bytes_max: Some(1 << 10),
        length_columns: vec!["nothing".to_owned()],
        ..PartitionSpec::new("p", ["a"], 64)
    };
    queue.declare(counting).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("queue.sock");
    let here = served_here(queue.clone(), &socket);
    let (url, there) = served(queue.clone()).await;
    let client = reqwest::Client::new();
    let post = async |path: &str, body: Vec<u8>| {
        let answer = client.post(format!("{url}{path}")).body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.unwrap_or_default())
    };
    for (what, rows) in claims() {
        for path in ["/v1/partitions/p/rows?group=g", "/v1/partitions/p/columns"] {
            let (status, words) = post(path, rows.clone()).await;
            assert!((400..500).contains(&status), "{what}, {path}: {status} {words}");
        }
        for ask in [
            r#"{"Put":{"partition":"p","query":{"group":"g"},"rows":"Tail"}}"#,
            r#"{"WriteColumns":{"partition":"p","rows":"Tail","token":"t"}}"#,
        ] {
            let said = say(&socket, &framed(&format!(r#"{{"Call":{{"id":1,"ask":{ask}}}}}"#), &rows)).await;
            assert!(said.contains("Refusal"), "{what}, {ask}: {said}");
        }
    }
    let most = u64::MAX;
    let deep = "[".repeat(100_000);
    let requests = [
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","groups":1,"share":{{"rank":0,"ranks":{}}}}}"#, u32::MAX),
        ),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","groups":1,"share":{{"rank":0,"ranks":1,"members":{}}}}}"#, u32::MAX),
        ),
        ("/v1/partitions/p/take", format!(r#"{{"task":"a","groups":{most},"at_least":{most}}}"#)),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","rows":{most},"min_policy_version":{most},"max_staleness":{most}}}"#),
        ),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","tokens":{most},"sampler":{{"random":{{"seed":{most}}}}}}}"#),
        ),
        ("/v1/partitions/p/tags", format!(r#"{{"tags":[[{{"slot":0,"generation":0}},{deep}]]}}"#)),
        ("/v1/partitions/p/groups/close", format!(r#"{{"older_than_ms":{most},"unfinished":"drop"}}"#)),
        ("/v1/partitions/p/version", format!(r#"{{"policy_version":{most}}}"#)),
        (
            "/v1/partitions",
            format!(
                r#"{{"name":"large","tasks":[{{"name":"a"}}],"capacity_rows":{most},"capacity_bytes":{most},"lease_ms":{most}}}"#
            ),
        ),
    ];
    for (path, body) in requests {
        let (status, words) = post(path, body.into_bytes()).await;
        assert!(status < 500, "{path}: {status} {words}");
    }
    let sound = stream_of(&batch(0, 2));
    let largest = format!("group_size={most}&policy_version={most}&priority={}&wait_ms={most}", i64::MIN);
    for partition in ["p", "large"] {
        let path = format!("/v1/partitions/{partition}/rows?group=g&{largest}");
        let (status, words) = post(&path, sound.clone()).await;
        assert!(status < 500, "{path}: {status} {words}");
        let take = format!(r#"{{"task":"a","rows":2,"wait_ms":{most}}}"#);
        if status == 200 {
            let answer = client.post(format!("{url}/v1/partitions/{partition}/take")).body(take).send();
            assert_eq!(answer.await.unwrap().status(), 200);
        }
    }
    assert_no_panic();
    assert!(!here.is_finished() && !there.is_finished());
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}
