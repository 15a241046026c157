//! Writes the figures of a run into its directory whenever a step or a validation has ended.
//!
//! The line of a step is written after the ledger has the end of the step and the queue has its groups. A
//! resumed run keeps the lines of steps that have ended, and adds the lines that an earlier process did not
//! write.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rolldock_dispatch::{StepEnd, Totals};
use rolldock_ledger::{Resumption, StepState};
use rolldock_queue::Durability;
use serde::Serialize;
use serde_json::Value;

use super::Run;
use super::directory::write_whole;
use crate::process::unix_seconds;
use crate::report::EventFile;
use crate::report::figures::{
    AcceptedGroups, FigureFile, KeptTimeline, STEPS_FILE, VALIDATIONS_FILE, Written, kept_timelines,
    recovered_step, step_figures, validation_figures,
};
use crate::rollout::{Group, RolloutOutput, StepMetrics};
use crate::scope::blocking;

/// The figures of a run.
pub(super) struct RunFigures {
    out: PathBuf,
    /// The number of this process of the run.
    life: u32,
    /// The number of newest steps for which the times of requests are kept.
    timelines: usize,
    /// For steps that earlier processes began but did not end: the dispatches that ended in these processes.
    earlier: BTreeMap<u64, Totals>,
    /// The groups of the present step that are in the queue.
    accepted: Mutex<AcceptedGroups>,
    files: Arc<Mutex<Files>>,
}

impl RunFigures {
    /// Opens the files in the run's directory. `begun` has the steps that were in the ledger before this
    /// process.
    pub(super) async fn open(
        run: &Run,
        begun: BTreeMap<u64, StepState>,
        resumption: Option<&Resumption>,
    ) -> anyhow::Result<Self> {
        let open_steps = resumption.map(|resumption| resumption.open_steps.as_slice()).unwrap_or_default();
        let earlier: BTreeMap<u64, Totals> =
            open_steps.iter().map(|open| (open.step, open.totals.clone())).collect();
        let ended = begun.into_iter().filter(|(step, _)| !earlier.contains_key(step));
        let ended = ended.filter_map(|(step, state)| Some((step, (state.end?, state)))).collect();
        let life = resumption.map_or(1, |resumption| resumption.life);
        let (out, report) = (run.out.clone(), &run.recipe.report);
        let fsync = run.recipe.queue.durability == Durability::Fsync;
        let events_since = report.tensorboard.then(unix_seconds);
        let opening = move || Files::open(&out, fsync, &ended, events_since, life);
        let files = blocking("figures open", opening).await?.context("cannot open the run's figures")?;
        Ok(Self {
            out: run.out.clone(),
            life,
            timelines: report.timelines,
            earlier,
            accepted: Mutex::default(),
            files: Arc::new(Mutex::new(files)),
        })
    }

    /// Counts a group that is in the queue.
    pub(super) fn accepted(&self, group: &Group) {
        self.accepted.lock().add(group);
    }

    /// Writes the figures of a step whose groups are in the queue. `before` is the time for which the step
    /// waited for the trainer, and `put` is the time from the step's end until its last group was in the
    /// queue. An interrupted step gets its figures in the process in which it ends.
    pub(super) async fn step_ended(&self, metrics: &StepMetrics, before: Duration, put: Duration) {
        let accepted = std::mem::take(&mut *self.accepted.lock());
        if metrics.end == StepEnd::Interrupted {
            return;
        }
        let step = metrics.step;
        let earlier = self.earlier.get(&step);
        let written = Written { life: self.life, unix_s: unix_seconds(), before, put, earlier };
        let figures = step_figures(metrics, &accepted, &written);
        let timeline = (self.timelines > 0).then(|| KeptTimeline::new(step, &metrics.timeline));
        let (files, out, timelines) = (Arc::clone(&self.files), self.out.clone(), self.timelines);
        let writing = move || {
            files.lock().add(Kind::Step, step, &figures)?;
            match timeline {
                Some(timeline) => keep_timeline(&out, &timeline, timelines),
                None => Ok(()),
            }
        };
        warn_unless(blocking("figures of a step", writing).await.context("the task died").flatten(), step);
    }

