//! Compares the bias meter with the true bias, in 44 configurations of early stops, launches, lengths and
//! failures.
//!
//! Every run is a real rollout in virtual time, on an engine that takes 10 ms for a token and runs all
//! requests at once. Lengths and right answers are draws of the simulated model. The results of all groups that a
//! step sent out are therefore known, including groups that were cut off or failed.

mod cases;
mod run;

use std::ops::Range;

pub use cases::{Case, cases, told};
use rolldock_bench_figures::{Bar, Figure};
pub use run::{Outcome, Reading, Step, run};

/// Number of runs of each configuration.
pub const SEEDS: u64 = 25;
/// As [`SEEDS`], in the short form.
pub const SEEDS_QUICK: u64 = 2;
/// Number of steps of a run.
const STEPS: u64 = 60;
/// Number of steps of a run in the short form.
pub const STEPS_QUICK: u64 = 40;

/// Number of steps within which a bias of 0.96 must be distinguished from 1.
pub const TOLD_STEPS: u64 = 100;

/// The largest difference between an exact ratio and the truth that rounding may cause.
const ROUNDING: f64 = 1e-9;

/// Counts of the intervals that cover the truth.
#[derive(Debug, Clone, Copy, Default)]
pub struct Coverage {
    /// Figures without a standard error.
    pub exact: u64,
    /// Exact figures that equal the truth.
    pub exact_true: u64,
    /// Figures with a standard error.
    pub estimated: u64,
    /// Estimated figures whose interval of two standard errors contains the truth.
    pub covered: u64,
    /// Runs that gave no figure.
    pub unknown: u64,
}

impl Coverage {
    fn add(&mut self, outcome: &Outcome) {
        let Some(readings) = &outcome.readings else {
            self.unknown += 1;
            return;
        };
        for Reading { ratio, standard_error, truth } in readings {
            let off = (ratio - truth).abs();
            if *standard_error > 0.0 {
                self.estimated += 1;
                self.covered += u64::from(off <= 2.0 * standard_error);
            } else {
                self.exact += 1;
                self.exact_true += u64::from(off <= ROUNDING);
            }
        }
    }

    /// Adds the counts of other runs.
    pub fn join(&mut self, other: &Self) {
        let Self { exact, exact_true, estimated, covered, unknown } = other;
        self.exact += exact;
        self.exact_true += exact_true;
        self.estimated += estimated;
        self.covered += covered;
        self.unknown += unknown;
    }

    /// The share of all figures that equal the truth or whose interval contains it.
    fn share(&self) -> f64 {
        (self.exact_true + self.covered) as f64 / (self.exact + self.estimated).max(1) as f64
    }

    /// The share of estimated figures whose interval contains the truth.
    pub fn share_of_estimates(&self) -> f64 {
        self.covered as f64 / self.estimated.max(1) as f64
    }
}

/// The runs of one configuration.
#[derive(Debug, Default)]
pub struct Compared {
    /// The counts over the runs.
    pub coverage: Coverage,
    /// The mean length bias as measured.
    pub ratio: f64,
    /// The mean length bias in truth.
    pub truth: f64,
    /// The mean standard error.
    pub standard_error: f64,
    /// The greatest distance of a measured length bias from 1.
    pub off_one: f64,
    /// How often the bias guard has acted.
    pub guarded: u64,
}

/// Runs a case with these seeds. Runs with one seed have the same prompts, so each case has its own seeds.
pub fn compare(case: &Case, seeds: Range<u64>, steps: u64) -> anyhow::Result<Compared> {
    let runs = seeds.end - seeds.start;
    let mut compared = Compared::default();
    for seed in seeds {
        let outcome = run(case, seed, steps)?;
        compared.coverage.add(&outcome);
        compared.guarded += outcome.guarded;
        let Some([length, ..]) = &outcome.readings else { continue };
        compared.ratio += length.ratio;
        compared.truth += length.truth;
        compared.standard_error += length.standard_error;
        compared.off_one = compared.off_one.max((length.ratio - 1.0).abs());
    }
    let known = (runs - compared.coverage.unknown).max(1) as f64;
    for mean in [&mut compared.ratio, &mut compared.truth, &mut compared.standard_error] {
        *mean /= known;
    }
    Ok(compared)
}

