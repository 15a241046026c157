//! Checks that every token is in one bucket, and that a run counts exactly as many generated tokens as the
//! simulated engines.
//!
//! Each case is a run of two lives: the first life is interrupted in the middle of a step, and the second
//! life continues from its ledger. A validation runs between two steps. In half of the cases servers fail,
//! lose answers and send broken answers. In half of the cases steps follow each other without a cut, and a
//! trainer announces versions faster than the staleness bound allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rolldock::dispatch::TokenTotals;
use rolldock::dispatch::invariants::{Violation, token_conservation};
use rolldock::rollout::{
    CarryLimits, EarlyStop, Launch, OnStale, OnStop, RequestShape, RolloutConfig, RolloutTimeouts, Staleness,
    invariants,
};
use rolldock_reward::Gates;

use crate::rollout::{FleetShape, Mode, config};
use rolldock_bench_figures::{Bar, Figure};

mod engines;
mod lives;
mod over_lives;

use lives::VALIDATED_AFTER;
pub use lives::run;

const FLEET: FleetShape = FleetShape { servers: 3, mixed: false };
/// The number of groups of a step.
const TARGET: usize = 6;
const SAMPLES: u32 = 4;
const MAX_RESPONSE: u32 = 200;
const VALIDATED_PROMPTS: usize = 5;

/// The settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// When a step stops.
    pub early_stop: EarlyStop,
    on_stop: OnStop,
    /// Whether requests are streamed, so the tokens of a request that is cut off have already arrived.
    stream: bool,
    request: RequestShape,
    /// Whether steps follow each other without a cut.
    is_flow: bool,
    on_stale: OnStale,
    /// Whether servers fail.
    fails: bool,
    /// Whether the reward takes time and sometimes fails.
    is_slow_reward: bool,
    /// Whether all groups that a cut discards are audited.
    is_audited: bool,
}

impl Case {
    /// All combinations of the stopping rules with steps or flows, and with healthy or failing fleets. The
    /// other settings take turns.
    pub fn all() -> Vec<Self> {
        let stops = [
            (OnStop::Discard, false),
            (OnStop::Requeue, false),
            (OnStop::Carry, false),
            (OnStop::Carry, true),
        ];
        let stale = [OnStale::Drop, OnStale::Requeue, OnStale::MaskTokens, OnStale::DeliverFlagged];
        let mut cases = Vec::new();
        for early_stop in [EarlyStop::First, EarlyStop::Fifo, EarlyStop::Off] {
            for (on_stop, stream) in stops {
                for (is_flow, fails) in [(false, false), (false, true), (true, false), (true, true)] {
                    let turn = cases.len();
                    // Only a sample with a request of its own can be carried.
                    let is_whole_group = on_stop != OnStop::Carry && turn.is_multiple_of(3);
                    cases.push(Self {
                        early_stop,
                        on_stop,
                        stream,
                        request: if is_whole_group { RequestShape::Group } else { RequestShape::Sample },
                        is_flow,
                        on_stale: stale[turn / 4 % stale.len()],
                        fails,
                        is_slow_reward: turn % 5 < 2,
                        is_audited: false,
                    });
                }
            }
        }
        cases
    }

    /// The cases in which groups are cut off, with an audit of each of these groups. Audits are still running
    /// at the end of each life.
    pub fn audited() -> impl Iterator<Item = Self> {
        let is_cut = |case: &Self| case.early_stop == EarlyStop::First && case.on_stop == OnStop::Discard;
        Self::all().into_iter().filter(is_cut).map(|case| Self { is_audited: true, ..case })
    }

    /// The settings, in words.
    pub fn name(&self) -> String {
        let Self { early_stop, on_stop, stream, is_flow, fails, is_slow_reward, is_audited, .. } = *self;
        let mut name = format!("{early_stop}, {on_stop}");
        let named = [
            (stream, "streamed"),
            (self.request == RequestShape::Group, "group requests"),
            (is_flow, "flow"),
            (fails, "failures"),
            (is_slow_reward, "slow reward"),
            (is_audited, "audited"),
        ];
        for (_, word) in named.iter().filter(|(applies, _)| *applies) {
            name = format!("{name}, {word}");
        }
        if is_flow { format!("{name}, on_stale {:?}", self.on_stale) } else { name }
    }

