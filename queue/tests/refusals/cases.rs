//! Calls that have to fail, and the error codes with which they are refused.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_queue::{PartitionSpec, Put, Queue, QueueError, RowHandle, SamplePart, Share, Take};

use super::{BODY_BYTES_MAX, ids, tensors, text};

fn misnamed(batch: &RecordBatch) -> RecordBatch {
    RecordBatch::try_from_iter([("text", batch.column(0).clone())]).unwrap()
}

fn soon() -> Option<Duration> {
    Some(Duration::from_millis(20))
}

/// A call that has to fail.
type Attempt = for<'a> fn(&'a dyn Queue, RowHandle) -> BoxFuture<'a, Result<(), QueueError>>;

fn attempt_put<'a>(
    queue: &'a dyn Queue,
    partition: &'static str,
    put: Put,
) -> BoxFuture<'a, Result<(), QueueError>> {
    async move { queue.put(partition, put, soon()).await.map(drop) }.boxed()
}

fn attempt_take(queue: &dyn Queue, take: Take) -> BoxFuture<'_, Result<(), QueueError>> {
    async move { queue.take("p", &take).await.map(drop) }.boxed()
}

/// The fault of a call, the code with which it is refused, and the call itself.
type Case = (&'static str, &'static str, Attempt);

/// All cases. The partition `p` has one group of two rows and space for six more. Each call gets the handle
/// of one of the two rows.
pub(super) fn cases() -> Vec<Case> {
    put_cases().into_iter().chain(other_cases()).collect()
}

fn put_cases() -> Vec<Case> {
    vec![
        ("a row that is too long", "row_too_long", |queue, _| {
            attempt_put(queue, "p", Put::group("new", text(3_000)))
        }),
        ("more bytes than fit", "too_many_bytes", |queue, _| {
            let many: ArrayRef = Arc::new(StringArray::from_iter_values((0..6).map(|_| "x".repeat(1_900))));
            let batch = RecordBatch::try_from_iter([("text", many)]).unwrap();
            attempt_put(queue, "p", Put::group("new", batch))
        }),
        ("more rows than fit", "too_large", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 9)))),
        ("a body that is too long", "body_too_large", |queue, _| {
            attempt_put(queue, "p", Put::group("new", text(BODY_BYTES_MAX + 1)))
        }),
        ("no room", "deadline", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 7)))),
        ("no room, and it refuses", "full", |queue, _| {
            attempt_put(queue, "refusing", Put::group("n", ids(0, 2)))
        }),
        ("more rows than the group has", "group_overflow", |queue, _| {
            attempt_put(queue, "p", Put { group_size: 1, ..Put::group("new", ids(0, 2)) })
        }),
        ("no rows", "empty", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 0)))),
        ("another type", "wrong_type", |queue, _| {
            attempt_put(queue, "p", Put::group("new", misnamed(&ids(0, 1))))
        }),
        ("another shape", "wrong_type", |queue, _| {
            attempt_put(queue, "p", Put::group("new", tensors("[4]")))
        }),
        ("a column with the name of a label", "bad_request", |queue, _| {
            let batch = RecordBatch::try_from_iter([("_group", ids(0, 1).column(0).clone())]).unwrap();
            attempt_put(queue, "p", Put::group("new", batch))
        }),
        ("two columns of one name", "bad_request", |queue, _| {
            let id = || ("id", ids(0, 1).column(0).clone());
            let batch = RecordBatch::try_from_iter([id(), id()]).unwrap();
            attempt_put(queue, "p", Put::group("new", batch))
        }),
        ("half of the keys", "bad_request", |queue, _| {
            attempt_put(queue, "p", Put { keys: vec!["a".to_owned()], ..Put::group("new", ids(0, 2)) })
        }),
        ("a key that is taken", "key_exists", |queue, _| {
            attempt_put(queue, "p", Put { keys: vec!["k0".to_owned()], ..Put::group("new", ids(0, 1)) })
        }),
        ("rows for a sample that is whole", "sample_closed", |queue, _| {
            let sample = Some(SamplePart { uid: "s".to_owned(), is_last: false });
            attempt_put(queue, "p", Put { sample, group_size: 2, ..Put::group("sampled", ids(0, 1)) })
        }),
        ("rows for a closed group", "group_closed", |queue, _| {
            let sample = Some(SamplePart { uid: "late".to_owned(), is_last: false });
            attempt_put(queue, "p", Put { sample, group_size: 2, ..Put::group("closed", ids(0, 1)) })
        }),
        ("too many records", "records_full", |queue, _| {
            attempt_put(
                queue,
                "recorded",
                Put { record: Some("more".to_owned()), ..Put::group("n", ids(0, 1)) },
            )
        }),
        ("a put after the end", "closed", |queue, _| {
            attempt_put(queue, "ended", Put::group("new", ids(0, 1)))
        }),
    ]
}

