//! Checks every checksum and every invariant of a queue, and changes nothing.
//!
//! The check sees the queue at one moment, pinned as for a [snapshot](crate::Snapshot), so traffic may
//! continue in this process or in another process. An incomplete last write in the journal is no problem: a
//! process that is writing or was killed leaves it.

mod counted;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::QueueError;
use crate::invariants::Violation;
use crate::journal::{Extent, LengthNote, Tail, journal_path, look_behind, scan_frames};
use crate::lock::Unused;
use crate::put::columns_of;
use crate::queue::{Captured, TransferQueue, no_journal};
use crate::record::{PayloadRecord, Record, Tally};
use crate::store::{ChunkId, Source, Stray};
use counted::Counted;

/// The maximum number of checks of a directory that another process changes. Only a problem that all checks
/// find is reported.
const ATTEMPTS: usize = 16;
/// The maximum number of checks whether a file that belongs to no row still exists, and the time between two
/// checks. A process that has the directory open records that the rows of a file are freed, and deletes the
/// file a moment later.
const DELETION_LOOKS: usize = 50;
const DELETION_PAUSE: Duration = Duration::from_millis(20);

/// A problem of a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Problem {
    /// The journal is damaged: the queue cannot be opened.
    #[error("{error}; `rolldock queue salvage` reads what is left")]
    Journal {
        /// The offset and the kind of the damage.
        error: String,
    },
    /// The last write in the journal is complete, but differs from what was written. It is skipped when the
    /// queue is opened.
    #[error("file={file} is damaged at offset={offset}, in its last write: {reason}")]
    JournalEnd {
        /// The file.
        file: PathBuf,
        /// The offset of the last write.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The end of the journal is missing: the queue cannot be opened.
    #[error(
        "file={file} ends after bytes={bytes}: its last bytes={bytes_missing} with records={records_missing} are gone; \
         `rolldock queue salvage` reads what is left"
    )]
    JournalCut {
        /// The file.
        file: PathBuf,
        /// The length of its sound part in bytes.
        bytes: u64,
        /// The number of bytes that are missing.
        bytes_missing: u64,
        /// The number of records that are missing.
        records_missing: u64,
    },
    /// The noted length of the journal cannot be read, so that a missing end would not be detected. The
    /// length is noted again when the queue is opened.
    #[error("{error}")]
    Length {
        /// The offset and the kind of the damage.
        error: String,
    },
    /// Payload cannot be read back. A take of its rows fails, and the rows are lost.
    #[error("partition={partition} chunk={chunk}: rows={rows} cannot be read: {error}")]
    Unreadable {
        /// The partition.
        partition: String,
        /// The chunk.
        chunk: u64,
        /// The number of rows in the chunk.
        rows: usize,
        /// The error of reading.
        error: String,
    },
    /// Payload can be read back, but differs from its description in the table.
    #[error("partition={partition} chunk={chunk}: {reason}")]
    OtherPayload {
        /// The partition.
        partition: String,
        /// The chunk.
        chunk: u64,
        /// The difference.
        reason: String,
    },
    /// The parts of a table contradict each other.
    #[error("partition={partition}: {violation}")]
    Broken {
        /// The partition.
        partition: String,
        /// The violated invariant.
        violation: Violation,
    },
    /// A segment file contains no live row. The newest one is a problem only if no record names it. When the queue is
    /// opened, the file is deleted if its rows were freed, and otherwise set aside.
    #[error("file={file} of bytes={bytes} belongs to no row")]
    Stray {
        /// The file.
        file: PathBuf,
        /// The size of the file in bytes.
        bytes: u64,
    },
}

impl Problem {
    /// The problem of a journal that cannot be opened.
    fn of_journal(error: QueueError) -> Self {
        match error {
            QueueError::JournalCut { file, bytes, bytes_missing, records_missing } => {
                Self::JournalCut { file, bytes, bytes_missing, records_missing }
            }
            error => Self::Journal { error: error.without_advice() },
        }
    }

    /// Whether both problems concern the same journal, chunk or file. Their counts may differ, because rows
    /// may be freed between two checks.
    fn has_subject_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Journal { .. }, Self::Journal { .. })
            | (Self::JournalCut { .. }, Self::JournalCut { .. })
            | (Self::Length { .. }, Self::Length { .. }) => true,
            (Self::JournalEnd { offset, .. }, Self::JournalEnd { offset: of_other, .. }) => {
                offset == of_other
            }
            (Self::Unreadable { chunk, .. }, Self::Unreadable { chunk: of_other, .. })
            | (Self::OtherPayload { chunk, .. }, Self::OtherPayload { chunk: of_other, .. }) => {
                chunk == of_other
            }
            (Self::Broken { .. }, Self::Broken { .. }) => self == other,
            (Self::Stray { file, .. }, Self::Stray { file: of_other, .. }) => file == of_other,
            _ => false,
        }
    }
}

