//! The stores of a queue do what every store must.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use rolldock_queue::conformance::{Subject, conforms};
use rolldock_queue::store::{Store, memory, segments};

struct Memory;

impl Subject for Memory {
    fn open(&self) -> Arc<dyn Store> {
        memory()
    }
}

struct Segments {
    dir: PathBuf,
}

impl Subject for Segments {
    fn open(&self) -> Arc<dyn Store> {
        // So small that segments are closed, emptied and deleted.
        segments(&self.dir, 4 << 10)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    let journals = tempfile::tempdir().unwrap();
    conforms(&Memory, journals.path()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segment_files_conform() {
    let (journals, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    conforms(&Segments { dir: dir.path().to_owned() }, journals.path()).await.unwrap();
}
