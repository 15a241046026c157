//! `truth`: what a run says of itself, compared with what is true in simulation. Everything is in virtual time.
//!
//! The simulated model is a pure function of the seed, so the truth is computed from its draws and from the
//! engines' counters, by code that shares nothing with what measures the run.

mod bias;
mod tokens;

use crate::figures::Figure;

/// All comparisons.
pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = bias::measure(quick)?;
    figures.extend(tokens::measure(quick)?);
    Ok(figures)
}
