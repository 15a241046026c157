//! Tests for known faults of other transfer docks.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::DataType;
use rolldock_queue::QueueError;
use rolldock_queue_compat::{DockConfig, Pick, TransferDock};

use super::{ints, longs, memory, mixed, on_disk};

fn dock_config() -> DockConfig {
    DockConfig::new("dock", [("train", vec!["id", "reward"]), ("reward", vec!["id"])], 4, 2)
}

#[tokio::test(start_paused = true)]
async fn asking_by_index_marks_nothing_before_the_rows_are_there() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    let ask = async |indexes: &[u64], wait| {
        dock.get_experience("reward", None, Pick::Indexes(indexes.to_vec()), wait).await
    };
    assert!(ask(&[0, 3], None).await.unwrap().is_none());
    dock.put_experience(&ints("id", &[30, 0]), &[3, 0]).await.unwrap();
    // One of the two rows is missing, so neither row is leased.
    assert!(ask(&[0, 1], None).await.unwrap().is_none());
    let late = ask(&[0, 1], Some(Duration::from_secs(1))).await;
    assert!(matches!(late, Err(QueueError::Deadline { .. })), "{late:?}");
    let experience = ask(&[0, 3], None).await.unwrap().unwrap();
    assert_eq!((longs(experience.batch(), "id"), experience.indexes()), (vec![0, 30], &[0, 3][..]));
    drop(experience);
    ask(&[3], None).await.unwrap().unwrap().consume().await.unwrap();
    assert!(matches!(ask(&[3], None).await, Err(QueueError::RowConsumed { .. })));
    // A request waits for rows and for columns.
    let wait = Some(Duration::from_secs(60));
    let training = dock.get_experience("train", None, Pick::Indexes(vec![1, 0]), wait);
    let (experience, ()) = tokio::join!(training, async {
        tokio::task::yield_now().await;
        dock.put_experience(&ints("reward", &[7, 8]), &[0, 1]).await.unwrap();
        dock.put_experience(&ints("id", &[1, 2]), &[1, 2]).await.unwrap();
    });
    let experience = experience.unwrap().unwrap();
    assert_eq!(
        (longs(experience.batch(), "id"), longs(experience.batch(), "reward")),
        (vec![1, 0], vec![8, 7])
    );
    drop(experience);
    assert!(matches!(
        dock.put_experience(&ints("reward", &[7]), &[4]).await,
        Err(QueueError::BadRequest { .. })
    ));
    assert!(matches!(
        dock.put_experience(&ints("reward", &[9]), &[0]).await,
        Err(QueueError::ColumnExists { .. })
    ));
}

#[tokio::test]
async fn prompts_are_delivered_whole_and_all_consumed_covers_every_row() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    for _ in 0..2 {
        assert!(!dock.all_consumed("reward").await.unwrap(), "nothing is there");
        dock.put_experience(&ints("id", &[0, 2, 3]), &[0, 2, 3]).await.unwrap();
        let prompt = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
        assert_eq!(prompt.indexes(), [2, 3]);
        prompt.consume().await.unwrap();
        assert!(dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().is_none());
        assert!(dock.get_experience("reward", None, Pick::Samples(2), None).await.unwrap().is_none());
        dock.put_experience(&ints("id", &[1]), &[1]).await.unwrap();
        dock.get_experience("reward", None, Pick::Samples(2), None)
            .await
            .unwrap()
            .unwrap()
            .consume()
            .await
            .unwrap();
        assert!(dock.all_consumed("reward").await.unwrap());
        assert!(!dock.all_consumed("train").await.unwrap());
        assert!(matches!(dock.all_consumed("missing").await, Err(QueueError::UnknownTask { .. })));
        dock.clear().await.unwrap();
    }
    // A prompt with only some rows can be written again after it was cleared.
    dock.put_experience(&ints("id", &[0]), &[0]).await.unwrap();
    dock.clear().await.unwrap();
    dock.put_experience(&ints("id", &[5, 6]), &[0, 1]).await.unwrap();
    assert!(dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().is_some());
}

#[tokio::test]
async fn int64_stays_int64() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    let values = [i64::MAX, i64::MIN + 1, (1 << 53) + 1];
    dock.put_experience(&ints("id", &values), &[0, 1, 2]).await.unwrap();
    let read =
        dock.get_experience("reward", None, Pick::Indexes(vec![0, 1, 2]), None).await.unwrap().unwrap();
    assert_eq!(read.batch()["id"].data_type(), &DataType::Int64);
    assert_eq!(longs(read.batch(), "id"), values);
    let narrow: ArrayRef = Arc::new(arrow_array::Int32Array::from(vec![1]));
    let narrow = RecordBatch::try_from_iter([("id", narrow)]).unwrap();
    assert!(matches!(dock.put_experience(&narrow, &[3]).await, Err(QueueError::WrongType { .. })));
}

#[tokio::test]
async fn strings_json_and_ragged_columns_are_kept() {
    let config = DockConfig::new("dock", [("train", vec![])], 4, 2);
    let dock = TransferDock::open(Arc::new(memory()), config).await.unwrap();
    dock.put_experience(&mixed(), &[0, 1]).await.unwrap();
    let read = dock.get_experience("train", None, Pick::Indexes(vec![0, 1]), None).await.unwrap().unwrap();
    assert_eq!(read.batch(), &mixed());
}

#[tokio::test]
async fn a_dock_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let dock = TransferDock::open(Arc::new(queue.clone()), dock_config()).await.unwrap();
    dock.put_experience(&ints("id", &[9, 9]), &[0, 1]).await.unwrap();
    dock.clear().await.unwrap();
    dock.put_experience(&ints("id", &[0, 1, 2]), &[0, 1, 2]).await.unwrap();
    dock.put_experience(&ints("reward", &[5, 6]), &[0, 1]).await.unwrap();
    let taken = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    taken.consume().await.unwrap();
    let held = dock.get_experience("train", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    queue.close();
    drop((queue, dock, held));

    let dock = TransferDock::open(Arc::new(on_disk(dir.path())), dock_config()).await.unwrap();
    let consumed = dock.get_experience("reward", None, Pick::Indexes(vec![0]), None).await;
    assert!(matches!(consumed, Err(QueueError::RowConsumed { .. })), "{consumed:?}");
    let again = dock.get_experience("train", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    assert_eq!((longs(again.batch(), "reward"), again.indexes()), (vec![5, 6], &[0, 1][..]));
    dock.put_experience(&ints("id", &[3]), &[3]).await.unwrap();
    let rest = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    assert_eq!(rest.indexes(), [2, 3]);
    rest.consume().await.unwrap();
    assert!(dock.all_consumed("reward").await.unwrap());
}
