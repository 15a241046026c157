//! The records of a table that do not describe rows, for a rewritten journal and for snapshots.
//!
//! The records are made one at a time, and each has a limited size. Their texts are shared with the table.
//! The texts therefore take no extra memory, and they do not change when the table changes.

use std::collections::VecDeque;

use super::Table;
use super::columns::types_record;
use super::samples::ClosedTexts;
use super::texts::{Texts, Value};
use crate::record::{ClosedNames, Record};
use crate::row::Runs;

/// The maximum number of names, tokens or owner records in a record.
const TEXTS_MAX: usize = if cfg!(test) { 16 } else { 1024 };
/// The size at which a record gets no more names, tokens or owner records, in bytes.
const TEXT_BYTES: usize = 64 << 10;

/// Makes the records. Their order does not matter.
#[derive(Debug)]
pub(in crate::partition) struct Rest {
    partition: String,
    few: VecDeque<Record>,
    closed: ClosedTexts,
    records: Texts<()>,
    tokens: Texts<Runs>,
}

fn taken<V: Value>(texts: &mut Texts<V>) -> Vec<(String, V)> {
    texts.take_oldest(TEXTS_MAX, TEXT_BYTES)
}

fn taken_names(texts: &mut Texts<()>) -> Vec<String> {
    taken(texts).into_iter().map(|(name, ())| name).collect()
}

impl Iterator for Rest {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if let Some(record) = self.few.pop_front() {
            return Some(record);
        }
        let partition = self.partition.clone();
        let ClosedTexts { groups, by_rows, given_up } = &mut self.closed;
        let names = ClosedNames {
            groups: taken_names(groups),
            by_rows: taken_names(by_rows),
            given_up: taken_names(given_up),
        };
        if !names.is_empty() {
            return Some(Record::Closed { partition, names });
        }
        let records = taken_names(&mut self.records);
        if !records.is_empty() {
            return Some(Record::Records { partition, records });
        }
        let tokens = taken(&mut self.tokens);
        (!tokens.is_empty()).then_some(Record::Tokens { partition, tokens })
    }
}

/// Makes the last records, which do not describe rows.
pub(in crate::partition) fn rest(table: &Table) -> Rest {
    let partition = table.spec.name.clone();
    let policy_version = table.policy_version;
    let mut few = VecDeque::from([Record::Version { partition: partition.clone(), policy_version }]);
    few.extend(types_record(&partition, table.undeclared_columns()));
    if table.ended {
        few.push_back(Record::End { partition: partition.clone() });
    }
    let (closed, records) = (table.closed_texts(), table.records().clone());
    Rest { partition, few, closed, records, tokens: table.remembered_tokens().clone() }
}
