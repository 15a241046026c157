//! One run in virtual time, with the readings of its meter and the true figures.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use rolldock::data::Prompt;
use rolldock::dispatch::bias::{Bias, BiasReading};
use rolldock::dispatch::{TokenTotals, Totals};
use rolldock::engine::{Engine, EngineError, FinishReason, GenerateRequest, Generation, SampleOutput};
use rolldock::rollout::{
    AgentLoopManager, BiasGuard, Fill, Grade, Grader, Grading, GuardAction, OnStop, PromptFeed, RequestShape,
    RolloutConfig, RolloutOutput, RolloutParts, StepMetrics, Stragglers, sample_seed,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_reward::GateCounts;
use rolldock_simengine::{LengthConfig, Workload, WorkloadConfig};

use super::cases::Case;
use crate::rollout::{FleetShape, Mode, config};
use crate::workload::{EveryPrompt, Numbered};

const SAMPLES: u32 = 4;
const MAX_RESPONSE: u32 = 400;
const PROMPT_TOKENS: usize = 4;
const PER_TOKEN: Duration = Duration::from_millis(10);
const RIGHT: u32 = 1;
const WRONG: u32 = 2;

/// One figure of a run's last reading, and its true value.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// The figure that the run reports.
    pub ratio: f64,
    /// Its standard error; 0 if the figure is exact.
    pub standard_error: f64,
    /// The value from the draws of the simulated model.
    pub truth: f64,
}

/// The results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Length, accuracy and accept rate; `None` if the meter had no figures.
    pub readings: Option<[Reading; 3]>,
    /// The first step after which the interval of the length bias was below 1.
    pub told_at: Option<u64>,
    /// How often the bias guard has acted.
    pub guarded: u64,
    /// For each step, the results that an audit must not change.
    pub steps: Vec<Step>,
    /// The counts of the gates.
    pub gates: Vec<GateCounts>,
    /// Response tokens by bucket, as the run has counted them at its end.
    pub tokens: TokenTotals,
    /// Response tokens of all requests that the engine has finished.
    pub tokens_engine: u64,
}

/// The results of a step.
#[derive(Debug, PartialEq)]
pub struct Step {
    /// The rows of the accepted groups, in their order.
    accepted: Vec<u64>,
    elapsed: Duration,
    totals: Totals,
    /// Response tokens of finished samples.
    tokens: u64,
    /// The tokens of accepted groups, the tokens of filtered groups, the number of finished samples and the
    /// number of truncated samples.
    counts: [u64; 4],
}

impl Step {
    fn new(output: &RolloutOutput) -> Self {
        let StepMetrics { elapsed, totals, tokens, costs, .. } = &output.metrics;
        Self {
            accepted: output.groups.iter().map(|group| group.prompt.row).collect(),
            elapsed: *elapsed,
            totals: totals.clone(),
            tokens: costs.tokens,
            counts: [tokens.accepted, tokens.filtered, costs.samples, costs.truncated],
        }
    }
}

/// The simulated model, a pure function of its seed.
#[derive(Debug)]
struct Model {
    seed: u64,
    workload: Workload,
    failing: f64,
}

impl Model {
    fn new(case: &Case, seed: u64) -> Self {
        let length = LengthConfig {
            median_easy: 30.0,
            median_hard: 90.0,
            sigma: case.sigma,
            wrong_factor: case.wrong_factor,
            min: 2,
            max: 4 * MAX_RESPONSE,
        };
        let workload =
            Workload::new(WorkloadConfig { seed, length, pass_sharpness: 1.0, ..WorkloadConfig::default() });
        Self { seed, workload, failing: case.failing }
    }

    /// The length of the sample with this seed, and whether its answer is right.
    fn sample(&self, prompt_ids: &[u32], seed: u64) -> (u32, bool) {
        let draw = self.workload.draw(prompt_ids, seed, &EveryPrompt);
        (draw.length.min(MAX_RESPONSE), draw.correct && draw.length <= MAX_RESPONSE)
    }

    fn group(&self, prompt: &Prompt) -> Vec<(u32, bool)> {
        let first = sample_seed(self.seed, prompt.uid.0, prompt.visit, 0);
        (0..SAMPLES).map(|index| self.sample(&prompt.ids, first + u64::from(index))).collect()
    }

    /// Whether the grading of this row fails. This does not depend on the row's samples.
    fn fails(&self, row: u64) -> bool {
        let drawn = sample_seed(!self.seed, row, 0, 0) as f64 / (1_u64 << 48) as f64;
        drawn < self.failing
    }
}

/// A server that runs all requests at once, and takes the same time for each token.
struct Roomy {
    model: Arc<Model>,
    /// The number of rows that were sent here.
    rows: Arc<AtomicU64>,
    /// Response tokens of finished requests.
    tokens: Arc<AtomicU64>,
}

