//! The engine: the behaviour of a server as a function of simulated time.
//!
//! [`Core`] is a state machine without clock, task or socket. Its owner calls it with the simulated time
//! `now_ns`, which never decreases. [`Core::advance`] processes all events up to this time, each at its exact
//! nanosecond. Between two events the batch does not change.
//!
//! The engine has one of three activities. It may be *idle*. It may compute a *mixed* step, which computes
//! prompts and decodes a token for the whole batch. Or it may compute a *run* of pure decode steps up to the
//! next event. A request that arrives in the middle of a run is scheduled at the end of the present step, as
//! in the real scheduler.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use crate::config::SEQUENCES_MAX;
use crate::fault::{Fault, Faults};
use crate::request::{FinishReason, SimChunk};
use crate::stats::SimStats;
use crate::{ServerConfig, SimError};

mod batch;
mod control;
mod cost;
mod gauges;
mod kv;
mod schedule;
mod sequence;

use batch::Batch;
use cost::StepCost;
use kv::{HashedKey, KvCache};
use sequence::Request;

pub use control::PauseMode;
pub(crate) use control::{Life, PauseState};
pub(crate) use kv::block_chain;
pub(crate) use sequence::{Admission, Completion, Ending, Sequence, Status, Versions};

const NS_PER_MS: u64 = 1_000_000;

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Idle,
    Mixed { end_ns: u64 },
    Run { steps: u64 },
}

/// The state of one engine.
pub(crate) struct Core {
    config: ServerConfig,
    cost: StepCost,
    version: Arc<str>,
    /// The start of the present activity. It is always a boundary between two steps.
    clock_ns: u64,
    activity: Activity,
    batch: Batch,
    kv: KvCache,
    sequences: HashMap<u64, Sequence, BuildHasherDefault<HashedKey>>,
    requests: BTreeMap<u64, Request>,
    numbers_by_id: BTreeSet<(Arc<str>, u64)>,
    waiting: BTreeSet<u64>,
    held: BTreeSet<u64>,
    prefilling: Vec<u64>,
    streaming: BTreeSet<u64>,
    flush_at_ns: u64,
    next_number: u64,
    pause: PauseState,
    life: Life,
    faults: Faults,
    frozen_since_ns: Option<u64>,
    /// The time for which the owner's timer is set; `None` if it is not set.
    armed_ns: Option<u64>,
    stats: SimStats,
    tokens_ended: u64,
    events: u64,
}

impl Core {
    pub(crate) fn new(config: ServerConfig) -> Self {
        let faults = Faults::default();
        Self {
            cost: StepCost::new(&config, faults.slow_factor),
            version: Arc::from("default"),
            clock_ns: 0,
            activity: Activity::Idle,
            batch: Batch::new(config.block_tokens),
            kv: KvCache::new(config.kv_blocks),
            sequences: HashMap::default(),
            requests: BTreeMap::new(),
            numbers_by_id: BTreeSet::new(),
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
            prefilling: Vec::new(),
            streaming: BTreeSet::new(),
            flush_at_ns: 0,
            next_number: 0,
            pause: PauseState::default(),
            life: Life::Serving,
            faults,
            frozen_since_ns: None,
            armed_ns: None,
            stats: SimStats::default(),
            tokens_ended: 0,
            events: 0,
            config,
        }
    }

    /// Admits a request and returns the number by which it can be cancelled.
    pub(crate) fn submit(&mut self, admission: Admission, now_ns: u64) -> Result<u64, SimError> {
        self.advance(now_ns);
        self.refuse(&admission)?;
        let number = self.next_number;
        let samples = u32::try_from(admission.plans.len()).unwrap_or(u32::MAX);
        let is_held = self.pause.holds_new();
        let streams = admission.stream.is_some();
        for (index, plan) in (0_u32..).zip(admission.plans) {
            let sequence = Sequence {
                request: number,
                index,
                plan,
                prompt_tokens: admission.prompt_tokens,
                chain: Arc::clone(&admission.chain),
                status: if is_held { Status::Held } else { Status::Waiting },
                tokens_joined: 0,
                streamed: 0,
                versions: Versions::default(),
                was_scheduled: false,
            };
            let own_number = self.next_number;
            self.next_number += 1;
            self.sequences.insert(own_number, sequence);
            let queue = if is_held { &mut self.held } else { &mut self.waiting };
            queue.insert(own_number);
            if streams {
                self.streaming.insert(own_number);
            }
        }
        if streams {
            self.flush_at_ns = self.flush_at_ns.max(now_ns);
        }
        self.stats.admitted_total += u64::from(samples);
        let server = &self.config.name;
        let request = Request {
            submitted_ns: now_ns,
            live: samples,
            endings: Vec::with_capacity(samples as usize),
            samples,
            cached_tokens: None,
            queue_ns: None,
            first_token_ns: None,
            stream: admission.stream,
            generated: admission.generated,
            reply: admission.reply,
            loses_answer: self.faults.hits_reset(server, &admission.request_id),
            spoil: self.faults.spoil(server, &admission.request_id),
            request_id: Arc::clone(&admission.request_id),
        };
        self.numbers_by_id.insert((admission.request_id, number));
        self.requests.insert(number, request);
        self.notice_arrival(now_ns);
        Ok(number)
    }

