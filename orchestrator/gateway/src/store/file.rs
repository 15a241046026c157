//! The file of the log.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use rolldock_frames::{Format, HEAD_BYTES, Reader};

use super::{Entry, Forgotten, StoreError};

/// The name of the log in the gateway's directory.
const LOG_FILE: &str = "trajectories.log";
/// The name of a log that is being rewritten.
const NEW_FILE: &str = "trajectories.log.new";
/// The name of the file whose lock the gateway holds. The log itself is not locked, because rewrites replace
/// it.
const LOCK_FILE: &str = "LOCK";
const BODY_BYTES_MAX: u32 = 1 << 30;
const FORMAT: Format = Format {
    magic: b"ROLLDOCK-TRAJECTORIES-1\n",
    body_bytes_max: BODY_BYTES_MAX,
    tail_bytes_max: 2 * BODY_BYTES_MAX as u64,
};
/// The log is rewritten when it has more bytes than this, and more than [`GROWTH`] times the bytes that were
/// needed when it was last opened or rewritten. Its size is therefore bounded by the size of the open
/// trajectories, also across restarts.
pub(super) const REWRITE_BYTES: u64 = 64 << 20;
const GROWTH: u64 = 4;
/// Number, flag and length of a record.
const ENTRY_HEAD: usize = 8 + 1 + 4;

/// The size of the log in bytes, and the number of its rewrites in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) bytes: u64,
    pub(crate) rewrites: u64,
}

/// The file. One thread at a time writes it.
#[derive(Debug)]
pub(super) struct LogFile {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    is_synced: bool,
    /// The log is not rewritten below this length.
    rewrite_bytes: u64,
    length: u64,
    /// The approximate length that a rewrite would have produced when the log was last opened or rewritten.
    base: u64,
    rewrites: u64,
    _lock: File,
}

/// The bytes of a log that a rewrite would keep.
#[derive(Debug, Default)]
struct Needed {
    bytes: u64,
    of: HashMap<u64, u64>,
}

impl Needed {
    fn add(&mut self, entry: Entry<'_>) {
        let own = (HEAD_BYTES + ENTRY_HEAD + entry.body.len()) as u64;
        let of_trajectory = self.of.entry(entry.number).or_default();
        if entry.is_last {
            self.bytes -= std::mem::take(of_trajectory);
        }
        *of_trajectory += own;
        self.bytes += own;
    }
}

/// Adds a record to the body of a frame.
pub(super) fn put_entry(body: &mut Vec<u8>, entry: Entry<'_>) {
    body.extend_from_slice(&entry.number.to_le_bytes());
    body.push(u8::from(entry.is_last));
    body.extend_from_slice(&(entry.body.len() as u32).to_le_bytes());
    body.extend_from_slice(entry.body);
}

/// The first record of a body, and the rest.
fn split_entry(body: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let number = u64::from_le_bytes(body.get(..8)?.try_into().ok()?);
    let is_last = *body.get(8)? != 0;
    let length = u32::from_le_bytes(body.get(9..ENTRY_HEAD)?.try_into().ok()?) as usize;
    let bytes = body.get(ENTRY_HEAD..ENTRY_HEAD + length)?;
    Some((Entry { number, is_last, body: bytes }, &body[ENTRY_HEAD + length..]))
}

