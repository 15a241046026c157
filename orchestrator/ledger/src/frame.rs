//! The log as [frames](rolldock_frames). The body of a frame is a sequence of records that are written
//! together.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use rolldock_frames::{Format, ReadError, Reader};

use super::codec::{Decoder, decode};
use super::{LedgerError, Record};

/// The name of the log in a run's directory.
pub const LEDGER_FILE: &str = "ledger.log";
/// Maximum bytes of a frame's body.
const BODY_BYTES_MAX: u32 = 16 << 20;
/// The format of the log's frames. Damage that is followed by more than `tail_bytes_max` bytes cannot come
/// from a crash during the last write.
pub(super) const FORMAT: Format = Format {
    magic: b"ROLLDOCK-LEDGER-1\n",
    body_bytes_max: BODY_BYTES_MAX,
    tail_bytes_max: 2 * BODY_BYTES_MAX as u64,
};

/// The path of a run's ledger.
pub fn ledger_file(dir: &Path) -> PathBuf {
    dir.join(LEDGER_FILE)
}

/// The end of the undamaged part of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// Length of the undamaged part in bytes; 0 if the head of the log is incomplete.
    pub sound_bytes: u64,
    /// Bytes after the undamaged part. They come from an interrupted write or from a write in progress.
    pub torn_bytes: u64,
}

/// Calls `each` with every record of the log in `dir` and the offset of its frame. Returns the end of the
/// undamaged part.
///
/// Blocks. It reads the file up to its length at the start of the call, so a run may append at the same time.
///
/// # Errors
/// [`LedgerError::NoLedger`] if there is no log, [`LedgerError::Corrupt`] for damage that the last write does
/// not explain, [`LedgerError::Io`], and the errors of `each`.
pub fn read_log(
    dir: &Path,
    mut each: impl FnMut(u64, Record) -> Result<(), LedgerError>,
) -> Result<LogEnd, LedgerError> {
    let path = ledger_file(dir);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(LedgerError::NoLedger { dir: dir.to_owned() });
        }
        Err(error) => return Err(LedgerError::io("open", &path)(error)),
    };
    let length = file.metadata().map_err(LedgerError::io("read", &path))?.len();
    let refused = |error: ReadError| refusal(error, &path);
    let mut reader = Reader::new(BufReader::new(file), length, FORMAT).map_err(refused)?;
    while let Some(frame) = reader.next_frame().map_err(refused)? {
        read_body(frame.body, &path, frame.offset, &mut each)?;
    }
    Ok(LogEnd { sound_bytes: reader.sound_bytes(), torn_bytes: reader.torn_bytes() })
}

/// Converts an error of the frame reader to an error about the log at `path`.
fn refusal(error: ReadError, path: &Path) -> LedgerError {
    let (offset, found, expected) = match error {
        ReadError::Io(error) => return LedgerError::io("read", path)(error),
        ReadError::OtherFormat => (0, "other first bytes".to_owned(), "a ledger of version 1"),
        ReadError::Damaged { offset, damage } => {
            (offset, damage.to_string(), "the bytes that were written, since undamaged frames follow")
        }
    };
    LedgerError::Corrupt { file: path.to_owned(), offset, found, expected }
}

fn read_body(
    body: &[u8],
    path: &Path,
    at: u64,
    each: &mut impl FnMut(u64, Record) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut rest = Decoder(body);
    while !rest.is_empty() {
        let record = decode(&mut rest).map_err(|expected| LedgerError::Corrupt {
            file: path.to_owned(),
            offset: at,
            found: "a record that cannot be read".to_owned(),
            expected,
        })?;
        each(at, record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
