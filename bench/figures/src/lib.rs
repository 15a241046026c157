//! What all benchmarks share: figures with their bars, CPU time, an allocator that counts, and peers in
//! Python.

mod counting;
pub mod cpu;
pub mod python;
mod report;

pub use counting::{Counting, held_bytes};
pub use report::{Bar, Figure, Report};
