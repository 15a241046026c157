//! Names of partitions that are being made.
//!
//! Two declarations of one name at the same time make one partition. While a partition is restored no other
//! call may make it: otherwise the journal would have two partitions under one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::QueueError;

/// The call that makes a partition of a name.
#[derive(Debug, Clone, Copy)]
enum Claimed {
    Declared { times: usize },
    Restored,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<BTreeMap<String, Claimed>>>);

/// A name that is on its way; let go of when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.claims.0.lock();
        match claims.get_mut(&self.name) {
            Some(Claimed::Declared { times }) if *times > 1 => *times -= 1,
            _ => drop(claims.remove(&self.name)),
        }
    }
}

impl Claims {
    /// Claims a name to declare it. `find` looks whether the partition exists, at a moment when no other call
    /// claims names.
    pub(crate) fn declare<T>(
        &self,
        name: &str,
        find: impl FnOnce() -> Option<T>,
    ) -> Result<Result<T, Claim>, QueueError> {
        let mut claims = self.0.lock();
        if let Some(found) = find() {
            return Ok(Ok(found));
        }
        match claims.entry(name.to_owned()).or_insert(Claimed::Declared { times: 0 }) {
            Claimed::Declared { times } => *times += 1,
            Claimed::Restored => return Err(QueueError::PartitionExists { name: name.to_owned() }),
        }
        Ok(Err(Claim { claims: self.clone(), name: name.to_owned() }))
    }

    /// Claims a name to restore a partition under it.
    pub(crate) fn restore(&self, name: &str, is_there: impl FnOnce() -> bool) -> Result<Claim, QueueError> {
        let mut claims = self.0.lock();
        if is_there() || claims.contains_key(name) {
            return Err(QueueError::PartitionExists { name: name.to_owned() });
        }
        claims.insert(name.to_owned(), Claimed::Restored);
        Ok(Claim { claims: self.clone(), name: name.to_owned() })
    }
}
