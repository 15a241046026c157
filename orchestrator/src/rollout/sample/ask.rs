//! One try of a request: sends it to the engine and awaits the answer.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rolldock_dispatch::DispatchId;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::sent::Sent;
use super::{SEED_MASK, SampleRequest, StepContext, Tries, Trouble, sample_seed};
use crate::engine::{EngineError, GenerateRequest, Generation, Progress, Resumed};
use crate::rollout::stragglers::{Begun, Entered, Order};
use crate::rollout::timeline::RequestEnd;
use crate::rollout::waits::{Phase, Subject};

/// The seed of a sample's segment. Each later segment has its own seed, so that it does not repeat the draw
/// of the first segment.
fn segment_seed(first_seed: u64, segment: u32) -> u64 {
    if segment == 0 {
        return first_seed;
    }
    let mut key = [0_u8; 12];
    key[..8].copy_from_slice(&first_seed.to_le_bytes());
    key[8..].copy_from_slice(&segment.to_le_bytes());
    xxh3_64(&key) & SEED_MASK
}

/// The seed of a turn of the trajectory whose own seed is `trajectory_seed`.
fn turn_seed(trajectory_seed: u64, turn: u32) -> u64 {
    let mut key = *b"............turn";
    key[..8].copy_from_slice(&trajectory_seed.to_le_bytes());
    key[8..12].copy_from_slice(&turn.to_le_bytes());
    xxh3_64(&key) & SEED_MASK
}

/// Reports the end of a request to the timeline. If the request is dropped before its answer, the engine and
/// the meter are notified too.
struct InFlight<'a> {
    context: &'a StepContext,
    server: Arc<str>,
    request_id: Arc<str>,
    samples: u32,
    since: Instant,
    answered: bool,
    dispatch: DispatchId,
    end: RequestEnd,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let timeline = &self.context.timeline;
        timeline.ended(&self.server, self.dispatch, self.samples, self.since, self.end);
        if self.answered {
            return;
        }
        self.context.engine.cancelled(&self.server, &self.request_id);
        self.context.meter.cancelled(&self.server, self.samples);
    }
}

