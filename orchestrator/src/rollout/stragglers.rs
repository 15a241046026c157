//! Moves the last samples of a step from slow servers to fast ones, with their tokens.
//!
//! At the end of a step the fast servers become idle, while the last samples still run on slow servers. The
//! mover looks at the running requests in short intervals. It acts only when no new prompt is needed and no
//! request waits for a permit, so the moved samples take free places. A sample that is moved is aborted on
//! its server, keeps its tokens, and continues from prompt and tokens on a faster server, like a sample that
//! a pause has aborted.
//!
//! # When a move is worth it
//! Response lengths have a heavy tail, so a sample with `g` tokens is expected to need `g` more, within the
//! limit. The time that the move saves on these tokens must exceed the time of the handover and of the
//! prefill of prompt and tokens ([`HANDOVER_S`], [`PREFILL_SHARE`]). The speeds are those that the balancer
//! measured. The target has fewer samples than the server that the sample leaves, so the move does not lower
//! the target's measured speed. If the speeds of two servers are equal, nothing is moved.
//!
//! # Invariants
//! - A request is moved at most [`MOVES_MAX`] times in a dispatch, and only if it asks for one sample.
//! - A plan never gives a server more samples than it has free places.
//! - No token is lost: the tokens that the engine returns at the abort stay with their dispatch. Moves are
//!   counted, with the tokens whose prefill they repeat.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::DispatchId;
use rolldock_loadbalancer::server::ServerState;
use rolldock_loadbalancer::snapshot::ServerSnapshot;
use rolldock_loadbalancer::{LoadBalancer, ServerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::engine::Progress;
use crate::rollout::board::Board;

/// The time between two looks at the running requests.
const LOOK: Duration = Duration::from_millis(500);
/// How often a request may be moved in one dispatch.
pub(crate) const MOVES_MAX: u32 = 2;
/// The time of an abort and of a new request, in seconds: a server answers an abort after its current step,
/// and an abort that comes too early is repeated after up to 0.25 s.
const HANDOVER_S: f64 = 0.5;
/// The time to prefill a token, as a share of the time to decode one. A prefill is bound by arithmetic, and
/// handles hundreds of tokens in the time of one decoding step. The share is deliberately high, so that moves
/// are ordered only if they really save time.
const PREFILL_SHARE: f64 = 1.0 / 32.0;

/// A running request, as the mover sees it.
#[derive(Debug)]
struct Running {
    server: ServerId,
    since: Instant,
    /// Tokens of earlier segments.
    before: u32,
    prompt: u32,
    progress: Option<Progress>,
    /// Sends the order to move, with the servers that the request must avoid.
    order: Option<oneshot::Sender<Vec<ServerId>>>,
}

/// The dispatch of a request, and the index of its sample.
type Key = (DispatchId, u32);

/// The requests of a step that can be moved.
#[derive(Debug, Default)]
pub(crate) struct Movable {
    running: Mutex<BTreeMap<Key, Running>>,
}

/// The entry of a request. The request is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    movable: Arc<Movable>,
    key: Key,
    ordered: oneshot::Receiver<Vec<ServerId>>,
}

impl Entered {
    /// Completes when the request must move, with the servers that it must avoid. It never completes if the
    /// request stays. Cancel-safe; after it has completed, it must not be called again.
    pub(crate) async fn ordered(&mut self) -> Vec<ServerId> {
        match (&mut self.ordered).await {
            Ok(avoid) => avoid,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.movable.running.lock().remove(&self.key);
    }
}

/// What the mover needs to know about a request that begins.
pub(crate) struct Begun {
    pub(crate) key: Key,
    pub(crate) server: ServerId,
    pub(crate) before: u32,
    pub(crate) prompt: u32,
    /// The tokens so far, if the engine streams them.
    pub(crate) progress: Option<Progress>,
}

impl Movable {
    /// Enters a request until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>, begun: Begun) -> Entered {
        let (order, ordered) = oneshot::channel();
        let Begun { key, server, before, prompt, progress } = begun;
        let running = Running { server, since: Instant::now(), before, prompt, progress, order: Some(order) };
        self.running.lock().insert(key, running);
        Entered { movable: Arc::clone(self), key, ordered }
    }

