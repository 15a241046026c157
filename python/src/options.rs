//! The options of calls, which Python passes as JSON. An unknown option is an error.

use std::time::Duration;

use pyo3::prelude::*;
use rolldock_queue::{Put, RowHandle, SamplePart, Sampler, Share, Stale, Take};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::errors::bad;
use crate::rows::Rows;

/// The longest wait with a deadline. For a longer one, `wait` returns `None`.
const WAIT_MAX: Duration = Duration::from_secs(86_400 * 365);

pub(crate) fn read<T: DeserializeOwned>(json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| bad(error.to_string()))
}

/// A wait of `seconds`. `None` is a wait without a deadline.
pub(crate) fn wait(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(bad(format!("expected a wait of 0 seconds or more, found {seconds}")));
    }
    Ok(Duration::try_from_secs_f64(seconds).ok().filter(|wait| *wait <= WAIT_MAX))
}

/// The handle of a row in Python: `generation << 32 | slot`.
pub(crate) fn packed(row: RowHandle) -> u64 {
    u64::from(row.generation) << 32 | u64::from(row.slot)
}

pub(crate) fn handle(packed: u64) -> RowHandle {
    RowHandle { slot: packed as u32, generation: (packed >> 32) as u32 }
}

pub(crate) fn handles(packed: &[u64]) -> Vec<RowHandle> {
    packed.iter().copied().map(handle).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakeOptions {
    task: String,
    rows: Option<usize>,
    groups: Option<usize>,
    tokens: Option<u64>,
    only: Option<Vec<u64>>,
    at_least: Option<usize>,
    columns: Option<Vec<String>>,
    #[serde(default)]
    min_policy_version: u64,
    max_staleness: Option<u64>,
    #[serde(default)]
    stale: Stale,
    #[serde(default)]
    order: Sampler,
    share: Option<Share>,
    holder: Option<String>,
}

impl TakeOptions {
    /// Makes the take. Its deadline is after `wait`, or after `WAIT_MAX` if `wait` is `None`.
    pub(crate) fn take(self, wait: Option<Duration>) -> PyResult<Take> {
        let task = self.task;
        let take = match (self.rows, self.groups, self.tokens, self.only) {
            (Some(rows), None, None, None) => Take::rows(task, rows),
            (None, Some(groups), None, None) => Take::groups(task, groups),
            (None, None, Some(tokens), None) => Take::tokens(task, tokens),
            (None, None, None, Some(only)) => Take::only(task, handles(&only)),
            _ => return Err(bad("expected one of rows, groups, tokens and only")),
        };
        let deadline = Instant::now() + wait.unwrap_or(WAIT_MAX);
        Ok(Take {
            at_least: self.at_least.unwrap_or(1),
            columns: self.columns,
            min_policy_version: self.min_policy_version,
            max_staleness: self.max_staleness,
            stale: self.stale,
            sampler: self.order,
            share: self.share,
            holder: self.holder,
            deadline: Some(deadline),
            ..take
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutOptions {
    group: String,
    #[serde(default)]
    group_size: usize,
    sample: Option<String>,
    #[serde(default)]
    sample_is_last: bool,
    #[serde(default)]
    policy_version: u64,
    #[serde(default)]
    priority: i64,
    token: Option<String>,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    tags: Vec<Value>,
    record: Option<String>,
}

impl PutOptions {
    pub(crate) fn put(self, rows: &Rows) -> Put {
        let sample = self.sample.map(|uid| SamplePart { uid, is_last: self.sample_is_last });
        Put {
            batches: rows.batches(),
            group: self.group,
            group_size: self.group_size,
            sample,
            policy_version: self.policy_version,
            priority: self.priority,
            token: self.token,
            keys: self.keys,
            tags: self.tags,
            record: self.record,
        }
    }
}
