//! Tests that span crates. The tests are in `tests/`; here is what they share.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of real data beside the checkout; says so and gives `None` where there is none.
pub fn shared(path: &str) -> Option<PathBuf> {
    let found = workspace_root().join("../shared").join(path);
    if found.exists() {
        return Some(found);
    }
    eprintln!("skipped: {} does not exist", found.display());
    None
}
