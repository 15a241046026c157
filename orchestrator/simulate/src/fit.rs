//! Fits the constants of the engine model to measured times of batches, by least squares.
//!
//! A batch has `seqs` requests with a prompt of `prompt_tokens` tokens each, which are sent together and each
//! generate exactly `tokens` tokens. In the engine model of [`rolldock_simengine::ServerConfig`] its time is
//! linear in the constants:
//!
//! ```text
//! time = overhead + prefill x seqs x prompt_tokens + base x tokens + per_seq x seqs x tokens
//!      + per_kv x seqs x tokens x (prompt_tokens + tokens / 2)
//! ```
//!
//! Errors are relative to the measured time, so that short batches count as much as long ones. A constant that
//! would be negative is 0, and the others are fitted without it.

use rolldock_simengine::EngineModel;

/// Number of constants that are fitted.
const CONSTANTS: usize = 5;
/// A constant counts as determined if at least this share of its information remains after the elimination of
/// the constants before it.
const SINGULAR: f64 = 1e-9;

/// A measured batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Number of requests that were sent together.
    pub seqs: u32,
    /// Length of each prompt in tokens. No prefix is cached.
    pub prompt_tokens: u32,
    /// Number of tokens that each request generated.
    pub tokens: u32,
    /// The time until the last request ended, in seconds.
    pub seconds: f64,
}

impl Measured {
    /// The factors of the constants in the time of the batch.
    fn factors(&self) -> [f64; CONSTANTS] {
        let (seqs, prompt, tokens) =
            (f64::from(self.seqs), f64::from(self.prompt_tokens), f64::from(self.tokens));
        [1.0, seqs * prompt, tokens, seqs * tokens, seqs * tokens * (prompt + tokens / 2.0)]
    }
}

/// The fitted constants, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fit {
    /// The time of a batch besides the engine's steps, such as the time of the network.
    pub overhead_s: f64,
    /// Cost of a prompt token.
    pub prefill_s: f64,
    /// Fixed cost of a decode step.
    pub base_s: f64,
    /// Cost of a decode step per sequence.
    pub per_seq_s: f64,
    /// Cost of a decode step per token in the KV cache.
    pub per_kv_token_s: f64,
}

/// The reason why measurements cannot be fitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// There are too few different batches.
    #[error(
        "{found} measured batches do not determine the engine; expected at least {needed} that differ in size"
    )]
    TooFew {
        /// Number of batches.
        found: usize,
        /// Number of batches that are needed.
        needed: usize,
    },
}

impl Fit {
    /// Fits the constants to measured batches.
    ///
    /// # Errors
    /// [`FitError::TooFew`] if the batches do not determine the constants.
    pub fn new(measured: &[Measured]) -> Result<Self, FitError> {
        let too_few = || FitError::TooFew { found: measured.len(), needed: CONSTANTS };
        if measured.len() < CONSTANTS {
            return Err(too_few());
        }
        let mut is_used = [true; CONSTANTS];
        loop {
            let constants = solve(measured, &is_used).ok_or_else(too_few)?;
            let lowest = (0..CONSTANTS)
                .filter(|place| is_used[*place] && constants[*place] < 0.0)
                .min_by(|one, other| constants[*one].total_cmp(&constants[*other]));
            match lowest {
                Some(place) => is_used[place] = false,
                None => return Ok(Self::of(constants)),
            }
        }
    }

    fn of([overhead_s, prefill_s, base_s, per_seq_s, per_kv_token_s]: [f64; CONSTANTS]) -> Self {
        Self { overhead_s, prefill_s, base_s, per_seq_s, per_kv_token_s }
    }

    /// The time of a batch in the model, in seconds.
    pub fn seconds(&self, batch: &Measured) -> f64 {
        let constants = [self.overhead_s, self.prefill_s, self.base_s, self.per_seq_s, self.per_kv_token_s];
        batch.factors().iter().zip(constants).map(|(factor, constant)| factor * constant).sum()
    }