    /// Orders the moves that are worth it on this fleet.
    fn look(&self, servers: &[ServerSnapshot], max_response_length: u32) {
        let fleet = places(servers);
        let mut running = self.running.lock();
        let samples: Vec<Sample> = running
            .iter()
            .filter(|(_, request)| request.order.is_some())
            .filter_map(|(key, request)| {
                let place = fleet.iter().find(|place| place.server == request.server)?;
                let tokens = match &request.progress {
                    Some(progress) => progress.tokens() as f64,
                    None => request.since.elapsed().as_secs_f64() * place.speed?,
                };
                let tokens = (tokens + f64::from(request.before)).min(f64::from(max_response_length));
                Some(Sample { key: *key, server: request.server, tokens, prompt: f64::from(request.prompt) })
            })
            .collect();
        for (key, avoid) in plan(fleet, &samples, f64::from(max_response_length)) {
            if let Some(order) = running.get_mut(&key).and_then(|request| request.order.take()) {
                // The receiver was dropped only if the request has just ended.
                let _ = order.send(avoid);
            }
        }
    }
}

/// A server with its places.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    server: ServerId,
    free: u32,
    in_use: u32,
    /// Tokens a second of one sample; `None` if it is not known.
    speed: Option<f64>,
}

/// The servers that are not dead. If every server with samples has a speed by its engine's own count, these
/// speeds are used. Otherwise the speeds by answers are used, because the two kinds of speed cannot be
/// compared.
fn places(servers: &[ServerSnapshot]) -> Vec<Place> {
    let lives = |server: &&ServerSnapshot| server.state != ServerState::Dead;
    let has_count = |server: &ServerSnapshot| server.in_use == 0 || server.decode_rate.is_some();
    let all_count = servers.iter().filter(lives).all(has_count);
    let place = |server: &ServerSnapshot| Place {
        server: server.id,
        free: match server.state {
            ServerState::Active => {
                server.capacity.saturating_sub(server.in_use.saturating_add(server.foreign))
            }
            _ => 0,
        },
        in_use: server.in_use,
        speed: if all_count { server.decode_rate } else { server.tokens_per_second },
    };
    servers.iter().filter(lives).map(place).collect()
}

/// A running sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    key: Key,
    server: ServerId,
    /// Estimated tokens so far.
    tokens: f64,
    /// Tokens of the prompt.
    prompt: f64,
}

/// The samples that move, in dispatch order, each with the servers that it must avoid.
fn plan(mut fleet: Vec<Place>, samples: &[Sample], tokens_max: f64) -> Vec<(Key, Vec<ServerId>)> {
    let mut moves = Vec::new();
    for sample in samples {
        let Some(from) = fleet.iter().position(|place| place.server == sample.server) else { continue };
        let left = sample.tokens.min(tokens_max - sample.tokens).max(0.0);
        let saves = |to: &Place| {
            let (slow, fast) = (fleet[from].speed?, to.speed?);
            let cost = HANDOVER_S + (sample.prompt + sample.tokens) * PREFILL_SHARE / fast;
            Some(left / slow - left / fast - cost).filter(|seconds| *seconds > 0.0)
        };
        let has_room = |to: &Place| to.free > 0 && to.in_use < fleet[from].in_use;
        let worth: Vec<(usize, f64)> = (0..fleet.len())
            .filter(|to| *to != from && has_room(&fleet[*to]))
            .filter_map(|to| Some((to, saves(&fleet[to])?)))
            .collect();
        let Some((best, _)) = worth.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)) else {
            continue;
        };
        // The balancer chooses among all servers that are worth the move.
        let is_worth = |place: usize| worth.iter().any(|(to, _)| *to == place);
        let avoid = (0..fleet.len()).filter(|place| !is_worth(*place)).map(|place| fleet[place].server);
        moves.push((sample.key, avoid.collect()));
        fleet[best].free -= 1;
        fleet[best].in_use += 1;
        fleet[from].in_use = fleet[from].in_use.saturating_sub(1);
    }
    moves
}

/// Looks at the running requests periodically, and orders moves.
pub(crate) struct Mover {
    pub(crate) movable: Arc<Movable>,
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) balancer: LoadBalancer,
    pub(crate) max_response_length: u32,
}

impl Mover {
    /// Runs until it is dropped. Cancel-safe.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.board.lock().has_use_for_new() {
                continue;
            }
            let fleet = self.balancer.snapshot();
            if fleet.waiting == 0 {
                self.movable.look(&fleet.servers, self.max_response_length);
            }
        }
    }
}

#[cfg(test)]
mod tests;
