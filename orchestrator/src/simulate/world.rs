//! One simulation: the parts of a rollout on simulated servers, and the collection of all steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_dispatch::StepEnd;
use rolldock_loadbalancer::{LoadBalancer, Monitor, ServerSpec};
use rolldock_reward::{Gates, GroupView, Overlong};
use rolldock_simengine::{AnswerKey, SimServer, Workload};
use rolldock_simulate::bounds::{DrawnGroup, FleetModel, Reference};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::model::{Key, Limited, TokenGrader, workload};
use super::outcome::{Accepted, Counted, Outcome, Times};
use super::prompts::Prompts;
use super::replay::{Recorded, Replay};
use super::trainer::Trainer;
use super::{Setting, Terms, Workload as Source};
use crate::data::{Prompt, PromptSource};
use crate::engine::SamplingParams;
use crate::engine::simulated::SimulatedEngine;
use crate::policy::PolicyMode;
use crate::process::plural;
use crate::recipe::{MaxLoads, Recipe, Simulated};
use crate::rollout::{
    AgentLoopManager, Grader, Grading, Handed, PromptFeed, RolloutConfig, RolloutParts, Staleness,
    StepMetrics, sample_seed,
};
use crate::run::{balancer_config, monitor_config, permits_per_server, rollout_config, server_config};
use crate::scope::Scope;

/// The time that the tasks of a simulation have to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A rollout on simulated servers, before its first step.
struct World {
    manager: AgentLoopManager,
    engine: SimulatedEngine,
    prompts: PromptFeed,
    scope: Scope,
}

/// The parts of a simulation besides the rollout.
struct Parts<'a> {
    recipe: &'a Recipe,
    simulated: Simulated,
    gates: Arc<Gates>,
    workload: Arc<Workload>,
    key: Key,
    prompts: PromptsOf,
}

/// The prompts of a simulation, which are drawn once for the rollout and once for the bounds.
enum PromptsOf {
    Recipe(Prompts),
    Run(Arc<Replay>),
}

impl PromptsOf {
    fn open(source: &Source, recipe: &Recipe) -> anyhow::Result<Self> {
        Ok(match source {
            Source::Data => Self::Recipe(Prompts::open(recipe)?),
            Source::Prompts(tokens) => Self::Recipe(Prompts::Numbered { tokens: *tokens }),
            Source::Recorded(replay) => Self::Run(Arc::clone(replay)),
        })
    }

    fn source(&self) -> Box<dyn PromptSource> {
        match self {
            Self::Recipe(prompts) => prompts.source(),
            Self::Run(replay) => Box::new(Recorded::new(Arc::clone(replay))),
        }
    }

    fn key(&self, recipe: &Recipe) -> Key {
        let (seed, longest) = (recipe.run.seed, recipe.rollout.max_response_length);
        match self {
            Self::Recipe(_) => Key::new(seed, longest, None),
            Self::Run(replay) => {
                let replay = Arc::clone(replay);
                Key::new(seed, longest, Some(Arc::new(move |prompt: &Prompt| replay.group(prompt.row))))
            }
        }
    }
}

/// Simulates a setting from its start to the last step.
pub(super) async fn run(setting: &Setting, terms: &Terms) -> anyhow::Result<Outcome> {
    let recipe = &setting.recipe;
    let scope = Scope::new();
    let gates = recipe.filter.gates(scope.tracker(), scope.token()).context("filter")?;
    anyhow::ensure!(
        !gates.has_outside(),
        "filter.outside: a simulation asks no gate outside of this process"
    );
    let simulated = recipe.fleet.simulated.clone().unwrap_or_default();
    let prompts = PromptsOf::open(&terms.workload, recipe)?;
    let parts = Parts {
        recipe,
        workload: Arc::new(workload(&simulated)),
        simulated,
        gates: Arc::new(gates),
        key: prompts.key(recipe),
        prompts,
    };
    let world = World::new(&parts, scope)?;
    let counted = world.collect(recipe, terms).await?;
    let reference = match counted.accepted.kept_if_short {
        0 => parts.reference(counted.accepted.steps())?,
        _ => Reference::default(),
    };
    Ok(counted.outcome(&reference))
}