    fn config(&self, life: u32) -> anyhow::Result<RolloutConfig> {
        Ok(RolloutConfig {
            run_id: format!("truthl{life}").into(),
            workers: 2,
            max_concurrent_prompts: 5,
            samples_per_prompt: SAMPLES,
            gen_batch_size: 2 * TARGET,
            max_gen_batches: 1_000,
            max_response_length: MAX_RESPONSE,
            early_stop: self.early_stop,
            on_stop: self.on_stop,
            launch: Launch::Batch,
            request: self.request,
            bias_audit: f64::from(u8::from(self.is_audited)),
            staleness: Staleness { max: 1, on_stale: self.on_stale, ..Staleness::default() },
            carry: CarryLimits { stream: self.stream, ..CarryLimits::default() },
            timeouts: RolloutTimeouts {
                sample: Duration::from_secs(20),
                permit: Duration::from_secs(20),
                reward: Duration::from_secs(60),
                drain: Duration::from_secs(5),
            },
            ..config(FLEET, Mode::Fifo)?
        })
    }

    /// A validation awaits all of its groups and filters none.
    fn validation_config(&self, life: u32) -> anyhow::Result<RolloutConfig> {
        Ok(RolloutConfig {
            run_id: format!("truthl{life}v").into(),
            early_stop: EarlyStop::Off,
            on_stop: OnStop::Discard,
            gen_batch_size: VALIDATED_PROMPTS,
            max_gen_batches: 1,
            gates: Arc::new(Gates::default()),
            ..self.config(life)?
        })
    }
}

/// The counts of a run, and the counts of its engines.
#[derive(Debug)]
pub struct Outcome {
    /// The counts of the last life, over the run.
    pub tokens: TokenTotals,
    /// The sums of the counts of all steps of both lives.
    pub by_steps: TokenTotals,
    /// Response tokens that the engines have generated.
    pub by_engines: u64,
    /// The number of steps of both lives that the bias meter covers. The meter's figures agree with the
    /// accepted groups.
    pub bias_steps: u64,
}

impl Outcome {
    /// Whether the bias meter has figures of steps of both lives.
    pub fn covers_both_lives(&self) -> bool {
        self.bias_steps > VALIDATED_AFTER
    }

    /// Checks that the counts of the run, of its steps and of the engines agree.
    pub fn check(&self) -> Result<(), Violation> {
        invariants::tokens_counted(&self.tokens, self.by_engines)?;
        token_conservation(&self.by_steps)?;
        invariants::tokens_counted(&self.by_steps, self.by_engines)
    }
}

/// Runs all cases, or every fifth one.
pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut by_mode: BTreeMap<String, ([u64; 18], u64)> = BTreeMap::new();
    let (mut cases, mut with_bias) = (0, 0);
    for case in Case::all().into_iter().step_by(if quick { 5 } else { 1 }) {
        let outcome = run(case)?;
        let missed = outcome.by_engines as f64 - outcome.tokens.generated as f64;
        let name = format!("tokens of the engines that no bucket has: {}", case.name());
        figures.push(Figure::new(name, missed, "tokens").bar(Bar::Within(0.0, 0.0)));
        let broken = f64::from(u8::from(outcome.check().is_err()));
        figures.push(
            Figure::new(format!("sums that differ: {}", case.name()), broken, "").bar(Bar::AtMost(0.0)),
        );
        cases += 1;
        with_bias += u32::from(outcome.covers_both_lives());
        let counts = outcome.tokens.to_counts();
        let (sums, by_engines) = by_mode.entry(case.early_stop.to_string()).or_default();
        *sums = std::array::from_fn(|place| sums[place] + counts[place]);
        *by_engines += outcome.by_engines;
    }
    // With `first` and `discard`, the meter has figures only if there is an audit.
    let share = f64::from(with_bias) / f64::from(cases);
    let name = "runs whose bias meter covers both lives, and agrees with their groups";
    figures.push(Figure::new(name, share, "of the cases").bar(Bar::AtLeast(0.5)));
    for (mode, (sums, by_engines)) in by_mode {
        let totals = TokenTotals::from_counts(sums);
        let figure =
            |what: &str, tokens: u64| Figure::new(format!("{mode}: {what}"), tokens as f64, "tokens");
        figures.push(figure("by the engines' counters", by_engines));
        figures.push(figure("in all buckets", totals.total()));
        let filled = totals.buckets().into_iter().filter(|(_, tokens)| *tokens > 0);
        figures.extend(filled.map(|(bucket, tokens)| figure(bucket, tokens)));
    }
    Ok(figures)
}
