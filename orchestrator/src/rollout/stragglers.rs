//! Moves the last samples of a step to servers that finish them sooner, with their tokens.
//!
//! At the end of a step some servers become empty, while the last samples still run on slow or full servers.
//! The mover looks at the running requests in short intervals. It acts only when no new prompt is needed and
//! no request waits for a permit, so the moved samples take free places. A sample that is moved is aborted on
//! its server, keeps its tokens, and continues from prompt and tokens on another server, like a sample that a
//! pause has aborted.
//!
//! # When a move is worth it
//! A server's time per token depends on the tokens in its KV cache, because every decoding step reads them.
//! The balancer measures this dependence ([`Pace`]), so the mover knows the time per token on each server
//! before and after a move. Response lengths have a heavy tail, so a sample with `g` tokens is expected to
//! need `g` more, within the limit. The move must save a fifth of the time of these tokens ([`GAIN_MIN`]),
//! beyond the time of the handover and of the prefill of prompt and tokens ([`HANDOVER_S`],
//! [`PREFILL_SHARE`]). It must save more if the paces are uncertain: the times per token of equal servers that
//! share a machine differ by chance, and a sample must not move because of that. The longest samples move
//! first, because a step ends with them.
//!
//! If a server with samples has no pace, the speeds by answers are used instead. They do not tell what a
//! further sample costs, so a sample then moves only to a server with fewer samples.
//!
//! A look costs little while no server is much faster than another: it reads the servers, and not the samples.
//!
//! # Invariants
//! - A request is moved at most [`MOVES_MAX`] times in a dispatch, and only if it asks for one sample.
//! - A plan never gives a server more samples than it has free places, and fills no cache beyond [`FULL`].
//! - No token is lost: the tokens that the engine returns at the abort stay with their dispatch. Moves are
//!   counted, with the tokens whose prefill they repeat.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::DispatchId;
use rolldock_loadbalancer::server::ServerState;
use rolldock_loadbalancer::snapshot::{Pace, ServerSnapshot};
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
/// and an abort that reaches it before the request is repeated after up to 0.25 s.
const HANDOVER_S: f64 = 0.5;
/// The time to prefill a token, as a share of the time to decode one. A prefill is bound by arithmetic, and
/// handles hundreds of tokens in the time of one decoding step. The share is deliberately high, so that moves
/// are ordered only if they really save time.
const PREFILL_SHARE: f64 = 1.0 / 32.0;
/// The share of a sample's remaining time that a move must save.
const GAIN_MIN: f64 = 0.2;
/// The number of errors of the measured paces that a move must save beyond [`GAIN_MIN`].
const ERRORS_MIN: f64 = 2.0;
/// Servers are chosen among those on which a sample saves at least this share of the greatest saving.
const NEARLY_BEST: f64 = 0.8;
/// The share of a KV cache that moved samples may fill.
const FULL: f64 = 0.95;
/// The least use of a cache from which its size is estimated.
const SHOWS_SIZE: f64 = 0.02;

/// A running request, as the mover sees it.
#[derive(Debug)]
struct Running {
    server: ServerId,
    /// The tokens of the server's [`Clock`] when the request began. They are used if the engine does not stream.
    began_at: f64,
    /// Tokens of earlier segments.
    before: u32,
    prompt: u32,
    progress: Option<Progress>,
    /// Sends the order to move, with the servers that the request must avoid.
    order: Option<oneshot::Sender<Vec<ServerId>>>,
}

/// The number of tokens that a sample would have that has always run on a server, by the measured speeds. It
/// stands in for the progress of the requests that the engine does not stream.
#[derive(Debug)]
struct Clock {
    tokens: f64,
    read_at: Instant,
    /// Tokens per second.
    speed: f64,
}

impl Clock {
    fn at(&self, now: Instant) -> f64 {
        self.tokens + self.speed * (now - self.read_at).as_secs_f64()
    }
}

/// The dispatch of a request, and the index of its sample.
type Key = (DispatchId, u32);

/// The requests of a step that can be moved.
#[derive(Debug, Default)]
pub(crate) struct Movable {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<Key, Running>,
    clocks: BTreeMap<ServerId, Clock>,
}

