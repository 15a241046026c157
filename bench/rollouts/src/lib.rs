//! Benchmarks of rollouts on simulated fleets. All of them run in virtual time, except for the CPU time that some
//! measure.

mod epochs;
pub mod history;
pub mod lifecycle;
pub mod rollout;
pub mod scale;
pub mod truth;
pub mod unlikely;
pub mod workload;
