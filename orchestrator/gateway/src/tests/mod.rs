#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod abandoned;
mod advantages;
mod affinity;
mod bounds;
mod columns;
mod delivery;
mod ends;
mod engine;
mod hosted;
mod rendering;
mod rig;
mod slow;
mod splice;
mod surfaces;
