//! The connections of one server, and the choice of the connection that is closed to make room for another.
//!
//! A connection changes its phase without a lock, since its phase changes twice for each request. The lock of
//! all connections is taken only when a connection begins, is authenticated, or ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use rustix::io::ioctl_fionread;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::limits::{Bounds, ConnectionLimits};

/// Shortest time between two log lines about connections that were closed for others.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The names of the phases that have a time limit.
const TIMED: [&str; 3] = ["head", "body", "idle"];

// The phases of a connection.
/// The connection waits for a request.
const IDLE: u8 = 0;
/// A part of the head of a request has arrived.
const HEAD: u8 = 1;
/// The connection has a request, or an answer that is not complete yet.
const BUSY: u8 = 2;
/// The connection has to be closed.
const SHED: u8 = 3;

/// The connections of one server. Clones share the count, so all threads of a server have one common limit.
#[derive(Debug, Clone)]
pub struct Connections {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The server's name in metrics and logs.
    listener: &'static str,
    bounds: Bounds,
    /// The origin of the times that connections store.
    began: Instant,
    seats: Mutex<Seats>,
}

/// The open connections, in the order in which they were accepted.
#[derive(Debug, Default)]
struct Seats {
    next: u64,
    unauthenticated: BTreeMap<u64, Arc<Seat>>,
    authenticated: BTreeMap<u64, Arc<Seat>>,
    logged_at: Option<Instant>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Seat {
    number: u64,
    connections: Connections,
    /// The lock is held only within a poll. The connection's task reads and writes. The listener's task
    /// checks for unread bytes.
    pub(crate) stream: Mutex<TcpStream>,
    phase: AtomicU8,
    /// The time at which the phase began, in milliseconds since the server started.
    since_ms: AtomicU64,
    is_authenticated: AtomicBool,
    /// Whether bytes of an answer have been written, but not flushed.
    is_writing: AtomicBool,
    /// The time until which a lease of this client may last.
    leased_until_ms: AtomicU64,
    /// The connection's task.
    task: AtomicWaker,
}

/// Why a connection was closed for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shed {
    Unauthenticated,
    Idle,
    Refused,
}

impl Shed {
    const ALL: [Self; 3] = [Self::Unauthenticated, Self::Idle, Self::Refused];

    fn reason(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Idle => "idle",
            Self::Refused => "refused",
        }
    }
}

impl Connections {
    /// No connections yet. `listener` names the server in metrics and logs, such as "queue".
    pub fn new(listener: &'static str, limits: &ConnectionLimits) -> Self {
        let (bounds, seats) = (limits.bounds(), Mutex::default());
        Self { shared: Arc::new(Shared { listener, bounds, began: Instant::now(), seats }) }
    }

    /// The number of open connections, and how many of them are authenticated.
    pub fn open(&self) -> (usize, usize) {
        let seats = self.shared.seats.lock();
        (seats.unauthenticated.len() + seats.authenticated.len(), seats.authenticated.len())
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.shared.bounds
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds a new connection. Another connection may be closed to make room for it. `None` if there is no
    /// room.
    pub(crate) fn join(&self, stream: TcpStream) -> Option<Arc<Seat>> {
        let bounds = self.shared.bounds;
        let mut seats = self.shared.seats.lock();
        let mut is_room = true;
        if seats.unauthenticated.len() >= bounds.unauthenticated_max {
            is_room = self.shed_unauthenticated(&mut seats);
        }
        if seats.unauthenticated.len() + seats.authenticated.len() >= bounds.max {
            is_room = self.shed_unauthenticated(&mut seats) || self.shed_idle(&mut seats);
        }
        if !is_room {
            self.report(&mut seats, Shed::Refused);
            return None;
        }
        let number = seats.next;
        seats.next += 1;
        let seat = Arc::new(Seat {
            number,
            connections: self.clone(),
            stream: Mutex::new(stream),
            phase: AtomicU8::new(IDLE),
            since_ms: AtomicU64::new(self.now_ms()),
            is_authenticated: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            leased_until_ms: AtomicU64::new(0),
            task: AtomicWaker::new(),
        });
        seats.unauthenticated.insert(number, Arc::clone(&seat));
        Some(seat)
    }

    /// Closes a connection that is not authenticated, because the process has no file descriptor left.
    pub(crate) fn make_room(&self) {
        self.shed_unauthenticated(&mut self.shared.seats.lock());
    }

    fn shed_unauthenticated(&self, seats: &mut Seats) -> bool {
        let idle = seats.unauthenticated.values().find(|seat| seat.shed_if_idle());
        let Some(seat) = idle.or_else(|| seats.unauthenticated.values().next()).cloned() else {
            return false;
        };
        seat.shed();
        seats.unauthenticated.remove(&seat.number);
        self.report(seats, Shed::Unauthenticated);
        true
    }

    /// Closes the connection that has been idle longest among those that are authenticated and have no lease.
    fn shed_idle(&self, seats: &mut Seats) -> bool {
        let now_ms = self.now_ms();
        let spare = |seat: &&Arc<Seat>| {
            let is_leased = seat.leased_until_ms.load(Ordering::Relaxed) > now_ms;
            !is_leased
                && !seat.is_writing.load(Ordering::Relaxed)
                && seat.phase.load(Ordering::Acquire) < BUSY
        };
        // Requests may begin and end during the search, so each time is read only once.
        let timed = |seat: &Arc<Seat>| (seat.since_ms.load(Ordering::Relaxed), Arc::clone(seat));
        let mut idle: Vec<_> = seats.authenticated.values().filter(spare).map(timed).collect();
        idle.sort_unstable_by_key(|(since_ms, _)| *since_ms);
        let mut idle = idle.into_iter().map(|(_, seat)| seat);
        let Some(seat) = idle.find(|seat| seat.shed_if_idle()) else { return false };
        seats.authenticated.remove(&seat.number);
        self.report(seats, Shed::Idle);
        true
    }

    /// Sets the counters to 0 when the server starts. If a counter appeared only with its first event,
    /// Prometheus could compute no rate before the second event.
    pub(crate) fn begin_counters(&self) {
        for shed in Shed::ALL {
            self.count_shed(shed, 0);
        }
        for phase in TIMED {
            self.count_timeouts(phase, 0);
        }
    }

    fn count_shed(&self, shed: Shed, connections: u64) {
        let labels = [("listener", self.shared.listener), ("reason", shed.reason())];
        metrics::counter!("rolldock_connections_shed_total", &labels).increment(connections);
    }

    /// Counts a closed connection, and logs at most every [`LOG_INTERVAL`] that connections are closed.
    fn report(&self, seats: &mut Seats, shed: Shed) {
        let listener = self.shared.listener;
        self.count_shed(shed, 1);
        if seats.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            seats.logged_at = Some(Instant::now());
            let (unauthenticated, authenticated) = (seats.unauthenticated.len(), seats.authenticated.len());
            let reason = shed.reason();
            tracing::warn!(
                listener,
                reason,
                unauthenticated,
                authenticated,
                "a connection is closed: no room"
            );
        }
    }