    /// Whether the run's directory has the figures of the validation after `step`.
    pub(super) fn has_validation(&self, step: u64) -> bool {
        self.files.lock().validations.has(step)
    }

    /// Writes the figures of the validation after `step`.
    pub(super) async fn validated(&self, step: u64, samples_per_prompt: u32, output: &RolloutOutput) {
        let figures = validation_figures(step, samples_per_prompt, output, self.life, unix_seconds());
        let files = Arc::clone(&self.files);
        let writing = move || files.lock().add(Kind::Validation, step, &figures);
        warn_unless(
            blocking("figures of a validation", writing).await.context("the task died").flatten(),
            step,
        );
    }
}

/// Logs an error of writing figures. Such an error does not end the run.
fn warn_unless(written: anyhow::Result<()>, step: u64) {
    if let Err(error) = written {
        tracing::warn!(step, "some figures of the step cannot be written: {error:#}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Step,
    Validation,
}

struct Files {
    steps: FigureFile,
    validations: FigureFile,
    events: Option<EventFile>,
}

impl Files {
    /// Opens the files of a run in which the steps of `ended` have ended. If `events_since` is given, in
    /// seconds since 1970, event files are created. Blocks.
    fn open(
        out: &Path,
        fsync: bool,
        ended: &BTreeMap<u64, (StepEnd, StepState)>,
        events_since: Option<u64>,
        life: u32,
    ) -> anyhow::Result<Self> {
        let open = |name: &str, keeps: &dyn Fn(u64) -> bool| {
            let path = out.join(name);
            FigureFile::open(&path, fsync, keeps).with_context(|| format!("cannot open {}", path.display()))
        };
        let mut steps = open(STEPS_FILE, &|step| ended.contains_key(&step))?;
        for (step, (end, state)) in ended.iter().filter(|(step, _)| !steps.has(**step)).collect::<Vec<_>>() {
            append(&mut steps, *step, &serde_json::to_value(recovered_step(*step, *end, state))?)?;
        }
        // A validation before the first step has the number 0.
        let validations = open(VALIDATIONS_FILE, &|step| step == 0 || ended.contains_key(&step))?;
        let events = match events_since {
            Some(since) => Some(EventFile::make(out, since, life).context("cannot write event files")?),
            None => None,
        };
        Ok(Self { steps, validations, events })
    }

    /// Adds a line, unless the file has a line of the step. Blocks.
    fn add(&mut self, kind: Kind, step: u64, figures: &impl Serialize) -> anyhow::Result<()> {
        let figures = serde_json::to_value(figures)?;
        let (file, prefix) = match kind {
            Kind::Step => (&mut self.steps, None),
            Kind::Validation => (&mut self.validations, Some("validation")),
        };
        let is_new = append(file, step, &figures)?;
        if let Some(events) = self.events.as_mut().filter(|_| is_new) {
            events.add(prefix, &figures).context("cannot write event files")?;
        }
        Ok(())
    }
}

fn append(file: &mut FigureFile, step: u64, figures: &Value) -> anyhow::Result<bool> {
    let appended = file.append(step, figures);
    appended.with_context(|| format!("cannot write {}", file.path().display()))
}

/// Writes the times of a step's requests, and removes the files of all steps except the last `newest` steps.
/// Blocks.
fn keep_timeline(out: &Path, timeline: &KeptTimeline, newest: usize) -> anyhow::Result<()> {
    let file = KeptTimeline::file(out, timeline.step);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    write_whole(&file, &serde_json::to_string(timeline)?)?;
    let kept = kept_timelines(out)?;
    for step in kept.iter().rev().skip(newest) {
        fs::remove_file(KeptTimeline::file(out, *step))?;
    }
    Ok(())
}