impl Parts<'_> {
    fn start_servers(&self, scope: &Scope) -> anyhow::Result<Vec<SimServer>> {
        let start = |number: usize| {
            let config = server_config(self.recipe, &self.simulated, number);
            let answers: Arc<dyn AnswerKey> = Arc::new(self.key.clone());
            let workload = Arc::clone(&self.workload);
            Ok(SimServer::start(config, workload, answers, scope.tracker(), scope.token().clone())?)
        };
        (0..self.simulated.servers).map(start).collect()
    }

    fn grader(&self) -> TokenGrader {
        let overlong = self.recipe.reward.overlong.as_ref().map(|shaping| Overlong {
            max_response_length: self.recipe.rollout.max_response_length,
            buffer_length: shaping.buffer_length,
            penalty_factor: shaping.penalty_factor,
        });
        TokenGrader { overlong, is_replay: matches!(self.prompts, PromptsOf::Run(_)) }
    }

    fn config(&self) -> RolloutConfig {
        let config = rollout_config(self.recipe, "simulated", Arc::clone(&self.gates));
        let is_announced = self.recipe.policy.mode != PolicyMode::Off;
        // The workload sets the lengths of the samples. Simulated tokens are random ids, and a stop token
        // among them would end a simulated response early.
        let sampling = SamplingParams { stop_token_ids: Vec::new(), ..config.sampling };
        RolloutConfig { staleness: Staleness { is_announced, ..config.staleness }, sampling, ..config }
    }

    /// The bounds and the unbiased reference of `steps` steps, computed from the draws alone.
    fn reference(&self, steps: u64) -> anyhow::Result<Reference> {
        let recipe = self.recipe;
        let fixed = match recipe.fleet.max_loads_per_server {
            MaxLoads::Fixed(loads) => loads,
            MaxLoads::Named(_) => u32::MAX,
        };
        let server = server_config(recipe, &self.simulated, 0);
        let speeds =
            (0..self.simulated.servers).map(|number| server_config(recipe, &self.simulated, number).speed);
        let fleet =
            FleetModel { speeds: speeds.collect(), permits: fixed.min(self.simulated.max_num_seqs), server };
        let gates = self.gates.with_own_counts();
        let mut source = self.key.watch(self.prompts.source());
        let mut failure = None;
        let draws = std::iter::from_fn(|| match source.next() {
            Ok(prompt) => prompt.map(|prompt| self.drawn(&prompt, &gates)),
            Err(error) => {
                failure = Some(error);
                None
            }
        });
        let steps = usize::try_from(steps).unwrap_or(usize::MAX);
        let reference = Reference::new(&fleet, draws, recipe.rollout.train_batch_size, steps);
        failure.map_or(Ok(reference), |error| Err(error.into()))
    }

    /// The samples of a prompt at the first attempt.
    fn drawn(&self, prompt: &Prompt, gates: &Gates) -> DrawnGroup {
        let rollout = &self.recipe.rollout;
        let first_seed = sample_seed(self.recipe.run.seed, prompt.uid.0, prompt.visit, 0);
        let draw = |index: u32| {
            let draw = self.workload.draw(&prompt.ids, first_seed + u64::from(index), &self.key);
            self.key.limited(draw.length, draw.correct)
        };
        let drawn: Vec<Limited> = (0..rollout.samples_per_prompt).map(draw).collect();
        let grader = self.grader();
        let grades: Vec<_> = drawn.iter().map(|drawn| grader.of(drawn.tokens, drawn.is_right)).collect();
        let accs: Vec<f32> = grades.iter().map(|grade| grade.acc).collect();
        let shaping = &self.recipe.reward.shaping;
        let rewards: Vec<f32> =
            grades.iter().map(|grade| shaping.clipped(grade.score + grade.overlong_penalty)).collect();
        let truncated: Vec<bool> = drawn.iter().map(|drawn| drawn.is_truncated).collect();
        let tokens: Vec<u32> = drawn.iter().map(|drawn| drawn.tokens).collect();
        let view = GroupView { accs: &accs, rewards: &rewards, truncated: &truncated, tokens: &tokens };
        DrawnGroup {
            prompt_ids: Arc::clone(&prompt.ids),
            is_valid: gates.check(&view, false).is_ok(),
            samples: drawn.iter().map(|drawn| (drawn.tokens, drawn.is_right)).collect(),
        }
    }
}

impl World {
    fn new(parts: &Parts<'_>, scope: Scope) -> anyhow::Result<Self> {
        let recipe = parts.recipe;
        let engine = SimulatedEngine::new(parts.start_servers(&scope)?);
        let capacity = permits_per_server(recipe);
        let spec = |server: &SimServer| ServerSpec {
            capacity_tokens: recipe.fleet.max_tokens_per_server,
            ..ServerSpec::unreached(server.config().name.clone(), capacity)
        };
        let balancer = LoadBalancer::new(balancer_config(recipe), engine.servers().map(spec).collect())?;
        let monitor = Monitor::new(balancer.clone(), Arc::new(engine.clone()), monitor_config(recipe));
        let end = scope.token().clone();
        scope.spawn_detached("server monitor", async move { monitor.run(end).await });
        let grader: Arc<dyn Grader> = Arc::new(parts.grader());
        let rollout =
            RolloutParts { engine: Arc::new(engine.clone()), balancer, grading: Grading::Inline(grader) };
        let manager = AgentLoopManager::new(parts.config(), rollout, scope.clone());
        let prompts = PromptFeed::inline(parts.key.watch(parts.prompts.source()));
        Ok(Self { manager, engine, prompts, scope })
    }

