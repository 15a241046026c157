//! The two lives of a run. The first life is interrupted, and the second life continues from its ledger.

use std::sync::Arc;
use std::time::Duration;

use rolldock::data::TextCodec;
use rolldock::dispatch::TokenTotals;
use rolldock::dispatch::bias::BiasReading;
use rolldock::ledger::{
    FORMAT, LedgerConfig, LedgerWriter, LifeRecord, Opened, QueueRecord, Record, RunRecord, read_carried,
};
use rolldock::rollout::{
    AgentLoopManager, Grading, Handed, OutsideGrader, PromptFeed, Restored, RolloutControl, RolloutParts,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_reward::GateCounts;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::engines::{Engines, PERMITS, Slow};
use super::over_lives::{Accepted, compare};
use super::{Case, FLEET, Outcome, TARGET, VALIDATED_PROMPTS};
use crate::rollout::PROMPT_TOKENS;
use crate::workload::{LastToken, Numbered};

/// The step after which the first life validates.
pub(super) const VALIDATED_AFTER: u64 = 2;
/// The last step of the second life.
const STEPS: u64 = 6;
/// The virtual time from the validation of the first life to its interruption.
const INTERRUPTED_AFTER: Duration = Duration::from_millis(400);
/// The time between two changes of the fleet.
const CHANGE_EVERY: Duration = Duration::from_millis(230);
/// The time between two versions.
const VERSION_EVERY: Duration = Duration::from_millis(900);

/// A run in progress, over its lives.
struct Run {
    case: Case,
    engines: Engines,
    balancer: LoadBalancer,
    /// The records that a queue would have of the accepted groups.
    queue: Vec<QueueRecord>,
    dir: tempfile::TempDir,
    version: u64,
    by_steps: TokenTotals,
    accepted: Accepted,
    /// The counts of the gates at the end of the most recent life.
    gates: Vec<GateCounts>,
    scope: Scope,
}

impl Run {
    fn parts(&self) -> anyhow::Result<RolloutParts> {
        let grading = if self.case.is_slow_reward {
            let codec = Arc::new(TextCodec::builtin()?);
            let grader = OutsideGrader { codec, runner: Arc::new(Slow::default()), overlong: None };
            Grading::Outside { grader, places: 4 }
        } else {
            Grading::Inline(Arc::new(LastToken))
        };
        Ok(RolloutParts {
            engine: Arc::new(self.engines.engine.clone()),
            balancer: self.balancer.clone(),
            grading,
        })
    }

    /// Opens the ledger, and the rollout that continues from it.
    fn begin(
        &self,
        life: u32,
        scope: &Scope,
    ) -> anyhow::Result<(AgentLoopManager, PromptFeed, LedgerWriter)> {
        let ledger = LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO };
        let Opened { writer, mut state, .. } = LedgerWriter::open(self.dir.path(), ledger)?;
        let prompts = Numbered::new(PROMPT_TOKENS);
        let (mut restored, mut row) = (None, 0);
        if state.run().is_some() {
            let resumption = state.reconcile(&self.queue)?;
            for record in &resumption.records {
                writer.append(record.clone());
            }
            // In these runs the row of a prompt equals its number.
            row = resumption.next_number;
            let waiting = resumption.queued.clone().into_iter().map(|waiting| {
                let kept = waiting.tokens.map(|place| read_carried(self.dir.path(), place)).transpose()?;
                let prompt = prompts.prompt(waiting.row);
                anyhow::Ok((waiting, prompt, kept))
            });
            restored = Some(Restored { queued: waiting.collect::<Result<_, _>>()?, resumption });
        } else {
            let run_id = "truth".to_owned();
            writer.append(Record::Run(RunRecord { run_id, started_s: 0, format: FORMAT }));
        }
        writer.append(Record::Life(LifeRecord { number: life, pid: life, started_s: 0 }));
        let mut manager = AgentLoopManager::new(self.case.config(life)?, self.parts()?, scope.clone());
        manager.keep_journal(writer.clone(), restored);
        let (now, before) = (manager.gate_counts(), &self.gates);
        anyhow::ensure!(life == 1 || now == *before, "gates continue with {now:?} after {before:?}");
        Ok((manager, PromptFeed::inline(Box::new(prompts.starting_at(row))), writer))
    }

    fn count(&mut self, step: &TokenTotals) {
        let (sum, more) = (self.by_steps.to_counts(), step.to_counts());
        self.by_steps = TokenTotals::from_counts(std::array::from_fn(|place| sum[place] + more[place]));
    }

    /// Changes the fleet and announces versions until the future is dropped. Interrupts the steps of `scope`
    /// after a while.
    async fn disturb(
        case: Case,
        engines: &mut Engines,
        version: &mut u64,
        control: &RolloutControl,
        (scope, interrupt_after): (&Scope, Option<Duration>),
    ) {
        let began = Instant::now();
        let mut next_version = began + VERSION_EVERY;
        loop {
            sleep(CHANGE_EVERY).await;
            if case.fails {
                engines.change();
            }
            if case.is_flow && Instant::now() >= next_version {
                next_version += VERSION_EVERY;
                *version += 1;
                engines.update(*version).await;
                control.set_policy_version(*version);
            }
            if interrupt_after.is_some_and(|after| began.elapsed() >= after) {
                scope.token().cancel();
            }
        }
    }

    /// Collects a step, or the flow up to `last`.
    async fn collect(
        &mut self,
        manager: &mut AgentLoopManager,
        prompts: &PromptFeed,
        last: u64,
        interrupt: (&Scope, Option<Duration>),
    ) -> anyhow::Result<()> {
        let (sender, mut handed) = mpsc::unbounded_channel();
        let control = manager.control();
        let is_flow = self.case.is_flow;
        let mut taken = Vec::new();
        let metrics = {
            let taking = async {
                while let Some(one) = handed.recv().await {
                    if matches!(one, Handed::Group(_)) {
                        control.was_put();
                    }
                    taken.push(one);
                }
            };
            let collecting = async {
                match is_flow {
                    true => manager.generate_flow(prompts, TARGET, last, sender).await,
                    false => manager.generate_into(prompts, TARGET, sender).await,
                }
            };
            let disturbing =
                Self::disturb(self.case, &mut self.engines, &mut self.version, &control, interrupt);
            tokio::select! {
                biased;
                (metrics, ()) = async { tokio::join!(collecting, taking) } => metrics?,
                () = disturbing => anyhow::bail!("the changes of the fleet have ended"),
            }
        };
        self.engines.repair();
        for one in taken {
            match one {
                Handed::Group(group) => {
                    let (dispatch, uid) = (group.dispatch, group.prompt.uid);
                    let lengths = group.samples.iter().map(|sample| sample.response_ids.len() as u64);
                    self.accepted.insert(group.number, (lengths.sum(), group.samples.len()));
                    self.queue.push(QueueRecord::new(dispatch, group.number, group.step, uid));
                }
                Handed::StepEnd(metrics) => self.count(&metrics.tokens),
            }
        }
        self.count(&metrics.tokens);
        manager.check()?;
        Ok(())
    }

    /// Collects all steps up to `last`, or until the scope is cancelled.
    async fn collect_all(
        &mut self,
        manager: &mut AgentLoopManager,
        prompts: &PromptFeed,
        last: u64,
        interrupt: (&Scope, Option<Duration>),
    ) -> anyhow::Result<()> {
        while manager.next_step() <= last && !interrupt.0.token().is_cancelled() {
            self.collect(manager, prompts, last, interrupt).await?;
        }
        Ok(())
    }

    /// Runs a validation on the same servers. The tokens of the validation count for the next step.
    async fn validate(&self, control: &RolloutControl, life: u32, scope: &Scope) -> anyhow::Result<()> {
        let config = self.case.validation_config(life)?;
        let mut manager = AgentLoopManager::new(config, self.parts()?, scope.clone());
        let rows = Numbered::new(PROMPT_TOKENS).starting_at(1 << 20);
        manager.generate(&PromptFeed::inline(Box::new(rows)), VALIDATED_PROMPTS).await?;
        control.count_validation(&manager.view().run_tokens());
        Ok(())
    }

    /// One life of the run. The first life is interrupted.
    async fn live(&mut self, life: u32) -> anyhow::Result<(TokenTotals, BiasReading)> {
        let scope = self.scope.child();
        let (mut manager, prompts, writer) = self.begin(life, &scope)?;
        let validated_after = (manager.next_step() - 1).max(VALIDATED_AFTER);
        self.collect_all(&mut manager, &prompts, validated_after, (&scope, None)).await?;
        self.validate(&manager.control(), life, &scope).await?;
        let interrupted_after = (life == 1).then_some(INTERRUPTED_AFTER);
        self.collect_all(&mut manager, &prompts, STEPS, (&scope, interrupted_after)).await?;
        anyhow::ensure!(
            life > 1 || scope.token().is_cancelled(),
            "the first life has come to step {} before it was interrupted",
            manager.next_step()
        );
        manager.end_audits().await;
        let (tokens, bias) = (manager.view().run_tokens(), manager.view().bias());
        self.count(&manager.view().tokens());
        self.gates = manager.gate_counts();
        scope.close(Duration::from_secs(1)).await;
        drop(manager);
        writer.close()?;
        Ok((tokens, bias))
    }
}

/// Runs both lives of a case, in virtual time.
pub fn run(case: Case) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        let engines = Engines::start(&scope)?;
        let named = (0..FLEET.servers).map(|number| ServerSpec::unreached(format!("s{number}"), PERMITS));
        let mut run = Run {
            case,
            engines,
            balancer: LoadBalancer::new(BalancerConfig::default(), named.collect())?,
            queue: Vec::new(),
            dir: tempfile::tempdir()?,
            version: 0,
            by_steps: TokenTotals::default(),
            accepted: Accepted::new(),
            gates: Vec::new(),
            scope: scope.clone(),
        };
        run.live(1).await?;
        let (tokens, bias) = run.live(2).await?;
        let bias_steps = compare(&bias, &run.accepted, run.dir.path())?;
        let by_engines = run.engines.generated();
        scope.close(Duration::from_secs(1)).await;
        Ok(Outcome { tokens, by_steps: run.by_steps, by_engines, bias_steps })
    })
}
