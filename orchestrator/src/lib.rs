//! Rolldock's orchestrator: from a recipe and a data set to accepted groups in a transfer queue.

pub mod cli;
pub mod recipe;
pub mod report;
pub mod rollout;
pub mod rows;
pub mod run;

pub use rolldock_data as data;
pub use rolldock_dispatch as dispatch;
pub use rolldock_engine as engine;
pub use rolldock_ledger as ledger;
pub use rolldock_policy as policy;
pub use rolldock_scope as scope;
