//! Frames: 4 bytes length, 4 bytes CRC-32, both little-endian, then JSON.

use std::path::Path;

use super::Record;
use crate::QueueError;

/// First bytes of every journal.
pub(crate) const MAGIC: &[u8] = b"ROLLDOCK-QUEUE-1\n";
const HEAD: usize = 8;

pub(crate) fn write_frame(into: &mut Vec<u8>, record: &Record) -> Result<(), QueueError> {
    let json = serde_json::to_vec(record).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    let length =
        u32::try_from(json.len()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&crc32fast::hash(&json).to_le_bytes());
    into.extend_from_slice(&json);
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Calls `each` with every record; returns the length of the sound part. What the last write left half done is cut
/// off; anything wrong before the last frame is corruption.
pub(crate) fn read_frames(
    file: &Path,
    bytes: &[u8],
    mut each: impl FnMut(Record) -> Result<(), QueueError>,
) -> Result<u64, QueueError> {
    let corrupt = |offset: usize, reason: &str| QueueError::Corrupt {
        file: file.to_owned(),
        offset: offset as u64,
        reason: reason.to_owned(),
    };
    if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
        return Ok(0);
    }
    if !bytes.starts_with(MAGIC) {
        return Err(corrupt(0, "this is no journal of a queue"));
    }
    let mut at = MAGIC.len();
    while at < bytes.len() {
        let (Some(length), Some(checksum)) = (number(bytes, at), number(bytes, at + 4)) else { break };
        let end = at + HEAD + length as usize;
        let Some(json) = bytes.get(at + HEAD..end) else { break };
        if crc32fast::hash(json) != checksum {
            if end == bytes.len() {
                break;
            }
            return Err(corrupt(at, "the checksum of a record does not match"));
        }
        let record = serde_json::from_slice(json).map_err(|error| corrupt(at, &error.to_string()))?;
        each(record)?;
        at = end;
    }
    if at < bytes.len() {
        tracing::warn!(file = %file.display(), torn_bytes = bytes.len() - at, "the last write was not finished; it is cut off");
    }
    Ok(at as u64)
}
