//! Recipes: TOML files that name a data set, a fleet, a reward and a queue.
//!
//! [`Recipe::load`] reads layers, merges them, and checks the result. The layers are the `base` chain, the
//! file, `--set` and `--endpoint`. Later layers have precedence. Each complaint names the file, the line and
//! the key of the value, and the value that was expected.
//!
//! # Paths
//! A relative path of a data file, a fleet file, a tokenizer or a chat template is resolved in the folder of
//! the file that names it (which may be a `base`), then in the recipe's folder, then in the current
//! directory. For a value of `--set`, the current directory is tried first. The first path that exists is used. A
//! name that is not found stays unchanged, because it may be a hub id. The code that opens the file or the
//! tokenizer reports the error. `run.out`, `policy.watch` and the working directories of programs are relative to the
//! current directory. A loaded recipe has absolute paths, except for `run.out` and names that are not found.
//!
//! # Deliberately absent
//! This crate does not check that files, tokenizer and servers exist, so a recipe can be read and printed
//! on a machine without them.

mod change;
mod checks;
mod choices;
mod error;
mod files;
mod layers;
mod messages;
mod sections;

use std::path::{Path, PathBuf};

use arrow_schema::SchemaRef;
use rolldock_agent::AgentSandbox;
use rolldock_dispatch::modes::RequestShape;
use rolldock_dispatch::rows::{schema, trajectory_schema, with_token_advantages};

pub use change::{Change, Verdict, changes};
pub use choices::{AdvantageEstimator, OnShort, Transport};
pub use error::{Complaint, RecipeError};
pub use files::LookedFor;
pub use sections::{
    Carry, ColumnType, Consumer, Data, Files, Filter, Fleet, Limits, MaxLoads, Model, OutsideGate,
    OverlongShaping, Policy, Queue, Recipe, Report, Reward, RewardGuard, Rollout, Run, Simulated, Task,
    Tasks, Timeouts, VALIDATION, Validation, ValidationPriority,
};

use files::whole;
use layers::Layers;
use rolldock_loadbalancer::AdaptiveConfig;
use rolldock_policy::PolicyMode;

/// The settings that the command line adds to a recipe.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// `key=value`, each as one line of TOML. A value that is not valid TOML is read as a string.
    pub set: Vec<String>,
    /// URLs that replace `fleet.endpoints` and the simulated fleet.
    pub endpoints: Vec<String>,
}

/// Where a recipe comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A user's file.
    Written,
    /// A run's directory. The run began with the recipe, perhaps under an older version of Rolldock.
    Kept,
    /// A run's directory, only to be compared with the recipe with which the run goes on.
    Begun,
    /// A user's file, for a simulation. Its servers are simulated, and its trainer too.
    Simulated,
}

/// A key whose value is a secret, which the resolved recipe does not contain.
struct Secret {
    key: &'static str,
    is_given: bool,
    /// Whether the recipe configures the servers or the listener that use the secret.
    is_for_something: bool,
}

impl Recipe {
    /// The columns of the rows that the rollout makes, without those of partial scores.
    pub fn row_schema(&self) -> SchemaRef {
        let are_trajectories = self.environment.is_some() || self.agent.is_some();
        match (are_trajectories, self.reward.advantage) {
            (false, _) => schema(),
            (true, AdvantageEstimator::GrpoProcess) => with_token_advantages(&trajectory_schema()),
            (true, _) => trajectory_schema(),
        }
    }

    /// The number of permits that the largest request acquires together. A server with fewer permits would
    /// never get such a request.
    pub fn largest_request(&self) -> u32 {
        let validated = self.validation.as_ref().map_or(0, |validation| validation.samples_per_prompt);
        match self.rollout.request {
            RequestShape::Sample => 1,
            RequestShape::Group => self.rollout.samples_per_prompt.max(validated),
        }
    }

    /// How the number of permits of a server is measured; `None` if the recipe has a fixed number. The default
    /// bounds are wide enough for the largest request.
    pub fn measured_permits(&self) -> Option<AdaptiveConfig> {
        match self.fleet.max_loads_per_server {
            MaxLoads::Fixed(_) => None,
            MaxLoads::Named(_) => Some(self.fleet.adaptive.unwrap_or_else(|| {
                let default = AdaptiveConfig::default();
                let least = self.largest_request();
                AdaptiveConfig {
                    start: default.start.max(least),
                    unreported: default.unreported.max(least),
                    min: default.min.max(least),
                    max: default.max.max(least),
                    ..default
                }
            })),
        }
    }

