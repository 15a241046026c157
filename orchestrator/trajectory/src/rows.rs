//! Makes rows of a trajectory: one for each path from a root to a leaf.
//!
//! The tokens of a turn are trained in the first path that has all of them, and masked in the others. A turn
//! whose answer the agent never received is masked everywhere, because no action of the agent follows from
//! it. Each sampled token therefore counts at most once, however many branches contain it. All rows share one
//! reward.

use std::sync::Arc;

use rolldock_dispatch::VersionSpan;

use crate::TurnId;
use crate::forest::{Piece, Trajectory};
use crate::invariants;
use crate::row::{Row, RowTurn};

impl Trajectory {
    /// The last turn of each path, in the order of their numbers.
    pub fn leaves(&self) -> Vec<TurnId> {
        let mut is_leaf = vec![true; self.slots()];
        for turn in self.turns() {
            if let Some(base) = turn.base.and_then(|base| self.turn(base)) {
                is_leaf[base.id.0 as usize] &= base.end() != turn.start;
            }
        }
        self.turns().filter(|turn| is_leaf[turn.id.0 as usize]).map(|turn| turn.id).collect()
    }

    /// The rows of the trajectory. A path that would train nothing has no row.
    pub fn rows(&self) -> Vec<Row> {
        let mut untrained = self.received();
        let mut rows = Vec::new();
        for (branch, leaf) in self.leaves().into_iter().enumerate() {
            let Some(leaf) = self.turn(leaf) else { continue };
            let mut pieces: Vec<Piece<'_>> = self.pieces(leaf).collect();
            pieces.reverse();
            let row = self.row(branch as u32, &pieces, &mut untrained);
            if row.turns.iter().any(|turn| turn.is_trained) {
                rows.push(row);
            }
        }
        debug_assert_eq!(invariants::aligned(&rows), Ok(()));
        debug_assert_eq!(invariants::trained_once(self, &rows), Ok(()));
        rows
    }

    /// The row of one path. It trains the turns in `untrained` of which the path has all tokens. These turns
    /// are removed from `untrained`.
    fn row(&self, branch: u32, pieces: &[Piece<'_>], untrained: &mut [bool]) -> Row {
        let has_logprobs = pieces.iter().all(|piece| !piece.turn.logprobs.is_empty());
        let mut row = Row {
            trajectory_uid: Arc::clone(self.uid()),
            branch,
            prompt_ids: Vec::new(),
            response_ids: Vec::new(),
            response_mask: Vec::new(),
            logprobs: Vec::new(),
            version_spans: Vec::new(),
            versions_reported: pieces.iter().all(|piece| piece.turn.versions_reported),
            finish_reason: pieces
                .last()
                .map_or(rolldock_dispatch::FinishReason::Stop, |last| last.turn.finish_reason),
            turns: Vec::new(),
        };
        for piece in pieces {
            push_piece(&mut row, piece, has_logprobs, untrained);
        }
        row
    }
}

/// Appends the ids of a piece to a row.
fn push_piece(row: &mut Row, piece: &Piece<'_>, has_logprobs: bool, untrained: &mut [bool]) {
    let turn = piece.turn;
    let own = (piece.end - turn.start) as usize;
    let input = &turn.ids[..own.min(turn.input_tokens as usize)];
    let sampled = &turn.ids[input.len()..own];
    if row.turns.is_empty() {
        row.prompt_ids.extend_from_slice(input);
    } else {
        row.response_ids.extend_from_slice(input);
        row.response_mask.resize(row.response_ids.len(), 0);
    }
    if sampled.is_empty() {
        return;
    }
    let is_whole = piece.end == turn.end();
    let is_trained = is_whole && std::mem::take(&mut untrained[turn.id.0 as usize]);
    let start = row.response_ids.len() as u32;
    row.response_ids.extend_from_slice(sampled);
    row.response_mask.resize(row.response_ids.len(), u8::from(is_trained));
    if has_logprobs {
        row.logprobs.resize(start as usize, 0.0);
        row.logprobs.extend_from_slice(&turn.logprobs[..sampled.len()]);
    }
    let end = row.response_ids.len() as u32;
    for span in &turn.version_spans {
        let shifted = VersionSpan {
            version: Arc::clone(&span.version),
            start: start + span.start,
            end: (start + span.end).min(end),
        };
        if shifted.start < shifted.end {
            row.version_spans.push(shifted);
        }
    }
    row.turns.push(RowTurn { turn: turn.id, start, end, reward: turn.reward, is_trained });
}

#[cfg(test)]
mod tests;
