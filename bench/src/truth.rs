//! `truth`: what a run says of itself, compared with what the simulation knows. Everything is in virtual time.

use crate::figures::Figure;

mod tokens;

/// Measures every part.
pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    tokens::measure(quick)
}
