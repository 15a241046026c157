//! Moves samples that would finish sooner on another server, with their tokens, or asks the other server for copies of
//! them.
//!
//! The mover looks at the running requests in short intervals, for two reasons to move a sample:
//! - **Another server is faster** (module `faster`). At the end of a step some servers become empty, while the last
//!   samples still run on slow or full servers. In a flow this also happens while the board holds new prompts back, and
//!   the trainer waits for the flow's oldest groups. For this reason samples move only when no new prompt can be sent
//!   out and no request waits for a permit, so they take free places. The samples of a flow's oldest groups move
//!   earlier, when the flow will soon wait for [these groups](Board::blocking). They get the next places that become
//!   free, before new groups.
//! - **The sample waits on a full server** (module `full`), which has preempted it. This happens at any time.
//!
//! A sample that is moved is aborted on its server, keeps its tokens, and continues from prompt and tokens on
//! another server, like a sample that a pause has aborted.
//!
//! Where samples are copied instead (`rollout.stragglers = "hedge"`), the sample goes on on its server, and its request
//! asks a faster server too. The module `hedge` of the samples decides which answer counts.
//!
//! A look costs little while no server is much faster than another or full: it reads the servers, and not the
//! samples.
//!
//! # Invariants
//! - In a dispatch, a request is moved for each reason a few times at most ([`TO_FASTER_MAX`], [`FROM_FULL_MAX`]), and
//!   only if it asks for one sample.
//! - A request is copied at most once.
//! - No token is lost: the tokens that the engine returns at the abort stay with their dispatch. Moves are
//!   counted, with the tokens whose prefill they repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::DispatchId;
use rolldock_loadbalancer::snapshot::{FleetSnapshot, ServerSnapshot};
use rolldock_loadbalancer::{LoadBalancer, ServerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::engine::Progress;
use crate::rollout::Stragglers;
use crate::rollout::board::Board;
use faster::Sample;

mod faster;
mod full;

/// The time between two looks at the running requests.
const LOOK: Duration = Duration::from_millis(500);
/// How often a request may be moved to a faster server in one dispatch. It may be moved once more each time that it has
/// left a full server, because it may then have come to a slow one, where it would delay the step.
const TO_FASTER_MAX: u32 = 2;
/// The number of places that are expected to become free on a full server until the next look.
const FREE_SOON: u32 = 2;
/// How often a request may leave a full server in one dispatch.
const FROM_FULL_MAX: u32 = 8;

/// Why a request moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Another server finishes the sample sooner.
    Faster,
    /// The sample waits on a full server.
    Full,
}

/// The order to move a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) reason: Reason,
    /// The servers that the request must avoid.
    pub(crate) avoid: Vec<ServerId>,
}

/// The number of moves of a request in its dispatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moves {
    to_faster: u32,
    from_full: u32,
}

impl Moves {
    /// Counts a move.
    pub(crate) fn add(&mut self, reason: Reason) {
        match reason {
            Reason::Faster => self.to_faster += 1,
            Reason::Full => self.from_full += 1,
        }
    }

    fn allow(self, reason: Reason) -> bool {
        match reason {
            Reason::Faster => self.to_faster < TO_FASTER_MAX + self.from_full,
            Reason::Full => self.from_full < FROM_FULL_MAX,
        }
    }
}

/// A running request, as the mover sees it.
#[derive(Debug)]
struct Running {
    server: ServerId,
    /// The place of the request in the order in which all requests of the step began.
    number: u64,
    moves: Moves,
    /// The tokens of the server's [`Clock`] when the request began. They are used if the engine does not stream.
    began_at: f64,
    /// Tokens of earlier segments.
    before: u32,
    prompt: u32,
    progress: Option<Progress>,
    /// Sends the order to move. It is absent after the order.
    order: Option<oneshot::Sender<Order>>,
}

impl Running {
    fn may_move(&self, reason: Reason) -> bool {
        self.order.is_some() && self.moves.allow(reason)
    }
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

/// The requests of a step that can be moved or copied.
#[derive(Debug, Default)]
pub(crate) struct Movable {
    /// Whether samples stay, and are copied.
    copies: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<Key, Running>,
    begun: u64,
    clocks: BTreeMap<ServerId, Clock>,
    /// The last reading of each server's load on which samples have left it.
    left_at: BTreeMap<ServerId, u64>,
}

impl State {
    /// The tokens of a server's clock; 0 before the server's speed is known.
    fn clock(&self, server: ServerId, now: Instant) -> f64 {
        self.clocks.get(&server).map_or(0.0, |clock| clock.at(now))
    }

