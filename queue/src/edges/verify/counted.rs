//! The rows of a captured partition, counted from its records and compared with the counts of its table at
//! the same moment. Records are read in slices, so no lock is held for all rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::TaskSpec;
use crate::invariants::{self, Violation};
use crate::partition::Totals;
use crate::record::{PayloadRecord, Record};
use crate::row::RowHandle;

/// A task, and the counts of its rows.
#[derive(Debug)]
struct Task {
    name: String,
    /// The columns that a row needs to be complete.
    columns: BTreeSet<String>,
    incomplete: usize,
    acked: usize,
}

/// The counts of rows in records.
#[derive(Debug)]
pub(super) struct Counted {
    rows: usize,
    columns: BTreeMap<String, usize>,
    tasks: Vec<Task>,
}

/// The rows to which a record adds columns, and these columns.
fn columns_of(record: &Record) -> Option<(&[RowHandle], &PayloadRecord)> {
    match record {
        Record::Put(put) => Some((&put.rows, &put.payload)),
        Record::Columns { rows, payload, .. } => Some((rows, payload)),
        _ => None,
    }
}

/// The values (by row and column) that several records contain because values were replaced, with the number
/// of surplus records.
fn repeated(records: &[Record]) -> HashMap<(RowHandle, &String), usize> {
    let mut repeated: HashMap<(RowHandle, &String), usize> = HashMap::new();
    if !records.iter().any(|record| matches!(record, Record::Columns { overwrite: true, .. })) {
        return repeated;
    }
    let mut seen = HashSet::new();
    for (rows, payload) in records.iter().filter_map(columns_of) {
        for cell in rows.iter().flat_map(|row| payload.columns.iter().map(move |column| (*row, column))) {
            if !seen.insert(cell) {
                *repeated.entry(cell).or_default() += 1;
            }
        }
    }
    repeated
}

/// The rows that a record acks for a task.
fn acked_for<'a>(record: &'a Record, of_task: &str) -> Option<&'a [RowHandle]> {
    match record {
        Record::Ack { task, rows, .. } if task == of_task => Some(rows),
        _ => None,
    }
}

impl Counted {
    pub(super) fn new(tasks: &[TaskSpec]) -> Self {
        let task = |task: &TaskSpec| Task {
            name: task.name.clone(),
            columns: task.columns.iter().cloned().collect(),
            incomplete: 0,
            acked: 0,
        };
        Self { rows: 0, columns: BTreeMap::new(), tasks: tasks.iter().map(task).collect() }
    }

    /// Adds the records of some groups. All records of a group must be in the same call.
    pub(super) fn add(&mut self, records: &[Record]) {
        let repeated = repeated(records);
        for record in records {
            if let Record::Put(put) = record {
                self.rows += put.rows.len();
            }
            if let Some((rows, payload)) = columns_of(record) {
                for column in &payload.columns {
                    *self.columns.entry(column.clone()).or_default() += rows.len();
                }
            }
            for task in &mut self.tasks {
                task.acked += acked_for(record, &task.name).map_or(0, <[RowHandle]>::len);
            }
        }
        for ((_, column), times) in &repeated {
            self.columns.entry((*column).clone()).and_modify(|rows| *rows -= times);
        }
        for task in self.tasks.iter_mut().filter(|task| !task.columns.is_empty()) {
            let mut there: HashMap<RowHandle, usize> = HashMap::new();
            for (rows, payload) in records.iter().filter_map(columns_of) {
                let needed = payload.columns.iter().filter(|column| task.columns.contains(*column)).count();
                rows.iter().for_each(|row| *there.entry(*row).or_default() += needed);
            }
            for ((row, _), times) in repeated.iter().filter(|((_, column), _)| task.columns.contains(*column))
            {
                there.entry(*row).and_modify(|count| *count -= times);
            }
            // A salvaged queue may have rows that lost a column after they were acked.
            for row in records.iter().filter_map(|record| acked_for(record, &task.name)).flatten() {
                there.remove(row);
            }
            task.incomplete += there.values().filter(|count| **count < task.columns.len()).count();
        }
    }

    /// Returns the counts that differ from the counts of the table.
    pub(super) fn differ(&self, kept: &Totals) -> Vec<Violation> {
        let mut checks = vec![invariants::counts_agree("rows", self.rows, kept.rows)];
        let names: BTreeSet<&String> = self.columns.keys().chain(kept.columns.keys()).collect();
        for name in names {
            let [counted, kept] = [&self.columns, &kept.columns].map(|of| of.get(name).copied().unwrap_or(0));
            checks.push(invariants::counts_agree(&format!("rows with column={name}"), counted, kept));
        }
        for (task, kept) in self.tasks.iter().zip(&kept.tasks) {
            let name = &task.name;
            let others = self.rows.saturating_sub(task.incomplete + task.acked);
            let kept_others = kept.ready_rows + kept.leased_rows + kept.away_rows;
            checks.extend([
                invariants::counts_agree(
                    &format!("incomplete rows of task={name}"),
                    task.incomplete,
                    kept.incomplete_rows,
                ),
                invariants::counts_agree(&format!("acked rows of task={name}"), task.acked, kept.acked_rows),
                invariants::counts_agree(
                    &format!("ready, leased and away rows of task={name}"),
                    others,
                    kept_others,
                ),
            ]);
        }
        checks.into_iter().filter_map(Result::err).collect()
    }
}
