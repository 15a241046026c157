//! Checks that every queue must pass. They use the queue only through the `Queue` trait.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use rolldock_queue::{PartitionSpec, Put, Queue, QueueError, Sampler, Share, Take, TaskSpec};
use tokio::time::Instant;

pub(crate) fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids = Int64Array::from_iter_values(first..first + rows);
    let words = StringArray::from_iter_values((first..first + rows).map(|id| format!("word {id}")));
    RecordBatch::try_from_iter([("id", Arc::new(ids) as _), ("word", Arc::new(words) as _)]).unwrap()
}

pub(crate) fn soon() -> Option<Duration> {
    Some(Duration::from_secs(10))
}

/// Uses a queue as a producer and a consumer, only through the trait.
pub(crate) async fn tour(queue: &dyn Queue) {
    let tasks =
        ["train", "score"].map(|name| TaskSpec { name: name.to_owned(), columns: Vec::new() }).to_vec();
    let spec = PartitionSpec { tasks, ..PartitionSpec::new("train", ["train"], 64) };
    queue.declare(spec.clone()).await.unwrap();
    queue.declare(spec.clone()).await.unwrap();
    let other = PartitionSpec { capacity_rows: 1, ..spec };
    assert!(matches!(queue.declare(other).await, Err(QueueError::DeclaredOtherwise { .. })));

    let rows = queue.put("train", Put::group("a/1", batch(0, 3)), soon()).await.unwrap();
    let record = Some("step 1, ünïcode & more".to_owned());
    let second = Put { policy_version: 7, record, ..Put::group("b", batch(10, 2)) };
    queue.put("train", second, soon()).await.unwrap();
    let advantage =
        RecordBatch::try_from_iter([("advantage", Arc::new(Int64Array::from(vec![5, 6, 7])) as _)]).unwrap();
    queue.write_columns("train", &rows, advantage.clone()).await.unwrap();
    assert!(matches!(
        queue.write_columns("train", &rows, advantage).await,
        Err(QueueError::ColumnExists { column }) if column == "advantage"
    ));
    let later =
        RecordBatch::try_from_iter([("advantage", Arc::new(Int64Array::from(vec![8, 9, 10])) as _)]).unwrap();
    let advantages = Some(vec!["advantage".to_owned()]);
    let one = Take { columns: advantages.clone(), ..Take::groups("train", 1) };
    let before = queue.take("train", &one).await.unwrap().unwrap();
    queue.overwrite_columns("train", &rows, later.clone()).await.unwrap();
    assert_ne!(before.concat().unwrap(), later, "the lease began before");
    before.nack().await.unwrap();
    let after = queue.take("train", &one).await.unwrap().unwrap();
    assert_eq!(after.concat().unwrap()["advantage"].to_data(), later["advantage"].to_data());
    after.nack().await.unwrap();
    let read = queue.get("train", &rows, advantages.as_deref()).await.unwrap();
    assert_eq!(read[0]["advantage"].to_data(), later["advantage"].to_data());
    let short = queue.overwrite_columns("train", &rows[..1], later).await;
    assert!(matches!(short, Err(QueueError::BadRequest { .. })), "{short:?}");

    let fresh = Take { min_policy_version: 7, ..Take::groups("score", 8) };
    let lease = queue.take("train", &fresh).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["b", "b"]);
    assert_eq!(lease.concat().unwrap(), batch(10, 2));
    lease.nack().await.unwrap();
    let first =
        Take { columns: Some(vec!["advantage".to_owned(), "id".to_owned()]), ..Take::groups("train", 1) };
    let lease = queue.take("train", &first).await.unwrap().unwrap();
    assert_eq!(
        (lease.rows(), lease.groups()),
        (rows.as_slice(), ["a/1", "a/1", "a/1"].map(str::to_owned).as_slice())
    );
    assert_eq!(lease.concat().unwrap().schema().field(0).name(), "advantage");
    lease.renew().await.unwrap();
    lease.ack().await.unwrap();

    let stats = queue.status("train").await.unwrap();
    assert_eq!((stats.rows, stats.groups, stats.leases), (5, 2, 0));
    assert_eq!((stats.tasks[0].ready_rows, stats.tasks[1].ready_groups), (2, 2));
    queue.clear("train", &rows).await.unwrap();
    assert!(matches!(queue.clear("train", &rows).await, Err(QueueError::StaleHandle { .. })));
    let gone = Put { group_size: 1, ..Put::group("c", batch(0, 2)) };
    assert!(matches!(
        queue.put("train", gone, soon()).await,
        Err(QueueError::GroupOverflow { size: 1, rows: 2, .. })
    ));
    let wrong = RecordBatch::try_from_iter([("id", Arc::new(StringArray::from(vec!["1"])) as _)]).unwrap();
    assert!(matches!(
        queue.put("train", Put::group("d", wrong), soon()).await,
        Err(QueueError::WrongType { .. })
    ));
    assert!(matches!(
        queue.take("no", &Take::groups("train", 1)).await,
        Err(QueueError::UnknownPartition { .. })
    ));
    let unknown = Take::groups("missing", 1);
    assert!(matches!(queue.take("train", &unknown).await, Err(QueueError::UnknownTask { .. })));
    let full = queue.put("train", Put::group("e", batch(0, 63)), Some(Duration::from_millis(20))).await;
    assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");

    let shared = |rank| Take {
        share: Some(Share::of(rank, 2)),
        sampler: Sampler::Random { seed: 1 },
        ..Take::rows("score", 2)
    };
    let halves =
        [queue.take("train", &shared(0)).await.unwrap(), queue.take("train", &shared(1)).await.unwrap()];
    let sizes = halves.each_ref().map(|half| half.as_ref().map_or(0, |lease| lease.rows().len()));
    assert_eq!(sizes, [1, 1]);
    for half in halves.into_iter().flatten() {
        assert_eq!(half.policy_versions(), [7]);
        half.nack().await.unwrap();
    }

    let until = Take::groups("train", 8).until(Instant::now() + Duration::from_secs(10));
    queue.take("train", &until).await.unwrap().unwrap().ack().await.unwrap();
    let late = Take::groups("train", 8).until(Instant::now() + Duration::from_millis(30));
    assert!(matches!(queue.take("train", &late).await, Err(QueueError::Deadline { .. })));
    assert!(queue.take("train", &Take::groups("train", 8)).await.unwrap().is_none());
    queue.end_of_puts("train").await.unwrap();
    assert!(queue.take("train", &until).await.unwrap().is_none(), "the end of puts ends waiting");
    assert_eq!(queue.inspect().await.unwrap().partitions[0].rows, 2);
}