    fn order(&mut self, key: Key, order: Order) {
        if let Some(sender) = self.running.get_mut(&key).and_then(|request| request.order.take()) {
            // The receiver was dropped only if the request has just ended.
            let _ = sender.send(order);
        }
    }
}

/// The time for which a request has run, in tokens of its server's [`Clock`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    server: ServerId,
    began_at: f64,
}

/// The entry of a request. The request is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    movable: Arc<Movable>,
    key: Key,
    ordered: oneshot::Receiver<Order>,
}

impl Entered {
    /// Completes when the request must move. It never completes if the request stays. Cancel-safe; after it has
    /// completed, it must not be called again.
    pub(crate) async fn ordered(&mut self) -> Order {
        match (&mut self.ordered).await {
            Ok(order) => order,
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
    pub(crate) moves: Moves,
    pub(crate) before: u32,
    pub(crate) prompt: u32,
    /// The tokens so far, if the engine streams them.
    pub(crate) progress: Option<Progress>,
}

impl Movable {
    /// The requests of a step with this rule; `None` if all samples stay.
    pub(crate) fn of(rule: Stragglers) -> Option<Arc<Self>> {
        match rule {
            Stragglers::Stay => None,
            Stragglers::Move => Some(Arc::default()),
            Stragglers::Hedge => Some(Arc::new(Self { copies: true, ..Self::default() })),
        }
    }

    /// Whether samples stay, and are copied.
    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    /// The course of a request that begins now.
    pub(crate) fn course(&self, server: ServerId) -> Course {
        Course { server, began_at: self.state.lock().clock(server, Instant::now()) }
    }

    /// The estimated number of tokens of a request.
    pub(crate) fn tokens(&self, course: Course) -> f64 {
        self.state.lock().clock(course.server, Instant::now()) - course.began_at
    }

    /// Enters a request until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>, begun: Begun) -> Entered {
        let (order, ordered) = oneshot::channel();
        let Begun { key, server, moves, before, prompt, progress } = begun;
        let mut state = self.state.lock();
        let (number, began_at) = (state.begun, state.clock(server, Instant::now()));
        state.begun += 1;
        let order = Some(order);
        state
            .running
            .insert(key, Running { server, number, moves, began_at, before, prompt, progress, order });
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

    /// Orders the moves or copies to faster servers that are worth it on this fleet: those of all samples, or, with
    /// `only`, those of the samples of these dispatches, which also go to full servers.
    fn order_moves(
        &self,
        servers: &[ServerSnapshot],
        max_response_length: u32,
        only: Option<&BTreeSet<DispatchId>>,
    ) {
        let tokens_max = f64::from(max_response_length);
        let mut fleet = faster::places(servers, if only.is_some() { FREE_SOON } else { 0 });
        if !faster::has_faster_place(&fleet) {
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
            let is_asked = only.is_none_or(|only| only.contains(&key.0));
            if is_asked && request.may_move(Reason::Faster) {
                let again = self.copies.then_some(segment);
                samples.push(Sample { key: *key, from, tokens, prompt, again });
            }
        }
        for (key, avoid) in faster::plan(fleet, samples, tokens_max) {
            state.order(key, Order { reason: Reason::Faster, avoid });
        }
    }

    /// Orders samples that wait on full servers to leave them.
    fn order_leaving(&self, fleet: &FleetSnapshot) {
        if self.copies {
            return;
        }
        let mut state = self.state.lock();
        let full = full::full_servers(&fleet.servers, &state.left_at);
        if full.is_empty() {
            return;
        }
        for (server, key) in full::last_begun(&full, &state.running, fleet.kept_tokens_min) {
            state.order(key, Order { reason: Reason::Full, avoid: vec![server] });
        }
        state.left_at.extend(full.iter().map(|server| (server.id, server.reading)));
    }
}

/// Tokens a second of one sample. The engine's own count is known sooner than the answers.
fn speed(server: &ServerSnapshot) -> Option<f64> {
    server.decode_rate.or(server.tokens_per_second)
}

/// Looks at the running requests periodically, and orders moves or copies.
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
            self.movable.order_leaving(&fleet);
            let (sends_new, blocking) = {
                let board = self.board.lock();
                (board.sends_new(), board.blocking())
            };
            let order = |only| self.movable.order_moves(&fleet.servers, self.max_response_length, only);
            if fleet.waiting == 0 && !sends_new {
                order(None);
            } else if !blocking.is_empty() && !self.movable.copies() {
                order(Some(&blocking));
            }
        }
    }
}

#[cfg(test)]
mod tests;
