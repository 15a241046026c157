//! Files with the times of a step's requests, for a picture of the step. Only the newest steps have a file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{FORMAT, rounded};
use crate::rollout::{GroupRecord, RequestEnd, RequestTimes, StepTimeline};

/// The folder of these files, in the run's directory.
const FOLDER: &str = "timeline";

/// The times of a step's requests. Times are seconds since the start of the process that ended the step.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct KeptTimeline {
    format: u32,
    /// The step.
    pub step: u64,
    /// When the step began.
    pub began_s: f64,
    /// When the step ended.
    pub ended_s: f64,
    /// The number of requests that are not in `requests`, because there were too many.
    pub left_out: u64,
    /// The names of the servers. Requests refer to a server by its index.
    pub servers: Vec<String>,
    /// The requests that ended in the step.
    pub requests: Vec<RequestRow>,
    /// The groups whose samples all ended in the step, for a replay. Files of older versions have none.
    #[serde(default)]
    pub groups: Vec<GroupRow>,
}

/// The samples of a complete group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct GroupRow {
    /// The group's number in dispatch order.
    pub number: u64,
    /// The prompt, as 16 hexadecimal digits.
    pub prompt_uid: String,
    /// Length of the prompt in tokens.
    pub prompt_tokens: u32,
    /// The response tokens of each sample.
    pub tokens: Vec<u32>,
    /// Whether each sample is right.
    pub right: Vec<bool>,
    /// Whether the token limit ended each sample. Files of older versions do not have this list.
    #[serde(default)]
    pub truncated: Vec<bool>,
}

impl From<&GroupRecord> for GroupRow {
    fn from(group: &GroupRecord) -> Self {
        let GroupRecord { number, prompt_uid, prompt_tokens, tokens, right, truncated } = group;
        Self {
            number: *number,
            prompt_uid: prompt_uid.to_string(),
            prompt_tokens: *prompt_tokens,
            tokens: tokens.clone(),
            right: right.clone(),
            truncated: truncated.clone(),
        }
    }
}

/// A request. The fields are the server's index, the dispatch, the number of samples, the times of its start
/// and end in seconds, and how it ended (`answered`, `failed` or `cut_off`).
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct RequestRow(pub usize, pub u64, pub u32, pub f64, pub f64, pub String);

impl KeptTimeline {
    /// The content of the file of a step.
    pub fn new(step: u64, timeline: &StepTimeline) -> Self {
        let mut indexes: BTreeMap<&str, usize> = BTreeMap::new();
        for request in &timeline.requests {
            indexes.insert(&request.server, 0);
        }
        for (index, entry) in indexes.values_mut().enumerate() {
            *entry = index;
        }
        let row = |request: &RequestTimes| {
            let RequestTimes { server, dispatch, samples, began, ended, end } = request;
            let index = indexes.get(&**server).copied().unwrap_or_default();
            let (began, ended) = (rounded(began.as_secs_f64()), rounded(ended.as_secs_f64()));
            RequestRow(index, dispatch.0, *samples, began, ended, name_of(*end).to_owned())
        };
        Self {
            format: FORMAT,
            step,
            began_s: rounded(timeline.began.as_secs_f64()),
            ended_s: rounded(timeline.ended.as_secs_f64()),
            left_out: timeline.left_out,
            servers: indexes.keys().map(|name| (*name).to_owned()).collect(),
            requests: timeline.requests.iter().map(row).collect(),
            groups: timeline.groups.iter().map(GroupRow::from).collect(),
        }
    }

    /// The file of a step of the run in `run`.
    pub fn file(run: &Path, step: u64) -> PathBuf {
        run.join(FOLDER).join(format!("step-{step}.json"))
    }
}

fn name_of(end: RequestEnd) -> &'static str {
    match end {
        RequestEnd::Answered => "answered",
        RequestEnd::Failed => "failed",
        RequestEnd::CutOff => "cut_off",
    }
}

/// The steps of the run in `run` that have a file, in order. Blocks.
///
/// # Errors
/// Returns the errors of the file system. A missing folder is not an error.
pub fn kept_timelines(run: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(run.join(FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.strip_suffix(".json"));
        steps.extend(step.and_then(|step| step.parse::<u64>().ok()));
    }
    steps.sort_unstable();
    Ok(steps)
}