    /// Ends a request without a response, because its caller no longer waits.
    pub(crate) fn cancel(&mut self, number: u64, now_ns: u64) {
        self.settle(now_ns);
        self.drop_request(number);
        self.replan(now_ns);
    }

    /// Ends the requests with this id. They keep the tokens generated so far. Requests younger than
    /// `abort_race_ms` are not aborted.
    pub(crate) fn abort(&mut self, request_id: &Arc<str>, now_ns: u64) {
        let numbers: Vec<u64> = self.numbers_of(request_id).collect();
        self.abort_numbers(&numbers, now_ns);
    }

    /// Whether a request of this id is on the engine.
    pub(crate) fn is_known(&mut self, request_id: &Arc<str>, now_ns: u64) -> bool {
        self.advance(now_ns);
        self.numbers_of(request_id).next().is_some()
    }

    fn numbers_of(&self, request_id: &Arc<str>) -> impl Iterator<Item = u64> {
        let first = (Arc::clone(request_id), 0);
        let last = (Arc::clone(request_id), u64::MAX);
        self.numbers_by_id.range(first..=last).map(|(_, number)| *number)
    }

    /// Aborts all requests as [`Core::abort`] does. Returns the number of requests on the engine.
    pub(crate) fn abort_all(&mut self, now_ns: u64) -> usize {
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        self.abort_numbers(&numbers, now_ns);
        numbers.len()
    }

    /// Notes the time for which the owner's timer is now set.
    pub(crate) fn armed_for(&mut self, event_ns: Option<u64>) {
        self.armed_ns = event_ns;
    }

    /// Whether the next event is due before the owner's timer. If it is, the engine assumes that the owner
    /// now sets its timer to the event.
    pub(crate) fn rearm_if_nearer(&mut self) -> bool {
        let Some(event_ns) = self.next_event_ns() else { return false };
        let is_nearer = self.armed_ns.is_none_or(|armed_ns| event_ns < armed_ns);
        if is_nearer {
            self.armed_ns = Some(event_ns);
        }
        is_nearer
    }

    fn abort_numbers(&mut self, numbers: &[u64], now_ns: u64) {
        if self.life != Life::Serving || self.faults.stalled {
            return;
        }
        self.settle(now_ns);
        let race_ns = self.config.abort_race_ms * NS_PER_MS;
        for number in numbers {
            let is_known = |request: &Request| now_ns.saturating_sub(request.submitted_ns) >= race_ns;
            if self.requests.get(number).is_some_and(is_known) {
                self.end_request(*number, FinishReason::Abort);
            }
        }
        self.replan(now_ns);
    }

    /// Returns an error if the request cannot be admitted.
    fn refuse(&mut self, admission: &Admission) -> Result<(), SimError> {
        let server = self.config.name.clone();
        match self.life {
            Life::Serving => {}
            Life::EngineDead { .. } => return Err(SimError::EngineDead { server }),
            Life::Gone => return Err(SimError::Unreachable { server }),
            Life::Stopped => return Err(SimError::Stopped { server }),
        }
        if self.faults.hits_error500(&server, &admission.request_id) {
            return Err(SimError::Internal { server });
        }
        let limit = self.config.queue_max.unwrap_or(SEQUENCES_MAX).min(SEQUENCES_MAX) as usize;
        let requests = self.sequences.len();
        if self.faults.busy || requests + admission.plans.len() > limit {
            self.stats.rejections_total += 1;
            return Err(SimError::Busy { server, requests });
        }
        Ok(())
    }

    /// Number of tokens that a sequence had at the last step boundary.
    fn tokens_of(&self, number: u64, sequence: &Sequence) -> u32 {
        let decoded = self.batch.decoded(number).unwrap_or(0);
        sequence.tokens_joined + u32::try_from(decoded).unwrap_or(u32::MAX)
    }

    /// Takes a sequence of any status off the engine and frees its blocks. Returns the sequence and its
    /// number of tokens.
    fn take_out(&mut self, number: u64) -> Option<(Sequence, u32)> {
        let sequence = self.sequences.remove(&number)?;
        let tokens = self.tokens_of(number, &sequence);
        match sequence.status {
            Status::Held => {
                self.held.remove(&number);
            }
            Status::Waiting => {
                self.waiting.remove(&number);
            }
            Status::Prefilling => {
                self.prefilling.retain(|other| *other != number);
                let kv_tokens = u64::from(sequence.prompt_tokens) + u64::from(tokens) + 1;
                self.kv.release(&sequence.chain, self.private_blocks(&sequence, kv_tokens));
            }
            Status::Running => self.leave_batch(number, &sequence),
        }
        self.streaming.remove(&number);
        self.stats.ended_total += 1;
        self.tokens_ended += u64::from(tokens);
        Some((sequence, tokens))
    }

