//! The counters of the proxy, through the `metrics` facade.

use metrics::counter;

/// Lets the counters begin at 0 when the proxy does, so that there is a rate from the first event on.
pub(super) fn begin_counters() {
    counter!("rolldock_proxy_replays_total").increment(0);
    counter!("rolldock_proxy_replays_refused_total").increment(0);
    counter!("rolldock_proxy_exhausted_total").increment(0);
    for phase in ["permit", "answer", "idle", "client"] {
        counter!("rolldock_proxy_timeouts_total", "phase" => phase).increment(0);
    }
}
