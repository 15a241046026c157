//! Runs over the rows of a data set, and the truth with which their accepted groups are compared.
//!
//! The truth is the mean over all valid groups of all rows at a visit. It is computed from the draws of the simulated
//! model, which are pure functions of the seed, the prompt and the visit. It shares no code with importance weights.

use std::sync::Arc;
use std::time::Duration;

use rolldock::data::{DataError, Prompt, PromptSource};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::rollout::{
    AgentLoopManager, Grading, Group, GroupWeights, Handed, PromptFeed, RolloutConfig, RolloutParts,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_simengine::Workload;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::rollout::{FleetShape, PERMITS, PROMPT_TOKENS, SEED, draw_group, start_servers, workload};
use crate::workload::{LastToken, Numbered};

/// The groups of a step.
pub(crate) const STEP: usize = 128;
pub(crate) const FLEET: FleetShape = FleetShape { servers: 4, mixed: false };

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
pub(crate) struct Sums {
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

    /// The mean length of a sample.
    pub(crate) fn length(&self) -> f64 {
        self.tokens / self.weight
    }

    /// The share of right samples.
    pub(crate) fn acc(&self) -> f64 {
        self.right / self.weight
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Response tokens that the engines decoded.
    pub(crate) tokens: u64,
    /// In virtual time.
    pub(crate) elapsed: Duration,
    /// Accepted samples of each epoch: weighted with the weights of their groups, and unweighted.
    pub(crate) weighted: [Sums; 2],
    pub(crate) plain: [Sums; 2],
    /// The weights of the accepted groups of each epoch.
    pub(crate) weights: [GroupWeights; 2],
}

impl Outcome {
    fn accept(&mut self, group: &Group) {
        let samples = samples_of(group);
        let weight = group.importance_weight().unwrap_or(1.0);
        let epoch = usize::from(group.prompt.visit > 0);
        self.weighted[epoch].add(f64::from(weight), &samples);
        self.plain[epoch].add(1.0, &samples);
        self.weights[epoch].add(weight);
    }

    /// The number of accepted groups of an epoch.
    pub(crate) fn groups(&self, epoch: usize) -> f64 {
        self.weights[epoch].groups() as f64
    }
}

fn samples_of(group: &Group) -> Vec<(u32, bool)> {
    group.samples.iter().map(|sample| (sample.response_ids.len() as u32, sample.acc == 1.0)).collect()
}

/// The valid groups of all rows at this visit, from the draws alone.
pub(crate) fn all_valid(workload: &Workload, rows: u64, visit: u32) -> Sums {
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

/// A run in progress.
struct World {
    engine: SimulatedEngine,
    manager: AgentLoopManager,
    prompts: PromptFeed,
    scope: Scope,
}

impl World {
    fn new(config: RolloutConfig, rows: u64, epochs: u64) -> anyhow::Result<Self> {
        let scope = Scope::new();
        let engine = SimulatedEngine::new(start_servers(&FLEET.speeds(), &workload(), &scope)?);
        let named = engine.servers().map(|server| server.config().name.clone());
        let specs = named.map(|name| ServerSpec::unreached(name, PERMITS)).collect();
        let parts = RolloutParts {
            engine: Arc::new(engine.clone()),
            balancer: LoadBalancer::new(BalancerConfig { seed: SEED, ..BalancerConfig::default() }, specs)?,
            grading: Grading::Inline(Arc::new(LastToken)),
        };
        let manager = AgentLoopManager::new(config, parts, scope.clone());
        let source = Epochs { prompts: Numbered::new(PROMPT_TOKENS), rows, epochs, drawn: 0 };
        Ok(Self { engine, manager, prompts: PromptFeed::inline(Box::new(source)), scope })
    }
}

/// Collects all groups of `epochs` epochs of `rows` rows: step by step, or as one flow as in `fully_async`.
pub(crate) async fn run(
    config: RolloutConfig,
    is_flow: bool,
    rows: u64,
    epochs: u64,
) -> anyhow::Result<Outcome> {
    let World { engine, mut manager, prompts, scope } = World::new(config, rows, epochs)?;
    let started = Instant::now();
    let mut outcome = Outcome::default();
    if is_flow {
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
    outcome.elapsed = started.elapsed();
    outcome.tokens = engine.servers().map(|server| server.stats().generation_tokens_total).sum();
    scope.close(Duration::from_secs(1)).await;
    Ok(outcome)
}
