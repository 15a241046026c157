//! Servers that report a false state, and requests that are dropped before they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{Engine, EngineError, GenerateRequest, Generation};
use rolldock_loadbalancer::{ControlError, EngineControl, EngineLoad, ServerRef};
use tokio::time::Instant;

/// The maximum age at which a request is dropped.
const DROPPED_BY: Duration = Duration::from_secs(3);
/// The duration of the health check of a server with [`Lie::Slow`].
const SILENCE: Duration = Duration::from_secs(5);

/// A false report of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lie {
    /// Its token counter stays at zero.
    CountStands,
    /// Its token counter rises, whether or not it generates.
    CountRises,
    /// Its token counter falls at each scrape.
    CountFalls,
    /// It reports a full KV cache.
    CacheFull,
    /// It reports another preemption at each scrape.
    Preempts,
    /// It reports a cache usage that is not a number, and the largest possible numbers of requests.
    Nonsense,
    /// It reports that it is paused.
    Paused,
    /// Its health check fails.
    Ill,
    /// Its health check and its probe succeed.
    Well,
    /// Its probe fails, as if it generated no token.
    ProvesNothing,
    /// It serves no metrics.
    NoMetrics,
    /// Its health check succeeds after a long delay.
    Slow,
}

impl Lie {
    pub(crate) const ALL: [Self; 12] = [
        Self::CountStands,
        Self::CountRises,
        Self::CountFalls,
        Self::CacheFull,
        Self::Preempts,
        Self::Nonsense,
        Self::Paused,
        Self::Ill,
        Self::Well,
        Self::ProvesNothing,
        Self::NoMetrics,
        Self::Slow,
    ];
}

/// An [`EngineControl`] that reports false states for some servers.
pub(crate) struct Lying {
    engine: SimulatedEngine,
    /// For each server with a false report: the report, and the number of calls of [`EngineControl::load`] for
    /// the server since the report began.
    lies: Mutex<BTreeMap<String, (Lie, u64)>>,
}

impl Lying {
    pub(crate) fn new(engine: SimulatedEngine) -> Self {
        Self { engine, lies: Mutex::default() }
    }

    pub(crate) fn tell(&self, server: &str, lie: Lie) {
        self.lies.lock().insert(server.to_owned(), (lie, 0));
    }

    /// Reports the true state of all servers from now on.
    pub(crate) fn stop(&self) {
        self.lies.lock().clear();
    }

    fn lie(&self, server: &ServerRef) -> Option<Lie> {
        self.lies.lock().get(&*server.name).map(|(lie, _)| *lie)
    }

    /// Counts a call of [`EngineControl::load`] for the server. Returns the number of these calls since the
    /// server's false report began, or 0 for a server without a false report.
    fn asked(&self, server: &ServerRef) -> u64 {
        let mut lies = self.lies.lock();
        lies.get_mut(&*server.name).map_or(0, |(_, asked)| {
            *asked += 1;
            *asked
        })
    }

    fn failed(server: &ServerRef, what: &'static str) -> ControlError {
        ControlError::Failed { server: Arc::clone(&server.name), what, reason: "it lies".to_owned() }
    }
}

impl EngineControl for Lying {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        match self.lie(server) {
            Some(Lie::Ill) => ready(Err(Self::failed(server, "health"))).boxed(),
            Some(Lie::Well) => ready(Ok(())).boxed(),
            Some(Lie::Slow) => tokio::time::sleep(SILENCE).map(Ok).boxed(),
            _ => self.engine.health(server),
        }
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        async move {
            let (lie, asked) = (self.lie(server), self.asked(server));
            let mut load = self.engine.load(server).await?;
            match lie {
                Some(Lie::CountStands) => load.generation_tokens_total = Some(0),
                Some(Lie::CountRises) => load.generation_tokens_total = Some(1_000_000 * asked),
                Some(Lie::CountFalls) => load.generation_tokens_total = Some(u64::MAX - asked),
                Some(Lie::CacheFull) => load.kv_cache_usage = 1.0,
                Some(Lie::Preempts) => load.preemptions_total = Some(asked),
                Some(Lie::Nonsense) => {
                    (load.running, load.waiting, load.kv_cache_usage) = (u64::MAX, u64::MAX, f64::NAN);
                }
                Some(Lie::Paused) => load.paused = Some(true),
                Some(Lie::NoMetrics) => {
                    return Err(ControlError::Unsupported { server: Arc::clone(&server.name), what: "load" });
                }
                _ => {}
            }
            Ok(load)
        }
        .boxed()
    }

    fn abort<'a>(&'a self, server: &'a ServerRef, id: &'a str) -> BoxFuture<'a, Result<(), ControlError>> {
        self.engine.abort(server, id)
    }

    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        match self.lie(server) {
            Some(Lie::ProvesNothing) => ready(Err(Self::failed(server, "a probe"))).boxed(),
            Some(Lie::Well) => ready(Ok(())).boxed(),
            _ => self.engine.health(server),
        }
    }
}

/// An engine that drops some requests before they end, and has servers that refuse all requests for some time.
pub(crate) struct Dropping {
    pub(crate) engine: SimulatedEngine,
    pub(crate) share: f64,
    /// The servers that have another model until the given time, as after a wrong restart.
    pub(crate) others_until: BTreeMap<String, Instant>,
}

impl Dropping {
    /// The age at which this request is dropped if it still runs; `None` if the request is never dropped. The
    /// result depends only on the request's id and on `share`.
    fn lost_after(&self, request_id: &str) -> Option<Duration> {
        let seed =
            request_id.bytes().fold(0_u64, |seed, byte| seed.wrapping_mul(257).wrapping_add(byte.into()));
        let mut rng = StdRng::seed_from_u64(seed);
        rng.random_bool(self.share).then(|| DROPPED_BY.mul_f64(rng.random_range(0.0..1.0)))
    }
}

impl Engine for Dropping {
    fn generate<'a>(
        &'a self,
        server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        if self.others_until.get(server).is_some_and(|until| Instant::now() < *until) {
            let (server, reason) = (server.to_owned(), "The model does not exist.".to_owned());
            return ready(Err(EngineError::Refused { server, status: 404, reason })).boxed();
        }
        let Some(after) = self.lost_after(&request.request_id) else {
            return self.engine.generate(server, request);
        };
        async move {
            let lost =
                EngineError::Failed { server: server.to_owned(), reason: "the request was lost".to_owned() };
            tokio::time::timeout(after, self.engine.generate(server, request)).await.unwrap_or(Err(lost))
        }
        .boxed()
    }

    fn interrupt(&self, server: &str, request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        self.engine.interrupt(server, request_id)
    }

    fn cancelled(&self, server: &str, request_id: &Arc<str>) {
        self.engine.cancelled(server, request_id);
    }

    fn settle(&self, limit: Duration) -> BoxFuture<'_, ()> {
        self.engine.settle(limit)
    }
}
