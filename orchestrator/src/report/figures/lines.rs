//! A file with one JSON object for each step. A resumed run continues the file.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// The maximum length of a line, in bytes. A run never writes a longer line, so longer lines are dropped.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// A file of JSON lines, each with its own `step`. Lines are complete and never change.
///
/// # Invariants
/// No two lines have the same step.
#[derive(Debug)]
pub struct FigureFile {
    path: PathBuf,
    file: File,
    /// The number of bytes of complete lines.
    length: u64,
    steps: BTreeSet<u64>,
    fsync: bool,
}

/// The field that every line has.
#[derive(Deserialize)]
struct Numbered {
    step: u64,
}

impl FigureFile {
    /// Opens or creates the file. Keeps the first line of each step for which `keeps` returns true, and
    /// removes all other lines, for example an unfinished last line. With `fsync`, each appended line
    /// survives a crash of the machine. Blocks.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub fn open(path: &Path, fsync: bool, keeps: impl Fn(u64) -> bool) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let (steps, length) = copy_kept(&file, &keeps, io::sink())?;
        if length < file.metadata()?.len() {
            let unfinished = path.with_extension("unfinished");
            let copy = File::create(&unfinished)?;
            copy_kept(&File::open(path)?, &keeps, BufWriter::new(&copy))?;
            copy.sync_all()?;
            fs::rename(&unfinished, path)?;
            file = OpenOptions::new().append(true).open(path)?;
        }
        Ok(Self { path: path.to_owned(), file, length, steps, fsync })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has a line of the step.
    pub fn has(&self, step: u64) -> bool {
        self.steps.contains(&step)
    }

    /// Appends the line of a step. Returns false and writes nothing if the file already has a line of the
    /// step. Blocks.
    ///
    /// # Errors
    /// Returns the errors of the file system. After an error the file is unchanged, unless the file system
    /// also refuses to cut off the new line.
    pub fn append(&mut self, step: u64, figures: &Value) -> io::Result<bool> {
        if self.has(step) {
            return Ok(false);
        }
        let line = format!("{figures}\n");
        let written = self.file.write_all(line.as_bytes());
        let synced = written.and_then(|()| if self.fsync { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = synced {
            // If this fails too, the next call of `open` removes the incomplete line.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        self.steps.insert(step);
        Ok(true)
    }
}

/// Copies the lines that are kept. Returns their steps and their length in bytes.
fn copy_kept(
    file: &File,
    keeps: impl Fn(u64) -> bool,
    mut copy: impl Write,
) -> io::Result<(BTreeSet<u64>, u64)> {
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let (mut steps, mut length) = (BTreeSet::new(), 0);
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            copy.flush()?;
            return Ok((steps, length));
        }
        let Some(step) = step_of(&line) else { continue };
        if keeps(step) && steps.insert(step) {
            copy.write_all(&line)?;
            length += read as u64;
        }
    }
}

/// The step of a complete line.
fn step_of(line: &[u8]) -> Option<u64> {
    let whole = line.strip_suffix(b"\n")?;
    serde_json::from_slice::<Numbered>(whole).ok().map(|numbered| numbered.step)
}
