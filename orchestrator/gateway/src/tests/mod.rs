#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod delivery;
mod ends;
mod engine;
mod rig;
mod splice;
mod surfaces;
