//! Rolldock's orchestrator: from a recipe and a data set to accepted groups in a transfer queue.

pub mod cli;
pub mod data;
pub mod engine;
pub mod ledger;
pub mod policy;
pub mod recipe;
pub mod report;
pub mod rollout;
pub mod rows;
pub mod run;
pub mod scope;

pub use rolldock_dispatch as dispatch;
