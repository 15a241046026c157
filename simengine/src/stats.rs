//! The statistics of a server.

/// Upper bounds of the latency buckets, in seconds.
pub const LATENCY_BOUNDS_S: [f64; 16] =
    [0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 2560.0];

/// A cumulative histogram over [`LATENCY_BOUNDS_S`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Observations for each bound: those at most as large as the bound and larger than the one before.
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
    /// Sequences in the batch.
    pub running: u32,
    /// Sequences queued; those held by a pause are not counted, as in vLLM.
    pub waiting: u32,
    /// Sequences held back by a pause.
    pub held: u32,
    /// Blocks in use over all blocks, from 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens generated. A token that is recomputed counts once.
    pub generation_tokens_total: u64,
    /// Prompt tokens of the sequences scheduled, cached ones included.
    pub prompt_tokens_total: u64,
    /// Preemptions.
    pub preemptions_total: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries_total: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_cache_hits_total: u64,
    /// Samples that ended by a stop token or the end-of-sequence token.
    pub success_stop_total: u64,
    /// Samples that ended at their token limit.
    pub success_length_total: u64,
    /// Samples ended by a pause in the mode `abort`. Aborts by id are not counted, as in vLLM.
    pub success_abort_total: u64,
    /// Requests refused because the queue was full.
    pub rejections_total: u64,
    /// Samples admitted since the server started.
    pub admitted_total: u64,
    /// Samples that ended, for any reason.
    pub ended_total: u64,
    /// Simulated time of the reading, in ns since the server started.
    pub now_ns: u64,
    /// 0: awake; 1: weights offloaded; 2: all discarded.
    pub sleep_level: u8,
    /// From submission to first scheduling.
    pub queue_time: Histogram,
    /// From submission to the first token.
    pub time_to_first_token: Histogram,
    /// From submission to the end.
    pub e2e_latency: Histogram,
}
