//! Compares a cut that is read during random changes with a cut of the same moment that is read without changes. In
//! unit tests a slice ends with the group that gives it a second row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::*;
use crate::partition::Replay;
use crate::partition::table::Group;
use crate::{
    PartitionSpec, Put, QueueConfig, QueueError, RowHandle, SamplePart, Take, TransferQueue, Unfinished,
};

const TASKS: [&str; 2] = ["a", "b"];

fn numbers(name: &str, ids: impl IntoIterator<Item = i64>) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    RecordBatch::try_from_iter([(name, ids)]).unwrap()
}

/// The values of rows, by row and column.
type Values = BTreeMap<(RowHandle, String), i64>;

/// A partition, with the payload of each row.
struct World {
    queue: TransferQueue,
    partition: Partition,
    rows: Vec<RowHandle>,
    ids: HashMap<RowHandle, i64>,
    /// The last value that was written, including values of freed rows.
    values: Values,
    random: StdRng,
    groups: u64,
}

impl World {
    async fn new(seed: u64) -> Self {
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        let partition = queue.declare(PartitionSpec::new("p", TASKS, 1000)).await.unwrap();
        let (rows, ids, values) = (Vec::new(), HashMap::new(), Values::new());
        Self { queue, partition, rows, ids, values, random: StdRng::seed_from_u64(seed), groups: 0 }
    }

    fn some_rows(&mut self) -> Vec<RowHandle> {
        let there: Vec<RowHandle> = self
            .rows
            .iter()
            .copied()
            .filter(|row| self.partition.shared.table.lock().row(*row).is_ok())
            .collect();
        let (from, count) = (self.random.random_range(0..there.len().max(1)), self.random.random_range(1..6));
        there.into_iter().skip(from).take(count).collect()
    }

    async fn put(&mut self) {
        let by_samples = self.random.random_bool(0.3);
        let group = if self.random.random_bool(0.4) { self.groups } else { self.groups + 1 };
        self.groups = group;
        let count = self.random.random_range(1..4);
        let ids: Vec<i64> = (0..count).map(|at| (self.ids.len() + at) as i64).collect();
        let sample = SamplePart {
            uid: format!("{group}-{}", self.random.random_range(0..3)),
            is_last: self.random.random_bool(0.5),
        };
        let put = Put {
            group_size: if by_samples { 3 } else { 5 },
            sample: by_samples.then_some(sample),
            policy_version: self.random.random_range(0..4),
            priority: self.random.random_range(0..4),
            token: Some(format!("token {}", self.ids.len())),
            record: Some(format!("record {}", self.ids.len())),
            keys: ids.iter().map(|id| format!("key {id}")).collect(),
            ..Put::group(format!("{by_samples} {group}"), numbers("id", ids.clone()))
        };
        // Puts that the group does not accept are refused.
        if let Ok(rows) = self.partition.put(put, None).await {
            self.ids.extend(rows.iter().copied().zip(ids.iter().copied()));
            self.note("id", &rows, &ids);
            self.rows.extend(rows);
        }
    }

    fn note(&mut self, column: &str, rows: &[RowHandle], values: &[i64]) {
        for (row, value) in rows.iter().zip(values) {
            self.values.insert((*row, column.to_owned()), *value);
        }
    }

    /// The current values of the existing rows.
    fn present(&self) -> Values {
        let table = self.partition.shared.table.lock();
        let is_there = |((row, _), _): &(&(RowHandle, String), &i64)| table.row(*row).is_ok();
        self.values.iter().filter(is_there).map(|(cell, value)| (cell.clone(), *value)).collect()
    }

    /// Writes one of two columns, or both, and replaces existing values.
    async fn overwrite(&mut self, rows: &[RowHandle]) -> Result<(), QueueError> {
        let columns = [&["id"][..], &["more"], &["more", "id"]][self.random.random_range(0..3)];
        let values: Vec<i64> = rows.iter().map(|_| self.random.random_range(1_000_000..2_000_000)).collect();
        let column =
            |name: &&str| ((*name).to_owned(), Arc::new(Int64Array::from(values.clone())) as ArrayRef);
        let batch = RecordBatch::try_from_iter(columns.iter().map(column))?;
        self.partition.overwrite_columns(rows, batch).await?;
        columns.iter().for_each(|name| self.note(name, rows, &values));
        Ok(())
    }