/// The number of runs in which a bias was distinguished from 1 within their steps, and the mean true bias.
fn count_told(seeds: u64) -> anyhow::Result<(u64, f64)> {
    let (mut told_apart, mut truth) = (0, 0.0);
    for seed in 0..seeds {
        let outcome = run(&told(), seed, TOLD_STEPS)?;
        told_apart += u64::from(outcome.told_at.is_some());
        truth += outcome.readings.map_or(f64::NAN, |[length, ..]| length.truth) / seeds as f64;
    }
    Ok((told_apart, truth))
}

/// The number of steps that an audit of all cut-off groups changes, and the number of tokens of finished
/// requests that the run has not counted.
pub fn what_an_audit_changes(steps: u64) -> anyhow::Result<(usize, u64)> {
    let without = run(&Case { audit: 0.0, ..told() }, 0, steps)?;
    let with = run(&Case { audit: 1.0, ..told() }, 0, steps)?;
    let changed = without.steps.iter().zip(&with.steps).filter(|(one, other)| one != other).count();
    let gates_differ = without.gates != with.gates || without.steps.len() != with.steps.len();
    let audit = |outcome: &Outcome| outcome.tokens.wasted.audit;
    anyhow::ensure!(audit(&with) > 0 && audit(&without) == 0, "the audit has no tokens");
    Ok((changed + usize::from(gates_differ), with.tokens_engine.abs_diff(with.tokens.generated)))
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let (seeds, steps) = if quick { (SEEDS_QUICK, STEPS_QUICK) } else { (SEEDS, STEPS) };
    let (mut figures, mut all, mut guarded, mut off_one) = (Vec::new(), Coverage::default(), 0, 0.0_f64);
    for (first, case) in (0..).step_by(SEEDS as usize).zip(cases()) {
        let compared = compare(&case, first..first + seeds, steps)?;
        let Compared { coverage, ratio, truth, standard_error, .. } = compared;
        let name = case.name();
        figures
            .push(Figure::new(format!("{name}: length bias, measured and true"), ratio, "x").against(truth));
        figures.push(Figure::new(format!("{name}: standard error"), standard_error, "x"));
        figures.push(Figure::new(format!("{name}: true, or in the interval"), coverage.share(), "x"));
        if case.is_unbiased() {
            guarded += compared.guarded;
        }
        if case.is_fifo() {
            off_one = off_one.max(compared.off_one);
        }
        all.join(&coverage);
    }
    let exact = all.exact_true as f64 / all.exact.max(1) as f64;
    let (told_apart, truth) = count_told(if quick { 1 } else { SEEDS })?;
    let told_apart = told_apart as f64 / if quick { 1.0 } else { SEEDS as f64 };
    let fully = Bar::AtLeast(1.0);
    let (changed, uncounted) = what_an_audit_changes(steps)?;
    figures.extend([
        Figure::new("estimates whose interval contains the true value", all.share_of_estimates(), "x")
            .bar(Bar::Within(0.93, 0.98)),
        Figure::new("all figures: equal to the true value, or with it in their interval", all.share(), "x")
            .bar(Bar::Within(0.93, 0.98)),
        Figure::new("exact figures that equal the true value", exact, "x").bar(fully),
        Figure::new("runs without a figure", all.unknown as f64, "runs").bar(Bar::AtMost(0.0)),
        Figure::new("fifo: greatest distance from 1.00", off_one, "x").bar(Bar::AtMost(0.005)),
        Figure::new("acts of the guard in unbiased modes", guarded as f64, "acts").bar(Bar::AtMost(0.0)),
        Figure::new("first, 64 groups, audit of 10 %: true length bias", truth, "x")
            .bar(Bar::Within(0.95, 0.97)),
        Figure::new(
            "the length bias of that case: runs that tell it from 1.00 within 100 steps",
            told_apart,
            "x",
        )
        .bar(fully),
        Figure::new("steps that an audit of 100 % changes", changed as f64, "steps").bar(Bar::AtMost(0.0)),
        Figure::new(
            "tokens of finished requests that an audit of 100 % leaves uncounted",
            uncounted as f64,
            "tokens",
        )
        .bar(Bar::AtMost(0.0)),
    ]);
    Ok(figures)
}
