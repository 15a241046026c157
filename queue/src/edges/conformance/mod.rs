//! The tests that every [`Store`] must pass.
//!
//! A test of a store implements [`Subject`], calls [`conforms`] with an empty directory, and fails if the
//! call returns a [`Failure`]. The suite uses only the public interface. It opens queues with the store,
//! kills them, opens them again, and reads snapshots while rows are freed. Then it repeats all checks with a
//! latency of 5 ms and with calls that fail.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use rolldock_queue::{conformance::{Subject, conforms}, store::{Store, memory}};
//! struct Memory;
//!
//! impl Subject for Memory {
//!     fn open(&self) -> Arc<dyn Store> {
//!         memory()
//!     }
//! }
//!
//! # async fn test(dir: &std::path::Path) {
//! conforms(&Memory, dir).await.unwrap();
//! # }
//! ```

mod queues;
mod troubled;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use crate::error::QueueError;
use crate::store::{Appender, Chunk, ChunkId, Found, NewChunk, Note, Store, Stored, Wanted};

pub use troubled::{Trouble, Troubled};

/// A store under test.
pub trait Subject: Send + Sync {
    /// Opens the store as a new process does. A store that outlives the process contains what earlier calls
    /// have stored.
    fn open(&self) -> Arc<dyn Store>;
}

/// A requirement that a store does not meet.
#[derive(Debug, thiserror::Error)]
#[error("{check}: {reason}")]
pub struct Failure {
    /// The check that failed.
    pub check: &'static str,
    /// What was expected, and what was found.
    pub reason: String,
}

impl Failure {
    fn new(check: &'static str, reason: impl ToString) -> Self {
        Self { check, reason: reason.to_string() }
    }
}

fn ensure(check: &'static str, holds: bool, reason: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(check, reason())) }
}

/// Runs all checks. `dir` is an empty directory for journals. Restarts are not checked for a store that does
/// not outlive the process.
///
/// Needs a tokio runtime with several threads, or with blocking threads that can run at the same time.
pub async fn conforms(subject: &dyn Subject, dir: &Path) -> Result<(), Failure> {
    chunks_come_back_and_go(&subject.open()).await?;
    queues::run(subject, &dir.join("calm")).await?;
    let troubled = troubled::Under { subject, trouble: Trouble::default() };
    queues::run(&troubled, &dir.join("troubled")).await
}

/// Makes a batch with numbers and lists.
fn batch(ids: impl Iterator<Item = i64> + Clone) -> Result<RecordBatch, QueueError> {
    let mut lists = ListBuilder::new(Int64Builder::new());
    for id in ids.clone() {
        (0..id % 7).for_each(|number| lists.values().append_value(number));
        lists.append(true);
    }
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    Ok(RecordBatch::try_from_iter([("id", ids), ("list", Arc::new(lists.finish()) as ArrayRef)])?)
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    let column = batch.column_by_name("id").and_then(|column| column.as_primitive_opt::<Int64Type>());
    column.map_or_else(Vec::new, |column| column.values().to_vec())
}

/// Puts a chunk as a queue does, and keeps it.
async fn put_and_keep(
    store: &Arc<dyn Store>,
    appender: &mut Option<Box<dyn Appender>>,
    new: Vec<NewChunk>,
) -> Result<(), QueueError> {
    let chunks: Vec<ChunkId> = new.iter().map(|new| new.chunk).collect();
    for (chunk, stored) in chunks.into_iter().zip(store.put(new).await?) {
        let note: Option<Note> = match (stored, &mut *appender) {
            (Stored::Held, _) => None,
            (Stored::Noted(note), _) => Some(note),
            (Stored::Unwritten(rows), Some(appender)) => Some(appender.append(chunk, &rows)?),
            (Stored::Unwritten(_), None) => return Err(QueueError::Empty),
        };
        if let Some(note) = &note {
            store.keep(chunk, note)?;
        }
        if let Some(appender) = appender {
            appender.settle(chunk);
        }
    }
    Ok(())
}

async fn chunks_come_back_and_go(store: &Arc<dyn Store>) -> Result<(), Failure> {
    const CHECK: &str = "chunks are read as they were put, and cannot be read after they were freed";
    let failed = |error: QueueError| Failure::new(CHECK, error);
    let mut appender = store.opened().map_err(failed)?;
    let new = |chunk: u64| -> Result<NewChunk, QueueError> {
        let first = chunk as i64 * 100;
        let rows = Chunk::new(vec![batch(first..first + 10)?, batch(first + 10..first + 15)?])?;
        Ok(NewChunk { chunk: ChunkId(chunk), rows, group: format!("group-{chunk}") })
    };
    let chunks = (1..4).map(new).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    put_and_keep(store, &mut appender, chunks).await.map_err(failed)?;

    let names: Arc<[String]> = ["id".to_owned(), "list".to_owned()].into();
    let wanted =
        |chunk, first, rows| Wanted { chunk: ChunkId(chunk), first, rows, columns: Arc::clone(&names) };
    let all = [wanted(3, 8, 7), wanted(1, 0, 1), wanted(2, 14, 1), wanted(1, 3, 4)];
    for columns in [None, Some(&names[..1])] {
        for (wanted, found) in all.iter().zip(store.get(&all, columns).await) {
            let Found { chunk, first } = found.map_err(failed)?;
            let rows = chunk.slice(first, wanted.rows).map_err(failed)?;
            let found: Vec<i64> = rows.pieces().iter().flat_map(ids).collect();
            let start = wanted.chunk.0 as i64 * 100 + wanted.first as i64;
            let expected: Vec<i64> = (start..start + wanted.rows as i64).collect();
            ensure(CHECK, found == expected, || format!("expected ids {expected:?}, found {found:?}"))?;
        }
    }

    store.free(&[ChunkId(1), ChunkId(99)]);
    store.free(&[ChunkId(1)]);
    let left = [wanted(1, 0, 1), wanted(2, 0, 1)];
    let found = store.get(&left, None).await;
    ensure(CHECK, matches!(found[..], [Err(QueueError::ChunkGone { .. }), Ok(_)]), || {
        format!("expected ChunkGone for a freed chunk and rows of another, found {found:?}")
    })?;
    store.free(&[ChunkId(2), ChunkId(3)]);
    ensure(CHECK, store.bytes() == 0, || format!("expected bytes=0 of no chunk, found {}", store.bytes()))
}
