//! `rollout --history`: what one epoch of history saves, and whether the importance weights undo the bias of
//! the choice.
//!
//! A run of one epoch measures the mode without history, because no prompt has a history yet. A run of two
//! epochs chooses the prompts of its second epoch by difficulty. The difference between the two runs is the
//! cost of the second epoch. The engines themselves count the decoded tokens, so the count includes the
//! tokens of groups that are cut off or filtered.
//!
//! The truth is the mean over all valid groups of all rows at their second visit. It is computed from the
//! draws of the simulated model, which are pure functions of the seed, the prompt and the visit. It shares no
//! code with the weights.

use std::sync::Arc;
use std::time::Duration;

use rolldock::data::{DataError, Prompt, PromptSource};
use rolldock::dispatch::history::{HistoryConfig, Sampling};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::rollout::{
    AgentLoopManager, Grading, Group, Handed, OnStop, PromptFeed, RolloutConfig, RolloutParts,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_simengine::Workload;
use tokio::sync::mpsc;

use crate::rollout::{
    FleetShape, Mode, PERMITS, PROMPT_TOKENS, SEED, config, draw_group, in_virtual_time, start_servers,
    workload,
};
use crate::workload::{LastToken, Numbered};
use rolldock_bench_figures::{Bar, Figure};

/// Rows of the data. The standard error of the weighted means is 0.8 %.
const ROWS: u64 = 8192;
const ROWS_QUICK: u64 = 2048;
const STEP: usize = 128;
const FLEET: FleetShape = FleetShape { servers: 4, mixed: false };

/// How the groups are collected.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plan {
    /// Step by step.
    Steps(Mode),
    /// All steps as one flow, as in `fully_async`.
    Flow,
}

impl Plan {
    const ALL: [Self; 5] = [
        Self::Steps(Mode::Off),
        Self::Steps(Mode::First),
        Self::Steps(Mode::Fifo),
        Self::Steps(Mode::OnDemand),
        Self::Flow,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Steps(mode) => mode.name(),
            Self::Flow => "fully_async",
        }
    }

    /// Whether the mode itself delivers all valid groups in dispatch order.
    fn is_unbiased(self) -> bool {
        self != Self::Steps(Mode::First)
    }

    fn config(self) -> anyhow::Result<RolloutConfig> {
        let mode = match self {
            Self::Steps(mode) => mode,
            Self::Flow => Mode::Fifo,
        };
        let config = RolloutConfig {
            gen_batch_size: 2 * STEP,
            history: Some(HistoryConfig { sampling: Sampling::Difficulty, ..HistoryConfig::default() }),
            ..config(FLEET, mode)?
        };
        Ok(if self == Self::Flow { RolloutConfig { on_stop: OnStop::Carry, ..config } } else { config })
    }
}

/// The rows `0..rows`, epoch after epoch.
struct Epochs {
    prompts: Numbered,
    rows: u64,
    epochs: u64,
    drawn: u64,
}

impl PromptSource for Epochs {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let (visit, row) = (self.drawn / self.rows, self.drawn % self.rows);
        if visit >= self.epochs {
            return Ok(None);
        }
        self.drawn += 1;
        Ok(Some(Prompt { visit: visit as u32, ..self.prompts.prompt(row) }))
    }
}

/// Weighted sums over samples.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    weight: f64,
    tokens: f64,
    right: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, samples: &[(u32, bool)]) {
        self.weight += weight * samples.len() as f64;
        self.tokens += weight * samples.iter().map(|(tokens, _)| f64::from(*tokens)).sum::<f64>();
        self.right += weight * samples.iter().filter(|(_, right)| *right).count() as f64;
    }

    fn length(&self) -> f64 {
        self.tokens / self.weight
    }

    fn acc(&self) -> f64 {
        self.right / self.weight
    }
}

/// The results of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// Response tokens that the engines decoded.
    tokens: u64,
    /// Accepted samples of each epoch: weighted with the weights of their groups, and unweighted.
    weighted: [Sums; 2],
    plain: [Sums; 2],
    /// Accepted groups of each epoch.
    groups: [f64; 2],
    /// The sums of the weights of the second epoch's groups, and of their squares.
    weights: [f64; 2],
}

impl Outcome {
    fn accept(&mut self, group: &Group) {
        let samples = samples_of(group);
        let weight = f64::from(group.importance_weight().unwrap_or(1.0));
        let epoch = usize::from(group.prompt.visit > 0);
        self.weighted[epoch].add(weight, &samples);
        self.plain[epoch].add(1.0, &samples);
        self.groups[epoch] += 1.0;
        if epoch == 1 {
            self.weights[0] += weight;
            self.weights[1] += weight * weight;
        }
    }

    /// The number of equally weighted groups that would give a mean of equal precision, per accepted group.
    fn effective_share(&self) -> f64 {
        self.weights[0] * self.weights[0] / self.weights[1] / self.groups[1]
    }
}

