//! Draws prompts from a data set, epoch after epoch, in an order that a seed determines.
//!
//! A cursor can continue from a [`Position`] alone, because the order of an epoch depends only on the seed
//! and the epoch's number. A checkpoint also needs the [`DrawCounts`] if the counters are to go on. Prompts
//! are tokenised when they are drawn, so a run that ends early does not tokenise the rest. Of its own, a
//! cursor holds only a shuffled order: four bytes per row. The identities of the rows belong to the data set.

use std::sync::Arc;

use crate::shuffle::shuffled;
use crate::spool::IdentifiedRows;
use crate::{DataError, DataFields, DrawCounts, OverlongPrompts, Position, Prompt, PromptSource, TextCodec};

/// The order in which an epoch goes through the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of the files.
    Files,
    /// A new random order for every epoch.
    Shuffled { seed: u64 },
}

/// A [`PromptSource`] over a data set.
#[derive(Debug)]
pub struct DatasetCursor {
    rows: Arc<IdentifiedRows>,
    codec: Arc<TextCodec>,
    order: Order,
    /// The shuffled order and its epoch. The order is computed when the epoch's first row is drawn.
    shuffled: Option<(u32, Vec<u32>)>,
    epochs: Option<u32>,
    tokens_max: usize,
    overlong: OverlongPrompts,
    position: Position,
    drawn: DrawCounts,
    /// Number of consecutive rows that were too long.
    skipped_in_a_row: u64,
}

impl DatasetCursor {
    pub(super) fn new(
        rows: Arc<IdentifiedRows>,
        codec: Arc<TextCodec>,
        order: Order,
        epochs: Option<u32>,
        (tokens_max, overlong): (usize, OverlongPrompts),
    ) -> Self {
        Self {
            rows,
            codec,
            order,
            shuffled: None,
            epochs,
            tokens_max,
            overlong,
            position: Position::default(),
            drawn: DrawCounts::default(),
            skipped_in_a_row: 0,
        }
    }

    /// Continues at `position`, which [`PromptSource::position`] returned for the same data and seed.
    pub fn seek(&mut self, position: Position) -> Result<(), DataError> {
        let rows = self.rows.spool.rows();
        if position.offset > rows {
            return Err(DataError::Position { epoch: position.epoch, offset: position.offset, rows });
        }
        self.position = position;
        self.skipped_in_a_row = 0;
        Ok(())
    }

    /// Starts the counters at `drawn`, the counts of an earlier process.
    pub fn count_from(&mut self, drawn: DrawCounts) {
        self.drawn = drawn;
    }

    /// The row at the current position, whose offset must be below the number of rows.
    fn row(&mut self) -> u32 {
        let Position { epoch, offset } = self.position;
        let Order::Shuffled { seed } = self.order else { return offset as u32 };
        let order = match self.shuffled.take() {
            Some((of, order)) if of == epoch => order,
            _ => shuffled(self.rows.spool.rows() as u32, seed, epoch),
        };
        let row = order[offset as usize];
        self.shuffled = Some((epoch, order));
        row
    }

    /// The prompt of `row`. A prompt that is too long is [`DataError::Overlong`], unless it is cut.
    fn prepare(&mut self, row: u32) -> Result<Prompt, DataError> {
        let record = self.rows.spool.read(row as usize)?;
        let uid = self.rows.uids[row as usize];
        let encoded = self.codec.encode_prompt(&record.prompt)?;
        let (mut ids, mut text) = (encoded.ids, encoded.text);
        let tokens = ids.len();
        if tokens > self.tokens_max {
            match self.overlong {
                OverlongPrompts::Drop | OverlongPrompts::Error => {
                    let (row, tokens_max) = (u64::from(row), self.tokens_max);
                    return Err(DataError::Overlong { uid, row, tokens, tokens_max });
                }
                OverlongPrompts::TruncateLeft => {
                    ids.drain(..tokens - self.tokens_max);
                    text = self.codec.decode_with_specials(&ids);
                    self.drawn.overlong_truncated += 1;
                }
            }
        }
        Ok(Prompt {
            uid,
            row: u64::from(row),
            visit: self.position.epoch,
            ids: ids.into(),
            text: text.into(),
            messages: record.prompt.into_messages(),
            answer: record.answer.into(),
            source: record.source.into(),
            difficulty: record.difficulty,
            fields: DataFields::new(&record.fields),
        })
    }
}

impl PromptSource for DatasetCursor {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let rows = self.rows.spool.rows();
        // The loop is bounded: each round returns or skips a row, and an epoch in which all rows are skipped
        // is an error.
        loop {
            if self.position.offset >= rows {
                self.position = Position { epoch: self.position.epoch.saturating_add(1), offset: 0 };
            }
            if self.epochs.is_some_and(|epochs| self.position.epoch >= epochs) {
                return Ok(None);
            }
            let row = self.row();
            match self.prepare(row) {
                Err(DataError::Overlong { .. }) if self.overlong == OverlongPrompts::Drop => {
                    self.position.offset += 1;
                }
                prepared => {
                    let prompt = prepared?;
                    self.position.offset += 1;
                    self.drawn.prompts += 1;
                    self.skipped_in_a_row = 0;
                    return Ok(Some(prompt));
                }
            }
            self.drawn.overlong_dropped += 1;
            self.skipped_in_a_row += 1;
            let epoch_is_over = self.position.offset >= rows;
            if epoch_is_over && self.skipped_in_a_row >= rows {
                return Err(DataError::AllOverlong { rows, tokens_max: self.tokens_max });
            }
        }
    }

    fn fetch(&mut self, row: u64, visit: u32) -> Result<Option<Prompt>, DataError> {
        let rows = self.rows.spool.rows();
        if row >= rows {
            return Err(DataError::Position { epoch: visit, offset: row, rows });
        }
        // The prompt was already counted when it was drawn.
        let drawn = self.drawn;
        let prepared = self.prepare(row as u32);
        self.drawn = drawn;
        Ok(Some(Prompt { visit, ..prepared? }))
    }

    fn position(&self) -> Option<Position> {
        Some(self.position)
    }

    fn drawn(&self) -> Option<DrawCounts> {
        Some(self.drawn)
    }
}

#[cfg(test)]
mod tests;
