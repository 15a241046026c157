//! Readings of an engine's counters and gauges.

use super::Core;
use crate::invariants::Census;
use crate::stats::SimStats;

impl Core {
    /// Counts sequences, blocks and tokens, for the check of the invariants.
    pub(crate) fn census(&self) -> Census {
        let live = self.sequences.iter().map(|(number, sequence)| self.tokens_of(*number, sequence));
        Census {
            running: self.batch.len() + self.prefilling.len() as u64,
            running_max: u64::from(self.config.max_num_seqs),
            queued: (self.waiting.len() + self.held.len()) as u64,
            blocks_used: self.kv.used(),
            blocks_total: self.kv.total(),
            admitted: self.stats.admitted_total,
            ended: self.stats.ended_total,
            tokens_counted: self.stats.generation_tokens_total,
            tokens_ended: self.tokens_ended,
            tokens_live: live.map(u64::from).sum(),
        }
    }

    /// The statistics at `now_ns`. They include the steps of the present run that have ended.
    pub(crate) fn stats(&mut self, now_ns: u64) -> SimStats {
        self.settle(now_ns);
        let running = self.batch.len() + self.prefilling.len() as u64;
        SimStats {
            running: u32::try_from(running).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            held: u32::try_from(self.held.len()).unwrap_or(u32::MAX),
            kv_cache_usage: self.kv.used() as f64 / self.kv.total() as f64,
            now_ns,
            sleep_level: self.pause.sleep_level,
            ..self.stats.clone()
        }
    }
}
