//! Reads numbers and texts from the bytes of a record. Lengths are checked before anything is allocated.

use crate::TrajectoryError;

/// The rest of a record.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The error of a failure at the current position.
    pub(super) fn damaged(&self, reason: String) -> TrajectoryError {
        TrajectoryError::Damaged { at: self.at, reason }
    }

    pub(super) fn byte(&mut self) -> Result<u8, TrajectoryError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u32, TrajectoryError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn hash(&mut self) -> Result<u128, TrajectoryError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// Reads one byte as an index, and returns the item with this index.
    pub(super) fn one_of<T: Copy>(&mut self, items: &[T]) -> Result<T, TrajectoryError> {
        let index = self.byte()?;
        let item = items.get(usize::from(index)).copied();
        item.ok_or_else(|| self.damaged(format!("found choice={index} of {}", items.len())))
    }

    /// The length of a list whose items have at least `item_bytes` bytes each.
    pub(super) fn length(&mut self, item_bytes: usize) -> Result<usize, TrajectoryError> {
        let length = self.number()? as usize;
        let left = self.bytes.len() - self.at;
        if length.saturating_mul(item_bytes) > left {
            return Err(self.damaged(format!("found a list of {length} items in {left} bytes")));
        }
        Ok(length)
    }

    /// A list of numbers.
    pub(super) fn numbers(&mut self) -> Result<Vec<u32>, TrajectoryError> {
        let length = self.length(4)?;
        let bytes = self.take(length * 4)?;
        let numbers = bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number));
        Ok(numbers.collect())
    }

    pub(super) fn text(&mut self) -> Result<&'a str, TrajectoryError> {
        let length = self.length(1)?;
        let bytes = self.take(length)?;
        str::from_utf8(bytes).map_err(|error| self.damaged(error.to_string()))
    }

    /// Checks that nothing follows.
    pub(super) fn end(&self) -> Result<(), TrajectoryError> {
        let left = self.bytes.len() - self.at;
        if left > 0 { Err(self.damaged(format!("found {left} bytes behind the record"))) } else { Ok(()) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TrajectoryError> {
        let found = self.bytes[self.at..].first_chunk::<N>().copied();
        let array = found.ok_or_else(|| self.damaged(format!("expected {N} more bytes")))?;
        self.at += N;
        Ok(array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], TrajectoryError> {
        let taken = self.bytes.get(self.at..self.at + length);
        let taken = taken.ok_or_else(|| self.damaged(format!("expected {length} more bytes")))?;
        self.at += length;
        Ok(taken)
    }
}
