//! The engine's scheduler: steps, ends of sequences, preemption and admission.

use super::{Activity, Core, Life, NS_PER_MS, Status};
use crate::invariants;

/// Number of events between two checks of the invariants in debug builds. A check visits all sequences.
const CENSUS_EVERY: u64 = 64;

impl Core {
    /// Processes all events up to `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.pass_death(now_ns);
        if self.frozen_since_ns.is_some() {
            return;
        }
        while let Some(end_ns) = self.step_end_ns().filter(|end_ns| *end_ns <= now_ns) {
            match self.activity {
                Activity::Idle => break,
                Activity::Mixed { .. } => self.end_mixed(end_ns),
                Activity::Run { steps } => self.decode(steps),
            }
            self.clock_ns = end_ns;
            self.end_finished();
            self.schedule();
            self.check_invariants();
        }
        if !self.streaming.is_empty() && now_ns >= self.flush_at_ns {
            self.flush_streams(now_ns);
        }
    }

    /// The time of the next event, unless a call changes it. `None` if no event is due.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        if let Life::EngineDead { gone_at_ns } = self.life {
            return Some(gone_at_ns);
        }
        if self.frozen_since_ns.is_some() {
            return None;
        }
        let step_end_ns = self.step_end_ns()?;
        Some(if self.streaming.is_empty() { step_end_ns } else { step_end_ns.min(self.flush_at_ns) })
    }

    /// Advances the engine, and then counts the steps of the present run that have ended. All counts are then
    /// the counts at `now_ns`.
    pub(super) fn settle(&mut self, now_ns: u64) {
        self.advance(now_ns);
        if self.frozen_since_ns.is_some() {
            return;
        }
        let Activity::Run { steps } = self.activity else { return };
        let done = self.steps_by(now_ns, steps);
        // The end of the run's last step is an event, which only `advance` processes.
        let done = done.min(steps - 1);
        if done == 0 {
            return;
        }
        self.clock_ns += self.cost.run_ns(self.batch.len(), self.batch.kv_tokens(), done);
        self.decode(done);
        self.activity = Activity::Run { steps: steps - done };
    }

    /// Adapts the present activity after a call has changed the batch, the queues or the costs. The caller
    /// must have called `settle`.
    pub(super) fn replan(&mut self, now_ns: u64) {
        if self.frozen_since_ns.is_some() {
            return;
        }
        match self.activity {
            Activity::Mixed { .. } => {}
            Activity::Run { .. } if !self.batch.is_empty() => {
                // Free places are filled at the end of the present step.
                let limit = if self.waiting.is_empty() { u64::MAX } else { 1 };
                self.activity = Activity::Run { steps: self.run_length(limit) };
            }
            Activity::Run { .. } | Activity::Idle => {
                self.clock_ns = self.clock_ns.max(now_ns);
                self.schedule();
            }
        }
        self.advance(now_ns);
    }

    /// Schedules a new request: immediately if the engine is idle, else at the end of the present step.
    pub(super) fn notice_arrival(&mut self, now_ns: u64) {
        if self.frozen_since_ns.is_some() {
            return;
        }
        match self.activity {
            Activity::Mixed { .. } => {}
            Activity::Idle => self.replan(now_ns),
            Activity::Run { steps } => {
                if self.batch.len() < u64::from(self.config.max_num_seqs) {
                    let in_progress = self.steps_by(now_ns, steps) + 1;
                    self.activity = Activity::Run { steps: steps.min(in_progress) };
                }
            }
        }
    }

    /// Decides the next activity, at a boundary between two steps.
    pub(super) fn schedule(&mut self) {
        let preempted = self.preempt_for_next_step();
        // As in vLLM, nothing is admitted after a preemption. Otherwise the preempted sequence could get back
        // the blocks that it has just freed.
        let prefill_tokens = if preempted { 0 } else { self.admit() };
        self.activity = if !self.prefilling.is_empty() {
            let step_ns = self.cost.step_ns(self.batch.len(), self.batch.kv_tokens(), prefill_tokens);
            Activity::Mixed { end_ns: self.clock_ns + step_ns }
        } else if !self.batch.is_empty() {
            Activity::Run { steps: self.run_length(u64::MAX) }
        } else {
            debug_assert!(self.waiting.is_empty(), "an empty engine admits the head of its queue");
            Activity::Idle
        };
    }

    /// Puts a running sequence back into the queue. The engine will compute all its tokens again.
    pub(super) fn preempt(&mut self, number: u64) {
        let Some(mut sequence) = self.sequences.remove(&number) else { return };
        sequence.tokens_joined = self.tokens_of(number, &sequence);
        self.leave_batch(number, &sequence);
        sequence.status = Status::Waiting;
        self.sequences.insert(number, sequence);
        // The queue is in order of arrival, so this puts the sequence before all later ones.
        self.waiting.insert(number);
        self.stats.preemptions_total += 1;
    }

    fn step_end_ns(&self) -> Option<u64> {
        match self.activity {
            Activity::Idle => None,
            Activity::Mixed { end_ns } => Some(end_ns),
            Activity::Run { steps } => {
                let run_ns = self.cost.run_ns(self.batch.len(), self.batch.kv_tokens(), steps);
                Some(self.clock_ns.saturating_add(run_ns))
            }
        }
    }

    fn steps_by(&self, now_ns: u64, limit: u64) -> u64 {
        let span_ns = now_ns.saturating_sub(self.clock_ns);
        self.cost.steps_within(self.batch.len(), self.batch.kv_tokens(), span_ns, limit)
    }

    fn run_length(&self, limit: u64) -> u64 {
        let to_finish = self.batch.steps_to_finish().unwrap_or(1);
        self.batch.steps_within(self.kv.available(), to_finish.min(limit)).max(1)
    }

    fn decode(&mut self, steps: u64) {
        self.kv.grow(self.batch.blocks_needed(steps));
        self.stats.generation_tokens_total += steps * self.batch.len();
        self.batch.advance(steps);
        self.events += 1;
    }

    fn end_mixed(&mut self, end_ns: u64) {
        self.decode(1);
        for number in std::mem::take(&mut self.prefilling) {
            let Some(sequence) = self.sequences.get_mut(&number) else { continue };
            // The computation of the last prompt token yields the next token of the sample.
            sequence.tokens_joined += 1;
            sequence.status = Status::Running;
            let kv_tokens = u64::from(sequence.prompt_tokens) + u64::from(sequence.tokens_joined);
            let remaining = sequence.plan.total.saturating_sub(sequence.tokens_joined);
            let is_first = sequence.tokens_joined == 1;
            let request = sequence.request;
            self.batch.join(number, kv_tokens, u64::from(remaining));
            self.stats.generation_tokens_total += 1;
            if is_first {
                self.note_first_token(request, end_ns);
            }
        }
    }

    fn note_first_token(&mut self, number: u64, at_ns: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let since_ns = at_ns.saturating_sub(request.submitted_ns);
        request.first_token_ns.get_or_insert(since_ns);
        self.stats.time_to_first_token.observe_ns(since_ns);
    }

    fn end_finished(&mut self) {
        while let Some(number) = self.batch.finished() {
            let Some(reason) = self.sequences.get(&number).map(|sequence| sequence.plan.finish_reason) else {
                self.batch.leave(number);
                continue;
            };
            self.end_sequence(number, reason);
        }
    }

    fn preempt_for_next_step(&mut self) -> bool {
        let mut preempted = false;
        while self.batch.blocks_needed(1) > self.kv.available() {
            let Some(number) = self.batch.latest() else { break };
            self.preempt(number);
            preempted = true;
        }
        preempted
    }

    /// Moves sequences from the head of the queue into the next step, as long as the limits of sequences,
    /// tokens and blocks allow this. Returns the number of tokens that the step prefills.
    fn admit(&mut self) -> u64 {
        let budget = u64::from(self.config.max_num_batched_tokens);
        let places = u64::from(self.config.max_num_seqs);
        let reserve = self.batch.blocks_needed(1);
        let mut prefill_tokens = 0;
        while self.batch.len() + (self.prefilling.len() as u64) < places {
            let Some(number) = self.waiting.first().copied() else { break };
            let Some(sequence) = self.sequences.get(&number) else { break };
            let block_tokens = u64::from(self.config.block_tokens);
            let length = u64::from(sequence.prompt_tokens) + u64::from(sequence.tokens_joined);
            // The last token is always computed, since its output is the sample's next token.
            let cached_blocks = self.kv.hits(&sequence.chain).min(length.saturating_sub(1) / block_tokens);
            let uncached = length - cached_blocks * block_tokens;
            if prefill_tokens + uncached > budget && !self.prefilling.is_empty() {
                break;
            }
            let private = self.private_blocks(sequence, length + 1);
            if self.kv.available() < reserve + private + self.kv.demand(&sequence.chain) {
                break;
            }
            prefill_tokens += uncached;
            self.start_prefill(number, private, cached_blocks * block_tokens);
        }
        prefill_tokens
    }

    fn start_prefill(&mut self, number: u64, private: u64, cached_tokens: u64) {
        let Some(sequence) = self.sequences.get_mut(&number) else { return };
        self.waiting.remove(&number);
        self.prefilling.push(number);
        self.kv.acquire(&sequence.chain, private);
        sequence.status = Status::Prefilling;
        if sequence.was_scheduled {
            return;
        }
        sequence.was_scheduled = true;
        let prompt_tokens = u64::from(sequence.prompt_tokens);
        self.stats.prompt_tokens_total += prompt_tokens;
        if self.config.prefix_caching {
            self.stats.prefix_cache_queries_total += prompt_tokens;
            self.stats.prefix_cache_hits_total += cached_tokens;
        }
        let Some(request) = self.requests.get_mut(&sequence.request) else { return };
        let queue_ns = self.clock_ns.saturating_sub(request.submitted_ns);
        self.stats.queue_time.observe_ns(queue_ns);
        request.queue_ns.get_or_insert(queue_ns);
        request.cached_tokens.get_or_insert(u32::try_from(cached_tokens).unwrap_or(u32::MAX));
    }

    fn flush_streams(&mut self, now_ns: u64) {
        self.flush_at_ns = now_ns + self.config.stream_interval_ms * NS_PER_MS;
        let ahead = match self.activity {
            Activity::Run { steps } => self.steps_by(now_ns, steps),
            _ => 0,
        };
        let numbers: Vec<u64> = self.streaming.iter().copied().collect();
        for number in numbers {
            let Some(mut sequence) = self.sequences.remove(&number) else { continue };
            let in_run = if sequence.status == Status::Running { ahead } else { 0 };
            let tokens = self.tokens_of(number, &sequence) + u32::try_from(in_run).unwrap_or(u32::MAX);
            self.send_chunk(&mut sequence, tokens);
            self.sequences.insert(number, sequence);
        }
    }

    fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.events.is_multiple_of(CENSUS_EVERY) {
            let verdict = invariants::check(&self.census());
            debug_assert!(verdict.is_ok(), "{verdict:?}");
        }
    }
}
