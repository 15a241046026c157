//! What a queue is at one moment, held for as long as somebody reads it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_buffer::Buffer;

use crate::invariants::Violation;
use crate::partition::{CutReader, Partition, Table};
use crate::plane::{OwnStore, Plane};
use crate::store::{Chunk, Encoded, SegmentFile, decode};
use crate::units::{BLOBS, Place};
use crate::{ChunkId, ChunkLocation, ColumnSpec, Queue, QueueError, RemoteQueue, RowHandle, TransferQueue};

/// Where a chunk is read from, whatever becomes of its rows meanwhile.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Memory(Chunk),
    /// The file is open: it can be read also when it is deleted.
    Disk(Arc<SegmentFile>, ChunkLocation),
    /// On a unit, as long as it does not forget.
    Unit(Box<RemoteQueue>, Arc<Place>),
    Missing(QueueError),
}

impl Source {
    /// The chunk's rows; its bytes where they are at hand. Blocks.
    pub(crate) fn load(&self) -> Result<(Option<Buffer>, Chunk), QueueError> {
        match self {
            Self::Memory(chunk) => Ok((None, chunk.clone())),
            Self::Disk(file, location) => {
                let bytes = file.read(location)?;
                Ok((Some(bytes.clone()), decode(bytes)?))
            }
            Self::Unit(_, place) => Err(QueueError::UnitAway { unit: place.unit.clone() }),
            Self::Missing(error) => Err(error.clone()),
        }
    }

    /// Bytes of these rows of the chunk, as a chunk of their own. Blocks.
    pub(crate) fn bytes_of(&self, rows: &[u32]) -> Result<Buffer, QueueError> {
        Loader::default().rows_of(ChunkId(0), self, rows)?.into_bytes()
    }
}

/// Rows of a chunk, as a chunk of their own.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) rows: Chunk,
    /// Where they are at hand.
    bytes: Option<Buffer>,
}

impl Loaded {
    pub(crate) fn into_bytes(self) -> Result<Buffer, QueueError> {
        self.bytes.map_or_else(|| Encoded::of(&self.rows).map(Encoded::into_buffer), Ok)
    }
}

/// Reads chunks. It keeps the last one, since records of rows that lie together mostly follow each other.
#[derive(Debug, Default)]
pub(crate) struct Loader {
    last: Option<(ChunkId, Loaded)>,
}

impl Loader {
    /// These rows of a chunk. Blocks.
    pub(crate) fn rows_of(
        &mut self,
        id: ChunkId,
        source: &Source,
        rows: &[u32],
    ) -> Result<Loaded, QueueError> {
        if let Source::Unit(client, place) = source {
            return Ok(Loaded { rows: fetched(client, place, rows)?, bytes: None });
        }
        let whole = match self.last.take() {
            Some((last, whole)) if last == id => whole,
            _ => {
                let (bytes, rows) = source.load()?;
                Loaded { rows, bytes }
            }
        };
        let is_whole = rows.len() == whole.rows.rows() && rows.iter().zip(0..).all(|(row, at)| *row == at);
        if is_whole {
            return Ok(whole);
        }
        let cut = Loaded { rows: whole.rows.select(rows)?, bytes: None };
        self.last = Some((id, whole));
        Ok(cut)
    }
}

/// Rows that lie on a unit. Blocks.
fn fetched(client: &RemoteQueue, place: &Place, rows: &[u32]) -> Result<Chunk, QueueError> {
    let handles: Vec<RowHandle> =
        rows.iter().filter_map(|row| place.rows.get(*row as usize)).copied().collect();
    let runtime = tokio::runtime::Handle::try_current();
    let runtime = runtime.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    Chunk::new(runtime.block_on(client.get(BLOBS, &handles, None))?)
}

/// One partition.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) name: String,
    /// What makes it, its declaration first.
    pub(crate) records: CutReader,
    pub(crate) columns: BTreeMap<String, ColumnSpec>,
    /// What its table says against itself.
    pub(crate) violations: Vec<Violation>,
}

/// Whether tables are looked through, which costs time under their locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scrutiny {
    None,
    Full,
}

impl TransferQueue {
    /// What `partition` is, or all of them, at one moment.
    pub(crate) fn capture(
        &self,
        partition: Option<&str>,
        scrutiny: Scrutiny,
    ) -> Result<Vec<Captured>, QueueError> {
        let partitions = self.inner.partitions.lock();
        let chosen: Vec<&Partition> = match partition {
            None => partitions.values().collect(),
            Some(name) => {
                let unknown = || QueueError::UnknownPartition { name: name.to_owned() };
                vec![partitions.get(name).ok_or_else(unknown)?]
            }
        };
        // All at once, in order of their names: a moment of the whole queue.
        let tables: Vec<_> = chosen.iter().map(|one| (one, one.shared.table.lock())).collect();
        Ok(tables.into_iter().map(|(one, mut table)| Captured::of(one, &mut table, scrutiny)).collect())
    }
}

impl Captured {
    fn of(partition: &Partition, table: &mut Table, scrutiny: Scrutiny) -> Self {
        Self {
            name: table.spec.name.clone(),
            columns: table.columns().clone(),
            violations: if scrutiny == Scrutiny::Full { table.violations() } else { Vec::new() },
            records: CutReader::begin(partition, table),
        }
    }
}

/// Chunks that are being held.
pub(crate) struct Pins {
    plane: Plane,
    files: HashMap<u64, Arc<SegmentFile>>,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pins").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Pins {
    pub(crate) fn of(plane: Plane) -> Self {
        Self { plane, files: HashMap::new() }
    }

    fn elsewhere(&self, chunk: ChunkId) -> Source {
        let Some(place) = self.plane.place(chunk) else {
            return Source::Missing(QueueError::ChunkGone { chunk: chunk.0 });
        };
        match self.plane.units.client_of(&place.unit) {
            Ok(client) => Source::Unit(Box::new(client), place),
            Err(error) => Source::Missing(error),
        }
    }

    /// Where a chunk that rows need is read from, also when they need it no more.
    pub(crate) fn pin(&mut self, chunk: ChunkId) -> Source {
        let missing = || Source::Missing(QueueError::ChunkGone { chunk: chunk.0 });
        let store = match &self.plane.own {
            _ if self.plane.place(chunk).is_some() => return self.elsewhere(chunk),
            OwnStore::Memory(store) => return store.get(chunk).map_or_else(missing, Source::Memory),
            OwnStore::Disk { store, .. } | OwnStore::ReadOnly(store) => store,
        };
        let Some(location) = store.location(chunk) else { return missing() };
        if let Some(file) = self.files.get(&location.segment) {
            return Source::Disk(Arc::clone(file), location);
        }
        match store.pin(chunk) {
            Ok((file, location)) => {
                let file = Arc::new(file);
                self.files.insert(location.segment, Arc::clone(&file));
                Source::Disk(file, location)
            }
            Err(error) => Source::Missing(error),
        }
    }
}
