//! The statistics of a server.

/// Upper bounds of the latency buckets, in seconds.
pub const LATENCY_BOUNDS_S: [f64; 16] =
    [0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 2560.0];

/// A histogram with the bounds [`LATENCY_BOUNDS_S`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// For each bound, the number of observations that are at most this bound and larger than the previous
    /// bound. The counts are not cumulative.
    pub buckets: [u64; LATENCY_BOUNDS_S.len()],
    /// Number of observations.
    pub count: u64,
    /// Sum of the observations, in seconds.
    pub sum_s: f64,
}

impl Histogram {
    pub(crate) fn observe_ns(&mut self, value_ns: u64) {
        let value_s = value_ns as f64 / 1e9;
        let place = LATENCY_BOUNDS_S.partition_point(|bound| *bound < value_s);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum_s += value_s;
    }
}

/// One reading of a server's gauges and counters. The counters start at zero again when a dead server is
/// healed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SimStats {
    /// Number of sequences in the batch or being prefilled.
    pub running: u32,
    /// Number of queued sequences. As in vLLM, sequences that a pause holds back are not counted.
    pub waiting: u32,
    /// Number of sequences that a pause holds back.
    pub held: u32,
    /// Share of the KV blocks that is in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// Number of generated tokens. A token that is computed again counts once.
    pub generation_tokens_total: u64,
    /// Number of prompt tokens of the scheduled sequences, including cached ones.
    pub prompt_tokens_total: u64,
    /// Number of preemptions.
    pub preemptions_total: u64,
    /// Number of prompt tokens that were looked up in the prefix cache.
    pub prefix_cache_queries_total: u64,
    /// Number of prompt tokens that were found in the prefix cache.
    pub prefix_cache_hits_total: u64,
    /// Number of samples that ended at a stop token, a stop string or the end-of-sequence token.
    pub success_stop_total: u64,
    /// Number of samples that ended at their token limit.
    pub success_length_total: u64,
    /// Number of samples of the requests that a pause in the mode `abort` ended. As in vLLM, aborts by id are
    /// not counted.
    pub success_abort_total: u64,
    /// Number of requests that were refused because the queue was full or the fault `Busy503` was injected.
    pub rejections_total: u64,
    /// Number of admitted samples.
    pub admitted_total: u64,
    /// Number of samples that ended, for any reason.
    pub ended_total: u64,
    /// Simulated time of the reading, in ns since the server started.
    pub now_ns: u64,
    /// 0: awake; 1: asleep, weights offloaded; 2: asleep, weights discarded.
    pub sleep_level: u8,
    /// Time of each sample from submission to its first scheduling.
    pub queue_time: Histogram,
    /// Time of each sample from submission to its first token.
    pub time_to_first_token: Histogram,
    /// Time of each request from submission to its end.
    pub e2e_latency: Histogram,
}