    async fn collect(mut self, recipe: &Recipe, terms: &Terms) -> anyhow::Result<Counted> {
        let began = Instant::now();
        let mut accepted = Accepted::new(recipe.rollout.train_batch_size);
        let (rollouts, staleness, step_s) = match recipe.policy.mode {
            PolicyMode::Off => {
                let rollouts = self.without_trainer(recipe, terms, &mut accepted).await?;
                let step_s = mean(&rollouts).unwrap_or_default();
                let groups: u64 = accepted.steps() * recipe.rollout.train_batch_size as u64;
                (rollouts, BTreeMap::from([(0, groups)]), step_s)
            }
            _ => self.with_trainer(recipe, terms, &mut accepted).await?,
        };
        let times = Times { step_s, rollout_s: mean(&rollouts), total_s: began.elapsed().as_secs_f64() };
        let preemptions = self.engine.servers().map(|server| server.stats().preemptions_total).sum();
        self.manager.end_audits().await;
        let tokens = self.manager.view().run_tokens();
        let stale = self.manager.run_totals().stale;
        self.manager.check()?;
        self.scope.close(CLOSE_LIMIT).await;
        Ok(Counted { accepted, times, staleness, stale, tokens, preemptions })
    }

    /// Collects the steps one after the other. Returns their times.
    async fn without_trainer(
        &mut self,
        recipe: &Recipe,
        terms: &Terms,
        accepted: &mut Accepted,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        for _ in 0..terms.steps {
            let output = self.manager.generate(&self.prompts, recipe.rollout.train_batch_size).await?;
            if output.metrics.end != StepEnd::Reached {
                short(&output.metrics.end, &times)?;
                break;
            }
            output.groups.iter().for_each(|group| accepted.add(group));
            accepted.step_ended(&output.metrics);
            times.push(output.metrics.elapsed);
        }
        Ok(times)
    }

    /// Collects the steps beside a trainer. Returns the times of the rollouts, if steps do not overlap, the
    /// claimed groups by staleness, and the mean time from claim to claim.
    async fn with_trainer(
        &mut self,
        recipe: &Recipe,
        terms: &Terms,
        accepted: &mut Accepted,
    ) -> anyhow::Result<(Vec<Duration>, BTreeMap<u64, u64>, f64)> {
        let (control, engine) = (self.manager.control(), self.engine.clone());
        let trainer = Trainer::new(control, engine, recipe, terms.steps, terms.training).await?;
        let (sender, handed) = mpsc::unbounded_channel();
        let began = Instant::now();
        let rolling_out = self.roll_out(recipe, terms.steps, sender, trainer.version());
        let (rolled_out, (), claims) =
            tokio::try_join!(rolling_out, trainer.put_all(handed, accepted), trainer.train())?;
        let RolledOut { times, last } = rolled_out;
        if let Some(metrics) = &last {
            accepted.step_ended(metrics);
        }
        let policy = &recipe.policy;
        let ahead = match policy.mode {
            PolicyMode::FullyAsync => (policy.staleness_max() + 1).saturating_mul(policy.steps_per_version),
            PolicyMode::Off | PolicyMode::Sync | PolicyMode::OneStepOff => 0,
        };
        let step_s = claims.step_s(began, ahead);
        Ok((times, claims.ages, step_s))
    }

    async fn roll_out(
        &mut self,
        recipe: &Recipe,
        steps: u64,
        sender: mpsc::UnboundedSender<Handed>,
        mut version: watch::Receiver<u64>,
    ) -> anyhow::Result<RolledOut> {
        let target = recipe.rollout.train_batch_size;
        let mut rolled_out = RolledOut::default();
        let policy = &recipe.policy;
        if policy.mode == PolicyMode::FullyAsync {
            let metrics = self.manager.generate_flow(&self.prompts, target, steps, sender).await?;
            rolled_out.last = Some(metrics);
            return Ok(rolled_out);
        }
        let lag = u64::from(policy.mode == PolicyMode::OneStepOff);
        for step in 1..=steps {
            let wanted = policy.first_version + ((step - 1) / policy.steps_per_version).saturating_sub(lag);
            version.wait_for(|version| *version >= wanted).await?;
            let metrics = self.manager.generate_into(&self.prompts, target, sender.clone()).await?;
            if metrics.end != StepEnd::Reached {
                short(&metrics.end, &rolled_out.times)?;
                break;
            }
            rolled_out.times.push(metrics.elapsed);
            rolled_out.last = Some(metrics);
        }
        Ok(rolled_out)
    }
}

/// The rollouts of all steps.
#[derive(Default)]
struct RolledOut {
    /// The time of each step; empty if steps overlap.
    times: Vec<Duration>,
    /// The metrics of the last step.
    last: Option<StepMetrics>,
}

/// Reports a step that ended short of its target, which ends the simulation. Returns an error if the step is
/// the first one.
fn short(end: &StepEnd, whole: &[Duration]) -> anyhow::Result<()> {
    let why = match end {
        StepEnd::OutOfPrompts => "the data has no more prompts (data.epochs)",
        StepEnd::OutOfBatches => "every generation batch is used up (rollout.max_gen_batches)",
        StepEnd::Reached | StepEnd::Interrupted => "it was interrupted",
    };
    anyhow::ensure!(!whole.is_empty(), "the first step ended short of its target: {why}");
    tracing::warn!("the simulation ends after {}: {why}", plural(whole.len() as u64, "step"));
    Ok(())
}

fn mean(times: &[Duration]) -> Option<f64> {
    (!times.is_empty()).then(|| times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64)
}
