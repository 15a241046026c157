//! `rollout --history`: what one epoch of history saves, and whether the importance weights undo the bias of
//! the choice.
//!
//! A run of one epoch measures the mode without history, because no prompt has a history yet. A run of two
//! epochs chooses the prompts of its second epoch by difficulty. The difference between the two runs is the
//! cost of the second epoch. The engines themselves count the decoded tokens, so the count includes the
//! tokens of groups that are cut off or filtered.
//!
//! The truth is the mean over all valid groups of all rows at their second visit.

use rolldock::dispatch::history::{HistoryConfig, Sampling};
use rolldock::rollout::{OnStop, RolloutConfig};
use rolldock_bench_figures::{Bar, Figure};

use crate::epochs::{FLEET, Outcome, STEP, Sums, all_valid, run};
use crate::rollout::{Mode, config, in_virtual_time, workload};

/// Rows of the data. The standard error of the weighted means is 0.8 %.
const ROWS: u64 = 8192;
const ROWS_QUICK: u64 = 2048;

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

/// Measures what one epoch of history changes, in each mode.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rows = if quick { ROWS_QUICK } else { ROWS };
    let truth = [0, 1].map(|visit| all_valid(&workload(), rows, visit));
    let mut figures = Vec::new();
    for plan in Plan::ALL {
        let one = in_virtual_time(run(plan.config()?, plan == Plan::Flow, rows, 1))?;
        let two = in_virtual_time(run(plan.config()?, plan == Plan::Flow, rows, 2))?;
        figures.extend(figures_of(plan, &one, &two, &truth, quick));
    }
    Ok(figures)
}

fn figures_of(plan: Plan, one: &Outcome, two: &Outcome, truth: &[Sums; 2], quick: bool) -> Vec<Figure> {
    let name = |what: &str| format!("history, {}: {what}", plan.name());
    let without = one.tokens as f64 / one.groups(0);
    let with = (two.tokens as f64 - one.tokens as f64) / two.groups(1);
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
        Figure::new(name("effective groups / accepted groups"), two.weights[1].effective_share(), "x"),
    ]
}
