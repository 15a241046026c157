//! Rounds and their medians. The machine is noisy, so every figure is measured several times.

use serde::Deserialize;

/// The number of rounds that count. Callers may add warm-up rounds.
pub(super) fn rounds(quick: bool) -> usize {
    if quick { 10 } else { 30 }
}

/// The seconds that the puts and the takes of a round took.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Round {
    pub(super) put: f64,
    pub(super) take: f64,
}

/// The amounts (rows or gigabytes) that were put and taken per second in each round.
#[derive(Debug, Default)]
pub(super) struct Rates {
    puts: Vec<f64>,
    takes: Vec<f64>,
}

impl Rates {
    pub(super) fn push(&mut self, amount: f64, seconds: Round) {
        self.puts.push(amount / seconds.put);
        self.takes.push(amount / seconds.take);
    }

    /// Adds the round, if there is one.
    pub(super) fn extend(&mut self, round: Option<(f64, Round)>) {
        if let Some((amount, seconds)) = round {
            self.push(amount, seconds);
        }
    }

    pub(super) fn put(&self) -> f64 {
        median(&self.puts)
    }

    pub(super) fn take(&self) -> f64 {
        median(&self.takes)
    }
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