fn samples_of(group: &Group) -> Vec<(u32, bool)> {
    group.samples.iter().map(|sample| (sample.response_ids.len() as u32, sample.acc == 1.0)).collect()
}

/// Measures what one epoch of history changes, in each mode.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rows = if quick { ROWS_QUICK } else { ROWS };
    let truth = [0, 1].map(|visit| all_valid(&workload(), rows, visit));
    let mut figures = Vec::new();
    for plan in Plan::ALL {
        let one = in_virtual_time(run(plan, rows, 1))?;
        let two = in_virtual_time(run(plan, rows, 2))?;
        figures.extend(figures_of(plan, &one, &two, &truth, quick));
    }
    Ok(figures)
}

/// The valid groups of all rows at this visit, from the draws alone.
fn all_valid(workload: &Workload, rows: u64, visit: u32) -> Sums {
    let prompts = Numbered::new(PROMPT_TOKENS);
    let mut sums = Sums::default();
    for row in 0..rows {
        let drawn = draw_group(workload, &Prompt { visit, ..prompts.prompt(row) });
        if drawn.is_valid {
            sums.add(1.0, &drawn.samples);
        }
    }
    sums
}

fn figures_of(plan: Plan, one: &Outcome, two: &Outcome, truth: &[Sums; 2], quick: bool) -> Vec<Figure> {
    let name = |what: &str| format!("history, {}: {what}", plan.name());
    let without = one.tokens as f64 / one.groups[0];
    let with = (two.tokens as f64 - one.tokens as f64) / two.groups[1];
    let bias = |what: &str, of: fn(&Sums) -> f64| {
        let of_epoch = |epoch: usize| of(&two.weighted[epoch]) / of(&truth[epoch]);
        let figure = Figure::new(name(what), of_epoch(1), "x").against_named("without history", of_epoch(0));
        // The short form has fewer rows, so its standard error is 1.6 %.
        if plan.is_unbiased() && !quick { figure.bar(Bar::Within(0.98, 1.02)) } else { figure }
    };
    vec![
        Figure::new(name("decoded tokens of an accepted group"), with, "tokens")
            .against_named("without history", without)
            .bar(Bar::RatioAtMost(0.75)),
        bias("length bias after weights", Sums::length),
        bias("accuracy bias after weights", Sums::acc),
        Figure::new(name("length bias without weights"), two.plain[1].length() / truth[1].length(), "x"),
        Figure::new(name("effective groups / accepted groups"), two.effective_share(), "x"),
    ]
}

/// A run in progress.
struct World {
    engine: SimulatedEngine,
    manager: AgentLoopManager,
    prompts: PromptFeed,
    scope: Scope,
}

impl World {
    fn new(plan: Plan, rows: u64, epochs: u64) -> anyhow::Result<Self> {
        let scope = Scope::new();
        let engine = SimulatedEngine::new(start_servers(&FLEET.speeds(), &workload(), &scope)?);
        let named = engine.servers().map(|server| server.config().name.clone());
        let specs = named.map(|name| ServerSpec::unreached(name, PERMITS)).collect();
        let parts = RolloutParts {
            engine: Arc::new(engine.clone()),
            balancer: LoadBalancer::new(BalancerConfig { seed: SEED, ..BalancerConfig::default() }, specs)?,
            grading: Grading::Inline(Arc::new(LastToken)),
        };
        let manager = AgentLoopManager::new(plan.config()?, parts, scope.clone());
        let source = Epochs { prompts: Numbered::new(PROMPT_TOKENS), rows, epochs, drawn: 0 };
        Ok(Self { engine, manager, prompts: PromptFeed::inline(Box::new(source)), scope })
    }
}

async fn run(plan: Plan, rows: u64, epochs: u64) -> anyhow::Result<Outcome> {
    let World { engine, mut manager, prompts, scope } = World::new(plan, rows, epochs)?;
    let mut outcome = Outcome::default();
    if plan == Plan::Flow {
        let (sender, mut handed) = mpsc::unbounded_channel();
        let control = manager.control();
        let collecting = async {
            while let Some(handed) = handed.recv().await {
                if let Handed::Group(group) = handed {
                    control.was_put();
                    outcome.accept(&group);
                }
            }
        };
        // The flow ends with the data, long before its last step.
        let (metrics, ()) = tokio::join!(manager.generate_flow(&prompts, STEP, rows, sender), collecting);
        metrics?;
    } else {
        loop {
            let output = manager.generate(&prompts, STEP).await?;
            output.groups.iter().for_each(|group| outcome.accept(group));
            if output.groups.len() < STEP {
                break;
            }
        }
    }
    outcome.tokens = engine.servers().map(|server| server.stats().generation_tokens_total).sum();
    scope.close(Duration::from_secs(1)).await;
    Ok(outcome)
}
