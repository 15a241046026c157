//! The cost of an engine step. Costs are integer picoseconds, so dividing them by a speed loses little.

use crate::ServerConfig;

const PS_PER_NS: u128 = 1_000;

/// The costs of one server at its present speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepCost {
    prefill_ps_per_token: u128,
    base_ps: u128,
    ps_per_seq: u128,
    ps_per_kv_token: u128,
}

impl StepCost {
    /// The costs of a server. The configured `speed` divides every cost, and `slow_factor` multiplies it.
    pub(crate) fn new(config: &ServerConfig, slow_factor: f64) -> Self {
        let scale = slow_factor / config.speed;
        let scaled = |cost_ns: u64| (cost_ns as f64 * 1e3 * scale).round() as u128;
        Self {
            prefill_ps_per_token: scaled(config.prefill_ns_per_token),
            base_ps: scaled(config.decode_base_ns).max(PS_PER_NS),
            ps_per_seq: scaled(config.decode_ns_per_seq),
            ps_per_kv_token: scaled(config.decode_ns_per_kv_token),
        }
    }

    /// The cost in ns of a step that decodes one token for each of `seqs` sequences and prefills
    /// `prefill_tokens` tokens.
    pub(crate) fn step_ns(&self, seqs: u64, kv_tokens: u64, prefill_tokens: u64) -> u64 {
        let prefill_ps = self.prefill_ps_per_token * u128::from(prefill_tokens);
        to_ns(prefill_ps + self.first_step_ps(seqs, kv_tokens))
    }

    /// The cost in ns of `steps` successive decode steps. Each step adds a token per sequence to the cache,
    /// so the costs of the steps are an arithmetic series.
    pub(crate) fn run_ns(&self, seqs: u64, kv_tokens: u64, steps: u64) -> u64 {
        let pairs = u128::from(steps) * u128::from(steps.saturating_sub(1)) / 2;
        let growth_ps = self.ps_per_kv_token * u128::from(seqs) * pairs;
        to_ns(u128::from(steps) * self.first_step_ps(seqs, kv_tokens) + growth_ps)
    }

    /// The largest number of decode steps, at most `limit`, that end within `span_ns`.
    pub(crate) fn steps_within(&self, seqs: u64, kv_tokens: u64, span_ns: u64, limit: u64) -> u64 {
        let mut done = 0;
        let mut beyond = limit + 1;
        while beyond - done > 1 {
            let middle = done + (beyond - done) / 2;
            if self.run_ns(seqs, kv_tokens, middle) <= span_ns {
                done = middle;
            } else {
                beyond = middle;
            }
        }
        done
    }

    fn first_step_ps(&self, seqs: u64, kv_tokens: u64) -> u128 {
        self.base_ps + self.ps_per_seq * u128::from(seqs) + self.ps_per_kv_token * u128::from(kv_tokens)
    }
}

fn to_ns(cost_ps: u128) -> u64 {
    u64::try_from(cost_ps.div_ceil(PS_PER_NS)).unwrap_or(u64::MAX / 4)
}
