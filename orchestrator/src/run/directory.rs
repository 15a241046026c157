//! The directory of a run: how a run starts in it, and how its files are replaced. A start that fails leaves
//! no new directory behind.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The resolved recipe, inside a run's directory.
pub const RECIPE_FILE: &str = "recipe.toml";

/// Whether a run may begin in `dir`: it does not exist, or it is an empty directory.
pub fn is_free(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The directory of a run that is being started. Dropping the value removes all files that the start has
/// written, unless the directory was not empty before the start or [`keep`](Self::keep) was called.
///
/// # Invariants
/// No file that existed before the start is removed. The owner calls [`keep`](Self::keep) if the directory
/// belongs to another process.
pub(super) struct StartingDirectory {
    out: PathBuf,
    /// Directories that did not exist before, `out` first and then its parents.
    made: Vec<PathBuf>,
    is_new: bool,
}

impl StartingDirectory {
    /// Creates the directory and its parents.
    pub(super) fn make(out: &Path) -> anyhow::Result<Self> {
        let is_new = is_free(out);
        let is_absent = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let made = out.ancestors().take_while(is_absent).map(Path::to_owned).collect();
        let starting = Self { out: out.to_owned(), made, is_new };
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        Ok(starting)
    }

    /// Keeps the directory and everything in it.
    pub(super) fn keep(&mut self) {
        self.is_new = false;
    }

    fn remove(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.out)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        self.made.iter().try_for_each(fs::remove_dir)
    }
}

impl Drop for StartingDirectory {
    fn drop(&mut self) {
        if !self.is_new {
            return;
        }
        if let Err(error) = self.remove()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %self.out.display(), %error, "the start failed, and its directory is left behind");
        }
    }
}

/// Writes a file under a temporary name and then renames it, so that a reader never finds an incomplete file. An error
/// leaves an earlier file as it was.
pub(crate) fn write_whole(file: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = file.with_extension("unfinished");
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, file));
    written
        .inspect_err(|_| {
            // On a full disk, the part that was written would take room. It may not exist.
            let _ = fs::remove_file(&unfinished);
        })
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Fails a start in `out` after it has written a file and a folder.
    fn fail_in(out: &Path) {
        let starting = StartingDirectory::make(out).unwrap();
        fs::write(out.join("ledger.log"), "a record").unwrap();
        fs::create_dir(out.join("queue")).unwrap();
        fs::write(out.join("queue/journal.log"), "a record").unwrap();
        drop(starting);
    }

    #[test]
    fn a_failed_start_removes_only_the_files_that_it_made() {
        let dir = TempDir::new().unwrap();
        fail_in(&dir.path().join("runs/deep/run"));
        assert!(is_free(dir.path()), "all parents that were made are gone");

        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        fail_in(&empty);
        assert!(empty.exists() && is_free(&empty), "a directory that was there stays");

        let full = dir.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("notes.txt"), "mine").unwrap();
        fail_in(&full);
        assert!(full.join("notes.txt").exists() && full.join("ledger.log").exists());
    }

    #[test]
    fn a_start_that_succeeds_keeps_its_directory() {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let mut starting = StartingDirectory::make(&out).unwrap();
        fs::write(out.join("ledger.log"), "a record").unwrap();
        starting.keep();
        drop(starting);
        assert!(out.join("ledger.log").exists());
    }
}
