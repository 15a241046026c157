//! The state of a table as records, for a rewritten journal and for snapshots.
//!
//! The records are made for some groups at a time, so that the table is not locked for all rows at once. The
//! recorded state must not change between two [slices](Slice). The journal is therefore rewritten on the
//! thread that applies durable changes, and a snapshot reads a [cut](super::cuts). Leases are not included: a
//! leased row is not consumed.

use std::collections::HashMap;
use std::ops::Range;

use super::{Group, Part, Progress, Table};
use crate::record::{Label, PayloadRecord, PutRecord, Record};
use crate::row::RowHandle;
use crate::store::{ChunkId, Note};

/// The number of rows in a slice. A single group may have more.
pub(in crate::partition) const SLICE_ROWS: usize = if cfg!(test) { 2 } else { 1024 };
/// The maximum number of rows in the record of an ack.
pub(in crate::partition) const ACK_ROWS: usize = 8192;

/// Rows of one chunk.
type InChunk = (ChunkId, Vec<(RowHandle, Part)>);

/// The parts of rows at index `part`, counted among the parts that provide a column. Rows with fewer such
/// parts are skipped.
fn parts_at<'a>(
    table: &Table,
    rows: impl Iterator<Item = &'a RowHandle>,
    part: usize,
) -> impl Iterator<Item = (RowHandle, Part)> {
    rows.filter_map(move |handle| {
        let part = table.row(*handle).ok()?.current().nth(part)?;
        Some((*handle, part.clone()))
    })
}

/// Divides rows in order, wherever the chunk of their first parts changes.
fn by_first_chunk<'a>(table: &Table, rows: impl Iterator<Item = &'a RowHandle>) -> Vec<InChunk> {
    let mut chunks: Vec<InChunk> = Vec::new();
    for (handle, part) in parts_at(table, rows, 0) {
        match chunks.last_mut() {
            Some((chunk, rows)) if *chunk == part.chunk => rows.push((handle, part)),
            _ => chunks.push((part.chunk, vec![(handle, part)])),
        }
    }
    chunks
}

/// Whether an earlier part of a row has a column of the part at index `part`.
fn is_rewrite(table: &Table, row: RowHandle, part: usize) -> bool {
    let Ok(row) = table.row(row) else { return false };
    let parts: Vec<&Part> = row.current().take(part + 1).collect();
    let Some((last, earlier)) = parts.split_last() else { return false };
    last.columns.iter().any(|name| earlier.iter().any(|part| part.columns.contains(name)))
}

/// Groups rows by the chunk of one of their parts. The chunks are in the order of their first rows, and the
/// rows keep their order.
fn by_chunk<'a>(table: &Table, rows: impl Iterator<Item = &'a RowHandle>, part: usize) -> Vec<InChunk> {
    let mut chunks: Vec<InChunk> = Vec::new();
    let mut places: HashMap<ChunkId, usize> = HashMap::new();
    for (handle, part) in parts_at(table, rows, part) {
        let place = *places.entry(part.chunk).or_insert_with(|| {
            chunks.push((part.chunk, Vec::new()));
            chunks.len() - 1
        });
        chunks[place].1.push((handle, part));
    }
    chunks
}

/// The tokens of each row. Empty if no row has tokens.
fn lengths(table: &Table, rows: &[(RowHandle, Part)]) -> Vec<u32> {
    let lengths: Vec<u32> =
        rows.iter().map(|(handle, _)| table.row(*handle).map_or(0, |row| row.length)).collect();
    if lengths.iter().all(|length| *length == 0) { Vec::new() } else { lengths }
}

/// The key and tags of each row. Empty if no row has a key or tags.
fn labels(table: &Table, rows: &[(RowHandle, Part)]) -> Vec<Label> {
    let label = |(handle, _): &(RowHandle, Part)| {
        let row = table.row(*handle).ok()?;
        row.label.as_deref().cloned()
    };
    let labels: Vec<Option<Label>> = rows.iter().map(label).collect();
    if labels.iter().all(Option::is_none) {
        return Vec::new();
    }
    labels.into_iter().map(Option::unwrap_or_default).collect()
}

/// The KiB of the partition's capacity in bytes that the parts use.
fn kib(rows: &[(RowHandle, Part)]) -> u32 {
    rows.iter().map(|(_, part)| part.kib).sum()
}

fn payload_record(
    chunk: ChunkId,
    rows: &[(RowHandle, Part)],
    locate: &impl Fn(ChunkId) -> Option<Note>,
) -> PayloadRecord {
    PayloadRecord {
        chunk,
        note: locate(chunk),
        columns: rows.first().map_or_else(Vec::new, |(_, part)| part.columns.to_vec()),
        chunk_rows: rows.iter().map(|(_, part)| part.row).collect(),
    }
}

/// The records of some groups. They can be replayed after the records of earlier slices.
#[derive(Debug, Default)]
pub(in crate::partition) struct Slice {
    puts: Vec<Record>,
    columns: Vec<Record>,
    acks: Vec<Record>,
}

impl Slice {
    /// Makes the records of some groups. Columns that one write added to several groups have one record for
    /// all of these groups.
    pub(in crate::partition) fn of(
        table: &Table,
        groups: &[&Group],
        locate: &impl Fn(ChunkId) -> Option<Note>,
    ) -> Self {
        let puts = groups.iter().flat_map(|group| puts(table, group, locate)).collect();
        // Part `n` of a row comes from a later write than the parts before it.
        let parts = (1..).map(|part| columns(table, groups, part, locate));
        let columns = parts.take_while(|records| !records.is_empty()).flatten().collect();
        let acks = (0..table.spec.tasks.len()).flat_map(|task| acks(table, groups, task)).collect();
        Self { puts, columns, acks }
    }

