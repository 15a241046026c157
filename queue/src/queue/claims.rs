//! Claims on the names of partitions that are being created.
//!
//! Two simultaneous declarations of one name create one partition. While a partition is restored, no other
//! call may create it: the journal would otherwise have two partitions of one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::QueueError;

/// The kind of call that is creating a partition.
#[derive(Debug, Clone, Copy)]
enum Claimed {
    /// `times` is the number of calls that declare the partition.
    Declared {
        times: usize,
    },
    Restored,
}

/// The claims of a queue; see the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<BTreeMap<String, Claimed>>>);

/// A claim on a name. The name is released when the last claim on it is dropped.
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
    /// Claims a name for a declaration. `find` looks for an existing partition while no other call can claim
    /// names. Returns what `find` found, or else a claim on the name.
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

    /// Claims a name for a restored partition.
    pub(crate) fn restore(&self, name: &str, is_there: impl FnOnce() -> bool) -> Result<Claim, QueueError> {
        let mut claims = self.0.lock();
        if is_there() || claims.contains_key(name) {
            return Err(QueueError::PartitionExists { name: name.to_owned() });
        }
        claims.insert(name.to_owned(), Claimed::Restored);
        Ok(Claim { claims: self.clone(), name: name.to_owned() })
    }
}