/// Calls `each` with every record, and returns the number of sound bytes and the number of bytes of an
/// unfinished write.
fn read(
    path: &Path,
    mut each: impl FnMut(Entry<'_>) -> Result<(), String>,
) -> Result<(u64, u64), StoreError> {
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let length = file.metadata().map_err(StoreError::io("read", path))?.len();
    let damaged = |reason: String| StoreError::Damaged { path: path.to_owned(), reason };
    let mut reader =
        Reader::new(BufReader::new(file), length, FORMAT).map_err(|error| damaged(error.to_string()))?;
    while let Some(frame) = reader.next_frame().map_err(|error| damaged(error.to_string()))? {
        let mut rest = frame.body;
        while !rest.is_empty() {
            let torn = || damaged(format!("a record at offset={} cannot be read", frame.offset));
            let (entry, after) = split_entry(rest).ok_or_else(torn)?;
            each(entry).map_err(|reason| damaged(format!("offset={}: {reason}", frame.offset)))?;
            rest = after;
        }
    }
    Ok((reader.sound_bytes(), reader.torn_bytes()))
}

impl LogFile {
    pub(super) fn open(
        dir: &Path,
        is_synced: bool,
        rewrite_bytes: u64,
        mut each: impl FnMut(Entry<'_>) -> Result<(), String>,
    ) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir).map_err(StoreError::io("make", dir))?;
        let path = dir.join(LOG_FILE);
        let lock = lock(dir)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).append(true);
        let file = options.open(&path).map_err(StoreError::io("open", &path))?;
        let mut needed = Needed::default();
        let (sound, torn) = read(&path, |entry| {
            needed.add(entry);
            each(entry)
        })?;
        if torn > 0 {
            tracing::warn!(file = %path.display(), torn, "the last write was not finished; it is cut off");
            file.set_len(sound).map_err(StoreError::io("truncate", &path))?;
        }
        let dir = dir.to_owned();
        let (length, base) = (sound, needed.bytes);
        let mut log =
            Self { dir, path, file, is_synced, rewrite_bytes, length, base, rewrites: 0, _lock: lock };
        if log.length == 0 {
            log.file.set_len(0).map_err(StoreError::io("truncate", &log.path))?;
            log.write(FORMAT.magic)?;
        }
        if is_synced {
            log.sync_dir()?;
        }
        Ok(log)
    }

    pub(super) fn sizes(&self) -> Sizes {
        Sizes { bytes: self.length, rewrites: self.rewrites }
    }

    /// Writes records as one frame.
    pub(super) fn append(&mut self, body: &[u8]) -> Result<(), StoreError> {
        let refused = |reason: String| StoreError::Io { action: "write", path: self.path.clone(), reason };
        let frame = FORMAT.frame(body).map_err(|error| refused(error.to_string()))?;
        let sound = self.length;
        if let Err(error) = self.write(&frame) {
            // The partial frame is cut off, so that a later process does not append frames after it.
            let _ = self.file.set_len(sound);
            return Err(error);
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(StoreError::io("write", &self.path))?;
        if self.is_synced {
            self.file.sync_data().map_err(StoreError::io("sync", &self.path))?;
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Whether the file should be rewritten.
    pub(super) fn is_due(&self) -> bool {
        self.length > self.rewrite_bytes && self.length > GROWTH * self.base
    }

    /// Replaces the file by a file that has only the records that are still needed.
    pub(super) fn rewrite(&mut self, forgotten: &Forgotten) -> Result<(), StoreError> {
        // The index of each trajectory's last `is_last` record.
        let mut since: HashMap<u64, u64> = HashMap::new();
        let mut index = 0_u64;
        read(&self.path, |entry| {
            index += 1;
            if entry.is_last {
                since.insert(entry.number, index);
            }
            Ok(())
        })?;
        let path = self.dir.join(NEW_FILE);
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        let mut new = BufWriter::new(options.open(&path).map_err(StoreError::io("make", &path))?);
        let mut length = FORMAT.magic.len() as u64;
        new.write_all(FORMAT.magic).map_err(StoreError::io("write", &path))?;
        index = 0;
        read(&self.path, |entry| {
            index += 1;
            let is_replaced = since.get(&entry.number).is_some_and(|last| index < *last);
            if is_replaced || forgotten.contains(&entry.number) {
                return Ok(());
            }
            let mut body = Vec::new();
            put_entry(&mut body, entry);
            let frame = FORMAT.frame(&body).map_err(|error| error.to_string())?;
            length += frame.len() as u64;
            new.write_all(&frame).map_err(|error| error.to_string())
        })?;
        let new = new.into_inner().map_err(|error| StoreError::io("write", &path)(error.into_error()))?;
        new.sync_all().map_err(StoreError::io("sync", &path))?;
        std::fs::rename(&path, &self.path).map_err(StoreError::io("replace", &self.path))?;
        self.file = new;
        (self.length, self.base) = (length, length);
        self.rewrites += 1;
        self.sync_dir()
    }

    /// Postpones the rewrite until the file has grown again.
    pub(super) fn put_off(&mut self) {
        self.base = self.length;
    }

    fn sync_dir(&self) -> Result<(), StoreError> {
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(StoreError::io("sync", &self.dir))
    }
}

/// Locks the directory. The system releases the lock when the process ends.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(StoreError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path)(error)),
    }
}
