#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use super::*;
use crate::journal::salvage_frames;
use crate::partition::table::{Slice, declaration, rest};
use crate::store::segments;
use crate::{Durability, Put, QueueConfig, SamplePart, Take, TransferQueue};

fn column(name: &str, rows: usize) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    RecordBatch::try_from_iter([(name, numbers)]).unwrap()
}

/// The records of a queue whose slots, keys and names of groups are used many times. In unit tests a free
/// slot is soon reused.
async fn records_of_a_busy_queue(dir: &Path) -> Vec<Record> {
    let config =
        QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..QueueConfig::default() };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("p", ["a", "b"], 12)).await.unwrap();
    for round in 0..30 {
        let keys = vec![format!("key {}", round % 3), format!("own key {round}")];
        let put = Put {
            keys,
            token: Some(format!("token {round}")),
            record: Some(format!("record {round}")),
            ..Put::group(format!("group {}", round % 4), column("id", 2))
        };
        let rows = partition.put(put, None).await.unwrap();
        partition.write_columns(&rows, column("more", 2)).await.unwrap();
        let part = Put { group_size: 3, ..Put::group(format!("part {round}"), column("id", 1)) };
        let part = partition.put(part, None).await.unwrap();
        let sample = SamplePart { uid: format!("sample {round}"), is_last: round % 2 == 0 };
        let put = Put { sample: Some(sample), ..Put::group(format!("samples {round}"), column("id", 2)) };
        partition.put(Put { group_size: 1, ..put }, None).await.unwrap();
        partition.take(&Take::rows("a", 3)).await.unwrap().unwrap().ack().await.unwrap();
        partition.clear(&part).await.unwrap();
        if round % 5 == 4 {
            partition.clear_all().await.unwrap();
        } else {
            partition.take(&Take::rows("b", 9)).await.unwrap().unwrap().ack().await.unwrap();
            partition.take(&Take::rows("a", 9)).await.unwrap().unwrap().ack().await.unwrap();
        }
        partition.forget_records(1).await.unwrap();
    }
    queue.close();
    let bytes = std::fs::read(dir.join("journal.log")).unwrap();
    let mut records = Vec::new();
    let (gaps, _) = salvage_frames(&bytes, |record| records.push(record));
    assert_eq!(gaps, []);
    records
}

fn mended<'a>(dir: &Path, records: impl Iterator<Item = &'a Record> + Clone) -> Mend {
    let mut tasks = NamedTasks::default();
    records.clone().for_each(|record| tasks.see(record));
    let mut mend = Mend::new(Plane::new(segments(dir, 1 << 20)), tasks);
    records.for_each(|record| mend.apply(record.clone()));
    mend
}

/// Checks that the tables are sound, and that a snapshot of them would be accepted.
fn check(mend: Mend, what: &str) {
    for table in mend.into_replay().into_tables() {
        assert_eq!(table.violations(), [], "{what}");
        let groups: Vec<_> = table.groups.values().collect();
        let slice = Slice::of(&table, &groups, &|_| None);
        let records = [declaration(&table)].into_iter().chain(slice.into_records()).chain(rest(&table));
        let mut restored = Replay::detached();
        for record in records {
            // A group by samples without rows has a record that only a journal may have.
            if matches!(&record, Record::Put(put) if put.rows.is_empty()) {
                continue;
            }
            restored.check(&record).unwrap_or_else(|error| panic!("{what}: {error}: {record:?}"));
            restored.apply(record).unwrap();
        }
    }
}

#[tokio::test]
async fn records_are_used_whichever_others_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let records = records_of_a_busy_queue(dir.path()).await;
    assert!(records.len() > 200, "{} records", records.len());
    let whole = mended(dir.path(), records.iter());
    assert!(whole.unusable.is_empty() && whole.declared.is_empty(), "{:?}", whole.unusable);
    check(whole, "no record is missing");
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % end
    };
    for round in 0..300 {
        let what = format!("round={round}");
        match round % 3 {
            0 => {
                let missing: Vec<bool> = records.iter().map(|_| random(10) == 0).collect();
                let left = records.iter().zip(&missing).filter(|(_, missing)| !**missing);
                check(mended(dir.path(), left.map(|(record, _)| record)), &what);
            }
            1 => {
                let (from, count) = (random(records.len() as u64) as usize, random(60) as usize);
                let behind = (from + count).min(records.len());
                check(mended(dir.path(), records[..from].iter().chain(&records[behind..])), &what);
            }
            _ => check(mended(dir.path(), records[random(records.len() as u64) as usize..].iter()), &what),
        }
    }
}
