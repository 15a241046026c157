//! Errors of the queue, made from errors of the operating system and of Arrow.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rolldock_frames::descriptors;

use super::QueueError;

impl QueueError {
    /// The error of an operation on a file.
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| match descriptors::is_lack(&error) {
            true => Self::OutOfFiles { what: what.into(), path, reason: error.to_string() },
            false => Self::Io { what: what.into(), path, reason: error.to_string() },
        }
    }

    /// The error of a failed sync. Whatever error the system reports, the result is a fault, because the
    /// contents of the disk are unknown.
    pub(crate) fn unsynced(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what: "sync".into(), path, reason: error.to_string() }
    }

    /// The error of an operation on a file of a queue's directory that may need space on the disk.
    pub(crate) fn on_disk(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull {
                dir: path.parent().map(Path::to_owned).unwrap_or_default(),
                reason: format!("{what} failed for {}: {error}", path.display()),
            },
            _ => Self::io(what, path)(error),
        }
    }
}

impl From<arrow_schema::ArrowError> for QueueError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Arrow { reason: error.to_string() }
    }
}
