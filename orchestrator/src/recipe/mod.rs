//! Recipes: TOML files that name a data set, a fleet, a reward and a queue.
//!
//! [`Recipe::load`] reads layers (the `base` chain, the file, `--set`, `--endpoint`; later ones win), merges
//! them, and checks the whole. Every complaint says where the value was written: file, line, key, and what
//! was expected.
//!
//! # Paths
//! A relative data file, tokenizer or chat template is looked for beside the file that names it (a `base` may
//! live elsewhere), then beside the recipe, then in the current directory. What `--set` names is typed in a
//! shell, so there the current directory comes first. The first that exists counts; a name found nowhere
//! stays as written, for it may be a hub id, and its reader complains. `run.out` and `policy.watch` are
//! relative to the current directory.
//!
//! # Deliberately absent
//! Whether files, tokenizer and servers exist is not checked here: a recipe can be read and printed on a
//! machine that has none of them.

mod change;
mod checks;
mod choices;
mod error;
mod layers;
mod sections;

use std::path::{Path, PathBuf};

pub use change::{Change, Verdict, changes};
pub use choices::{AdvantageEstimator, OnShort, Transport};
pub use error::{Complaint, RecipeError};
pub use sections::{
    Carry, Consumer, Data, Files, Filter, Fleet, Limits, MaxLoads, Model, OutsideGate, OverlongShaping,
    Policy, Queue, Recipe, Reward, RewardGuard, Rollout, Run, Simulated, Timeouts, Validation,
    ValidationPriority,
};

use layers::Layers;

/// What the command line adds to a recipe.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// `key=value`, each as one line of TOML; a value that is no TOML counts as a string.
    pub set: Vec<String>,
    /// Replace `fleet.endpoints`, and the simulated fleet.
    pub endpoints: Vec<String>,
}

impl Recipe {
    /// Reads, merges and checks a recipe.
    ///
    /// # Errors
    /// [`RecipeError::Unreadable`] where `path` itself cannot be read; else [`RecipeError::Wrong`] with
    /// everything that could be found wrong, each at its place.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        let layers = Layers::read(path, options)?;
        let mut recipe: Self = layers.resolve()?;
        recipe.find_files(path, &layers);
        checks::check(&recipe, &layers)?;
        Ok(recipe)
    }

    /// The resolved recipe as TOML, defaults filled in, secrets left out. It loads again to the same recipe.
    ///
    /// # Errors
    /// Where TOML has no way to write a value: a path that is not UTF-8, an integer above `i64::MAX`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    fn find_files(&mut self, recipe: &Path, layers: &Layers) {
        let recipe_folder = recipe.parent().unwrap_or(Path::new(""));
        let find = |path: &Path, key: &[&str]| -> PathBuf {
            if path.as_os_str().is_empty() {
                return path.to_owned();
            }
            let named_in = layers.folder_of(key).unwrap_or(Path::new(""));
            let candidates = [named_in.join(path), recipe_folder.join(path)];
            candidates.into_iter().find(|candidate| candidate.exists()).unwrap_or_else(|| path.to_owned())
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
    }
}

#[cfg(test)]
mod tests;