/// The row that a prompt of [`Numbered`] encodes.
fn row_of(prompt_ids: &[u32]) -> u64 {
    prompt_ids.iter().take(4).rev().fold(0, |row, digit| row << 8 | u64::from(digit - 100))
}

impl Engine for Roomy {
    fn generate<'a>(
        &'a self,
        _server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        self.rows.fetch_max(row_of(&request.prompt_ids) + 1, Ordering::Relaxed);
        let seeds = request.seed..request.seed + u64::from(request.n);
        let drawn: Vec<_> = seeds.map(|seed| self.model.sample(&request.prompt_ids, seed)).collect();
        async move {
            let longest = drawn.iter().map(|(tokens, _)| *tokens).max().unwrap_or(0);
            tokio::time::sleep(PER_TOKEN * longest).await;
            let tokens = drawn.iter().map(|(tokens, _)| u64::from(*tokens)).sum();
            self.tokens.fetch_add(tokens, Ordering::Relaxed);
            Ok(Generation { samples: drawn.into_iter().map(output).collect() })
        }
        .boxed()
    }

    fn interrupt(&self, _server: &str, _request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn cancelled(&self, _server: &str, _request_id: &Arc<str>) {}

    fn settle(&self, _limit: Duration) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

fn output((tokens, right): (u32, bool)) -> SampleOutput {
    SampleOutput {
        response_ids: vec![if right { RIGHT } else { WRONG }; tokens as usize],
        logprobs: vec![-1.0; tokens as usize],
        finish_reason: if tokens < MAX_RESPONSE { FinishReason::Stop } else { FinishReason::Length },
        version_spans: Vec::new(),
    }
}

/// Scores a response by its tokens, unless its row fails.
struct Scores(Arc<Model>);

impl Grader for Scores {
    fn grade(&self, prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        if self.0.fails(prompt.row) {
            return Err("this row fails".to_owned());
        }
        let acc = f32::from(u8::from(output.response_ids.first() == Some(&RIGHT)));
        Ok(Grade { score: acc, acc, overlong_penalty: 0.0, prediction: None, parts: Default::default() })
    }
}

fn config_of(case: &Case, seed: u64) -> anyhow::Result<RolloutConfig> {
    Ok(RolloutConfig {
        seed,
        workers: 1,
        max_concurrent_prompts: 2 * case.target,
        fill: Fill::default(),
        samples_per_prompt: SAMPLES,
        gen_batch_size: (case.target as f64 * case.oversampling) as usize,
        max_gen_batches: 50,
        max_response_length: MAX_RESPONSE,
        early_stop: case.early_stop,
        on_stop: case.on_stop,
        launch: case.launch,
        launch_confidence: 0.9,
        stragglers: Stragglers::Stay,
        // Whether a group is unlikely shows only if its samples end one by one.
        request: if case.stop_unlikely.is_some() { RequestShape::Sample } else { RequestShape::Group },
        bias_audit: case.audit,
        history: None,
        stop_unlikely: case.stop_unlikely,
        // In a biased mode the guard would change the mode.
        bias_guard: case.is_unbiased().then_some(BiasGuard { share: 0.01, action: GuardAction::LongRound }),
        ledger_entries_max: 0,
        ..config(FleetShape { servers: 1, mixed: false }, Mode::Fifo)?
    })
}

/// Runs a case for this number of steps.
pub fn run(case: &Case, seed: u64, steps: u64) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(collect(case, seed, steps))
}

