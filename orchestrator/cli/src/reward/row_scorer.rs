//! Scores rows with a scorer in this process or outside of it. Scorers and settings have the names that recipes
//! use, except `deadline_s`, which is `timeouts.reward` in a recipe.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use rolldock_reward::{
    ExternalConfig, RewardError, RewardJob, RewardRunner, Score, ScoreInput, Scorer, ScorerConfig,
};
use rolldock_scope::Scope;
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::Handle;

use super::rows::{Row, json};
use crate::usage::UsageError;

/// The scorers outside of this process, which are keys of a recipe's `[reward]`.
const OUTSIDE: [&str; 5] = ["python", "command", "http", "judge", "code"];
/// Maximum number of rows that an outside scorer gets at a time. The guard's `concurrency` bounds the number of
/// jobs that run.
const OUTSIDE_ROWS_MAX: usize = 1024;

/// A scorer in this process or outside of it.
pub(super) enum RowScorer {
    Inside(Arc<dyn Scorer>),
    Outside(Arc<dyn RewardRunner>),
}

impl RowScorer {
    /// Opens the scorer called `name` with its `settings`. An error names the flag with the mistake: `flag`
    /// for the name, or `set_flag` for the settings. An outside scorer ends with `scope`. Blocks until an
    /// outside scorer has been checked.
    pub(super) fn open(
        name: &str,
        settings: &[String],
        (flag, set_flag): (&str, &str),
        scope: &Scope,
    ) -> anyhow::Result<Self> {
        let settings = settings.iter().map(|setting| {
            setting
                .split_once('=')
                .ok_or_else(|| UsageError(format!("{set_flag}: expected KEY=VALUE, found {setting:?}")))
        });
        let settings: Vec<(&str, &str)> = settings.collect::<Result<_, _>>()?;
        if OUTSIDE.contains(&name) {
            let config = outside(name, &settings)
                .map_err(|error| UsageError(format!("{set_flag}: {name}: {error}")))?;
            let runner = config
                .build(scope.tracker().clone(), scope.token().clone())
                .map_err(|error| UsageError(format!("{set_flag}: {error}")))?;
            Handle::current().block_on(runner.check())?;
            return Ok(Self::Outside(runner));
        }
        match ScorerConfig::from_name(name) {
            Ok(_) => {}
            // The settings may contain the options that are missing.
            Err(RewardError::NeedsOptions { .. }) if !settings.is_empty() => {}
            Err(error @ RewardError::NeedsOptions { .. }) => {
                return Err(UsageError(format!("{set_flag}: {error}")).into());
            }
            Err(error) => {
                let outside = OUTSIDE.join(", ");
                return Err(
                    UsageError(format!("{flag}: {error}, or outside of this process: {outside}")).into()
                );
            }
        }
        let config =
            inside(name, &settings).map_err(|error| UsageError(format!("{set_flag}: {name}: {error}")))?;
        let scorer = config.build().map_err(|error| UsageError(format!("{set_flag}: {error}")))?;
        Ok(Self::Inside(scorer))
    }

    /// Number of rows that should be scored together.
    pub(super) fn rows_max(&self) -> usize {
        match self {
            Self::Inside(_) => 1,
            Self::Outside(_) => OUTSIDE_ROWS_MAX,
        }
    }

    /// The scores of jobs, in their order. The error is the index of a job without a score, and the reason.
    /// Blocks.
    pub(super) fn score(&self, jobs: &[RewardJob]) -> Result<Vec<Score>, (usize, String)> {
        let named = |at: usize| move |error: RewardError| (at, error.to_string());
        match self {
            Self::Inside(scorer) => {
                let score = |(at, job): (usize, &RewardJob)| scorer.score(&input(job)).map_err(named(at));
                jobs.iter().enumerate().map(score).collect()
            }
            Self::Outside(runner) => {
                let score = |(at, job)| async move { runner.score(job).await.map_err(named(at)) };
                let scores = stream::iter(jobs.iter().enumerate().map(score)).buffered(OUTSIDE_ROWS_MAX);
                Handle::current().block_on(scores.try_collect())
            }
        }
    }
}

fn input(job: &RewardJob) -> ScoreInput<'_> {
    ScoreInput {
        response: &job.response,
        ground_truth: &job.ground_truth,
        data_source: &job.data_source,
        extra: Some(&*job.extra).filter(|extra| !extra.is_null()),
    }
}

fn inside(name: &str, settings: &[(&str, &str)]) -> Result<ScorerConfig, serde_json::Error> {
    let mut config = Row::new();
    config.insert("scorer".to_owned(), Value::String(name.to_owned()));
    let parse = |config: &Row| ScorerConfig::deserialize(&Value::Object(config.clone()));
    for (key, value) in settings {
        set(&mut config, key, value, |config| is_of_its_type(&parse(config)));
    }
    parse(&config)
}

/// The configuration of an outside scorer. Settings whose key is a key of the guard configure the guard. All others
/// configure the runner.
fn outside(name: &str, settings: &[(&str, &str)]) -> Result<ExternalConfig, serde_json::Error> {
    let guard_keys = match json(ExternalConfig::default()) {
        Value::Object(keys) => keys.into_iter().map(|(key, _)| key).collect(),
        _ => BTreeSet::new(),
    };
    let (mut guard, mut runner) = (Row::new(), Row::new());
    let parse = |guard: &Row, runner: &Row| {
        let mut config = guard.clone();
        config.insert(name.to_owned(), Value::Object(runner.clone()));
        ExternalConfig::deserialize(&Value::Object(config))
    };
    for (key, value) in settings {
        if guard_keys.contains(*key) && !OUTSIDE.contains(key) {
            set(&mut guard, key, value, |guard| is_of_its_type(&parse(guard, &runner)));
        } else {
            set(&mut runner, key, value, |runner| is_of_its_type(&parse(&guard, runner)));
        }
    }
    parse(&guard, &runner)
}

/// Sets a value. It is read as JSON if the option accepts the parsed value, and as text otherwise.
/// `variant=2026` sets a text, `strict_box=true` a boolean, and `schema={"type":"object"}` an object.
fn set(config: &mut Row, key: &str, value: &str, fits: impl Fn(&Row) -> bool) {
    if let Ok(found) = serde_json::from_str::<Value>(value) {
        config.insert(key.to_owned(), found);
        if fits(config) {
            return;
        }
    }
    config.insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Whether the value has the right type. Only errors about an invalid type count; other errors do not.
fn is_of_its_type<T>(parsed: &Result<T, serde_json::Error>) -> bool {
    !parsed.as_ref().is_err_and(|error| error.to_string().contains("invalid type"))
}
