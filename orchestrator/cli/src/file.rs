//! Files that get their names only when they are complete.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file that is written under a temporary name and renamed when it is complete. If this value is dropped
/// earlier, the file is deleted.
#[derive(Debug)]
pub(crate) struct Unfinished {
    file: File,
    beside: PathBuf,
    name: PathBuf,
    is_whole: bool,
}

impl Unfinished {
    pub(crate) fn create(name: &Path) -> anyhow::Result<Self> {
        let beside = name.with_extension("unfinished");
        let file = File::create(&beside).with_context(|| format!("cannot write {}", beside.display()))?;
        Ok(Self { file, beside, name: name.to_owned(), is_whole: false })
    }

    /// A writer of the file. All writers share one position in the file, so only one writer may be used at a
    /// time.
    pub(crate) fn writer(&self) -> anyhow::Result<io::BufWriter<File>> {
        let file = self.file.try_clone();
        Ok(io::BufWriter::new(file.with_context(|| format!("cannot write {}", self.beside.display()))?))
    }

    /// Discards the bytes that were written.
    pub(crate) fn start_again(&self) -> anyhow::Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| io::Seek::rewind(&mut &self.file));
        emptied.with_context(|| format!("cannot write {}", self.beside.display()))
    }

    /// Syncs the file, renames it, and returns its length in bytes.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        let named = self.file.sync_all().and_then(|()| std::fs::rename(&self.beside, &self.name));
        named.with_context(|| format!("cannot write {}", self.name.display()))?;
        self.is_whole = true;
        Ok(self.file.metadata().map_or(0, |metadata| metadata.len()))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_whole {
            // If the file cannot be removed, its extension `unfinished` shows that it is incomplete.
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// Standard output for which a closed pipe is not an error. A reader such as `head` ends early.
pub(crate) struct Pipe(pub(crate) io::Stdout);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}
