//! Reading the records that a damaged journal still contains.

use rolldock_frames::Piece;
use serde::de::DeserializeOwned;

use super::frame::FORMAT;

/// Bytes of a journal that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The offset from the start of the journal, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Calls `each` with every record that can be read, before and after damage, in order. Returns the gaps, and
/// the length of the journal in bytes without an unfinished last write.
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
                            // The checksum matches, so another version of Rolldock wrote the record.
                            let read = records.byte_offset();
                            let (offset, bytes) = (frame.offset, (frame.body.len() - read) as u64);
                            gaps.push(Gap { offset, bytes });
                            break;
                        }
                    }
                }
            }
        }
    }
    (gaps, length)
}