fn other_cases() -> Vec<Case> {
    vec![
        ("no such partition", "unknown_partition", |queue, _| {
            async move { queue.status("missing").await.map(drop) }.boxed()
        }),
        ("declared otherwise", "declared_otherwise", |queue, _| {
            queue.declare(PartitionSpec::new("p", ["train"], 99))
        }),
        ("a partition with the name of a folder", "bad_request", |queue, _| {
            queue.declare(PartitionSpec::new(".", ["train"], 9))
        }),
        ("a partition with the name of the folder above", "bad_request", |queue, _| {
            queue.declare(PartitionSpec::new("..", ["train"], 9))
        }),
        ("a declaration of two columns of one name", "bad_request", |queue, _| {
            let column = rolldock_queue::ColumnSpec::new("id", arrow_schema::DataType::Int64);
            let columns = vec![column.clone(), column];
            queue.declare(PartitionSpec { columns, ..PartitionSpec::new("twice", ["train"], 9) })
        }),
        ("a declaration of a column with the name of a label", "bad_request", |queue, _| {
            let columns = vec![rolldock_queue::ColumnSpec::new("_handle", arrow_schema::DataType::UInt64)];
            queue.declare(PartitionSpec { columns, ..PartitionSpec::new("labelled", ["train"], 9) })
        }),
        ("a written column with the name of a label", "bad_request", |queue, there| {
            let batch = RecordBatch::try_from_iter([("_key", text(1).column(0).clone())]).unwrap();
            async move { queue.write_columns("p", &[there], batch).await }.boxed()
        }),
        ("two written columns of one name", "bad_request", |queue, there| {
            let more = || ("more", ids(0, 1).column(0).clone());
            let batch = RecordBatch::try_from_iter([more(), more()]).unwrap();
            async move { queue.write_columns("p", &[there], batch).await }.boxed()
        }),
        ("no such task", "unknown_task", |queue, _| attempt_take(queue, Take::groups("missing", 1))),
        ("no such column", "unknown_column", |queue, _| {
            attempt_take(queue, Take { columns: Some(vec!["none".to_owned()]), ..Take::groups("train", 1) })
        }),
        ("tokens of a partition that counts none", "bad_request", |queue, _| {
            attempt_take(queue, Take::tokens("train", 9))
        }),
        ("nothing at all", "empty", |queue, _| attempt_take(queue, Take::groups("train", 0))),
        ("a rank that is none", "bad_request", |queue, _| {
            attempt_take(queue, Take { share: Some(Share::of(2, 2)), ..Take::groups("train", 1) })
        }),
        ("more ranks than there are machines", "bad_request", |queue, _| {
            attempt_take(queue, Take { share: Some(Share::of(0, u32::MAX)), ..Take::groups("train", 1) })
        }),
        ("nothing is ready", "deadline", |queue, _| {
            let take = Take { at_least: 50, ..Take::groups("train", 60) };
            attempt_take(queue, take.until(tokio::time::Instant::now() + Duration::from_millis(20)))
        }),
        ("a lease that expired", "lease_gone", |queue, _| {
            async move {
                let lease = queue.take("brief", &Take::groups("train", 1)).await?.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                lease.ack().await
            }
            .boxed()
        }),
        ("rows of a lease that expired are given back", "lease_gone", |queue, _| {
            async move {
                let lease = queue.take("brief", &Take::groups("train", 1)).await?.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                lease.nack().await
            }
            .boxed()
        }),
        ("a handle of a row that is gone", "stale_handle", |queue, _| {
            async move { queue.clear("p", &[RowHandle { slot: 0, generation: 77 }]).await }.boxed()
        }),
        ("a column that is there", "column_exists", |queue, there| {
            async move { queue.write_columns("p", &[there], ids(0, 1)).await }.boxed()
        }),
        ("a column that is not there yet", "column_missing", |queue, there| {
            async move { queue.get("p", &[there], Some(&["none".to_owned()])).await.map(drop) }.boxed()
        }),
        ("no such key", "unknown_key", |queue, _| {
            async move { queue.find("p", Some(&["none".to_owned()])).await.map(drop) }.boxed()
        }),
        ("no such sample", "unknown_sample", |queue, _| queue.end_sample("p", "none")),
        ("no task to reset", "unknown_task", |queue, _| {
            async move { queue.reset("p", "missing").await.map(drop) }.boxed()
        }),
    ]
}
