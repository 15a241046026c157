//! What all benchmarks share: figures with their bars, CPU time, an allocator that counts, peers in Python, and
//! the places of the checkout and of `shared`.

mod checkout;
mod counting;
pub mod cpu;
pub mod python;
mod report;

pub use checkout::{checkout, shared};
pub use counting::{Counting, held_bytes};
pub use report::{Bar, Figure, Report};