    /// Reads, merges and checks a recipe.
    ///
    /// # Errors
    /// Returns [`RecipeError::Unreadable`] if `path` itself cannot be read or has no key. Otherwise returns
    /// [`RecipeError::Wrong`] with all mistakes that were found, each with its position.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        Self::load_as(Origin::Written, path, options)
    }

    /// Reads the recipe that a run keeps in its directory, like [`Recipe::load`]. A recipe of a Rolldock
    /// version without `policy.mode = "off"` keeps the meaning that it had in that version.
    ///
    /// # Errors
    /// Returns the errors of [`Recipe::load`].
    pub fn load_kept(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        Self::load_as(Origin::Kept, path, options)
    }

    /// Reads the recipe that a run keeps in its directory, like [`Recipe::load_kept`], but without checks of its
    /// values, so that it can be compared with the recipe with which the run goes on. The run may have begun under an
    /// older version of Rolldock, which accepted values that are refused now.
    ///
    /// # Errors
    /// Returns [`RecipeError::Unreadable`] if `path` cannot be read, and [`RecipeError::Wrong`] if a value is missing
    /// or has a wrong type.
    pub fn load_begun(path: &Path) -> Result<Self, RecipeError> {
        Self::load_as(Origin::Begun, path, &LoadOptions::default())
    }

    /// Reads a recipe for a simulation, like [`Recipe::load`]. A simulated fleet of as many servers replaces
    /// the recipe's servers, unless the recipe has a simulated fleet. The recipe need not say how a trainer
    /// announces versions, or who frees the rows of its queue.
    ///
    /// # Errors
    /// Returns the errors of [`Recipe::load`].
    pub fn load_simulated(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        Self::load_as(Origin::Simulated, path, options)
    }

    fn load_as(origin: Origin, path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        let mut layers = Layers::read(path, options)?;
        if origin == Origin::Simulated {
            layers.simulate_servers()?;
        }
        let mut resolved = layers.resolve::<Self>()?;
        if let Some(recipe) = &mut resolved.value {
            let is_of_run = matches!(origin, Origin::Kept | Origin::Begun);
            if is_of_run && recipe.policy.mode == PolicyMode::Sync && !recipe.names_announcer() {
                recipe.policy.mode = PolicyMode::Off;
            }
            recipe.resolve_defaults_of_mode();
            recipe.find_files(path, &layers);
            recipe.fix_directories();
            if origin != Origin::Begun {
                let further = checks::check(recipe, origin, &layers);
                resolved.add(further);
            }
        }
        match resolved.value {
            Some(recipe) if resolved.complaints.is_empty() => Ok(recipe),
            _ => Err(RecipeError::Wrong(resolved.complaints)),
        }
    }

    /// The resolved recipe as TOML, with defaults and without secrets. If the text is loaded, the result is
    /// the same recipe except for the secrets.
    ///
    /// # Errors
    /// Returns an error if TOML cannot represent a value, such as a path that is not UTF-8 or an integer
    /// above `i64::MAX`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// The keys of the secrets that the recipe has. The text of [`Recipe::to_toml`] does not have them.
    pub fn secrets(&self) -> Vec<&'static str> {
        self.all_secrets().into_iter().filter(|secret| secret.is_given).map(|secret| secret.key).collect()
    }

    /// The keys of the secrets that the recipe lacks although it configures their use: servers, or a
    /// listener. A listener without a token admits every client.
    pub fn absent_secrets(&self) -> Vec<&'static str> {
        let secrets = self.all_secrets().into_iter();
        secrets
            .filter(|secret| secret.is_for_something && !secret.is_given)
            .map(|secret| secret.key)
            .collect()
    }

    fn all_secrets(&self) -> [Secret; 4] {
        let Self { fleet, policy, queue, .. } = self;
        let secret = |key, value: &Option<String>, is_for_something| Secret {
            key,
            is_given: value.is_some(),
            is_for_something,
        };
        [
            secret("fleet.api_key", &fleet.api_key, fleet.simulated.is_none()),
            secret("fleet.admin_token", &fleet.admin_token, fleet.admin.is_some()),
            secret("policy.token", &policy.token, policy.listen.is_some()),
            secret("queue.token", &queue.token, queue.listen.is_some()),
        ]
    }

    fn find_files(&mut self, recipe: &Path, layers: &Layers) {
        let recipe_folder = recipe.parent().unwrap_or(Path::new(""));
        let mut looked_for = LookedFor::default();
        let mut find = |path: &Path, key: &[&str]| -> PathBuf {
            let named_in = layers.folder_of(key).unwrap_or(Path::new(""));
            looked_for.find(path, [named_in, recipe_folder])
        };
        for path in self.data.train.paths_mut() {
            *path = find(path, &["data", "train"]);
        }
        for path in self.data.validation.iter_mut().flat_map(Files::paths_mut) {
            *path = find(path, &["data", "validation"]);
        }
        if let Some(path) = &mut self.fleet.file {
            *path = find(path, &["fleet", "file"]);
        }
        for (text, key) in
            [(&mut self.model.tokenizer, "tokenizer"), (&mut self.model.chat_template, "chat_template")]
        {
            if !matches!(text.as_str(), "builtin" | "auto" | "none") {
                *text = find(Path::new(text.as_str()), &["model", key]).to_string_lossy().into_owned();
            }
        }
        self.looked_for = looked_for;
    }

    /// Makes the directories that are relative to the current directory absolute. Programs that would begin in the
    /// current directory get it as theirs, so that a run can be resumed from another directory.
    fn fix_directories(&mut self) {
        let Self { reward, environment, agent, policy, .. } = self;
        let environment = environment.as_mut().and_then(|environment| environment.python.as_mut());
        // An agent in a sandbox begins in a directory of the sandbox, and a remote one in that of its worker.
        let is_agent_here =
            agent.as_ref().is_some_and(|agent| !agent.remote && agent.sandbox == AgentSandbox::None);
        let directories = [
            (reward.python.as_mut().map(|python| &mut python.directory), true),
            (reward.command.as_mut().map(|command| &mut command.directory), true),
            (reward.code.as_mut().map(|code| &mut code.directory), false),
            (environment.map(|python| &mut python.directory), true),
            (agent.as_mut().map(|agent| &mut agent.directory), is_agent_here),
            (Some(&mut policy.watch), false),
        ];
        for (directory, is_here) in directories {
            let Some(directory) = directory else { continue };
            let named = directory.take().or_else(|| is_here.then(|| PathBuf::from(".")));
            *directory = named.map(|path| whole(&path));
        }
    }
}

#[cfg(test)]
mod tests;