impl State {
    /// The tokens of a server's clock; 0 before the server's speed is known.
    fn clock(&self, server: ServerId, now: Instant) -> f64 {
        self.clocks.get(&server).map_or(0.0, |clock| clock.at(now))
    }
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
        self.movable.state.lock().running.remove(&self.key);
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
        let mut state = self.state.lock();
        let began_at = state.clock(server, Instant::now());
        state.running.insert(key, Running { server, began_at, before, prompt, progress, order: Some(order) });
        drop(state);
        Entered { movable: Arc::clone(self), key, ordered }
    }

    /// Notes the speeds of the servers.
    fn read_speeds(&self, servers: &[ServerSnapshot]) {
        let now = Instant::now();
        let mut state = self.state.lock();
        for (id, speed) in servers.iter().filter_map(|server| Some((server.id, speed(server)?))) {
            // The speed was measured since the last reading.
            let clock = state.clocks.entry(id).or_insert(Clock { tokens: 0.0, read_at: now, speed });
            *clock = Clock { tokens: Clock { speed, ..*clock }.at(now), read_at: now, speed };
        }
    }

    /// Orders the moves that are worth it on this fleet.
    fn order_moves(&self, servers: &[ServerSnapshot], max_response_length: u32) {
        let tokens_max = f64::from(max_response_length);
        let mut fleet = places(servers);
        if !has_faster_place(&fleet) {
            return;
        }
        let indices: BTreeMap<ServerId, usize> =
            fleet.iter().enumerate().map(|(index, place)| (place.server, index)).collect();
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut samples = Vec::new();
        for (key, request) in &state.running {
            let Some(&from) = indices.get(&request.server) else { continue };
            let estimated = || state.clock(request.server, now) - request.began_at;
            let segment =
                request.progress.as_ref().map_or_else(estimated, |progress| progress.tokens() as f64);
            let tokens = (segment + f64::from(request.before)).min(tokens_max);
            let prompt = f64::from(request.prompt);
            fleet[from].held += prompt + tokens;
            if request.order.is_some() {
                samples.push(Sample { key: *key, from, tokens, prompt });
            }
        }
        for (key, avoid) in plan(fleet, samples, tokens_max) {
            if let Some(order) = state.running.get_mut(&key).and_then(|request| request.order.take()) {
                // The receiver was dropped only if the request has just ended.
                let _ = order.send(avoid);
            }
        }
    }
}

/// Tokens a second of one sample. The engine's own count is known sooner than the answers.
fn speed(server: &ServerSnapshot) -> Option<f64> {
    server.decode_rate.or(server.tokens_per_second)
}

/// A server with its places.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    server: ServerId,
    free: u32,
    in_use: u32,
    /// The time per token; `None` if it is not known.
    pace: Option<Pace>,
    /// Share of the KV cache in use.
    usage: f64,
    /// Prompt and response tokens of the running samples.
    held: f64,
}

impl Place {
    /// The number of tokens that fill the cache; `None` if the use of the cache does not show it.
    fn cache_tokens(&self) -> Option<f64> {
        (self.usage > SHOWS_SIZE && self.held > 0.0).then(|| self.held / self.usage)
    }
}

/// The servers that are not dead. If every server with samples has a pace by its engine's own count, these
/// paces are used. Otherwise the speeds by answers are used, because the two cannot be compared.
fn places(servers: &[ServerSnapshot]) -> Vec<Place> {
    let lives = |server: &&ServerSnapshot| server.state != ServerState::Dead;
    let has_count = |server: &ServerSnapshot| server.in_use == 0 || server.pace.is_some();
    let all_count = servers.iter().filter(lives).all(has_count);
    let by_answers = |speed: f64| Pace { empty_s: speed.recip(), full_s: speed.recip(), error: 0.0 };
    let place = |server: &ServerSnapshot| Place {
        server: server.id,
        free: match server.state {
            ServerState::Active => {
                server.capacity.saturating_sub(server.in_use.saturating_add(server.foreign))
            }
            _ => 0,
        },
        in_use: server.in_use,
        pace: if all_count { server.pace } else { server.tokens_per_second.map(by_answers) },
        usage: server.kv_cache_usage,
        held: 0.0,
    };
    servers.iter().filter(lives).map(place).collect()
}

/// A running sample that may move.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    key: Key,
    /// The index of its server in the fleet.
    from: usize,
    /// Estimated tokens so far.
    tokens: f64,
    /// Tokens of the prompt.
    prompt: f64,
}

impl Sample {
    fn held(&self) -> f64 {
        self.prompt + self.tokens
    }

    /// Expected tokens to come.
    fn left(&self, tokens_max: f64) -> f64 {
        self.tokens.min(tokens_max - self.tokens).max(0.0)
    }
}

/// The fleet while moves are planned.
struct Planned {
    places: Vec<Place>,
    /// The size of a cache whose use does not show it, in tokens: the mean of the other caches.
    usual_cache: Option<f64>,
    tokens_max: f64,
}

impl Planned {
    /// The share of a server's cache that this number of tokens takes. It is 0 if no cache shows its size.
    fn share(&self, place: &Place, tokens: f64) -> f64 {
        place.cache_tokens().or(self.usual_cache).map_or(0.0, |size| tokens / size)
    }

