//! Where a queue's payload lies: on storage units while any takes rows, else in this process's own store.
//!
//! Both are [`Store`]s, and so is the [`Plane`] of both: whoever puts, gets or frees chunks does not know where they lie.
//! What only one kind of store has, such as the journal of the segment files, is asked of [`Plane::own`].

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::journal::{Journal, LeaseLog};
use crate::store::{DiskStore, Found, MemoryStore, NewChunk, Store, Stored, Wanted};
use crate::units::{Place, Units};
use crate::{ChunkId, Durability, QueueError};

/// The store of this process.
#[derive(Clone)]
pub(crate) enum OwnStore {
    Memory(Arc<MemoryStore>),
    /// Segment files, behind the journal's writer.
    Disk {
        store: Arc<DiskStore>,
        journal: Arc<Journal>,
        leases: Arc<LeaseLog>,
        durability: Durability,
    },
    /// Segment files that nobody writes.
    ReadOnly(Arc<DiskStore>),
}

impl OwnStore {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => store.as_ref(),
            Self::Disk { store, .. } | Self::ReadOnly(store) => store,
        }
    }

    /// What a put survives unless its partition says otherwise.
    pub(crate) fn durability(&self) -> Durability {
        match self {
            Self::Disk { durability, .. } => *durability,
            Self::Memory(_) | Self::ReadOnly(_) => Durability::None,
        }
    }
}

/// See the module's documentation. Clones are of the same stores.
#[derive(Clone)]
pub(crate) struct Plane {
    pub(crate) own: OwnStore,
    pub(crate) units: Arc<Units>,
}

impl Plane {
    /// The segment files, if this process has any.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskStore>> {
        match &self.own {
            OwnStore::Memory(_) => None,
            OwnStore::Disk { store, .. } | OwnStore::ReadOnly(store) => Some(store),
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.own, OwnStore::ReadOnly(_))
    }

    /// The unit that a chunk lies on; `None` if it lies here.
    pub(crate) fn place(&self, chunk: ChunkId) -> Option<Arc<Place>> {
        self.units.place(chunk)
    }
}

impl Store for Plane {
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        if self.is_read_only() {
            return futures::future::ready(Err(QueueError::ReadOnly)).boxed();
        }
        if !self.units.has_any() {
            return self.own.store().put(chunks);
        }
        async move {
            match self.units.put_all(&chunks).await? {
                Some(stored) => Ok(stored),
                None => self.own.store().put(chunks).await,
            }
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        if !self.units.has_any() {
            return self.own.store().get(wanted, columns);
        }
        async move {
            let is_elsewhere: Vec<bool> =
                wanted.iter().map(|wanted| self.place(wanted.chunk).is_some()).collect();
            let those = |elsewhere: bool| -> Vec<Wanted> {
                let sorted = wanted.iter().zip(&is_elsewhere);
                sorted.filter(|(_, is)| **is == elsewhere).map(|(wanted, _)| wanted.clone()).collect()
            };
            let (there, here) = (those(true), those(false));
            let fetching = self.units.get(&there, columns);
            let reading = self.own.store().get(&here, columns);
            let (there, here) = futures::future::join(fetching, reading).await;
            let (mut there, mut here) = (there.into_iter(), here.into_iter());
            let found = is_elsewhere.into_iter().zip(wanted).map(|(elsewhere, wanted)| {
                let next = if elsewhere { there.next() } else { here.next() };
                next.unwrap_or(Err(QueueError::ChunkGone { chunk: wanted.chunk.0 }))
            });
            found.collect()
        }
        .boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        // Whoever does not have one does nothing.
        if self.units.has_any() {
            self.units.free(chunks);
        }
        self.own.store().free(chunks);
    }

    fn bytes(&self) -> u64 {
        self.own.store().bytes()
    }
}
