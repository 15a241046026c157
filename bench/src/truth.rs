//! `truth`: what a run says of itself, compared with what is true in simulation.
//!
//! The simulated model is a pure function of the seed, so the truth is computed from its draws, by code that
//! shares nothing with what measures the run.

mod bias;

use crate::figures::Figure;

/// All comparisons.
pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    bias::measure(quick)
}
