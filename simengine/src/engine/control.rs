//! Control of an engine: pause and resume, sleep, weight versions, the prefix cache, and the death of its
//! process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::cost::StepCost;
use super::kv::KvCache;
use super::{Activity, Core, NS_PER_MS, Status};
use crate::SimError;
use crate::fault::Faults;
use crate::request::FinishReason;
use crate::stats::SimStats;

/// Time for which the process of a server outlives its engine and still answers.
const DEATH_MS: u64 = 3_000;

/// What a pause does to the requests on the server. New requests wait in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Running and waiting requests end immediately with the tokens that they have.
    Abort,
    /// The requests run to their end, and the pause call waits for this.
    Wait,
    /// The requests stop, and continue when the engine is resumed.
    Keep,
}

/// The state of the server's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Serving,
    EngineDead { gone_at_ns: u64 },
    Gone,
    Stopped,
}

/// The present pause, if there is one.
#[derive(Debug, Default)]
pub(crate) struct PauseState {
    pub(crate) mode: Option<PauseMode>,
    pub(crate) sleep_level: u8,
    drain_waiters: Vec<oneshot::Sender<()>>,
}

impl PauseState {
    /// Whether new requests are held back.
    pub(crate) fn holds_new(&self) -> bool {
        self.mode.is_some()
    }
}

impl Core {
    pub(crate) fn life(&self) -> Life {
        self.life
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pause.mode.is_some()
    }

    pub(crate) fn sleep_level(&self) -> u8 {
        self.pause.sleep_level
    }

    pub(crate) fn version(&self) -> Arc<str> {
        Arc::clone(&self.version)
    }

    /// Pauses the engine. The receiver completes when the requests that the mode waits for have ended.
    pub(crate) fn pause(&mut self, mode: PauseMode, now_ns: u64) -> oneshot::Receiver<()> {
        self.settle(now_ns);
        let (done, drained) = oneshot::channel();
        self.pause.drain_waiters.push(done);
        self.pause.mode = Some(mode);
        if mode == PauseMode::Abort {
            // Samples that ended earlier are counted under their own finish reason.
            let running: Vec<(u64, u32)> =
                self.requests.iter().map(|(number, request)| (*number, request.live)).collect();
            for (number, live) in running {
                self.stats.success_abort_total += u64::from(live);
                self.end_request(number, FinishReason::Abort);
            }
        }
        if mode != PauseMode::Keep {
            self.kv.reset_prefixes();
        }
        self.refreeze(now_ns);
        self.notice_drained();
        self.replan(now_ns);
        drained
    }

    /// Queues the held requests and lets running ones continue. Does nothing if the engine is not paused.
    pub(crate) fn resume(&mut self, now_ns: u64) {
        self.settle(now_ns);
        self.pause.mode = None;
        self.release_held();
        self.tell_drain_waiters();
        self.refreeze(now_ns);
        self.replan(now_ns);
    }

    /// Pauses the engine in this mode and puts it to sleep. With level 0 the engine is only paused. The
    /// prefix cache is emptied at every level.
    pub(crate) fn sleep(&mut self, level: u8, mode: PauseMode, now_ns: u64) -> oneshot::Receiver<()> {
        let drained = self.pause(mode, now_ns);
        self.pause.sleep_level = level;
        self.kv.reset_prefixes();
        drained
    }

    /// Wakes the engine up and resumes it.
    pub(crate) fn wake(&mut self, now_ns: u64) {
        self.pause.sleep_level = 0;
        self.resume(now_ns);
    }

    /// Attributes all tokens that are generated from now on to `version`.
    pub(crate) fn update_version(&mut self, version: Arc<str>, now_ns: u64) {
        self.settle(now_ns);
        let former = std::mem::replace(&mut self.version, version);
        let marks: Vec<(u64, u32)> = self
            .sequences
            .iter()
            .map(|(number, sequence)| (*number, self.tokens_of(*number, sequence)))
            .collect();
        for (number, tokens) in marks {
            if let Some(sequence) = self.sequences.get_mut(&number) {
                sequence.versions.mark(&former, tokens);
            }
        }
    }

