//! What scores rows: a scorer of this process, or one outside, both named and set as a recipe does it.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use rolldock_reward::{
    ExternalConfig, RewardError, RewardJob, RewardRunner, Score, ScoreInput, Scorer, ScorerConfig,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::Handle;

use super::rows::{Row, json};
use crate::cli::UsageError;
use crate::scope::Scope;

/// The scorers outside of this process: keys of a recipe's `[reward]`.
const OUTSIDE: [&str; 5] = ["python", "command", "http", "judge", "code"];
/// Rows about which an outside scorer is asked at a time; the guard's `concurrency` bounds those under way.
const OUTSIDE_ROWS_MAX: usize = 1024;

/// A scorer of this process or one outside.
pub(super) enum Opinion {
    Inside(Arc<dyn Scorer>),
    Outside(Arc<dyn RewardRunner>),
}

impl Opinion {
    /// The scorer called `name` with its `settings`; an error names the flag (of the name, of a setting) that
    /// is wrong. What runs outside ends with `scope`. Blocks until it is known whether that can be used.
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
            // Perhaps they are there.
            Err(RewardError::NeedsOptions { .. }) if !settings.is_empty() => {}
            Err(error) => {
                let outside = OUTSIDE.join(", ");
                return Err(UsageError(format!("{flag}: {error}; outside of this process: {outside}")).into());
            }
        }
        let config =
            inside(name, &settings).map_err(|error| UsageError(format!("{set_flag}: {name}: {error}")))?;
        let scorer = config.build().map_err(|error| UsageError(format!("{set_flag}: {error}")))?;
        Ok(Self::Inside(scorer))
    }

    /// Rows that are worth being asked about together.
    pub(super) fn rows_max(&self) -> usize {
        match self {
            Self::Inside(_) => 1,
            Self::Outside(_) => OUTSIDE_ROWS_MAX,
        }
    }

    /// The scores of jobs, in their order, or the place of one that has none, and why. Blocks.
    pub(super) fn score(&self, jobs: &[RewardJob]) -> Result<Vec<Score>, (usize, String)> {
        let named = |at: usize| move |error: RewardError| (at, error.to_string());
        match self {
            Self::Inside(scorer) => {
                let score = |(at, job): (usize, &RewardJob)| scorer.score(&input(job)).map_err(named(at));
                jobs.iter().enumerate().map(score).collect()
            }
            Self::Outside(runner) => {
                let score = |(at, job)| async move { runner.score(job).await.map_err(named(at)) };
                let asked = stream::iter(jobs.iter().enumerate().map(score)).buffered(OUTSIDE_ROWS_MAX);
                Handle::current().block_on(asked.try_collect())
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

/// A scorer outside; keys of the guard are those that a recipe has beside the runner's.
fn outside(name: &str, settings: &[(&str, &str)]) -> Result<ExternalConfig, serde_json::Error> {
    let guard_keys = match json(ExternalConfig::default()) {
        Value::Object(keys) => keys.into_iter().map(|(key, _)| key).collect(),
        _ => BTreeSet::new(),
    };
    let (mut guard, mut asked) = (Row::new(), Row::new());
    let parse = |guard: &Row, asked: &Row| {
        let mut config = guard.clone();
        config.insert(name.to_owned(), Value::Object(asked.clone()));
        ExternalConfig::deserialize(&Value::Object(config))
    };
    for (key, value) in settings {
        if guard_keys.contains(*key) && !OUTSIDE.contains(key) {
            set(&mut guard, key, value, |guard| is_of_its_type(&parse(guard, &asked)));
        } else {
            set(&mut asked, key, value, |asked| is_of_its_type(&parse(&guard, asked)));
        }
    }
    parse(&guard, &asked)
}

/// A value is what it looks like, unless the option is a text: `variant=2026` and `strict_box=true` are both
/// right, and `schema={"type":"object"}` is no text.
fn set(config: &mut Row, key: &str, value: &str, fits: impl Fn(&Row) -> bool) {
    if let Ok(found) = serde_json::from_str::<Value>(value) {
        config.insert(key.to_owned(), found);
        if fits(config) {
            return;
        }
    }
    config.insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Other errors are not about the type of one value.
fn is_of_its_type<T>(parsed: &Result<T, serde_json::Error>) -> bool {
    !parsed.as_ref().is_err_and(|error| error.to_string().contains("invalid type"))
}
