//! Errors of the queue made from those of the operating system and of Arrow.

use std::path::PathBuf;

use super::QueueError;

impl QueueError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what: what.into(), path, reason: error.to_string() }
    }
}

impl From<arrow_schema::ArrowError> for QueueError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Arrow { reason: error.to_string() }
    }
}