    pub(crate) fn count_timeout(&self, phase: &'static str) {
        self.count_timeouts(phase, 1);
    }

    fn count_timeouts(&self, phase: &'static str, connections: u64) {
        let labels = [("listener", self.shared.listener), ("phase", phase)];
        metrics::counter!("rolldock_connection_timeouts_total", &labels).increment(connections);
    }
}

impl Seat {
    fn since(&self) -> Instant {
        self.connections.shared.began + Duration::from_millis(self.since_ms.load(Ordering::Relaxed))
    }

    /// Changes the phase, unless the connection has to be closed. Returns whether it was changed.
    fn change(&self, from: &[u8], to: u8) -> bool {
        let mut phase = self.phase.load(Ordering::Acquire);
        while from.contains(&phase) {
            match self.phase.compare_exchange_weak(phase, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => phase = now,
            }
        }
        false
    }

    /// The number of bytes that have arrived and that the server has not read.
    pub(crate) fn unread_bytes(&self) -> u64 {
        ioctl_fionread(&*self.stream.lock()).unwrap_or_default()
    }

    fn shed(&self) {
        self.phase.store(SHED, Ordering::Release);
        self.task.wake();
    }

    /// Closes the connection if it waits for a request or for the rest of a head, and has no unread bytes.
    fn shed_if_idle(&self) -> bool {
        let is_shed = self.unread_bytes() == 0 && self.change(&[IDLE, HEAD], SHED);
        if is_shed {
            self.task.wake();
        }
        is_shed
    }

    /// Notes that a request begins. Returns `false` if the connection has to be closed.
    pub(crate) fn begin(&self) -> bool {
        self.change(&[IDLE, HEAD], BUSY)
    }

    /// Notes that a request and its answer are over.
    pub(crate) fn end(&self) {
        self.since_ms.store(self.connections.now_ms(), Ordering::Relaxed);
        self.change(&[BUSY], IDLE);
    }

    /// Notes that the client has proved its right to connect. Returns `false` if the connection has to be
    /// closed.
    pub(crate) fn authenticate(&self) -> bool {
        if self.is_authenticated.load(Ordering::Relaxed) {
            return true;
        }
        let mut seats = self.connections.shared.seats.lock();
        let Some(seat) = seats.unauthenticated.remove(&self.number) else { return false };
        self.is_authenticated.store(true, Ordering::Relaxed);
        seats.authenticated.insert(self.number, seat);
        true
    }

    /// Notes that the client holds a lease for `term`, counted from now.
    pub(crate) fn lease_for(&self, term: Duration) {
        let term_ms = u64::try_from(term.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.connections.now_ms().saturating_add(term_ms);
        self.leased_until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Whether the connection has to be closed for another one.
    pub(crate) fn is_shed(&self) -> bool {
        self.phase.load(Ordering::Acquire) == SHED
    }

    /// Wakes the connection's task when the connection has to be closed for another one.
    pub(crate) fn wake_when_shed(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Notes that the connection is closed, so it no longer counts.
    pub(crate) fn leave(&self) {
        let mut seats = self.connections.shared.seats.lock();
        seats.unauthenticated.remove(&self.number);
        seats.authenticated.remove(&self.number);
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.connections.bounds()
    }

    pub(crate) fn count_timeout(&self, phase: &'static str) {
        self.connections.count_timeout(phase);
    }

    /// Notes that some bytes of a request have been read.
    pub(crate) fn has_read(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE {
            self.since_ms.store(self.connections.now_ms(), Ordering::Relaxed);
            self.change(&[IDLE], HEAD);
        }
    }

    /// Notes whether some bytes of an answer have not been passed to the kernel yet.
    pub(crate) fn writes(&self, is_writing: bool) {
        self.is_writing.store(is_writing, Ordering::Relaxed);
    }

    /// The time limit of the present phase, and the phase's name; `None` if the phase has no limit.
    pub(crate) fn limit(&self) -> Option<(Instant, &'static str)> {
        let bounds = self.connections.bounds();
        match self.phase.load(Ordering::Acquire) {
            HEAD => Some((self.since() + bounds.head, "head")),
            IDLE if !self.is_authenticated.load(Ordering::Relaxed) => {
                Some((self.since() + bounds.head, "head"))
            }
            IDLE => Some((self.since() + bounds.keep_alive, "idle")),
            _ => None,
        }
    }
}
