//! The counters of the proxy, reported through the `metrics` facade.

use metrics::counter;

/// Sets the counters to 0 when the proxy starts, so a rate exists from the first event on.
pub(super) fn begin_counters() {
    counter!("rolldock_proxy_replays_total").increment(0);
    counter!("rolldock_proxy_replays_refused_total").increment(0);
    counter!("rolldock_proxy_exhausted_total").increment(0);
    for phase in ["permit", "answer", "idle", "client"] {
        counter!("rolldock_proxy_timeouts_total", "phase" => phase).increment(0);
    }
}
