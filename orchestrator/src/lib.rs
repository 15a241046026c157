//! Rolldock's orchestrator. It reads a recipe and a data set, and puts accepted groups into a transfer queue.
//!
//! A [`Recipe`](recipe::Recipe) is read and checked, a [`Run`](run::Run) is prepared from it, and the run
//! collects its steps:
//!
//! ```
//! use std::path::Path;
//!
//! use rolldock::recipe::{LoadOptions, Recipe};
//! use rolldock::report::Progress;
//! use rolldock::run::Run;
//! use rolldock::scope::Scope;
//!
//! # fn main() -> anyhow::Result<()> {
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # let folder = tempfile::tempdir()?;
//! # runtime.block_on(async {
//! let set = ["run.steps=1", "rollout.train_batch_size=2", "fleet.simulated.time_scale=0.01"];
//! let options = LoadOptions { set: set.map(str::to_owned).to_vec(), endpoints: Vec::new() };
//! let recipe = Recipe::load(Path::new("../recipes/quickstart.toml"), &options)?;
//! let run = Run::prepare(recipe, folder.path().join("run"), None, Scope::new()).await?;
//! let summary = run.execute(&Progress::new(false)).await?;
//! assert_eq!((summary.steps, summary.totals.accepted), (1, 2));
//! # Ok(())
//! # })
//! # }
//! ```

pub mod cli;
pub mod report;
pub mod rollout;
pub mod rows;
pub mod run;
pub mod simulate;

pub use rolldock_data as data;
pub use rolldock_dispatch as dispatch;
pub use rolldock_engine as engine;
pub use rolldock_ledger as ledger;
pub use rolldock_policy as policy;
pub use rolldock_process as process;
pub use rolldock_recipe as recipe;
pub use rolldock_scope as scope;
