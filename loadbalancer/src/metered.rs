//! The metrics of a server, reported through the `metrics` facade. The program that runs the balancer
//! installs the exporter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::outcome::Outcome;
use crate::server::{Epoch, ServerState};

/// Handles of a server's metrics. They are looked up once, since every permit uses them.
pub(crate) struct ServerMetrics {
    server: Arc<str>,
    permits_in_use: Gauge,
    permits: Gauge,
    state: Gauge,
    epoch: Gauge,
    outcomes: [Counter; 5],
    tokens: Counter,
    tokens_wasted: Counter,
    request_seconds: Histogram,
    tokens_per_second: Histogram,
}

impl std::fmt::Debug for ServerMetrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ServerMetrics").field("server", &self.server).finish_non_exhaustive()
    }
}

const OUTCOMES: [&str; 5] = ["success", "client_error", "backpressure", "fault", "cancelled"];

fn number(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Success { .. } => 0,
        Outcome::ClientError => 1,
        Outcome::Backpressure { .. } => 2,
        Outcome::Fault => 3,
        Outcome::Cancelled => 4,
    }
}

impl ServerMetrics {
    pub(crate) fn of(server: &Arc<str>) -> Self {
        let name = || server.to_string();
        // These counters begin at 0, so a rate exists from the first event on.
        aborts_sent(server, 0);
        aborts_confirmed(server, 0);
        counter!("rolldock_aborts_dropped_total").increment(0);
        Self {
            server: Arc::clone(server),
            permits_in_use: gauge!("rolldock_permits_in_use", "server" => name()),
            permits: gauge!("rolldock_permits", "server" => name()),
            state: gauge!("rolldock_server_up", "server" => name()),
            epoch: gauge!("rolldock_server_epoch", "server" => name()),
            outcomes: OUTCOMES
                .map(|outcome| counter!("rolldock_requests_total", "server" => name(), "outcome" => outcome)),
            tokens: counter!("rolldock_tokens_total", "server" => name()),
            tokens_wasted: counter!("rolldock_tokens_wasted_total", "server" => name()),
            request_seconds: histogram!("rolldock_request_seconds", "server" => name()),
            tokens_per_second: histogram!("rolldock_request_tokens_per_second", "server" => name()),
        }
    }

    pub(crate) fn places(&self, in_use: u32, capacity: u32) {
        self.permits_in_use.set(in_use);
        self.permits.set(capacity);
    }

    pub(crate) fn state(&self, state: ServerState, epoch: Epoch) {
        self.state.set(if state == ServerState::Active { 1.0 } else { 0.0 });
        self.epoch.set(epoch.0 as f64);
        let to = state.as_str();
        counter!("rolldock_server_state_changes_total", "server" => self.server.to_string(), "to" => to)
            .increment(1);
    }

    pub(crate) fn outcome(&self, outcome: &Outcome, took: Duration) {
        self.outcomes[number(outcome)].increment(1);
        if let Outcome::Success { tokens } = outcome {
            let seconds = took.as_secs_f64();
            self.tokens.increment(*tokens);
            self.request_seconds.record(seconds);
            if seconds > 0.0 && *tokens > 0 {
                self.tokens_per_second.record(*tokens as f64 / seconds);
            }
        }
    }

    pub(crate) fn unanswered(&self, kept: u64, wasted: u64) {
        self.tokens.increment(kept);
        self.tokens_wasted.increment(wasted);
    }

    /// Sets the gauges to zero when the server leaves. They would otherwise keep their last values.
    pub(crate) fn clear(&self) {
        self.permits_in_use.set(0.0);
        self.permits.set(0.0);
        self.state.set(0.0);
    }
}

/// Returns an exporter's text without the series of these servers. The facade cannot remove a series. An
/// exporter that drops unchanged series is no alternative, because it would disconnect the handles of idle
/// servers.
pub(crate) fn without_series_of(text: &str, servers: &BTreeSet<Arc<str>>) -> String {
    const LABEL: &str = "server=\"";
    let is_departed = |line: &str| {
        let labelled = line.split_once(LABEL).and_then(|(_, rest)| rest.split_once('"'));
        labelled.is_some_and(|(name, _)| servers.contains(name))
    };
    text.split_inclusive('\n').filter(|line| !is_departed(line)).collect()
}

/// Counts `ids` more ids that a server was asked to abort. An id counts once, however often it is sent.
pub fn aborts_sent(server: &str, ids: u64) {
    counter!("rolldock_aborts_sent_total", "server" => server.to_owned()).increment(ids);
}

/// Counts `ids` more ids for which the server has answered the last abort. A server answers "aborted" also
/// for ids that it does not know.
pub fn aborts_confirmed(server: &str, ids: u64) {
    counter!("rolldock_aborts_confirmed_total", "server" => server.to_owned()).increment(ids);
}
