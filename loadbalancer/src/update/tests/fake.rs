//! A fleet whose engines fail at the calls that a test chooses, and log the calls that they get.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::*;
use crate::control::{ControlError, EngineControl, EngineLoad};
use crate::{Permit, PermitRequest};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call fails without effect.
    Fails,
    /// The call takes effect at least in part, and is never answered.
    Hangs,
    /// The engine does not offer the call.
    Unknown,
    /// The call takes this many seconds.
    Takes(u64),
    /// The call succeeds without effect.
    Ignored,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FakeEngine {
    pub(super) is_paused: bool,
    /// The weights' version; `None` while it is unknown.
    pub(super) weights: Option<String>,
    pub(super) label: String,
    /// Whether the cache has blocks that other weights computed.
    pub(super) is_cache_old: bool,
    pub(super) is_gone: bool,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self {
            is_paused: false,
            weights: Some("base".to_owned()),
            label: "default".to_owned(),
            is_cache_old: false,
            is_gone: false,
        }
    }
}

#[derive(Default)]
pub(super) struct Fake {
    engines: Mutex<BTreeMap<String, FakeEngine>>,
    faults: Mutex<BTreeMap<(String, &'static str), Fault>>,
    pub(super) calls: Mutex<Vec<String>>,
}

impl Fake {
    pub(super) fn engine(&self, name: &str) -> FakeEngine {
        self.engines.lock().entry(name.to_owned()).or_default().clone()
    }

    pub(super) fn set(&self, name: &str, change: impl FnOnce(&mut FakeEngine)) {
        change(self.engines.lock().entry(name.to_owned()).or_default());
    }

    pub(super) fn fault(&self, name: &str, what: &'static str, fault: impl Into<Option<Fault>>) {
        let mut faults = self.faults.lock();
        match fault.into() {
            Some(fault) => faults.insert((name.to_owned(), what), fault),
            None => faults.remove(&(name.to_owned(), what)),
        };
    }

    pub(super) fn heal(&self) {
        self.faults.lock().clear();
    }

    pub(super) fn count(&self, call: &str) -> usize {
        self.calls.lock().iter().filter(|made| *made == call).count()
    }

    pub(super) fn paused(&self) -> BTreeSet<String> {
        let engines = self.engines.lock();
        engines.iter().filter(|(_, engine)| engine.is_paused).map(|(name, _)| name.clone()).collect()
    }

    /// Applies `begin` when the call arrives, and `finish` when the call succeeds.
    fn call<'a>(
        &'a self,
        server: &'a ServerRef,
        what: &'static str,
        begin: impl FnOnce(&mut FakeEngine) + Send + 'a,
        finish: impl FnOnce(&mut FakeEngine) + Send + 'a,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let failed = || ControlError::Failed {
                server: Arc::clone(&server.name),
                what,
                reason: "told to".to_owned(),
            };
            self.calls.lock().push(format!("{} {what}", server.name));
            if self.engine(&server.name).is_gone {
                return Err(failed());
            }
            let fault = self.faults.lock().get(&(server.name.to_string(), what)).copied();
            if fault == Some(Fault::Unknown) {
                return Err(ControlError::Unsupported { server: Arc::clone(&server.name), what });
            }
            self.set(&server.name, begin);
            match fault {
                Some(Fault::Fails) => return Err(failed()),
                Some(Fault::Ignored) => return Ok(()),
                Some(Fault::Hangs) => std::future::pending().await,
                Some(Fault::Takes(seconds)) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                _ => {}
            }
            if self.engine(&server.name).is_gone {
                return Err(failed());
            }
            self.set(&server.name, finish);
            Ok(())
        }
        .boxed()
    }
}

type Answer<'a, T = ()> = BoxFuture<'a, Result<T, ControlError>>;

impl EngineControl for Fake {
    fn health<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        self.call(server, "health", |_| (), |_| ())
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> Answer<'a, EngineLoad> {
        let engine = self.engine(&server.name);
        let failed =
            ControlError::Failed { server: Arc::clone(&server.name), what: "load", reason: "gone".into() };
        let load = EngineLoad { paused: Some(engine.is_paused), ..EngineLoad::default() };
        futures::future::ready(if engine.is_gone { Err(failed) } else { Ok(load) }).boxed()
    }

    fn abort<'a>(&'a self, server: &'a ServerRef, _: &'a str) -> Answer<'a> {
        self.call(server, "abort", |_| (), |_| ())
    }

    fn check_generation<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        assert!(!self.engine(&server.name).is_paused, "a paused engine does not generate");
        self.call(server, "check", |_| (), |_| ())
    }

    fn pause<'a>(&'a self, server: &'a ServerRef, mode: PauseMode) -> Answer<'a> {
        let what = match mode {
            PauseMode::Abort => "pause abort",
            PauseMode::Keep => "pause keep",
            PauseMode::Wait => "pause wait",
        };
        self.call(server, what, |engine| engine.is_paused = true, |_| ())
    }

    fn resume<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        self.call(server, "resume", |_| (), |engine| engine.is_paused = false)
    }

    fn reset_prefix_cache<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        self.call(server, "reset", |_| (), |engine| engine.is_cache_old = false)
    }

    fn recompute_running<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        self.call(server, "recompute", |_| (), |engine| engine.is_cache_old = false)
    }

    fn collective_rpc<'a>(
        &'a self,
        server: &'a ServerRef,
        method: &'a str,
        kwargs: &'a Map<String, Value>,
    ) -> Answer<'a> {
        assert_eq!(method, "reload_weights");
        let path = kwargs.get("weights_path").and_then(Value::as_str).map(str::to_owned);
        let loaded = move |engine: &mut FakeEngine| engine.weights = path;
        self.call(server, "load", |engine| (engine.weights, engine.is_cache_old) = (None, true), loaded)
    }

    fn start_weight_update<'a>(&'a self, server: &'a ServerRef) -> Answer<'a> {
        self.call(server, "start", |_| (), |_| ())
    }

    fn update_weights<'a>(&'a self, server: &'a ServerRef, body: &'a Value) -> Answer<'a> {
        let received = body.as_str().map(str::to_owned);
        self.call(server, "receive", |engine| engine.weights = None, |engine| engine.weights = received)
    }

    fn finish_weight_update<'a>(&'a self, server: &'a ServerRef, version: Option<&'a str>) -> Answer<'a> {
        let named = move |engine: &mut FakeEngine| {
            if let Some(version) = version {
                engine.label = version.to_owned();
            }
        };
        self.call(server, "finish", |_| (), named)
    }

    fn weight_version<'a>(&'a self, server: &'a ServerRef) -> Answer<'a, Arc<str>> {
        let label = self.engine(&server.name).label.into();
        futures::future::ready(Ok(label)).boxed()
    }

    fn set_weight_version<'a>(&'a self, server: &'a ServerRef, version: &'a str) -> Answer<'a> {
        self.call(server, "label", |_| (), |engine| engine.label = version.to_owned())
    }
}

