//! Helpers for the tests that span crates. The tests themselves are in `tests/`.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns `path` inside `shared/`, the folder of real data beside the checkout. Prints a note and returns
/// `None` if it does not exist.
pub fn shared(path: &str) -> Option<PathBuf> {
    let found = workspace_root().join("../shared").join(path);
    if found.exists() {
        return Some(found);
    }
    eprintln!("skipped: {} does not exist", found.display());
    None
}

/// The number in an environment variable, or `None` if the variable is not set. Panics if the value is not a
/// number.
#[expect(clippy::panic, reason = "a test fails by panicking")]
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}
