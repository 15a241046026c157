//! The places of the checkout and of the files beside it that are not part of the project.

use std::path::{Path, PathBuf};

/// The folder of the checkout from which the benchmarks were built.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The path of a file or folder in `shared`, which lies beside the checkout. It may be absent.
pub fn shared(name: &str) -> PathBuf {
    checkout().join("../shared").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkout_has_the_lock_file_of_the_workspace() {
        assert!(checkout().join("Cargo.lock").is_file());
    }
}
