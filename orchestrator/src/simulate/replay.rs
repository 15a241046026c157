//! The workload of a recorded run: the lengths and the results of its samples, by prompt.
//!
//! A run keeps the times of the newest steps (`report.timelines`), with the lengths and the results of all
//! groups that were complete in these steps. A replay sends out the same prompts in the same order. A number
//! without a record (its group was cut off, or it was complete in a step that is not kept) gets the samples
//! of another recorded group. The prompts after the last recorded number get such samples too.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::Deserialize;

use super::prompts::numbered;
use crate::data::{DataError, Prompt, PromptSource, PromptUid};
use crate::report::figures::{GroupRow, KeptTimeline, STEPS_FILE, kept_timelines};
use crate::run::RECIPE_FILE;

/// The multiplier of a hash of numbers, from the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The recorded groups of a run, and the times of its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The recorded groups by number in dispatch order; at least one.
    groups: BTreeMap<u64, Arc<GroupRow>>,
    /// The recorded groups as a list, for numbers without a record.
    all: Vec<Arc<GroupRow>>,
    /// The steps whose groups are recorded, with the time of each step in seconds on the servers' clock.
    pub steps: Vec<(u64, Option<f64>)>,
    /// Recorded steps whose time is not known, because an earlier process of the run may have begun them. The run's
    /// time of such a step covers only its last process.
    pub resumed_in: Vec<u64>,
}

/// The parts of a line of `steps.jsonl` that are read.
#[derive(Deserialize)]
struct StepLine {
    step: u64,
    life: Option<u64>,
    time: Option<StepTime>,
}

#[derive(Deserialize)]
struct StepTime {
    step_s: f64,
}

/// The parts of a run's recipe that are read.
#[derive(Default, Deserialize)]
struct RunRecipe {
    #[serde(default)]
    fleet: RunFleet,
    #[serde(default)]
    rollout: RunRollout,
}

#[derive(Default, Deserialize)]
struct RunRollout {
    max_response_length: Option<u32>,
}

#[derive(Default, Deserialize)]
struct RunFleet {
    simulated: Option<RunSimulated>,
}

#[derive(Deserialize)]
struct RunSimulated {
    #[serde(default = "real_time")]
    time_scale: f64,
}

fn real_time() -> f64 {
    1.0
}

impl Replay {
    /// Reads the records of the run in `run`. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if no group is recorded.
    pub fn read(run: &Path) -> anyhow::Result<Self> {
        let unreadable = |file: &PathBuf| format!("cannot read {}", file.display());
        let kept = kept_timelines(run).with_context(|| format!("cannot read {}", run.display()))?;
        let recipe = fs::read_to_string(run.join(RECIPE_FILE)).unwrap_or_default();
        let recipe: RunRecipe = toml::from_str(&recipe).unwrap_or_default();
        let longest = recipe.rollout.max_response_length;
        let mut groups = BTreeMap::new();
        for step in &kept {
            let file = KeptTimeline::file(run, *step);
            let text = fs::read_to_string(&file).with_context(|| unreadable(&file))?;
            let timeline: KeptTimeline = serde_json::from_str(&text).with_context(|| unreadable(&file))?;
            let sound = timeline
                .groups
                .into_iter()
                .filter(|group| !group.tokens.is_empty() && group.tokens.len() == group.right.len());
            groups.extend(sound.map(|group| (group.number, Arc::new(with_truncation(group, longest)))));
        }
        anyhow::ensure!(
            !groups.is_empty(),
            "{} has no recorded groups; expected the directory of a run with report.timelines above 0",
            run.display()
        );
        let times = times(run, recipe.fleet.simulated.map_or(1.0, |simulated| simulated.time_scale))?;
        let steps = kept.iter().map(|step| (*step, times.whole.get(step).copied())).collect();
        let resumed_in = kept.iter().copied().filter(|step| times.resumed_in.contains(step)).collect();
        Ok(Self { all: groups.values().cloned().collect(), groups, steps, resumed_in })
    }

    /// The mean time of the recorded steps in seconds on the servers' clock; `None` if no time is recorded.
    pub fn step_s(&self) -> Option<f64> {
        let times: Vec<f64> = self.steps.iter().filter_map(|(_, time)| *time).collect();
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Number of recorded groups.
    pub fn groups(&self) -> usize {
        self.all.len()
    }

    /// The recorded group of a number. If the number has no record, this is another recorded group.
    pub(super) fn group(&self, number: u64) -> Arc<GroupRow> {
        let other = || {
            let place = (u128::from(number.wrapping_mul(SPREAD)) * self.all.len() as u128) >> 64;
            &self.all[place as usize]
        };
        Arc::clone(self.groups.get(&number).unwrap_or_else(other))
    }

    fn first(&self) -> u64 {
        self.groups.keys().next().copied().unwrap_or(0)
    }
}

/// The group with the list of its truncated samples. Files of older versions do not have this list. A sample in them
/// counts as truncated if its length is `longest`, the token limit of the run.
fn with_truncation(group: GroupRow, longest: Option<u32>) -> GroupRow {
    if group.truncated.len() == group.tokens.len() {
        return group;
    }
    let truncated =
        group.tokens.iter().map(|tokens| longest.is_some_and(|longest| *tokens >= longest)).collect();
    GroupRow { truncated, ..group }
}

/// The times of the steps of a run.
struct StepTimes {
    /// The time of each step of which it is known, in seconds on the servers' clock.
    whole: HashMap<u64, f64>,
    /// The first step that ended in each process of the run except the first process.
    resumed_in: Vec<u64>,
}

/// The times of the steps of the run on the servers' clock. A second of this clock takes
/// `time_scale` seconds.
fn times(run: &Path, time_scale: f64) -> anyhow::Result<StepTimes> {
    let file = run.join(STEPS_FILE);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    // A last line without a line end is still being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut times = StepTimes { whole: HashMap::new(), resumed_in: Vec::new() };
    let mut last_life = 1;
    for line in whole.lines().filter_map(|line| serde_json::from_str::<StepLine>(line).ok()) {
        let life = line.life.unwrap_or(last_life);
        if life > last_life {
            last_life = life;
            times.resumed_in.push(line.step);
        } else if let Some(time) = line.time {
            times.whole.insert(line.step, time.step_s / time_scale);
        }
    }
    Ok(times)
}

/// The prompts of a recorded run, in dispatch order from the first recorded number on. The series is endless.
pub(super) struct Recorded {
    replay: Arc<Replay>,
    next: u64,
}

impl Recorded {
    pub(super) fn new(replay: Arc<Replay>) -> Self {
        Self { next: replay.first(), replay }
    }
}

impl PromptSource for Recorded {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let number = self.next;
        self.next += 1;
        let tokens = self.replay.group(number).prompt_tokens as usize;
        // The number is the prompt's identity here: in several epochs, a prompt has several numbers.
        Ok(Some(Prompt { uid: PromptUid(number), ..numbered(number, tokens) }))
    }
}
