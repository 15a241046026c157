//! The configurations in which the bias meter is tested.

use rolldock::rollout::{EarlyStop, Launch, OnStop, StopUnlikely};

/// How a run collects its groups, and the properties of the simulated model.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// When a step stops.
    pub early_stop: EarlyStop,
    /// What becomes of groups that are cut off.
    pub on_stop: OnStop,
    /// How many prompts are sent out.
    pub launch: Launch,
    /// Groups of a step.
    pub target: usize,
    /// Number of prompts in a generation batch, divided by `target`.
    pub oversampling: f64,
    /// The standard deviation of the logarithm of a response's length.
    pub sigma: f64,
    /// The length of wrong responses divided by that of right responses.
    pub wrong_factor: f64,
    /// The share of groups that fail.
    pub failing: f64,
    /// The share of cut-off groups that is audited.
    pub audit: f64,
    /// Which groups are stopped because they are unlikely to become valid.
    pub stop_unlikely: Option<StopUnlikely>,
}

const CASE: Case = Case {
    early_stop: EarlyStop::First,
    on_stop: OnStop::Discard,
    launch: Launch::Batch,
    target: 16,
    oversampling: 2.0,
    sigma: 0.4,
    wrong_factor: 1.0,
    failing: 0.0,
    audit: 0.3,
    stop_unlikely: None,
};

const LIGHT_TAIL: f64 = 0.4;
const HEAVY_TAIL: f64 = 0.9;
const FAILING: f64 = 0.03;
const STOP_UNLIKELY: StopUnlikely = StopUnlikely { below: 0.35, run_on: 0.25 };

/// The case in which a bias of 0.96 must be distinguished from no bias.
pub fn told() -> Case {
    Case { target: 64, oversampling: 1.75, audit: 0.1, ..CASE }
}

/// All cases: 26 of `first` with `discard`, whose bias is estimated, and 18 of modes that accept every valid
/// group or decide in dispatch order.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for oversampling in [1.5, 2.0, 4.0] {
        for sigma in [LIGHT_TAIL, HEAVY_TAIL] {
            for wrong_factor in [1.0, 2.0] {
                for failing in [0.0, FAILING] {
                    cases.push(Case { oversampling, sigma, wrong_factor, failing, ..CASE });
                }
            }
        }
    }
    let unbiased = [
        (EarlyStop::Fifo, OnStop::Requeue, Launch::Batch, 2.0, LIGHT_TAIL),
        (EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand, 2.0, HEAVY_TAIL),
        (EarlyStop::Fifo, OnStop::Discard, Launch::Batch, 2.0, HEAVY_TAIL),
        (EarlyStop::Fifo, OnStop::Discard, Launch::Batch, 4.0, LIGHT_TAIL),
        (EarlyStop::Off, OnStop::Requeue, Launch::Batch, 1.5, HEAVY_TAIL),
        (EarlyStop::Off, OnStop::Discard, Launch::Batch, 4.0, LIGHT_TAIL),
        (EarlyStop::First, OnStop::Requeue, Launch::OnDemand, 2.0, LIGHT_TAIL),
        (EarlyStop::First, OnStop::Carry, Launch::OnDemand, 2.0, HEAVY_TAIL),
    ];
    let of_mode = |(early_stop, on_stop, launch, oversampling, sigma)| Case {
        early_stop,
        on_stop,
        launch,
        oversampling,
        sigma,
        wrong_factor: 2.0,
        ..CASE
    };
    for mode in unbiased {
        cases.extend([0.0, FAILING].map(|failing| Case { failing, ..of_mode(mode) }));
    }
    let stopping = [
        (EarlyStop::First, OnStop::Discard, Launch::Batch, 2.0, LIGHT_TAIL),
        (EarlyStop::First, OnStop::Discard, Launch::Batch, 4.0, HEAVY_TAIL),
        (EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand, 2.0, HEAVY_TAIL),
        (EarlyStop::Fifo, OnStop::Discard, Launch::Batch, 2.0, LIGHT_TAIL),
    ];
    cases.extend(stopping.map(|mode| Case { stop_unlikely: Some(STOP_UNLIKELY), ..of_mode(mode) }));
    cases
}

impl Case {
    /// Whether the mode is unbiased: it prefers no group.
    pub fn is_unbiased(&self) -> bool {
        !self.cuts_for_good()
    }

    /// Whether groups that are cut off are discarded, so they are never decided.
    pub fn cuts_for_good(&self) -> bool {
        self.early_stop == EarlyStop::First && self.on_stop == OnStop::Discard
    }

    /// Whether groups are accepted in dispatch order.
    pub fn is_fifo(&self) -> bool {
        self.early_stop == EarlyStop::Fifo
    }

    /// The settings, in words.
    pub fn name(&self) -> String {
        let Self { early_stop, on_stop, launch, oversampling, failing, .. } = self;
        let launch =
            if *launch == Launch::OnDemand { "on demand".to_owned() } else { format!("{oversampling}x") };
        let tail = if self.sigma > LIGHT_TAIL { "heavy tail" } else { "light tail" };
        let wrong = if self.wrong_factor > 1.0 { ", wrong answers long" } else { "" };
        let failing = if *failing > 0.0 { ", 3 % fail" } else { "" };
        let stopping = if self.stop_unlikely.is_some() { ", unlikely groups stop" } else { "" };
        format!("{early_stop}, {on_stop}, {launch}, {tail}{wrong}{failing}{stopping}")
    }
}