async fn collect(case: &Case, seed: u64, steps: u64) -> anyhow::Result<Outcome> {
    let (scope, model) = (Scope::new(), Arc::new(Model::new(case, seed)));
    let [rows, tokens] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let parts = RolloutParts {
        engine: Arc::new(Roomy {
            model: Arc::clone(&model),
            rows: Arc::clone(&rows),
            tokens: Arc::clone(&tokens),
        }),
        balancer: LoadBalancer::new(
            BalancerConfig::default(),
            vec![ServerSpec::unreached("roomy", 1 << 20)],
        )?,
        grading: Grading::Inline(Arc::new(Scores(Arc::clone(&model)))),
    };
    let mut manager = AgentLoopManager::new(config_of(case, seed)?, parts, scope.clone());
    let prompts = PromptFeed::inline(Box::new(Numbered::new(PROMPT_TOKENS)));
    let (mut seen, mut told_at, mut guarded) = (Seen::default(), None, 0);
    let (mut reading, mut records) = (BiasReading::default(), Vec::new());
    for step in 1..=steps {
        let output = manager.generate(&prompts, case.target).await?;
        anyhow::ensure!(
            output.groups.len() == case.target,
            "step {step} ended short: {:?}",
            output.metrics.end
        );
        seen.rows.push(rows.load(Ordering::Relaxed));
        seen.filtered.push(output.metrics.totals.filtered);
        seen.accepted.extend(
            output.groups.iter().map(|group| (group.prompt.row, f64::from(group.inclusion.weight()))),
        );
        guarded += u64::from(output.metrics.guarded.is_some());
        reading = output.metrics.bias;
        records.push(Step::new(&output));
        if told_at.is_none() && reading.length.is_some_and(|bias| bias.interval().1 < 1.0) {
            told_at = Some(step);
        }
    }
    let (tokens_run, tokens_engine) = (manager.view().run_tokens(), tokens.load(Ordering::Relaxed));
    let gates = manager.gate_counts();
    scope.close(Duration::from_secs(1)).await;
    let known = reading.length.zip(reading.accuracy).zip(reading.accept_rate).zip(reading.steps);
    let readings = known.map(|(((length, accuracy), accept_rate), steps)| {
        let truth = seen.truth(case, &model, steps, accept_rate.accepted);
        let of = |place: usize, bias: Bias| Reading {
            ratio: bias.ratio(),
            standard_error: bias.standard_error,
            truth: truth[place],
        };
        [of(0, length), of(1, accuracy), of(2, accept_rate)]
    });
    Ok(Outcome { readings, told_at, guarded, steps: records, gates, tokens: tokens_run, tokens_engine })
}

/// The facts about a run that were observed from outside.
#[derive(Debug, Default)]
struct Seen {
    /// For each step, the number of rows that were sent out up to its end.
    rows: Vec<u64>,
    /// For each step, the number of groups that were filtered in it.
    filtered: Vec<u64>,
    /// The rows whose groups were accepted, in any step, and the importance weights of these groups.
    accepted: BTreeMap<u64, f64>,
}

/// Sums over groups.
#[derive(Debug, Default)]
struct Sums {
    groups: f64,
    samples: f64,
    tokens: f64,
    right: f64,
}

impl Sums {
    fn add(&mut self, group: &[(u32, bool)], weight: f64) {
        self.groups += weight;
        for (tokens, right) in group {
            self.samples += weight;
            self.tokens += weight * f64::from(*tokens);
            self.right += weight * f64::from(u8::from(*right));
        }
    }
}

impl Seen {
    /// The rows that a step sent out for the first time. Steps are counted from 1.
    fn rows_of(&self, step: u64) -> Range<u64> {
        let place = step as usize - 1;
        let first = place.checked_sub(1).map_or(0, |before| self.rows[before]);
        first..self.rows[place]
    }

    /// The true bias of these steps in length, accuracy and accept rate.
    ///
    /// Whether a group that was stopped as unlikely would have ended before the cut has no answer. If such groups are
    /// stopped, the accept rate of the groups that ended before a cut is therefore the run's own, `ended_rate`, and
    /// only the rate of all groups is compared.
    fn truth(&self, case: &Case, model: &Model, (first, last): (u64, u64), ended_rate: f64) -> [f64; 3] {
        let prompts = Numbered::new(PROMPT_TOKENS);
        let (mut accepted, mut valid) = (Sums::default(), Sums::default());
        // Groups that ended before a cut, and all groups.
        let (mut ended, mut all) = (0.0, 0.0);
        for step in first..=last {
            let mut rows = self.rows_of(step);
            if case.early_stop.keeps_dispatch_order() && case.on_stop == OnStop::Discard {
                // A step that has enough groups ignores the groups after them.
                rows.end =
                    self.accepted.range(rows.clone()).next_back().map_or(rows.start, |(row, _)| row + 1);
            }
            for row in rows {
                let group = model.group(&prompts.prompt(row));
                let right = group.iter().filter(|(_, right)| *right).count();
                let is_valid = right > 0 && right < group.len();
                let weight = self.accepted.get(&row);
                all += 1.0;
                if is_valid {
                    valid.add(&group, 1.0);
                }
                if let Some(weight) = weight {
                    accepted.add(&group, *weight);
                }
                let is_filtered = !is_valid && !model.fails(row) && !case.cuts_for_good();
                ended += f64::from(u8::from(weight.is_some() || is_filtered));
            }
            if case.cuts_for_good() {
                // Every group of the step has ended or was cut off within the step.
                ended += self.filtered[step as usize - 1] as f64;
            }
        }
        let ratio = |of: fn(&Sums) -> f64| of(&accepted) / of(&valid);
        let ended_rate = if case.stop_unlikely.is_some() { ended_rate } else { accepted.groups / ended };
        [
            ratio(|sums| sums.tokens / sums.samples),
            ratio(|sums| sums.right / sums.samples),
            ended_rate / (valid.groups / all),
        ]
    }
}
