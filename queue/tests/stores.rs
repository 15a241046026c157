//! Checks that the queue's own stores conform to the rules for stores.
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
        // Segments are small, so the test closes, empties and deletes some of them.
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
