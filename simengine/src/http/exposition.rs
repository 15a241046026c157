//! Writes `/metrics` as Prometheus text, with vLLM's names and labels.

use std::fmt::Write;

use crate::ServerConfig;
use crate::stats::{Histogram, LATENCY_BOUNDS_S, SimStats};

/// Renders one reading of the statistics. The text lacks those metrics of vLLM that the simulation does not
/// have.
pub(crate) fn render(config: &ServerConfig, stats: &SimStats) -> String {
    let mut page = Page { text: String::with_capacity(8 * 1024), model: escape(&config.model) };
    page.gauges(stats);
    page.cache(config);
    page.counters(stats);
    page.histogram("request_queue_time_seconds", "Time spent waiting.", &stats.queue_time);
    page.histogram("time_to_first_token_seconds", "Time to the first token.", &stats.time_to_first_token);
    page.histogram("e2e_request_latency_seconds", "Time from arrival to end.", &stats.e2e_latency);
    page.text
}

struct Page {
    text: String,
    model: String,
}

impl Page {
    fn gauges(&mut self, stats: &SimStats) {
        let waiting = f64::from(stats.waiting);
        self.head("num_requests_running", "Number of requests in model execution batches.", "gauge");
        self.line("num_requests_running", "", f64::from(stats.running));
        self.head("num_requests_waiting", "Number of requests waiting to be processed.", "gauge");
        self.line("num_requests_waiting", "", waiting);
        self.head("num_requests_waiting_by_reason", "Number of waiting requests by reason.", "gauge");
        self.line("num_requests_waiting_by_reason", ",reason=\"capacity\"", waiting);
        self.line("num_requests_waiting_by_reason", ",reason=\"deferred\"", 0.0);
        self.head("engine_sleep_state", "Engine sleep state.", "gauge");
        for (level, state) in [(0, "awake"), (1, "weights_offloaded"), (2, "discard_all")] {
            let is_now = f64::from(u8::from(stats.sleep_level == level));
            self.line("engine_sleep_state", &format!(",sleep_state=\"{state}\""), is_now);
        }
        self.head("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "gauge");
        self.line("kv_cache_usage_perc", "", stats.kv_cache_usage);
    }

    /// The size of the KV cache, in labels.
    fn cache(&mut self, config: &ServerConfig) {
        let ServerConfig { block_tokens, kv_blocks, prefix_caching, .. } = config;
        let tokens = u64::from(*block_tokens) * u64::from(*kv_blocks);
        let caching = if *prefix_caching { "True" } else { "False" };
        self.head("cache_config_info", "Information of the LLMEngine CacheConfig", "gauge");
        // As in vLLM, this metric has the label of the engine, and not of the model.
        let _ = writeln!(
            self.text,
            "vllm:cache_config_info{{block_size=\"{block_tokens}\",enable_prefix_caching=\"{caching}\",engine=\"0\",\
             kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{kv_blocks}\"}} 1.0"
        );
    }

    fn counters(&mut self, stats: &SimStats) {
        let plain = [
            ("prefix_cache_queries_total", "Queried tokens.", stats.prefix_cache_queries_total),
            ("prefix_cache_hits_total", "Cached tokens.", stats.prefix_cache_hits_total),
            ("num_preemptions_total", "Preemptions.", stats.preemptions_total),
            ("prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens_total),
            (
                "generation_tokens_total",
                "Number of generation tokens processed.",
                stats.generation_tokens_total,
            ),
        ];
        for (name, help, value) in plain {
            self.head(name, help, "counter");
            self.line(name, "", value as f64);
        }
        self.head("request_success_total", "Count of successfully processed requests.", "counter");
        let successes = [
            ("stop", stats.success_stop_total),
            ("length", stats.success_length_total),
            ("abort", stats.success_abort_total),
            ("error", 0),
        ];
        for (reason, value) in successes {
            self.line("request_success_total", &format!(",finished_reason=\"{reason}\""), value as f64);
        }
        self.head("admission_rejections_total", "Requests refused by a queue limit.", "counter");
        let rejections = stats.rejections_total as f64;
        self.line("admission_rejections_total", ",reason=\"max_num_queued_reqs\"", rejections);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut cumulative = 0;
        for (bound, count) in LATENCY_BOUNDS_S.iter().zip(&histogram.buckets) {
            cumulative += count;
            self.line(&format!("{name}_bucket"), &format!(",le=\"{bound:?}\""), cumulative as f64);
        }
        self.line(&format!("{name}_bucket"), ",le=\"+Inf\"", histogram.count as f64);
        self.line(&format!("{name}_count"), "", histogram.count as f64);
        self.line(&format!("{name}_sum"), "", histogram.sum_s);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a `String` does not fail.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let model = &self.model;
        // Writing to a `String` does not fail.
        let _ = writeln!(self.text, "vllm:{name}{{engine=\"0\",model_name=\"{model}\"{labels}}} {value:?}");
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