/// A fleet of servers s0, s1, ... of four places.
pub(super) struct Fixture {
    pub(super) balancer: LoadBalancer,
    pub(super) fake: Arc<Fake>,
    pub(super) updater: WeightUpdater,
    pub(super) tracker: TaskTracker,
    pub(super) end: CancellationToken,
}

pub(super) fn spec(name: &str) -> ServerSpec {
    ServerSpec::unreached(name, 4)
}

/// Reloads from a path, keeps the running requests, and recomputes their blocks.
pub(super) fn reloading() -> UpdateConfig {
    UpdateConfig {
        method: UpdateMethod::Reload(Reload::default()),
        pause: Some(PauseMode::Keep),
        reset_prefix_cache: true,
        ..UpdateConfig::default()
    }
}

pub(super) fn fixture(servers: usize, config: UpdateConfig) -> Fixture {
    let specs = (0..servers).map(|number| spec(&format!("s{number}"))).collect();
    let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
    let fake = Arc::new(Fake::default());
    with(balancer, fake, config)
}

pub(super) fn with(balancer: LoadBalancer, fake: Arc<Fake>, config: UpdateConfig) -> Fixture {
    let (tracker, end) = (TaskTracker::new(), CancellationToken::new());
    let control = Arc::clone(&fake) as Arc<dyn EngineControl>;
    let updater =
        WeightUpdater::new(balancer.clone(), control, config, tracker.clone(), end.clone()).unwrap();
    Fixture { balancer, fake, updater, tracker, end }
}

/// The announcement of a version; the weights of version 7 are at "/v7".
pub(super) fn announcement(version: u64) -> Announcement {
    Announcement { path: Some(format!("/v{version}")), ..Announcement::new(version) }
}

impl Fixture {
    pub(super) async fn update(&self, version: u64) -> UpdateReport {
        self.updater.update(announcement(version)).await
    }

    pub(super) fn server(&self, name: &str) -> ServerSnapshot {
        self.balancer.snapshot().servers.into_iter().find(|server| &*server.name == name).unwrap()
    }

    pub(super) fn state(&self, name: &str) -> ServerState {
        self.server(name).state
    }

    /// A permit, if one is granted immediately.
    pub(super) fn permit(&self) -> Option<Permit> {
        let asked = self.balancer.acquire(PermitRequest::new(1));
        Box::pin(asked).now_or_never().map(Result::unwrap)
    }

    /// Replaces the engine's process by a new process, which the balancer notices.
    pub(super) fn restart(&self, name: &str) {
        self.balancer.declare_dead(self.server(name).id, "test").unwrap();
        self.fake.set(name, |engine| *engine = FakeEngine::default());
    }

    pub(super) fn revive(&self, name: &str) {
        self.balancer.revive(self.server(name).id).unwrap();
    }

    /// Checks that the servers on which permits are granted have the weights of `version`, and that their
    /// engines run.
    pub(super) fn check(&self, version: Option<u64>) {
        let fleet = self.balancer.snapshot();
        invariants::weights_current(&fleet).unwrap();
        let owed = self.updater.inner.book.lock().servers.owed();
        invariants::owed_are_held(&fleet, &owed).unwrap();
        let Some(version) = version else { return };
        for server in &fleet.servers {
            if matches!(server.state, ServerState::Active | ServerState::Probing) {
                let engine = self.fake.engine(&server.name);
                assert_eq!(engine.weights, Some(format!("/v{version}")), "{server:?}");
                assert!(!engine.is_paused, "{server:?}");
            }
        }
    }
}

/// The servers that failed, each with its phase.
pub(super) fn failures(servers: &[ServerUpdate]) -> Vec<(String, Phase)> {
    let failed = |update: &ServerUpdate| Some((update.server.to_string(), update.failure.as_ref()?.phase));
    servers.iter().filter_map(failed).collect()
}
