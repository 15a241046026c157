//! Finds the files that a recipe names, and remembers where those were looked for that do not exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The places of files that were not found, by the path in the recipe. They depend on the machine and not on
/// the recipe, so two recipes are equal whatever these are.
#[derive(Debug, Clone, Default)]
pub struct LookedFor(BTreeMap<PathBuf, Vec<PathBuf>>);

impl PartialEq for LookedFor {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl LookedFor {
    /// The places where `path` was looked for; `None` if it was found, or is no file of the recipe.
    pub fn places(&self, path: &Path) -> Option<&[PathBuf]> {
        self.0.get(path).map(Vec::as_slice)
    }

    /// The first of `folders` in which `path` exists, joined with it. If there is none, `path` as it is,
    /// which is relative to the current directory.
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