/// The result of a check: the amount that was checked, and the problems.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The number of partitions.
    pub partitions: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of chunks that were read.
    pub chunks: usize,
    /// The bytes of payload that were read.
    pub bytes: u64,
    /// The bytes of an incomplete last write. None of its contents were acknowledged.
    pub unfinished_bytes: u64,
    /// The problems that were found.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether no problem was found.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn look_at(&mut self, mut partition: Captured) {
        // Rows of many puts may lie in one chunk, which is read once.
        let (mut by_chunk, mut chunks) = (BTreeMap::<ChunkId, Vec<PayloadRecord>>::new(), HashMap::new());
        let mut counted = Counted::new(&partition.partition.spec().tasks);
        while let Some((read, pinned)) = partition.records.read_rows() {
            counted.add(&read);
            for record in read {
                if let Record::Put(put) = &record {
                    self.rows += put.rows.len();
                }
                if let Some(payload) = record.into_payload() {
                    by_chunk.entry(payload.chunk).or_default().push(payload);
                }
            }
            chunks.extend(pinned);
        }
        self.partitions += 1;
        let violations =
            partition.partition.violations().into_iter().chain(counted.differ(&partition.totals));
        let broken = |violation| Problem::Broken { partition: partition.name.clone(), violation };
        self.problems.extend(violations.map(broken));
        for (chunk, payloads) in by_chunk {
            self.look_at_chunk(&partition, chunks.get(&chunk), chunk, &payloads);
        }
    }

    /// Checks one chunk against all records that refer to it.
    fn look_at_chunk(
        &mut self,
        partition: &Captured,
        source: Option<&Source>,
        chunk: ChunkId,
        payloads: &[PayloadRecord],
    ) {
        let missing = || Some(Err(QueueError::ChunkGone { chunk: chunk.0 }));
        // Payload on other machines is checked there.
        let Some(loaded) = source.map_or_else(missing, Source::load) else { return };
        let name = partition.name.clone();
        let (bytes, found_rows) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                let rows = payloads.iter().map(|payload| payload.chunk_rows.len()).sum();
                let error = error.without_advice();
                self.problems.push(Problem::Unreadable { partition: name, chunk: chunk.0, rows, error });
                return;
            }
        };
        self.chunks += 1;
        self.bytes += bytes.map_or_else(|| found_rows.held_bytes(), |bytes| bytes.len()) as u64;
        let mut reasons = Vec::new();
        let mut places = HashSet::new();
        for row in payloads.iter().flat_map(|payload| &payload.chunk_rows) {
            if *row as usize >= found_rows.rows() {
                reasons.push(format!("row={row} is beyond its rows={}", found_rows.rows()));
            } else if !places.insert(row) {
                reasons.push(format!("row={row} belongs to two rows of the table"));
            }
        }
        let found = columns_of(found_rows.schema());
        let agrees =
            |payload: &&PayloadRecord| payload.columns.iter().eq(found.iter().map(|column| &column.name));
        if let Some(other) = payloads.iter().find(|payload| !agrees(payload)) {
            let names: Vec<&String> = found.iter().map(|column| &column.name).collect();
            reasons.push(format!("it has columns {names:?}, expected {:?}", other.columns));
        }
        for column in found {
            // The type of a column is unknown only if no payload with the column could be read, which is
            // reported as a separate problem.
            let expected = partition.columns.get(&column.name);
            if let Some(expected) = expected.filter(|expected| **expected != column) {
                reasons.push(format!(
                    "column={} has dtype={}, expected {}",
                    column.name,
                    column.type_words(),
                    expected.type_words()
                ));
            }
        }
        let problem = |reason| Problem::OtherPayload { partition: name.clone(), chunk: chunk.0, reason };
        self.problems.extend(reasons.into_iter().map(problem));
    }

    /// Waits for the deletion of files that belong to no row, and leaves out those that were deleted. Blocks.
    #[expect(clippy::disallowed_methods, reason = "another process deletes the files, on its own clock")]
    fn leave_out_deleted(&mut self) {
        for _ in 0..DELETION_LOOKS {
            self.problems.retain(|problem| !matches!(problem, Problem::Stray { file, .. } if !file.exists()));
            if !self.problems.iter().any(|problem| matches!(problem, Problem::Stray { .. })) {
                return;
            }
            std::thread::sleep(DELETION_PAUSE);
        }
    }

    /// Reads the noted length of the journal. Another process may be writing the note.
    fn look_at_length(&mut self, dir: &Path) -> Option<LengthNote> {
        let mut read = LengthNote::read(dir);
        for _ in 1..ATTEMPTS {
            if read.is_ok() {
                break;
            }
            read = LengthNote::read(dir);
        }
        read.unwrap_or_else(|error| {
            self.problems.push(Problem::Length { error: error.without_advice() });
            None
        })
    }

    /// Checks every frame of the journal, with one frame in memory at a time, and whether the end of the
    /// journal is missing.
    fn look_at_journal(&mut self, dir: &Path) -> Result<(), QueueError> {
        // The note is read first, because the journal is never shorter than its note.
        let note = self.look_at_length(dir);
        let path = &journal_path(dir);
        let mut earlier = None;
        for attempt in 1.. {
            let mut tally = Tally::default();
            let scanned = scan_frames(path, |record: Record| {
                tally.count(&record);
                Ok(())
            });
            let (sound, rest) = match scanned {
                Ok(scanned) => scanned,
                // A failed write was removed from the journal in the meantime.
                Err(QueueError::Io { .. }) if attempt < ATTEMPTS => continue,
                Err(error @ QueueError::Io { .. }) => return Err(error),
                Err(error) => {
                    self.problems.push(Problem::Journal { error: error.without_advice() });
                    return Ok(());
                }
            };
            match look_behind(sound, &rest) {
                Tail::Unfinished { bytes } => self.unfinished_bytes = bytes,
                // The tail may be a part of a write in progress.
                Tail::Damaged(_) if attempt < ATTEMPTS && earlier.as_ref() != Some(&rest) => {
                    earlier = Some(rest);
                    continue;
                }
                Tail::Damaged(damage) => {
                    let (file, reason) = (path.to_owned(), damage.to_string());
                    self.problems.push(Problem::JournalEnd { file, offset: sound, reason });
                }
            }
            let found = Extent { bytes: sound, records: tally.records };
            let whole = note.map_or(Ok(()), |note| note.check(dir, found, tally.rewrites));
            self.problems.extend(whole.err().map(Problem::of_journal));
            break;
        }
        Ok(())
    }
}

