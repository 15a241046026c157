//! The rows of a data set on disk. In memory a row takes sixteen bytes: an offset and an identity.
//!
//! Rows are written to a temporary file without a name, which disappears with the process, even after a
//! crash. The copy is deliberate: an edit of a data file during the run has no effect, and rows of both
//! formats can be read in any order.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::schema::Row;
use crate::{DataError, PromptContent, PromptUid};

/// A row in the temporary file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) prompt: PromptContent,
    pub(super) answer: String,
    pub(super) source: String,
    pub(super) difficulty: Option<f32>,
    pub(super) fields: Box<RawValue>,
}

impl Record {
    pub(super) fn new(row: Row) -> Result<Self, serde_json::Error> {
        Ok(Self {
            prompt: row.prompt,
            answer: row.answer,
            source: row.source,
            difficulty: row.difficulty,
            fields: RawValue::from_string(row.fields)?,
        })
    }
}

/// Writes rows one by one.
pub(super) struct SpoolWriter {
    file: BufWriter<File>,
    /// The offset at which each row ends.
    ends: Vec<u64>,
    buffer: Vec<u8>,
}

impl SpoolWriter {
    pub(super) fn create() -> Result<Self, DataError> {
        let file = tempfile::tempfile().map_err(spool_error)?;
        Ok(Self { file: BufWriter::with_capacity(1 << 18, file), ends: Vec::new(), buffer: Vec::new() })
    }

    pub(super) fn push(&mut self, row: Row) -> Result<(), DataError> {
        self.buffer.clear();
        let written = Record::new(row).and_then(|record| serde_json::to_writer(&mut self.buffer, &record));
        written.map_err(|error| spool_error(error.into()))?;
        self.file.write_all(&self.buffer).map_err(spool_error)?;
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(start + self.buffer.len() as u64);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Spool, DataError> {
        let file = self.file.into_inner().map_err(|error| spool_error(error.into_error()))?;
        Ok(Spool { file, ends: self.ends.into_boxed_slice() })
    }
}

/// Reads rows in any order. Cursors share one reader.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    ends: Box<[u64]>,
}

impl Spool {
    pub(super) fn rows(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Reads the row `index`. An index that is not below [`rows`](Self::rows) is an error.
    pub(super) fn read(&self, index: usize) -> Result<Record, DataError> {
        let Some(&end) = self.ends.get(index) else {
            let reason = format!("expected an index below {}, found {index}", self.ends.len());
            return Err(spool_error(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut bytes = vec![0; (end - start) as usize];
        self.file.read_exact_at(&mut bytes, start).map_err(spool_error)?;
        serde_json::from_slice(&bytes).map_err(|error| spool_error(error.into()))
    }
}

/// The rows of a data set with their identities. All cursors of a data set share this value.
#[derive(Debug)]
pub(super) struct IdentifiedRows {
    pub(super) spool: Spool,
    /// The identity of each row of the spool.
    pub(super) uids: Box<[PromptUid]>,
}

fn spool_error(reason: io::Error) -> DataError {
    DataError::Spool { folder: env::temp_dir(), reason }
}
