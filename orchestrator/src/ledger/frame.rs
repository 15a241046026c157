//! Frames of the log: length, CRC-32 of the body, CRC-32 of those two, each 4 bytes little-endian, then the body:
//! records, one after the other.
//!
//! A frame holds what is written together. The head has a checksum of its own, so that a damaged length is seen as
//! damage and never taken for the end of the file.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, decode};
use super::{LedgerError, Record};

/// The log, inside a run's directory.
pub const LEDGER_FILE: &str = "ledger.log";
/// First bytes of every log.
pub(super) const MAGIC: &[u8] = b"ROLLDOCK-LEDGER-1\n";
/// Bytes of a frame's head.
pub(super) const HEAD: usize = 12;
/// Bytes of a frame's body.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;
/// Where more than this lies behind damage it is not what a crash leaves of the last write.
const TAIL_BYTES_MAX: u64 = 2 * BODY_BYTES_MAX as u64;

/// Where a run keeps its ledger.
pub fn ledger_file(dir: &Path) -> PathBuf {
    dir.join(LEDGER_FILE)
}

/// Where the sound part of a log ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// Bytes of the sound part; 0 where not even the first bytes are whole.
    pub sound_bytes: u64,
    /// Bytes behind it: what a crash left of the last write, or what is being written.
    pub torn_bytes: u64,
}

/// The frame of a body that is not empty.
pub(super) fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(&frame).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Length and checksum of a body, if its head is sound.
fn read_head(head: &[u8]) -> Option<(usize, u32)> {
    let (length, checksum, head_checksum) = (word(head, 0)? as usize, word(head, 4)?, word(head, 8)?);
    let is_sound = crc32fast::hash(&head[..8]) == head_checksum;
    (is_sound && (1..=BODY_BYTES_MAX).contains(&length)).then_some((length, checksum))
}

/// What lies at a place of the file.
enum Found {
    Frame(Vec<u8>),
    /// A head whose body does not end within the file, or not even a head.
    Cut,
    Damaged(&'static str),
}

fn next_frame(file: &mut impl Read, bytes_left: u64) -> std::io::Result<Found> {
    if bytes_left < HEAD as u64 {
        return Ok(Found::Cut);
    }
    let mut head = [0_u8; HEAD];
    file.read_exact(&mut head)?;
    let Some((length, checksum)) = read_head(&head) else {
        return Ok(Found::Damaged("a head of a frame whose checksum does not match"));
    };
    if bytes_left - (HEAD as u64) < length as u64 {
        return Ok(Found::Cut);
    }
    let mut body = vec![0; length];
    file.read_exact(&mut body)?;
    if crc32fast::hash(&body) != checksum {
        return Ok(Found::Damaged("a frame whose checksum does not match"));
    }
    Ok(Found::Frame(body))
}

/// Whether a sound frame begins anywhere in `bytes`.
fn has_sound_frame(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| {
        let Some((length, checksum)) = read_head(&bytes[at..]) else { return false };
        let body = bytes.get(at + HEAD..at + HEAD + length);
        body.is_some_and(|body| crc32fast::hash(body) == checksum)
    })
}

/// Calls `each` with every record of the log in `dir` and the offset of its frame; says where the sound part ends.
/// Blocks. Reads what is there now: somebody may be writing.
///
/// # Errors
/// [`LedgerError::NoLedger`], [`LedgerError::Corrupt`] for damage that is not the last write's, and what `each` says.
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
    let mut file = BufReader::new(file);
    let Some(mut at) = read_magic(&mut file, &path, length)? else {
        return Ok(LogEnd { sound_bytes: 0, torn_bytes: length });
    };
    while at < length {
        let found = next_frame(&mut file, length - at).map_err(LedgerError::io("read", &path))?;
        let body = match found {
            Found::Frame(body) => body,
            Found::Cut => break,
            Found::Damaged(found) => {
                refuse_unless_last(&mut file, &path, (at, length), found)?;
                break;
            }
        };
        read_body(&body, &path, at, &mut each)?;
        at += (HEAD + body.len()) as u64;
    }
    Ok(LogEnd { sound_bytes: at, torn_bytes: length - at })
}

/// The offset of the first frame, or nothing where the file ends before it.
fn read_magic(file: &mut impl Read, path: &Path, length: u64) -> Result<Option<u64>, LedgerError> {
    let mut magic = vec![0; MAGIC.len().min(usize::try_from(length).unwrap_or(MAGIC.len()))];
    file.read_exact(&mut magic).map_err(LedgerError::io("read", path))?;
    if !MAGIC.starts_with(&magic) {
        return Err(LedgerError::Corrupt {
            file: path.to_owned(),
            offset: 0,
            found: "other first bytes".to_owned(),
            expected: "a ledger of version 1",
        });
    }
    Ok((magic.len() == MAGIC.len()).then_some(MAGIC.len() as u64))
}

/// Damage that a sound frame follows, or too much of anything, was not left by the last write.
fn refuse_unless_last(
    file: &mut (impl Read + Seek),
    path: &Path,
    (at, length): (u64, u64),
    found: &str,
) -> Result<(), LedgerError> {
    let refused = || LedgerError::Corrupt {
        file: path.to_owned(),
        offset: at,
        found: found.to_owned(),
        expected: "what was written, since sound frames follow",
    };
    if length - at > TAIL_BYTES_MAX {
        return Err(refused());
    }
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(at + 1)).map_err(LedgerError::io("read", path))?;
    file.take(length - at - 1).read_to_end(&mut rest).map_err(LedgerError::io("read", path))?;
    if has_sound_frame(&rest) { Err(refused()) } else { Ok(()) }
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
