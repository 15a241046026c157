//! `truth`: the figures that a run reports about itself, compared with the truth in simulation. All runs are
//! in virtual time.
//!
//! The simulated model is a pure function of the seed. The truth is computed from the model's draws and from
//! the engines' counters, by code that is independent of the run's meters.

pub mod bias;
pub mod tokens;
use rolldock_bench_figures::Figure;

/// All comparisons.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = bias::measure(quick)?;
    figures.extend(tokens::measure(quick)?);
    Ok(figures)
}
