//! `rollout --unlikely`: what stopping unlikely groups saves, what it costs, and whether the importance weights of the groups
//! that run on undo the bias.
//!
//! Each rule runs over the same rows once, and is compared with a run without a rule. The truth is the mean over all valid groups of all
//! rows.

use rolldock::rollout::{RolloutConfig, StopUnlikely};
use rolldock_bench_figures::{Bar, Figure};

use crate::epochs::{FLEET, Outcome, STEP, Sums, all_valid, run};
use crate::rollout::{Mode, config, in_virtual_time, workload};

/// Rows of the data. The standard error of the weighted means is below 1 %.
const ROWS: u64 = 16_384;
const ROWS_QUICK: u64 = 2_048;
/// The measured bounds and shares that run on.
const RULES: [(f64, f64); 5] = [(0.01, 0.25), (0.02, 0.25), (0.05, 0.25), (0.05, 0.5), (0.2, 0.5)];

/// Measures each rule.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rows = if quick { ROWS_QUICK } else { ROWS };
    let truth = all_valid(&workload(), rows, 0);
    let of = |stop_unlikely: Option<StopUnlikely>| -> anyhow::Result<Outcome> {
        let config = config(FLEET, Mode::OnDemand)?;
        let config = RolloutConfig { gen_batch_size: 2 * STEP, stop_unlikely, ..config };
        in_virtual_time(run(config, false, rows, 1))
    };
    let without = of(None)?;
    let mut figures = Vec::new();
    for (below, run_on) in RULES {
        let with = of(Some(StopUnlikely { below, run_on }))?;
        figures.extend(figures_of((below, run_on), &with, &without, &truth, quick));
    }
    Ok(figures)
}

fn figures_of(
    (below, run_on): (f64, f64),
    with: &Outcome,
    without: &Outcome,
    truth: &Sums,
    quick: bool,
) -> Vec<Figure> {
    let name = |what: &str| format!("unlikely, below {below}, run on {run_on}: {what}");
    let ratio = |what: &str, of: &dyn Fn(&Outcome) -> f64, unit| {
        Figure::new(name(what), of(with), unit).against_named("without the rule", of(without))
    };
    let bias = |what: &str, of: fn(&Sums) -> f64| {
        let figure = Figure::new(name(what), of(&with.weighted[0]) / of(truth), "x");
        // The short form has fewer rows, so its standard error is 2 %.
        if quick { figure } else { figure.bar(Bar::Within(0.98, 1.02)) }
    };
    let effective = |outcome: &Outcome| outcome.weights[0].effective_groups();
    vec![
        ratio("decoded tokens of an accepted group", &|run| run.tokens as f64 / run.groups(0), "tokens"),
        ratio("decoded tokens of an effective group", &|run| run.tokens as f64 / effective(run), "tokens"),
        ratio("time of an accepted group", &|run| run.elapsed.as_secs_f64() / run.groups(0), "s"),
        bias("length bias after weights", Sums::length),
        bias("accuracy bias after weights", Sums::acc),
        Figure::new(name("length bias without weights"), with.plain[0].length() / truth.length(), "x"),
        Figure::new(name("accuracy bias without weights"), with.plain[0].acc() / truth.acc(), "x"),
        Figure::new(name("effective groups / accepted groups"), with.weights[0].effective_share(), "x"),
    ]
}
