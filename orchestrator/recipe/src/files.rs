//! Finds the files that a recipe names, and records the tried paths of files that do not exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The paths that were tried for files that do not exist, by the path in the recipe. They depend on the
/// machine and not on the recipe, so the comparison of two recipes ignores them.
#[derive(Debug, Clone, Default)]
pub struct LookedFor(BTreeMap<PathBuf, Vec<PathBuf>>);

impl PartialEq for LookedFor {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl LookedFor {
    /// The paths that were tried for `path`; `None` if the file was found, or if `path` is not a file of the
    /// recipe.
    pub fn places(&self, path: &Path) -> Option<&[PathBuf]> {
        self.0.get(path).map(Vec::as_slice)
    }

    /// Joins `path` to the first of `folders` in which the file exists. If no folder has the file, the result
    /// is `path` unchanged, which is relative to the current directory.
    pub(super) fn find(&mut self, path: &Path, folders: [&Path; 2]) -> PathBuf {
        if path.as_os_str().is_empty() {
            return path.to_owned();
        }
        let mut candidates = folders.map(|folder| folder.join(path)).to_vec();
        if let Some(found) = candidates.iter().find(|candidate| candidate.exists()) {
            return found.clone();
        }
        if !path.exists() {
            candidates.push(path.to_owned());
            candidates.dedup();
            self.0.insert(path.to_owned(), candidates);
        }
        path.to_owned()
    }
}
