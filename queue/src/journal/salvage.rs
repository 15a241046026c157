//! Reading the records that a damaged journal still contains.

use rolldock_frames::{HEAD_BYTES, Piece};
use serde::de::DeserializeOwned;

use super::frame::FORMAT;

/// A range of bytes of a journal with at least one record that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The offset of the damaged range, or of the first unreadable record, from the start of the journal.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Calls `each` with the readable records before and after damage, in order. If a record of a sound frame cannot be
/// read, the rest of that frame is a gap. Returns the gaps, and the length of the journal in bytes, not counting an
/// unfinished last write.
pub(crate) fn salvage_frames<Record: DeserializeOwned>(
    bytes: &[u8],
    mut each: impl FnMut(Record),
) -> (Vec<Gap>, u64) {
    let (mut gaps, mut length) = (Vec::new(), bytes.len() as u64);
    for piece in FORMAT.pieces(bytes) {
        match piece {
            Piece::Damaged { offset, bytes } => gaps.push(Gap { offset, bytes }),
            Piece::Unfinished { offset, .. } => length = offset,
            Piece::Frame(frame) => {
                let mut records = serde_json::Deserializer::from_slice(frame.body).into_iter();
                while let Some(record) = records.next() {
                    match record {
                        Ok(record) => each(record),
                        Err(_) => {
                            // The checksum matches, so the record is intact, but this version cannot read it.
                            let read = records.byte_offset();
                            let offset = frame.offset + (HEAD_BYTES + read) as u64;
                            gaps.push(Gap { offset, bytes: (frame.body.len() - read) as u64 });
                            break;
                        }
                    }
                }
            }
        }
    }
    (gaps, length)
}
