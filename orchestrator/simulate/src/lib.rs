//! The pure parts of simulated rollouts: the least time in which a fleet can do the work of a step
//! ([`bounds`]), ratios with their standard errors ([`ratio`]), the settings of a sweep ([`sweep`]), the
//! settings that no other setting beats ([`front`]), and the constants of a measured engine ([`fit`]).
//!
//! The simulation of a rollout in virtual time is in the crate `rolldock`, because that crate has the rollout.
//! `rolldock simulate` and `rolldock-bench` compare step times with the same bounds.
//!
//! # Deliberately absent
//! Nothing here runs servers, reads a clock, or draws at random.

pub mod bounds;
pub mod fit;
pub mod front;
pub mod ratio;
pub mod sweep;