    /// Tries one random change. It may be refused or have no effect.
    async fn change(&mut self) {
        let rows = self.some_rows();
        let task = TASKS[self.random.random_range(0..2)];
        let _: Result<(), QueueError> = match self.random.random_range(0..24) {
            0..7 => {
                self.put().await;
                Ok(())
            }
            7..9 => {
                let more: Vec<i64> = rows.iter().map(|row| -self.ids[row]).collect();
                let written = self.partition.write_columns(&rows, numbers("more", more.clone())).await;
                if written.is_ok() {
                    self.note("more", &rows, &more);
                }
                written
            }
            21.. => self.overwrite(&rows).await,
            9..11 => {
                let tags = rows.iter().map(|row| (*row, json!({ "of": self.ids[row] }))).collect();
                self.partition.set_tags(tags).await
            }
            11..15 => match self.partition.take(&Take::rows(task, 4)).await.unwrap() {
                Some(lease) if self.random.random_bool(0.8) => lease.ack().await,
                Some(lease) => lease.nack().await,
                None => Ok(()),
            },
            15 => self.partition.clear(&rows).await,
            16 => self.partition.reset(task).await.map(drop),
            17 => {
                let unfinished =
                    if self.random.random_bool(0.5) { Unfinished::Give } else { Unfinished::Drop };
                self.partition.close_groups(std::time::Duration::ZERO, unfinished).await.map(drop)
            }
            18 => {
                let sample = format!("{}-{}", self.groups, self.random.random_range(0..3));
                self.partition.end_sample(&sample).await
            }
            20 if self.random.random_bool(0.5) => self.partition.forget_records(1).await,
            19 => self.partition.announce(self.random.random_range(0..9)).await,
            _ if self.random.random_bool(0.2) => self.partition.clear_all().await.map(drop),
            _ => Ok(()),
        };
    }

    fn begin(&self) -> CutReader {
        self.queue.capture(None).unwrap().remove(0).records
    }
}

/// Reads a slice, applies its records to `replay`, and adds the values of their payload to `values`.
fn read(cut: &mut CutReader, replay: &mut Replay, values: &mut Values) -> bool {
    let Some((records, chunks)) = cut.read() else { return false };
    for record in records {
        let rows = match &record {
            Record::Put(put) => put.rows.clone(),
            Record::Columns { rows, .. } => rows.clone(),
            _ => Vec::new(),
        };
        if let Some(payload) = record.payload() {
            let (_, chunk) = chunks[&payload.chunk].load().unwrap().unwrap();
            let found = chunk.select(&payload.chunk_rows).unwrap();
            for column in &payload.columns {
                let numbers = found.pieces().iter().flat_map(|piece| {
                    piece.column_by_name(column).unwrap().as_primitive::<Int64Type>().values().to_vec()
                });
                values.extend(rows.iter().map(|row| (*row, column.clone())).zip(numbers));
            }
        }
        replay.apply(record).unwrap();
    }
    true
}

/// Describes a replayed table row by row. Records cannot be compared directly: which rows share a record
/// depends on the slices and on the chunks.
fn describe(replay: Replay) -> Vec<String> {
    let table = replay.into_tables().next().unwrap();
    let mut description = vec![format!("{:?} {:?}", declaration(&table), rest(&table).collect::<Vec<_>>())];
    for group in table.groups.values() {
        let Group { key, size, rows, put, policy_version, priority, in_parts, .. } = group;
        let samples = Table::samples_record(group);
        description.push(format!("{key} {size} {put} {policy_version} {priority} {in_parts} {samples:?}"));
        for handle in rows {
            let row = table.row(*handle).unwrap();
            let columns: Vec<_> = row.parts.iter().map(|part| &part.columns).collect();
            description.push(format!("{handle:?} {:?} {:?} {columns:?}", row.label, row.progress));
        }
    }
    description
}

#[tokio::test]
async fn a_cut_shows_the_table_as_it_was_when_the_cut_began() {
    let (mut reads, mut kept) = (0, 0);
    for seed in 0..1000 {
        let mut world = World::new(seed).await;
        for _ in 0..40 {
            world.change().await;
        }
        // Two cuts of different moments are read slice by slice.
        let mut open: Vec<(CutReader, Replay, Values, Vec<String>, Values)> = Vec::new();
        for _ in 0..2 {
            let (mut at_once, mut replay, mut values) = (world.begin(), Replay::detached(), Values::new());
            let slice_by_slice = world.begin();
            while read(&mut at_once, &mut replay, &mut values) {}
            assert_eq!(values, world.present(), "seed={seed}");
            open.push((slice_by_slice, Replay::detached(), Values::new(), describe(replay), values));
            for _ in 0..5 {
                world.change().await;
            }
        }
        while let Some(which) = (!open.is_empty()).then(|| world.random.random_range(0..open.len())) {
            let (cut, replay, values, ..) = &mut open[which];
            reads += 1;
            if read(cut, replay, values) {
                for _ in 0..world.random.random_range(0..6) {
                    world.change().await;
                }
                let table = world.partition.shared.table.lock();
                kept += table.kept_groups().iter().sum::<usize>();
            } else {
                let (cut, replay, values, expected, at_once) = open.remove(which);
                assert_eq!(values, at_once, "seed={seed}");
                drop(cut);
                let description = describe(replay);
                let pair = |at| (description.get(at), expected.get(at));
                let pairs = (0..description.len().max(expected.len())).map(pair);
                let differing = pairs.into_iter().find(|(found, expected)| found != expected);
                assert!(differing.is_none(), "seed={seed}: (found, expected)={differing:?}");
            }
        }
        assert!(world.partition.shared.table.lock().kept_groups().is_empty());
    }
    assert!(reads > 10_000 && kept > 10_000, "reads={reads} kept={kept}");
}