impl SampleRequest<'_> {
    /// The request as the engine gets it.
    fn request(&self, tries: &Tries, request_id: &Arc<str>, progress: &Progress) -> GenerateRequest {
        let config = &self.context.config;
        let first_seed = self.first_seed(tries.attempt);
        let so_far = &tries.so_far;
        let is_resumed = so_far.segments > 0;
        let prompt_ids = match is_resumed {
            true => self.prompt_ids().iter().chain(&so_far.response_ids).copied().collect(),
            false => Arc::clone(self.prompt_ids()),
        };
        // Servers that take only text cannot run turns, because the prompts of turns are ids.
        let prompt_text = self.turn.map_or_else(|| Arc::clone(&self.dispatch.prompt.text), |_| "".into());
        GenerateRequest {
            request_id: Arc::clone(request_id),
            prompt_ids,
            prompt_text,
            n: self.count,
            seed: segment_seed(first_seed, so_far.segments),
            max_tokens: self.tokens_max() - so_far.tokens(),
            sampling: Arc::clone(&self.context.sampling),
            progress: Some(progress.clone()),
            stream: config.carry.stream,
            resumed: is_resumed.then(|| Resumed { tokens: so_far.tokens(), seed: first_seed }),
            cache_salt: config.cache_salt.then(|| self.context.salt()),
        }
    }

    /// The seed of the first sample of an attempt. Each turn of a trajectory has its own seed.
    pub(super) fn first_seed(&self, attempt: u32) -> u64 {
        let prompt = &self.dispatch.prompt;
        let group_seed = sample_seed(self.context.config.seed, prompt.uid.0, prompt.visit, attempt);
        let first_seed = group_seed + u64::from(self.first);
        self.turn.map_or(first_seed, |turn| turn_seed(first_seed, turn.number))
    }

    pub(super) fn request_id(&self, tries: &Tries) -> Arc<str> {
        let sample = format!("{}-{}-{}", self.context.config.run_id, self.dispatch.id, self.first);
        match self.turn {
            Some(turn) => format!("{sample}-t{}-{}", turn.number, tries.sent).into(),
            None => format!("{sample}-{}", tries.sent).into(),
        }
    }

    /// Sends the request and awaits its answer. The caller returns the permit.
    pub(super) async fn ask(
        &self,
        sent: &Sent<'_>,
        request_id: Arc<str>,
        tries: &Tries,
    ) -> Result<Generation, Trouble> {
        let context = self.context;
        let Sent { permit, server_name, .. } = sent;
        let request = self.request(tries, &request_id, &sent.progress);
        let progress = context.config.carry.stream.then(|| sent.progress.clone());
        let subject = Subject { server: Some(Arc::clone(server_name)), progress, ..self.subject() };
        let _on_engine = context.waits.enter(Phase::Engine, subject);
        let mut in_flight = InFlight {
            context,
            server: Arc::clone(server_name),
            request_id,
            samples: self.count,
            since: Instant::now(),
            answered: false,
            dispatch: self.dispatch.id,
            end: RequestEnd::CutOff,
        };
        let generating = context.engine.generate(server_name, request);
        tokio::pin!(generating);
        let mut move_order = self.movable(sent, tries);
        let mut moves = None;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut generating => break answer,
                () = permit.revoked() => {
                    in_flight.end = RequestEnd::Failed;
                    return Err(Trouble::ServerLost);
                }
                () = self.context.is_cut() => {
                    // Either the request is aborted, or its complete answer arrives first. The caller drops
                    // this future after a time limit.
                    tokio::select! {
                        biased;
                        answer = &mut generating => break answer,
                        () = self.interrupted(server_name, &in_flight.request_id) => return Err(Trouble::Cut),
                    }
                }
                order = ordered(&mut move_order) => {
                    move_order = None;
                    moves = Some((order, context.engine.interrupt(server_name, &in_flight.request_id)));
                }
                // Either the abort arrives and the request is answered, or the request goes on here.
                () = aborted(&mut moves, context.config.carry.grace) => moves = None,
            }
        };
        in_flight.answered = true;
        in_flight.end = match &answer {
            Ok(_) => RequestEnd::Answered,
            Err(EngineError::Aborted { .. }) => RequestEnd::CutOff,
            Err(_) => RequestEnd::Failed,
        };
        match (answer, moves) {
            (Err(EngineError::Aborted { .. }), _) if context.carries && context.cut.is_cancelled() => {
                Err(Trouble::Cut)
            }
            (Err(EngineError::Aborted { .. }), Some((order, _))) => Err(Trouble::Moved(order)),
            (answer, _) => answer.map_err(Trouble::Engine),
        }
    }

    /// Adds the request to the requests that can be moved, if this request may be moved.
    fn movable(&self, sent: &Sent<'_>, tries: &Tries) -> Option<Entered> {
        let movable = self.context.movable.as_ref();
        let movable = movable.filter(|movable| !movable.copies() && self.can_move(tries))?;
        Some(movable.enter(self.begun(sent, tries)))
    }

    pub(super) fn begun(&self, sent: &Sent<'_>, tries: &Tries) -> Begun {
        Begun {
            key: (self.dispatch.id, self.first),
            server: sent.permit.server(),
            moves: tries.moves,
            before: tries.so_far.tokens(),
            prompt: self.prompt_ids().len() as u32,
            progress: self.context.config.carry.stream.then(|| sent.progress.clone()),
        }
    }

    /// Asks the engine to end a request, and returns when the grace period for its answer is over. A streamed
    /// request needs no answer, because its tokens have already been reported.
    async fn interrupted(&self, server_name: &str, request_id: &Arc<str>) {
        let carry = &self.context.config.carry;
        if carry.stream {
            return;
        }
        let limit = tokio::time::sleep(carry.grace);
        self.context.engine.interrupt(server_name, request_id).await;
        limit.await;
    }
}

/// Completes when the request must move. Never completes if the request may not be moved.
async fn ordered(entered: &mut Option<Entered>) -> Order {
    match entered {
        Some(entered) => entered.ordered().await,
        None => std::future::pending().await,
    }
}

/// Completes if the engine was asked to abort a request that must move, but has not aborted the request
/// within the grace period.
async fn aborted(moves: &mut Option<(Order, BoxFuture<'_, ()>)>, grace: Duration) {
    match moves {
        Some((_, abort)) => {
            abort.await;
            tokio::time::sleep(grace).await;
        }
        None => std::future::pending().await,
    }
}
