//! What all benchmarks share: figures with their bars, CPU time, and an allocator that counts.

mod counting;
pub mod cpu;
mod report;

pub use counting::{Counting, held_bytes};
pub use report::{Bar, Figure, Report};