    /// Empties the prefix cache. With `recompute`, running sequences are preempted first, which frees their
    /// blocks. Returns false if sequences still hold blocks of the cache.
    pub(crate) fn reset_prefix_cache(&mut self, recompute: bool, now_ns: u64) -> bool {
        self.settle(now_ns);
        if recompute {
            for number in self.batch.numbers() {
                self.preempt(number);
            }
        }
        let success = self.kv.reset_prefixes();
        self.replan(now_ns);
        success
    }

    /// Makes the engine die. All its requests fail.
    pub(super) fn die(&mut self, now_ns: u64) {
        self.life = Life::EngineDead { gone_at_ns: now_ns + DEATH_MS * NS_PER_MS };
        self.fail_all(|server| SimError::EngineDead { server });
    }

    /// Stops the engine permanently. All its requests fail.
    pub(crate) fn stop(&mut self) {
        self.life = Life::Stopped;
        self.fail_all(|server| SimError::Stopped { server });
        self.tell_drain_waiters();
    }

    /// Ends every fault. A server whose engine or process has ended starts again: its counters, its cache and
    /// its weight version are those of a new process. The connections of its remaining requests are reset.
    pub(crate) fn heal(&mut self, now_ns: u64) {
        self.settle(now_ns);
        self.faults = Faults::default();
        self.cost = StepCost::new(&self.config, self.faults.slow_factor);
        if matches!(self.life, Life::EngineDead { .. } | Life::Gone) {
            self.fail_all(|server| SimError::ConnectionReset { server });
            self.life = Life::Serving;
            self.stats = SimStats::default();
            self.tokens_ended = 0;
            self.kv = KvCache::new(self.config.kv_blocks);
            self.version = Arc::from("default");
            self.pause.mode = None;
            self.pause.sleep_level = 0;
            self.activity = Activity::Idle;
            self.tell_drain_waiters();
        }
        self.refreeze(now_ns);
        self.replan(now_ns);
    }

    /// Ends the process of a dead engine, if the process has outlived the engine for `DEATH_MS`.
    pub(super) fn pass_death(&mut self, now_ns: u64) {
        if let Life::EngineDead { gone_at_ns } = self.life
            && now_ns >= gone_at_ns
        {
            self.life = Life::Gone;
        }
    }

    /// Stops or restarts the engine's time, depending on the pause, the faults and the state of the process.
    /// The caller must have called `settle`.
    pub(super) fn refreeze(&mut self, now_ns: u64) {
        let stops_time = matches!(self.pause.mode, Some(PauseMode::Keep | PauseMode::Abort));
        let frozen = stops_time || self.faults.stalled || self.life != Life::Serving;
        match (frozen, self.frozen_since_ns) {
            (true, None) => self.frozen_since_ns = Some(now_ns),
            (false, Some(since_ns)) => {
                self.frozen_since_ns = None;
                self.thaw(now_ns.saturating_sub(since_ns));
            }
            _ => {}
        }
    }

    /// Shifts the present activity by the time for which the engine was stopped. The caller must then call
    /// `replan`.
    fn thaw(&mut self, still_ns: u64) {
        self.clock_ns += still_ns;
        if let Activity::Mixed { end_ns } = &mut self.activity {
            *end_ns += still_ns;
        }
    }

    fn release_held(&mut self) {
        for number in std::mem::take(&mut self.held) {
            if let Some(sequence) = self.sequences.get_mut(&number) {
                sequence.status = Status::Waiting;
                self.waiting.insert(number);
            }
        }
    }

    /// Notifies callers that wait for a pause, if only held requests are left or the pause does not wait.
    pub(super) fn notice_drained(&mut self) {
        let is_done = match self.pause.mode {
            Some(PauseMode::Wait) => self.sequences.len() == self.held.len(),
            _ => true,
        };
        if is_done {
            self.tell_drain_waiters();
        }
    }

    fn tell_drain_waiters(&mut self) {
        for waiter in self.pause.drain_waiters.drain(..) {
            // The caller may have stopped waiting. The engine stays paused.
            let _ = waiter.send(());
        }
    }

    fn fail_all(&mut self, error: impl Fn(String) -> SimError) {
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        for number in numbers {
            if let Some(request) = self.drop_request(number) {
                // The caller may have stopped waiting.
                let _ = request.reply.send(Err(error(self.config.name.clone())));
            }
        }
    }
}