    /// Appends the records of later groups.
    pub(in crate::partition) fn append(&mut self, mut behind: Self) {
        self.puts.append(&mut behind.puts);
        self.columns.append(&mut behind.columns);
        self.acks.append(&mut behind.acks);
    }

    pub(in crate::partition) fn payloads(&self) -> impl Iterator<Item = &PayloadRecord> {
        self.puts.iter().chain(&self.columns).filter_map(Record::payload)
    }

    pub(in crate::partition) fn into_records(self) -> impl Iterator<Item = Record> {
        self.puts.into_iter().chain(self.columns).chain(self.acks)
    }
}

/// The cost of making a group's records. A group without rows has a cost too.
pub(in crate::partition) fn weight(group: &Group) -> usize {
    group.rows.len().max(1)
}

impl Table {
    /// Returns the next groups of a range, with about [`SLICE_ROWS`] rows in all, and shortens the range to
    /// the rest. Code that needs many groups locks the table for each of these slices, so that takes and puts
    /// can run in between.
    pub(in crate::partition) fn next_groups(&self, range: &mut Range<u64>) -> Vec<(u64, &Group)> {
        let (mut groups, mut rows) = (Vec::new(), 0);
        for (id, group) in self.groups.range(range.clone()) {
            if rows >= SLICE_ROWS {
                range.start = *id;
                return groups;
            }
            rows += weight(group);
            groups.push((*id, group));
        }
        range.start = range.end;
        groups
    }
}

/// Makes the first record: the declaration of the partition.
pub(in crate::partition) fn declaration(table: &Table) -> Record {
    Record::Declare {
        spec: table.spec.clone(),
        generation_floor: table.generation_floor(),
        dispositions: table.dispositions,
    }
}

fn puts(table: &Table, group: &Group, locate: &impl Fn(ChunkId) -> Option<Note>) -> Vec<Record> {
    let partition = &table.spec.name;
    let mut records = Vec::new();
    if let Some(samples) = Table::samples_record(group) {
        records.push(Record::Samples { partition: partition.clone(), samples });
    }
    let mut group_gone = group.put - group.rows.len();
    // The rows of one put are in one chunk, unless all columns of the put were replaced. They are recorded as
    // one put, with their indices in the chunk.
    let mut chunks = by_first_chunk(table, group.rows.iter());
    let in_parts = (group.in_parts || chunks.len() > 1).then_some(group.in_parts);
    if chunks.is_empty() {
        // The group has no rows now, but rows will follow.
        chunks.push((ChunkId(0), Vec::new()));
    }
    for (chunk, rows) in chunks {
        records.push(Record::Put(PutRecord {
            partition: partition.clone(),
            group: group.key.clone(),
            group_size: group.size,
            group_gone: std::mem::take(&mut group_gone),
            in_parts,
            sample: None,
            policy_version: group.policy_version,
            priority: group.priority,
            lengths: lengths(table, &rows),
            kib: kib(&rows),
            labels: labels(table, &rows),
            rows: rows.iter().map(|(handle, _)| *handle).collect(),
            payload: payload_record(chunk, &rows, locate),
            token: None,
            words: None,
        }));
    }
    records
}

/// Makes the records of added columns. Columns that one write added to several groups have one record for all
/// of these groups.
fn columns(
    table: &Table,
    groups: &[&Group],
    part: usize,
    locate: &impl Fn(ChunkId) -> Option<Note>,
) -> Vec<Record> {
    let rows = groups.iter().flat_map(|group| &group.rows);
    let columns = by_chunk(table, rows, part).into_iter().map(|(chunk, rows)| Record::Columns {
        partition: table.spec.name.clone(),
        rows: rows.iter().map(|(handle, _)| *handle).collect(),
        payload: payload_record(chunk, &rows, locate),
        kib: kib(&rows),
        overwrite: rows.iter().any(|(handle, _)| is_rewrite(table, *handle, part)),
        lengths: Vec::new(),
        token: None,
    });
    columns.collect()
}

fn acks(table: &Table, groups: &[&Group], task: usize) -> Vec<Record> {
    // Acks in progress have their own records.
    let acked = |row: &&RowHandle| table.row(**row).is_ok_and(|row| row.progress[task] == Progress::Acked);
    let rows: Vec<RowHandle> = groups.iter().flat_map(|group| &group.rows).filter(acked).copied().collect();
    let ack = |rows: &[RowHandle]| Record::Ack {
        partition: table.spec.name.clone(),
        task: table.spec.tasks[task].name.clone(),
        rows: rows.to_vec(),
        lease: None,
    };
    rows.chunks(ACK_ROWS).map(ack).collect()
}

/// Makes the records of completed acks, for a rewritten journal.
pub(in crate::partition) fn ack_records(table: &Table) -> Vec<Record> {
    let name = || table.spec.name.clone();
    let mut leases: Vec<(u64, u64)> = Vec::new();
    for acked in table.remembered_acks() {
        match leases.last_mut() {
            Some((first, count)) if *first + *count == acked => *count += 1,
            _ => leases.push((acked, 1)),
        }
    }
    let acked = (!leases.is_empty()).then(|| Record::Acked { partition: name(), leases });
    acked.into_iter().collect()
}
