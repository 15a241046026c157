#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::future;
use rolldock_loadbalancer::update::Deadlines;
use rolldock_loadbalancer::{BalancerConfig, ServerSpec};
use rolldock_simengine::{NoAnswers, ServerConfig, SimServer, Workload, WorkloadConfig};

use super::*;
use crate::{FollowVersion, PolicyMode, PolicyState, PolicyTerms, UpdateState, Updates};
use rolldock_engine::simulated::SimulatedEngine;

const NAMES: [&str; 3] = ["a", "b", "c"];

struct Run;

impl FollowVersion for Run {
    fn publish<'a>(&'a self, _announcement: &'a Announcement) -> BoxFuture<'a, ()> {
        future::ready(()).boxed()
    }
}

struct Rig {
    scope: Scope,
    engine: SimulatedEngine,
    balancer: LoadBalancer,
    updates: Updates,
}

/// Servers in this process. The first one was left paused by an earlier process.
async fn rig(mode: PolicyMode, update: &PolicyUpdate) -> Rig {
    rig_of(PolicyState::new(PolicyTerms { mode, max_staleness: 1 }, 0), update).await
}

async fn rig_of(state: PolicyState, update: &PolicyUpdate) -> Rig {
    let scope = Scope::new();
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let engine = SimulatedEngine::new(NAMES.map(|name| {
        let config = ServerConfig { name: name.to_owned(), ..ServerConfig::default() };
        let (tracker, end) = (scope.tracker(), scope.token().clone());
        SimServer::start(config, Arc::clone(&workload), Arc::new(NoAnswers), tracker, end).unwrap()
    }));
    engine.server("a").unwrap().pause(rolldock_simengine::PauseMode::Keep).await;
    let specs = NAMES.map(|name| ServerSpec::unreached(name, 4)).to_vec();
    let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
    let updater = FleetUpdater::new(balancer.clone(), Arc::new(engine.clone()), update, &scope).unwrap();
    let updates = Updates::start(state, Arc::new(updater), Arc::new(Run), &scope).await;
    Rig { scope, engine, balancer, updates }
}

impl Rig {
    fn paused(&self) -> Vec<&str> {
        self.engine
            .servers()
            .filter(|server| server.is_paused())
            .map(|server| &*server.config().name)
            .collect()
    }

