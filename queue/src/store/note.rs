//! Notes: the data with which a store finds a chunk. The journal keeps a note, and passes it back when the
//! queue is opened again.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::QueueError;

/// A value that can be written as JSON and that keeps its type within the process.
trait Content: Any + Debug + Send + Sync {
    fn to_json(&self) -> serde_json::Result<Box<RawValue>>;
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: Serialize + Debug + Send + Sync + 'static> Content for T {
    fn to_json(&self) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(self)
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The data that a store needs to find a chunk again, which can be any JSON value. Only the store interprets
/// it. A note is cheap to clone.
#[derive(Debug, Clone)]
pub struct Note {
    store: Cow<'static, str>,
    content: Arc<dyn Content>,
}

impl Note {
    /// Creates a note of the store with this [name](super::Store::name).
    pub fn new(
        store: impl Into<Cow<'static, str>>,
        content: impl Serialize + Debug + Send + Sync + 'static,
    ) -> Self {
        Self::of(store, Arc::new(content))
    }

    /// Creates a note whose content is shared with the store.
    pub fn of<T: Serialize + Debug + Send + Sync + 'static>(
        store: impl Into<Cow<'static, str>>,
        content: Arc<T>,
    ) -> Self {
        Self { store: store.into(), content }
    }

    /// The name of the store that made the note.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The content of the note: the original value, or the value as it was read back from the journal.
    /// Returns an error if the content is not a `T`.
    pub fn content<T: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<T>, QueueError> {
        let content = match Arc::clone(&self.content).into_any().downcast::<T>() {
            Ok(content) => return Ok(content),
            Err(content) => content,
        };
        let found = |found: &dyn std::fmt::Display| QueueError::BadRequest {
            reason: format!("expected a note of store={} as it was written, found {found}", self.store),
        };
        let Some(read) = content.downcast_ref::<Value>() else { return Err(found(&"another type")) };
        T::deserialize(read).map(Arc::new).map_err(|error| found(&error))
    }
}

impl PartialEq for Note {
    fn eq(&self, other: &Self) -> bool {
        let text = |note: &Self| note.content.to_json().ok().map(|json| json.get().to_owned());
        self.store == other.store && text(self) == text(other)
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.content.to_json().map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}
