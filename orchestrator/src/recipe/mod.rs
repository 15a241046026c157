//! Recipes: TOML files that name a data set, a fleet, a reward and a queue.
//!
//! [`Recipe::load`] reads layers (the `base` chain, the file, `--set`, `--endpoint`; later ones win), merges them,
//! and checks the whole. Every complaint says where the value was written: file, line, key, and what was expected.
//!
//! # Paths
//! A data file, tokenizer or chat template is looked for beside the recipe first, then in the current directory.

mod checks;
mod choices;
mod error;
mod layers;
mod sections;

use std::path::{Path, PathBuf};

pub use choices::{
    AdvantageEstimator, Duplicates, Durability, EarlyStop, FilterMetric, Launch, OnFull, OnShort, OnStop,
    OverlongPrompts, PolicyMode, RequestShape, RoutingPolicy, Transport,
};
pub use error::{Complaint, RecipeError};
pub use sections::{
    Columns, Consumer, Data, Files, Filter, Fleet, Limits, MaxLoads, Model, OverlongShaping, Policy, Queue, Recipe,
    Reward, Rollout, Run, Sampling, Simulated, Timeouts, Validation,
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
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        let layers = Layers::read(path, options)?;
        let mut recipe: Self = layers.resolve()?;
        recipe.find_files(path);
        checks::check(&recipe, &layers)?;
        Ok(recipe)
    }

    /// The resolved recipe as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    fn find_files(&mut self, recipe: &Path) {
        let folder = recipe.parent().unwrap_or(Path::new(""));
        let beside = |path: &Path| -> PathBuf {
            let candidate = folder.join(path);
            if path.is_relative() && candidate.exists() { candidate } else { path.to_owned() }
        };
        let files = self.data.train.paths_mut().iter_mut();
        for path in files.chain(self.data.validation.iter_mut().flat_map(Files::paths_mut)) {
            *path = beside(path);
        }
        for text in [&mut self.model.tokenizer, &mut self.model.chat_template] {
            if !matches!(text.as_str(), "builtin" | "auto" | "none") {
                *text = beside(Path::new(text.as_str())).to_string_lossy().into_owned();
            }
        }
    }
}

#[cfg(test)]
mod tests;