    /// The seconds that a move saves; `None` if it is not possible or not worth it.
    fn saves(&self, sample: &Sample, to: &Place) -> Option<f64> {
        let from = &self.places[sample.from];
        let (slow, fast) = (from.pace?, to.pace?);
        let usage = to.usage + self.share(to, sample.held());
        let has_place = to.server != from.server && to.free > 0 && usage <= FULL;
        // A pace that does not depend on the use of the cache does not show what a further sample costs.
        let knows_cost = fast.full_s > fast.empty_s;
        if !has_place || !(knows_cost || to.in_use < from.in_use) {
            return None;
        }
        let (left, fast_s, slow_s) = (sample.left(self.tokens_max), fast.at(usage), slow.at(from.usage));
        let stays_s = left * slow_s;
        let cost_s = HANDOVER_S + sample.held() * PREFILL_SHARE * fast_s;
        // The error of the ratio of the two times.
        let error = fast_s / slow_s * slow.error.hypot(fast.error);
        let least_s = (GAIN_MIN + ERRORS_MIN * error) * stays_s;
        Some(stays_s - left * fast_s - cost_s).filter(|saved| *saved > least_s)
    }

    /// Plans the move of a sample if it is worth it. Returns the servers that the sample must avoid.
    fn moved(&mut self, sample: &Sample) -> Option<Vec<ServerId>> {
        let saved: Vec<Option<f64>> = self.places.iter().map(|to| self.saves(sample, to)).collect();
        let worth = saved.iter().enumerate().filter_map(|(to, seconds)| Some((to, (*seconds)?)));
        let (best, most) = worth.max_by(|one, other| one.1.total_cmp(&other.1))?;
        // The balancer chooses among the servers that are nearly as good as the best one.
        let is_avoided = |seconds: &Option<f64>| seconds.is_none_or(|seconds| seconds < most * NEARLY_BEST);
        let avoided = self.places.iter().zip(&saved).filter(|(_, seconds)| is_avoided(seconds));
        let avoid = avoided.map(|(place, _)| place.server).collect();
        let held = sample.held();
        for (place, sign) in [(sample.from, -1.0), (best, 1.0)] {
            let share = self.share(&self.places[place], held);
            let place = &mut self.places[place];
            place.usage = (place.usage + sign * share).max(0.0);
            place.held = (place.held + sign * held).max(0.0);
        }
        let (to, from) = (&mut self.places[best], sample.from);
        (to.free, to.in_use) = (to.free - 1, to.in_use + 1);
        self.places[from].in_use = self.places[from].in_use.saturating_sub(1);
        Some(avoid)
    }
}

/// The shortest time per token that a further sample could get.
fn fastest_s(places: &[Place]) -> f64 {
    let open = places.iter().filter(|place| place.free > 0);
    let seconds = open.filter_map(|place| Some(place.pace?.at(place.usage)));
    seconds.fold(f64::INFINITY, f64::min)
}

/// Whether a sample of a server could be faster by more than [`GAIN_MIN`] on the fastest server.
fn gains(from: &Place, fastest_s: f64) -> bool {
    from.pace.is_some_and(|pace| fastest_s <= pace.at(from.usage) * (1.0 - GAIN_MIN))
}

/// Whether any sample could gain. If not, no move is worth it.
fn has_faster_place(places: &[Place]) -> bool {
    let fastest_s = fastest_s(places);
    places.iter().any(|place| place.in_use > 0 && gains(place, fastest_s))
}

/// The samples that move, the longest first, each with the servers that it must avoid.
fn plan(places: Vec<Place>, mut samples: Vec<Sample>, tokens_max: f64) -> Vec<(Key, Vec<ServerId>)> {
    samples.sort_by(|one, other| other.tokens.total_cmp(&one.tokens).then(one.key.cmp(&other.key)));
    let sizes: Vec<f64> = places.iter().filter_map(Place::cache_tokens).collect();
    let usual_cache = (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64);
    let mut fleet = Planned { places, usual_cache, tokens_max };
    let (mut moves, mut fastest) = (Vec::new(), fastest_s(&fleet.places));
    for sample in samples {
        // Most samples are on servers that are as fast as the others. This check is all that they cost.
        if !gains(&fleet.places[sample.from], fastest) {
            continue;
        }
        if let Some(avoid) = fleet.moved(&sample) {
            moves.push((sample.key, avoid));
            fastest = fastest_s(&fleet.places);
        }
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
            let fleet = self.balancer.snapshot();
            self.movable.read_speeds(&fleet.servers);
            if fleet.waiting == 0 && !self.board.lock().has_use_for_new() {
                self.movable.order_moves(&fleet.servers, self.max_response_length);
            }
        }
    }
}

#[cfg(test)]
mod tests;