    /// The standard error of [`Fit::per_kv_token_s`], in seconds: how far the differences between measured and
    /// modelled times leave it open. `None` if the batches are too few or too alike to tell.
    pub fn per_kv_token_error_s(&self, measured: &[Measured]) -> Option<f64> {
        let freedom = measured.len().checked_sub(CONSTANTS).filter(|freedom| *freedom > 0)?;
        let squares: f64 =
            measured.iter().map(|batch| (self.seconds(batch) / batch.seconds - 1.0).powi(2)).sum();
        let all: Vec<usize> = (0..CONSTANTS).collect();
        let variance = Normal::new(measured, &all).last_variance()?;
        Some((squares / freedom as f64 * variance).sqrt())
    }

    /// The constants of a simulated server. The overhead is not one of them.
    pub fn model(&self) -> EngineModel {
        let ns = |seconds: f64| Some((seconds * 1e9).round() as u64);
        EngineModel {
            prefill_ns_per_token: ns(self.prefill_s),
            // A step takes time in any case.
            decode_base_ns: ns(self.base_s).map(|base| base.max(1)),
            decode_ns_per_seq: ns(self.per_seq_s),
            decode_ns_per_kv_token: ns(self.per_kv_token_s),
            ..EngineModel::default()
        }
    }
}

/// The normal equations of the used constants, each in a unit of its own, so that all have the same weight in
/// the elimination. The last column is the right side.
struct Normal {
    rows: Vec<Vec<f64>>,
    /// The factor of each constant's unit.
    scales: Vec<f64>,
}

impl Normal {
    fn new(measured: &[Measured], used: &[usize]) -> Self {
        let size = used.len();
        let mut scales = vec![0.0_f64; size];
        for batch in measured {
            let factors = batch.factors();
            for (scale, place) in scales.iter_mut().zip(used) {
                *scale += (factors[*place] / batch.seconds).powi(2);
            }
        }
        scales.iter_mut().for_each(|scale| *scale = scale.sqrt());
        let mut rows = vec![vec![0.0; size + 1]; size];
        for batch in measured {
            let factors = batch.factors();
            let scaled: Vec<f64> = used
                .iter()
                .zip(&scales)
                .map(|(place, scale)| factors[*place] / batch.seconds / scale)
                .collect();
            for (row, one) in rows.iter_mut().zip(&scaled) {
                for (cell, other) in row.iter_mut().zip(scaled.iter().chain(&[1.0])) {
                    *cell += one * other;
                }
            }
        }
        Self { rows, scales }
    }

    /// The variance of the last constant, for errors of the variance 1.
    fn last_variance(mut self) -> Option<f64> {
        let last = self.scales.len().checked_sub(1)?;
        for (place, row) in self.rows.iter_mut().enumerate() {
            row[last + 1] = if place == last { 1.0 } else { 0.0 };
        }
        Some(eliminate(self.rows)?[last] / self.scales[last].powi(2))
    }
}

/// Solves the normal equations for the used constants; the others are 0. `None` if they are not determined.
fn solve(measured: &[Measured], is_used: &[bool; CONSTANTS]) -> Option<[f64; CONSTANTS]> {
    let used: Vec<usize> = (0..CONSTANTS).filter(|place| is_used[*place]).collect();
    let Normal { rows, scales } = Normal::new(measured, &used);
    let solution = eliminate(rows)?;
    let mut constants = [0.0; CONSTANTS];
    for ((place, scale), value) in used.iter().zip(&scales).zip(solution) {
        constants[*place] = value / scale;
    }
    Some(constants)
}

/// Gaussian elimination with the greatest pivot of each column. `None` if the rows depend on each other.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = rows.len();
    for column in 0..size {
        let pivot = (column..size)
            .max_by(|one, other| rows[*one][column].abs().total_cmp(&rows[*other][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs().is_nan() || rows[column][column].abs() < SINGULAR {
            return None;
        }
        let upper = rows[column].clone();
        for (place, row) in rows.iter_mut().enumerate() {
            if place != column {
                let factor = row[column] / upper[column];
                row.iter_mut().zip(&upper).for_each(|(cell, above)| *cell -= factor * above);
            }
        }
    }
    Some(rows.iter().enumerate().map(|(place, row)| row[size] / row[place]).collect())
}

#[cfg(test)]
mod tests;
