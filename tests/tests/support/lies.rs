//! Servers that say of themselves what is not so, and requests that are dropped half way.

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

/// A request that is dropped is dropped by then.
const DROPPED_BY: Duration = Duration::from_secs(3);
/// A control that does not answer says so after as long.
const SILENCE: Duration = Duration::from_secs(5);

/// What a server says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lie {
    /// It has generated nothing since.
    CountStands,
    /// It generates, whatever it does.
    CountRises,
    /// It begins to count anew at each look.
    CountFalls,
    /// Its cache is full.
    CacheFull,
    /// It has preempted somebody at each look.
    Preempts,
    /// Its cache is emptier than empty, and it has more requests than there are.
    Nonsense,
    /// It is paused.
    Paused,
    /// It is ill.
    Ill,
    /// It is well, and would generate a token.
    Well,
    /// It generates no token when it is asked for one.
    ProvesNothing,
    /// Its metrics are gone.
    NoMetrics,
    /// It takes its time to say anything, and then that it is well.
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

/// A fleet's control that does not always say what is so.
pub(crate) struct Lying {
    engine: SimulatedEngine,
    /// And how often they were told.
    lies: Mutex<BTreeMap<String, (Lie, u64)>>,
}

impl Lying {
    pub(crate) fn new(engine: SimulatedEngine) -> Self {
        Self { engine, lies: Mutex::default() }
    }

    pub(crate) fn tell(&self, server: &str, lie: Lie) {
        self.lies.lock().insert(server.to_owned(), (lie, 0));
    }

    /// The truth from now on.
    pub(crate) fn stop(&self) {
        self.lies.lock().clear();
    }

    fn lie(&self, server: &ServerRef) -> Option<Lie> {
        self.lies.lock().get(&*server.name).map(|(lie, _)| *lie)
    }

    /// How often the server was asked since it began to lie.
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

/// An engine that loses some requests at some moment.
pub(crate) struct Dropping {
    pub(crate) engine: SimulatedEngine,
    pub(crate) share: f64,
}

impl Dropping {
    /// When this request is lost, if it is: the same in each run.
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
