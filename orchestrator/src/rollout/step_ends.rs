//! The metrics of a step, which are computed when the step ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::bias::BiasReading;
use rolldock_dispatch::history::HistoryCounts;
use rolldock_dispatch::{StepEnd, TokenTotals, Totals};
use tokio::time::Instant;

use crate::rollout::board::{Counts, EndedStep};
use crate::rollout::guard::GuardState;
use crate::rollout::meter::StepCosts;
use crate::rollout::sample::StepContext;
use crate::rollout::timeline::StepTimeline;
use crate::rollout::{EarlyStop, Group};

/// The metrics of a step.
#[derive(Debug, Clone)]
pub struct StepMetrics {
    /// The number of the step, from 1.
    pub step: u64,
    /// Why the step ended.
    pub end: StepEnd,
    /// The time from the start of the step until its last permit was returned. If the next step follows
    /// without a cut, it is the time until the target was reached.
    pub elapsed: Duration,
    /// Groups by state at the end of the step, and its generation batches.
    pub counts: Counts,
    /// Dispatches by fate.
    pub totals: Totals,
    /// Response tokens of the step by bucket.
    pub tokens: TokenTotals,
    /// Response tokens of the run so far, including earlier processes.
    pub tokens_run: TokenTotals,
    /// The samples of the step, with their tokens and times.
    pub costs: StepCosts,
    /// The bias of accepted groups, up to the last step whose groups are all decided.
    pub bias: BiasReading,
    /// The servers' version when the step ended.
    pub policy_version: u64,
    /// The number of accepted groups for each staleness at the claim.
    pub ages: BTreeMap<u64, u64>,
    /// The predictions from the history of the prompts; `None` if the recipe asks for no history.
    pub history: Option<HistoryCounts>,
    /// The new rule, if the bias guard has changed the rule after this step.
    pub guarded: Option<EarlyStop>,
    /// The times of its requests, and the time for which no group ran.
    pub timeline: Arc<StepTimeline>,
}

/// The output of a rollout, in the order of the channel.
#[derive(Debug)]
pub enum Handed {
    /// An accepted group.
    Group(Box<Group>),
    /// A step of a flow reached its target. The next step is under way.
    StepEnd(Box<StepMetrics>),
}

/// The start time of the current step, and the state of the run's bias guard.
#[derive(Debug)]
pub(crate) struct StepEnds {
    began: Mutex<Instant>,
    guard: Arc<Mutex<GuardState>>,
}

impl StepEnds {
    pub(crate) fn new(guard: Arc<Mutex<GuardState>>) -> Self {
        Self { began: Mutex::new(Instant::now()), guard }
    }

    /// Returns the metrics of a step that has ended with this reading of the bias. The next step begins now.
    pub(crate) fn metrics(
        &self,
        record: EndedStep,
        end: StepEnd,
        bias: BiasReading,
        context: &StepContext,
    ) -> StepMetrics {
        let EndedStep { step, counts, totals, tokens, tokens_run, ages, history } = record;
        let configured = context.config.early_stop;
        let guard = context.config.bias_guard.as_ref();
        let guarded = guard.and_then(|guard| self.guard.lock().after_step(guard, configured, bias.length));
        let now = Instant::now();
        let began = std::mem::replace(&mut *self.began.lock(), now);
        StepMetrics {
            step,
            end,
            elapsed: now - began,
            counts,
            totals,
            tokens,
            tokens_run,
            costs: context.meter.step_costs(),
            bias,
            policy_version: context.versions.served(),
            ages,
            history,
            guarded,
            timeline: Arc::new(context.timeline.take()),
        }
    }
}
