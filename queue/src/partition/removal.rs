//! The removal of all rows, and of the partition itself.
//!
//! A partition is removed when its removal record is written, on the writer's thread. Earlier records of the
//! partition precede that record, and later records are refused on that thread. A put in progress therefore
//! never ends up in a later partition of the same name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Partition, Shared, Table};
use crate::config::Durability;
use crate::error::QueueError;
use crate::journal::{Body, Entry, Facts, Log, Notes, Payload};
use crate::record::{Freed, Record};
use crate::row::RowHandle;

impl Table {
    fn all_rows(&self) -> Vec<RowHandle> {
        self.groups.values().flat_map(|group| group.rows.iter().copied()).collect()
    }
}

impl Shared {
    pub(super) fn check_is_there(&self) -> Result<(), QueueError> {
        self.standing()()
    }

    /// Returns a function that checks on any thread whether the partition still exists.
    pub(super) fn standing(&self) -> impl Fn() -> Result<(), QueueError> + Send + use<> {
        let (removed, name) = (Arc::clone(&self.removed), self.name.clone());
        move || match removed.load(Ordering::Acquire) {
            true => Err(QueueError::UnknownPartition { name: name.clone() }),
            false => Ok(()),
        }
    }

    /// Completes a change of a queue in memory, which writes no records.
    pub(super) fn commit_in_memory(&self, done: impl FnOnce(Result<Notes, QueueError>) + Send + 'static) {
        done(self.check_is_there().map(|()| Notes::new()));
        if self.removed.load(Ordering::Acquire) {
            // The partition was removed in between: free the rows that have just become visible.
            self.discard();
        }
    }

    /// Frees all rows, and ends all waiting calls.
    fn discard(&self) {
        let released = {
            let mut table = self.table.lock();
            table.closed = true;
            let rows = table.all_rows();
            let released = table.remove(&rows, Freed::Cleared);
            self.tell(&mut table);
            released
        };
        self.room.close();
        self.reclaim(&released);
    }
}

impl Partition {
    /// Frees every row of the partition, leased or not, and returns the number of rows. Rows of puts in
    /// progress stay. Incomplete groups are forgotten: a later put with the same group name begins a new
    /// group.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn clear_all(&self) -> Result<usize, QueueError> {
        self.clear_all_once(None).await
    }

    /// Frees all rows once: a call with the token of an earlier call changes nothing and returns 0.
    pub(crate) async fn clear_all_once(&self, token: Option<String>) -> Result<usize, QueueError> {
        self.shared.check_is_there()?;
        if self.begin_once(token.as_ref(), |_| Ok(Some(()))).await?.is_none() {
            return Ok(0);
        }
        let rows = self.shared.table.lock().all_rows();
        let count = rows.len();
        self.free_once(rows, Freed::ClearedAll, token).await?;
        Ok(count)
    }

    /// Waits until all puts that have returned are visible. Puts without durability return before they are
    /// written.
    ///
    /// Cancel-safe: the call changes nothing.
    pub(crate) async fn settled(&self) -> Result<(), QueueError> {
        match self.returns_early() {
            // This entry forgets no record. The writer handles it after all earlier entries.
            true => self.forget_records(0).await,
            false => Ok(()),
        }
    }

    /// Whether puts return before they are written.
    pub(super) fn returns_early(&self) -> bool {
        self.shared.log.is_written() && self.shared.durability == Durability::None
    }

    /// Waits until these rows are visible, if their put has returned. Cancel-safe: the call changes nothing.
    pub(super) async fn visible(&self, rows: &[RowHandle]) {
        while self.returns_early() {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // The waiter is registered before the table is read, so that no change in between is missed.
            changed.as_mut().enable();
            if !self.shared.table.lock().any_is_reserved(rows) {
                return;
            }
            changed.await;
        }
    }

    /// Removes the partition with all of its rows. When it is removed, `publish` gets a number above every
    /// generation of its rows. Cancel-safe: a dropped call takes effect completely or not at all.
    pub(crate) async fn remove(&self, publish: impl FnOnce(u32) + Send + 'static) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.shared);
        let begin = move || {
            if shared.removed.swap(true, Ordering::AcqRel) {
                return Err(QueueError::UnknownPartition { name: shared.name.clone() });
            }
            Ok(shared.table.lock().generation_floor())
        };
        let owner = Arc::clone(&self.shared);
        let finish = move |removed: Result<(), QueueError>| {
            match &removed {
                Ok(()) => {
                    publish(owner.table.lock().generation_floor());
                    owner.discard();
                }
                // Another call is removing the partition.
                Err(QueueError::UnknownPartition { .. }) => {}
                Err(_) => owner.removed.store(false, Ordering::Release),
            }
            removed
        };
        let journal = match &self.shared.log {
            Log::Nowhere => return finish(begin().map(drop)),
            Log::ReadOnly => return Err(QueueError::ReadOnly),
            Log::Files { journal, .. } => journal,
        };
        let name = self.shared.name.clone();
        let facts: Facts = Box::new(move |_, body: &mut Body| {
            let generation_floor = begin()?;
            body.push(&Record::Remove { partition: name, generation_floor })
        });
        let (reply, outcome) = tokio::sync::oneshot::channel();
        let done = Box::new(move |durable: Result<Notes, QueueError>| {
            // The receiver no longer exists if the caller was cancelled.
            let _ = reply.send(finish(durable.map(drop)));
        });
        let closed = || QueueError::Closed { partition: self.shared.name.clone() };
        journal
            .send(Entry {
                adds: false,
                payload: Payload::new(),
                facts,
                durability: self.shared.durability,
                done,
            })
            .map_err(|_| closed())?;
        outcome.await.unwrap_or_else(|_| Err(closed()))
    }
}