/// The state of a journal's file. It changes with each append, truncation, or replacement of the file.
#[derive(PartialEq, Eq)]
struct Moment {
    inode: u64,
    bytes: u64,
    written: (i64, i64),
}

impl Moment {
    fn of(journal: &Path) -> Result<Self, QueueError> {
        let found = std::fs::metadata(journal).map_err(QueueError::io("read", journal))?;
        Ok(Self { inode: found.ino(), bytes: found.len(), written: (found.mtime(), found.mtime_nsec()) })
    }
}

impl TransferQueue {
    /// Checks the whole queue: reads all live payload and the journal. Traffic continues. The call may wait
    /// for other checks, snapshots or exports that are served at the same time.
    ///
    /// Cancel-safe: the call changes nothing.
    pub async fn verify(&self) -> Result<VerifyReport, QueueError> {
        let queue = self.clone();
        self.in_turn("verify", move || queue.look_through()).await
    }

    /// Verifies a directory that this process does not have open. Another process may have it open. Blocks.
    pub fn verify_dir(dir: &Path) -> Result<VerifyReport, QueueError> {
        let path = journal_path(dir);
        if !path.exists() {
            return Err(no_journal(dir));
        }
        let mut lasting: Option<Vec<Problem>> = None;
        let mut attempt = 1;
        loop {
            let before = Moment::of(&path)?;
            let mut report = match Self::open_to_verify(dir) {
                // The check of the journal reports whether its end is missing.
                Ok((queue, _)) => queue.look_through()?,
                Err(error @ (QueueError::Corrupt { .. } | QueueError::UnknownPartition { .. })) => {
                    let problems = vec![Problem::Journal { error: error.without_advice() }];
                    VerifyReport { problems, ..VerifyReport::default() }
                }
                Err(error) => return Err(error),
            };
            report.leave_out_deleted();
            if report.is_sound() || Moment::of(&path)? == before {
                return Ok(report);
            }
            // The directory changed during the check, and a segment that was freed in the meantime looks like
            // damage. Real damage lasts, so only problems that every check finds are reported.
            if let Some(lasting) = &lasting {
                report
                    .problems
                    .retain(|problem| lasting.iter().any(|earlier| earlier.has_subject_of(problem)));
            }
            if report.is_sound() || attempt == ATTEMPTS {
                return Ok(report);
            }
            lasting = Some(report.problems);
            attempt += 1;
        }
    }

    fn look_through(&self) -> Result<VerifyReport, QueueError> {
        let store = self.inner.plane.own();
        let strays = store.strays()?;
        let mut report = VerifyReport::default();
        if let Some(dir) = &self.inner.dir {
            report.look_at_journal(dir)?;
        }
        for captured in self.capture(None)? {
            report.look_at(captured);
        }
        // A put that was in progress during the first search may have been published or may have failed
        // since.
        let mut still = store.strays()?;
        still.retain(|stray| strays.contains(stray));
        if let Some(dir) = &self.inner.dir
            && let Some(_unused) = Unused::hold(dir)?
        {
            // A process that died may have left its newest file without a record.
            still.extend(store.unnamed_newest()?);
            still.dedup();
        }
        report.problems.extend(still.into_iter().map(|Stray { file, bytes }| Problem::Stray { file, bytes }));
        Ok(report)
    }
}