    fn leave_batch(&mut self, number: u64, sequence: &Sequence) {
        if let Some(departure) = self.batch.leave(number) {
            self.kv.release(&sequence.chain, self.private_blocks(sequence, departure.kv_tokens));
        }
    }

    fn private_blocks(&self, sequence: &Sequence, kv_tokens: u64) -> u64 {
        kv_tokens.div_ceil(u64::from(self.config.block_tokens)) - sequence.chain.len() as u64
    }

    /// Ends a sequence. If it is the last one of its request, answers the request.
    fn end_sequence(&mut self, number: u64, finish_reason: FinishReason) {
        let streams = self.streaming.contains(&number);
        let Some((mut sequence, tokens)) = self.take_out(number) else { return };
        if streams {
            self.send_chunk(&mut sequence, tokens);
        }
        sequence.versions.mark(&self.version, tokens);
        match finish_reason {
            FinishReason::Stop => self.stats.success_stop_total += 1,
            FinishReason::Length => self.stats.success_length_total += 1,
            FinishReason::Abort => {}
        }
        let Some(request) = self.requests.get_mut(&sequence.request) else { return };
        request.endings.push(Ending {
            index: sequence.index,
            tokens,
            finish_reason,
            version_spans: sequence.versions.into_spans(),
            plan: sequence.plan,
        });
        request.live -= 1;
        if request.live == 0 {
            self.answer(sequence.request);
        }
    }

    fn answer(&mut self, number: u64) {
        let Some(mut request) = self.requests.remove(&number) else { return };
        request.report_generated(0);
        self.numbers_by_id.remove(&(Arc::clone(&request.request_id), number));
        let total_ns = self.clock_ns.saturating_sub(request.submitted_ns);
        self.stats.e2e_latency.observe_ns(total_ns);
        let outcome = if request.loses_answer {
            Err(SimError::ConnectionReset { server: self.config.name.clone() })
        } else {
            request.endings.sort_unstable_by_key(|ending| ending.index);
            Ok(Completion {
                endings: std::mem::take(&mut request.endings),
                cached_tokens: request.cached_tokens.unwrap_or(0),
                queue_ns: request.queue_ns.unwrap_or(total_ns),
                first_token_ns: request.first_token_ns.unwrap_or(total_ns),
                total_ns,
                spoil: request.spoil,
            })
        };
        // Sending fails if the caller no longer waits. The caller then cancels the request.
        let _ = request.reply.send(outcome);
        self.notice_drained();
    }

    fn end_request(&mut self, number: u64, finish_reason: FinishReason) {
        for sequence in self.sequences_of(number) {
            self.end_sequence(sequence, finish_reason);
        }
    }

    /// Takes a request off the engine and returns it unanswered.
    fn drop_request(&mut self, number: u64) -> Option<Request> {
        let mut live_tokens = 0;
        for sequence in self.sequences_of(number) {
            live_tokens += self.take_out(sequence).map_or(0, |(_, tokens)| u64::from(tokens));
        }
        let request = self.requests.remove(&number)?;
        request.report_generated(live_tokens);
        // Samples that ended earlier have already been counted.
        self.numbers_by_id.remove(&(Arc::clone(&request.request_id), number));
        self.notice_drained();
        Some(request)
    }

    fn sequences_of(&self, number: u64) -> std::ops::Range<u64> {
        let samples = self.requests.get(&number).map_or(0, |request| u64::from(request.samples));
        number..number + samples
    }

    /// Sends the tokens that have not been sent to the request's stream yet. If the channel is full, they are
    /// sent with the next chunk or the response.
    fn send_chunk(&self, sequence: &mut Sequence, tokens: u32) {
        let Some(request) = self.requests.get(&sequence.request) else { return };
        let Some(stream) = &request.stream else { return };
        if tokens <= sequence.streamed {
            return;
        }
        let (token_ids, logprobs) = sequence.plan.outputs(sequence.streamed, tokens, request.spoil);
        let request_id = Arc::clone(&request.request_id);
        let (index, start) = (sequence.index, sequence.streamed);
        let chunk = SimChunk { request_id, index, start, token_ids, logprobs };
        if stream.try_send(chunk).is_ok() {
            sequence.streamed = tokens;
        }
    }

    /// Adds a fault.
    pub(crate) fn inject(&mut self, fault: Fault, now_ns: u64) {
        self.settle(now_ns);
        self.faults.add(fault);
        self.cost = StepCost::new(&self.config, self.faults.slow_factor);
        match fault {
            Fault::Die => self.die(now_ns),
            Fault::SigTerm => self.life = Life::Gone,
            _ => {}
        }
        self.refreeze(now_ns);
        self.replan(now_ns);
    }
}

#[cfg(test)]
mod tests;