    fn labels(&self) -> Vec<String> {
        self.engine.servers().map(|server| server.weight_version().to_string()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn servers_in_this_process_get_the_version_and_continue() {
    let rig = rig(PolicyMode::FullyAsync, &PolicyUpdate::default()).await;
    assert_eq!(rig.paused(), [""; 0], "a server that was left paused is resumed at the start");
    let label = Announcement { label: "step-7".into(), ..Announcement::new(7) };
    rig.updates.state().announce(label).unwrap();
    let served = tokio::time::timeout(Duration::from_secs(60), rig.updates.state().until_served(7)).await;
    assert!(served.is_ok(), "{:?}", rig.updates.status());
    assert_eq!(rig.labels(), ["step-7"; 3]);
    assert_eq!(rig.paused(), [""; 0]);
    let status = rig.updates.status();
    assert_eq!((status.state, status.phase, status.behind), (UpdateState::Idle, None, vec![]));
    assert!(rig.scope.close(Duration::from_secs(60)).await);
}

#[tokio::test(start_paused = true)]
async fn a_method_that_no_server_offers_fails_with_a_reason_and_leaves_no_server_paused() {
    let update = PolicyUpdate { method: UpdateMethod::Reload, ..PolicyUpdate::default() };
    let rig = rig(PolicyMode::Sync, &update).await;
    let announcement = Announcement { path: Some("/c/step-1".to_owned()), ..Announcement::new(1) };
    rig.updates.state().announce(announcement).unwrap();
    assert_eq!(rig.updates.at_boundary().await.unwrap(), 0);
    let status = rig.updates.status();
    assert_eq!((status.state, status.behind), (UpdateState::Failed, NAMES.map(str::to_owned).to_vec()));
    let failure = status.failure.unwrap();
    assert!(failure.starts_with("server=a: update: ") && failure.contains("does not offer"), "{failure}");
    assert_eq!(rig.paused(), [""; 0]);
    assert!(
        rig.balancer.snapshot().servers.iter().all(|server| server.hold.is_some()),
        "no server is open for permits"
    );
}

#[tokio::test(start_paused = true)]
async fn a_transfer_without_its_payload_is_refused_before_anything_is_paused() {
    let update = PolicyUpdate { method: UpdateMethod::Transfer, ..PolicyUpdate::default() };
    let rig = rig(PolicyMode::OneStepOff, &update).await;
    rig.updates.state().announce(Announcement::new(1)).unwrap();
    assert_eq!(rig.updates.at_boundary().await.unwrap(), 0);
    let status = rig.updates.status();
    assert_eq!((status.state, status.behind), (UpdateState::Failed, vec![]));
    assert!(status.failure.unwrap().contains("payload"));
}

/// The number of servers on which no permit is granted at the start of a run that continues with version 3.
async fn held_on_resume(method: UpdateMethod, path: Option<&str>) -> usize {
    let update = PolicyUpdate { method, ..PolicyUpdate::default() };
    let last = Announcement { path: path.map(str::to_owned), ..Announcement::new(3) };
    let terms = PolicyTerms { mode: PolicyMode::FullyAsync, max_staleness: 1 };
    let rig = rig_of(PolicyState::resumed(terms, last), &update).await;
    assert_eq!(rig.updates.state().served(), 3);
    rig.balancer.snapshot().servers.iter().filter(|server| server.hold.is_some()).count()
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_requires_its_weights_again_if_they_can_be_passed_again() {
    assert_eq!(held_on_resume(UpdateMethod::Reload, Some("/c/step-3")).await, 3);
    assert_eq!(held_on_resume(UpdateMethod::Transfer, Some("/c/step-3")).await, 3);
    assert_eq!(
        held_on_resume(UpdateMethod::Transfer, None).await,
        0,
        "without a path the weights cannot be passed again"
    );
    assert_eq!(held_on_resume(UpdateMethod::None, None).await, 0, "the trainer passes the weights itself");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_does_not_pause_engines_resumes_none() {
    let update = PolicyUpdate { pause: UpdatePause::None, ..PolicyUpdate::default() };
    let rig = rig(PolicyMode::FullyAsync, &update).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.paused(), ["a"], "the trainer may have paused it");
}

#[test]
fn every_setting_of_the_recipe_reaches_the_load_balancer() {
    let written = |method, pause, cache_salt| PolicyUpdate {
        method,
        rpc: "load".to_owned(),
        command: vec!["push".to_owned()],
        url: Some("http://h/p".to_owned()),
        pause,
        reset_prefix_cache: true,
        check_generation: false,
        cache_salt,
        timeouts: Deadlines { pause: 1.0, update: 2.0, reset: 3.0, label: 4.0, resume: 5.0, check: 6.0 },
    };
    let reload = Reload { rpc: "load".to_owned(), ..Reload::default() };
    for (method, pause, cache_salt, expected, expected_pause) in [
        (UpdateMethod::None, UpdatePause::None, false, update::UpdateMethod::None, None),
        (
            UpdateMethod::Reload,
            UpdatePause::Keep,
            false,
            update::UpdateMethod::Reload(reload),
            Some(PauseMode::Keep),
        ),
        (
            UpdateMethod::Transfer,
            UpdatePause::Wait,
            true,
            update::UpdateMethod::Transfer,
            Some(PauseMode::Wait),
        ),
        (
            UpdateMethod::Command,
            UpdatePause::Abort,
            true,
            update::UpdateMethod::Command(vec!["push".to_owned()]),
            Some(PauseMode::Abort),
        ),
        (
            UpdateMethod::Http,
            UpdatePause::Keep,
            true,
            update::UpdateMethod::Http("http://h/p".to_owned()),
            Some(PauseMode::Keep),
        ),
    ] {
        let config = update_config(&written(method, pause, cache_salt));
        assert_eq!((config.method, config.pause), (expected, expected_pause));
        assert_eq!(config.reset_prefix_cache, !cache_salt, "no cache is reset if each version has its own");
        let deadlines =
            Deadlines { pause: 1.0, update: 2.0, reset: 3.0, label: 4.0, resume: 5.0, check: 6.0 };
        assert_eq!(config.deadlines, deadlines);
        assert!(!config.check_generation);
    }
}

#[test]
fn defaults_of_the_recipe_are_those_of_the_load_balancer() {
    let config = update_config(&PolicyUpdate::default());
    assert_eq!(config.deadlines, Deadlines::default());
    let reload = PolicyUpdate { method: UpdateMethod::Reload, ..PolicyUpdate::default() };
    assert_eq!(update_config(&reload).method, update::UpdateMethod::Reload(Reload::default()));
}
