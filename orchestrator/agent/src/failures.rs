//! The output of agents that failed, in files of the run's directory.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rolldock_scope::blocking;

/// Maximum number of files. Beyond this number, each new file replaces the oldest file.
const FILES_MAX: usize = 100;

/// The folder of the files.
#[derive(Debug)]
pub(crate) struct Failures {
    folder: PathBuf,
    /// The files, oldest first.
    kept: Mutex<Option<VecDeque<PathBuf>>>,
}

impl Failures {
    /// The folder need not exist. It is made for the first file.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, kept: Mutex::new(None) }
    }

    /// Writes the output of an agent. Returns the file, or `None` if it could not be written.
    pub(crate) async fn keep(self: &std::sync::Arc<Self>, uid: &str, text: String) -> Option<PathBuf> {
        let failures = std::sync::Arc::clone(self);
        let name = format!("{uid}.log");
        let written = blocking("agent failure", move || failures.write(&name, &text)).await;
        match written.ok()? {
            Ok(path) => Some(path),
            Err(error) => {
                tracing::warn!(folder = %self.folder.display(), %error, "the output of an agent is not kept");
                None
            }
        }
    }

    fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(name);
        let mut kept = self.kept.lock();
        let kept = match &mut *kept {
            Some(kept) => kept,
            // An earlier process of the run may have left files.
            none => none.insert(earlier(&self.folder)?),
        };
        std::fs::write(&path, text)?;
        kept.push_back(path.clone());
        while kept.len() > FILES_MAX {
            if let Some(oldest) = kept.pop_front() {
                std::fs::remove_file(oldest)?;
            }
        }
        Ok(path)
    }
}

/// The files of a folder, oldest first.
fn earlier(folder: &Path) -> io::Result<VecDeque<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files.push((entry.metadata()?.modified()?, entry.path()));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn old_files_make_room_for_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("agents");
        for life in 0..2 {
            let failures = std::sync::Arc::new(Failures::new(below.clone()));
            for number in 0..70 {
                failures.keep(&format!("{life}-{number}"), "why".to_owned()).await.unwrap();
            }
        }
        let files: Vec<_> = std::fs::read_dir(&below).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), FILES_MAX);
        assert!(files.contains(&below.join("1-69.log")) && !files.contains(&below.join("0-0.log")));
    }
}
