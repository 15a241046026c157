//! Reads the readable rows of a damaged queue, and lists the losses.
//!
//! A queue whose journal is damaged before its end cannot be opened, because the contents of the damaged
//! records are unknown. A user who salvages the queue accepts this loss. The records before and after the
//! damage are replayed, and rows whose payload cannot be read are left out. The rest is written as a
//! [snapshot](crate::Snapshot), from which a new queue is restored. The directory is not changed.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::SnapshotCounts;
use crate::error::QueueError;
use crate::journal::{Extent, Gap, LengthNote, journal_path, salvage_frames};
use crate::partition::{Mend, NamedTasks, Table, Unusable};
use crate::plane::Plane;
use crate::queue::{TransferQueue, no_journal};
use crate::record::{Freed, Record, Tally};
use crate::row::RowHandle;
use crate::store::{ChunkId, segments};

/// A loss of a damaged queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// Bytes in the journal cannot be read. Rows whose puts are in these bytes are lost, and rows whose acks
    /// are in these bytes reappear.
    #[error("file={file}: bytes={bytes} at offset={offset} cannot be read, with the puts and acks in them")]
    Bytes {
        /// The journal.
        file: PathBuf,
        /// The offset of the damage from the start of the file, in bytes.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The end of the journal is missing, or the journal belongs to another directory.
    #[error("{error}")]
    End {
        /// The error, which tells what is missing.
        error: String,
    },
    /// Records after the damage need records that are lost.
    #[error("partition={partition}: records={records} with rows={rows} need others that are lost: {reason}")]
    Records {
        /// The partition.
        partition: String,
        /// The number of records.
        records: u64,
        /// The number of rows that they put.
        rows: usize,
        /// The error of the first of these records.
        reason: String,
    },
    /// The declaration of a partition is lost. The partition is declared anew.
    #[error(
        "partition={partition}: its declaration; it is declared anew with tasks={tasks} and \
         capacity_rows={capacity_rows}"
    )]
    Declaration {
        /// The partition.
        partition: String,
        /// The tasks that records name, joined by commas.
        tasks: String,
        /// The new capacity in rows.
        capacity_rows: usize,
    },
    /// The payload of rows cannot be read.
    #[error("partition={partition} chunk={chunk}: rows={rows} cannot be read: {reason}")]
    Rows {
        /// The partition.
        partition: String,
        /// The chunk.
        chunk: u64,
        /// The number of rows.
        rows: usize,
        /// The reason why the rows cannot be read.
        reason: String,
    },
}

/// The readable rows of a damaged queue.
#[derive(Debug)]
pub struct Salvage {
    /// All losses.
    pub losses: Vec<Loss>,
    /// The rest of the queue, which is read-only.
    queue: TransferQueue,
}

impl Salvage {
    /// Reads the directory of a queue that no process has open. Blocks.
    ///
    /// # Errors
    /// Returns [`QueueError::NoQueue`] or [`QueueError::JournalMissing`] if there is no journal, and
    /// [`QueueError::Io`] if a file cannot be read.
    pub fn read(dir: &Path) -> Result<Self, QueueError> {
        let path = journal_path(dir);
        if path.metadata().map_or(true, |journal| journal.len() == 0) {
            return Err(no_journal(dir));
        }
        let note = LengthNote::read(dir);
        let bytes = std::fs::read(&path).map_err(QueueError::io("read", &path))?;
        let (mut tasks, mut tally) = (NamedTasks::default(), Tally::default());
        let (gaps, length) = salvage_frames(&bytes, |record: Record| {
            tasks.see(&record);
            tally.count(&record);
        });
        let plane = Plane::new(segments(dir, u64::MAX));
        let mut mend = Mend::new(plane.clone(), tasks);
        salvage_frames(&bytes, |record: Record| mend.apply(record));
        let found = Extent { bytes: length, records: tally.records };
        let whole = note.and_then(|note| note.map_or(Ok(()), |note| note.check(dir, found, tally.rewrites)));
        let gap = |Gap { offset, bytes }| Loss::Bytes { file: path.clone(), offset, bytes };
        let mut losses: Vec<Loss> = gaps.into_iter().map(gap).collect();
        losses.extend(whole.err().map(|error| Loss::End { error: error.without_advice() }));
        losses.extend(unusable(&mend));
        losses.extend(declared(&mut mend));
        for (name, table) in mend.tables() {
            losses.extend(drop_unreadable(name, table, &plane));
        }
        let queue = TransferQueue::of_replay(dir, plane, mend.into_replay());
        Ok(Self { losses, queue })
    }

    /// Writes the readable rows as a snapshot.
    ///
    /// Not cancel-safe: if the call is dropped while the snapshot is written, the writing continues.
    pub async fn snapshot(&self, into: impl Write + Send + 'static) -> Result<SnapshotCounts, QueueError> {
        self.queue.snapshot(None, into).await
    }
}

fn unusable(mend: &Mend) -> Vec<Loss> {
    let loss = |(partition, unusable): (&String, &Unusable)| Loss::Records {
        partition: partition.clone(),
        records: unusable.records,
        rows: unusable.rows,
        reason: unusable.reason.without_advice(),
    };
    mend.unusable.iter().map(loss).collect()
}

fn declared(mend: &mut Mend) -> Vec<Loss> {
    let names = mend.declared.clone();
    let tables = mend.tables().filter(|(name, _)| names.contains(*name));
    let loss = |(name, table): (&String, &mut Table)| {
        let tasks: Vec<&str> = table.spec.tasks.iter().map(|task| task.name.as_str()).collect();
        let (tasks, capacity_rows) = (tasks.join(","), table.spec.capacity_rows);
        Loss::Declaration { partition: name.clone(), tasks, capacity_rows }
    };
    tables.map(loss).collect()
}

/// Removes the rows of a table whose payload cannot be read.
fn drop_unreadable(name: &str, table: &mut Table, plane: &Plane) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut chunks = table.chunk_ids();
    chunks.sort_unstable();
    for chunk in chunks {
        let rows = table.chunk_rows(chunk);
        let Err(reason) = check_chunk(plane, chunk, &rows) else { continue };
        let handles: Vec<RowHandle> = rows.into_iter().map(|(row, _)| row).collect();
        let rows = handles.len();
        // All rows of a chunk of added columns may already have been removed with an earlier chunk.
        if rows > 0 {
            table.remove(&handles, Freed::Lost);
            losses.push(Loss::Rows { partition: name.to_owned(), chunk: chunk.0, rows, reason });
        }
    }
    losses
}

fn check_chunk(plane: &Plane, chunk: ChunkId, rows: &[(RowHandle, u32)]) -> Result<(), String> {
    match plane.pin(chunk, &[]).load() {
        None => Err("they are stored on a storage unit, which still has them".to_owned()),
        Some(Err(error)) => Err(error.without_advice()),
        Some(Ok((_, found))) => match rows.iter().find(|(_, place)| *place as usize >= found.rows()) {
            Some((_, place)) => Err(format!("expected row={place}, found rows={}", found.rows())),
            None => Ok(()),
        },
    }
}
