//! Finds the files that a recipe names, and records the tried paths of files that do not exist.

use std::collections::{BTreeMap, BTreeSet};
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

/// The absolute path of `path`, which is the same for each current directory from which `path` names the file. The
/// links of its folder are resolved, and the file's own name stays, because its extension says how it is read.
pub(super) fn whole(path: &Path) -> PathBuf {
    // Without a current directory, the path cannot be made absolute.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

impl LookedFor {
    /// The paths that were tried for `path`; `None` if the file was found, or if `path` is not a file of the
    /// recipe.
    pub fn places(&self, path: &Path) -> Option<&[PathBuf]> {
        self.0.get(path).map(Vec::as_slice)
    }

    /// Joins `path` to the first of `folders` in which the file exists, and then to the current directory. The
    /// result is [whole](whole). If the file does not exist, the result is `path` unchanged.
    pub(super) fn find(&mut self, path: &Path, folders: [&Path; 2]) -> PathBuf {
        if path.as_os_str().is_empty() {
            return path.to_owned();
        }
        let mut candidates = folders.map(|folder| folder.join(path)).to_vec();
        if let Some(found) = candidates.iter().find(|candidate| candidate.exists()) {
            return whole(found);
        }
        if path.exists() {
            return whole(path);
        }
        candidates.push(path.to_owned());
        // A value of `--set` has the current directory as its first folder too, and a recipe may be in it.
        let mut seen = BTreeSet::new();
        candidates.retain(|candidate| {
            seen.insert(std::path::absolute(candidate).unwrap_or_else(|_| candidate.clone()))
        });
        self.0.insert(path.to_owned(), candidates);
        path.to_owned()
    }
}
