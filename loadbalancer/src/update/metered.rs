//! The metrics of weight updates, reported through the `metrics` facade.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::{Phase, UpdateOutcome, UpdateReport};

/// Records the metrics of updates. Updates are rare, so the handles are looked up each time.
#[derive(Debug)]
pub(super) struct UpdateMetrics;

impl UpdateMetrics {
    /// Sets the counters to 0, so a rate exists from the first event on.
    pub(super) fn new() -> Self {
        for outcome in UpdateOutcome::NAMES {
            counter!("rolldock_weight_updates_total", "outcome" => outcome).increment(0);
        }
        for phase in Phase::ALL {
            counter!("rolldock_weight_update_failures_total", "phase" => phase.as_str()).increment(0);
        }
        counter!("rolldock_engines_recovered_total").increment(0);
        Self
    }

    pub(super) fn ended(&self, report: &UpdateReport) {
        counter!("rolldock_weight_updates_total", "outcome" => report.outcome.as_str()).increment(1);
        if matches!(report.outcome, UpdateOutcome::Complete | UpdateOutcome::Partial) {
            gauge!("rolldock_weight_version").set(report.version as f64);
            histogram!("rolldock_weight_update_seconds").record(report.took.as_secs_f64());
        }
    }

    /// Records the time of a phase over all servers. Catching up counts, too.
    pub(super) fn phase(&self, phase: Phase, took: Duration) {
        histogram!("rolldock_weight_update_phase_seconds", "phase" => phase.as_str())
            .record(took.as_secs_f64());
    }

    /// Counts a server that has missed an update.
    pub(super) fn failed(&self, phase: Phase) {
        counter!("rolldock_weight_update_failures_total", "phase" => phase.as_str()).increment(1);
    }

    pub(super) fn recovered(&self, engines: usize) {
        counter!("rolldock_engines_recovered_total").increment(engines as u64);
    }
}
