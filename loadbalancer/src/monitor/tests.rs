#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use parking_lot::Mutex;

use super::*;
use crate::control::vllm::VllmControl;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::{BalancerConfig, PermitRequest, ServerSpec};

mod late;

#[derive(Default)]
struct Scripted {
    sick: Mutex<bool>,
    /// Whether this machine lacks the resources to ask the server.
    unasked: Mutex<bool>,
    /// Name of the server that never answers.
    silent: Mutex<Option<&'static str>>,
    load: Mutex<EngineLoad>,
    /// Called while the server is asked for its load.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    probes: Mutex<u32>,
}

impl EngineControl for Scripted {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        let failed = ControlError::Failed {
            server: Arc::clone(&server.name),
            what: "health",
            reason: "scripted".into(),
        };
        let unasked = ControlError::Unasked {
            server: Arc::clone(&server.name),
            what: "health",
            reason: "too many open files".into(),
        };
        let answer = match (*self.unasked.lock(), *self.sick.lock()) {
            (true, _) => Err(unasked),
            (false, true) => Err(failed),
            (false, false) => Ok(()),
        };
        let is_silent = self.silent.lock().is_some_and(|silent| silent == &*server.name);
        async move {
            if is_silent {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            answer
        }
        .boxed()
    }

    fn probe<'a>(&'a self, _: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        *self.probes.lock() += 1;
        async { Ok(()) }.boxed()
    }

    fn load<'a>(&'a self, _server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        let load = self.load.lock().clone();
        if let Some(meanwhile) = self.meanwhile.lock().take() {
            meanwhile();
        }
        async move { Ok(load) }.boxed()
    }

    fn abort<'a>(&'a self, _server: &'a ServerRef, _id: &'a str) -> BoxFuture<'a, Result<(), ControlError>> {
        async { Ok(()) }.boxed()
    }
}

fn watched() -> (LoadBalancer, Arc<Scripted>, Monitor) {
    let config = MonitorConfig { stall: Duration::from_secs(10), ..MonitorConfig::default() };
    watched_as(config, &[("a", 2)])
}

fn watched_as(config: MonitorConfig, servers: &[(&str, u32)]) -> (LoadBalancer, Arc<Scripted>, Monitor) {
    let specs = servers.iter().map(|(name, capacity)| ServerSpec::unreached(*name, *capacity)).collect();
    let config_of_balancer = BalancerConfig { policy: Policy::LeastWork, ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config_of_balancer, specs).unwrap();
    let control = Arc::new(Scripted::default());
    control.load.lock().generation_tokens_total = Some(0);
    let monitor = Monitor::new(balancer.clone(), Arc::clone(&control) as Arc<dyn EngineControl>, config);
    (balancer, control, monitor)
}

async fn permit(balancer: &LoadBalancer) -> crate::Permit {
    balancer.acquire(PermitRequest::new(1)).await.unwrap()
}

async fn look_for(monitor: &mut Monitor, seconds: u64) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        monitor.look().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_server_with_requests_is_dead_and_returns_on_trial() {
    let (balancer, _control, mut monitor) = watched();
    let owed = permit(&balancer).await;
    look_for(&mut monitor, 9).await;
    assert!(owed.revoked().now_or_never().is_none(), "not yet");
    look_for(&mut monitor, 3).await;
    assert!(owed.revoked().now_or_never().is_some());
    look_for(&mut monitor, 1).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Probing);
    permit(&balancer).await.finish(Outcome::Success { tokens: 1 });
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_generates_or_is_paused_or_owes_nothing_stays_alive() {
    let (balancer, control, mut monitor) = watched();
    look_for(&mut monitor, 30).await;
    let owed = permit(&balancer).await;
    for tokens in 1..=30 {
        control.load.lock().generation_tokens_total = Some(tokens);
        look_for(&mut monitor, 1).await;
    }
    control.load.lock().paused = Some(true);
    look_for(&mut monitor, 30).await;
    assert!(owed.revoked().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_may_stall_during_its_update_and_not_while_it_is_outdated() {
    let (balancer, _control, mut monitor) = watched();
    let owed = permit(&balancer).await;
    balancer.begin_update(Some(7), true, |_| true);
    look_for(&mut monitor, 30).await;
    assert!(owed.revoked().now_or_never().is_none());
    balancer.release(owed.server());
    assert_eq!(balancer.snapshot().servers[0].hold, Some(Hold::Outdated));
    look_for(&mut monitor, 13).await;
    assert!(owed.revoked().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_token_counts_is_not_declared_stalled() {
    let (balancer, control, mut monitor) = watched();
    control.load.lock().generation_tokens_total = None;
    let owed = permit(&balancer).await;
    look_for(&mut monitor, 30).await;
    assert!(owed.revoked().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_time_since_the_last_change_of_a_servers_count_is_known() {
    let (balancer, control, mut monitor) = watched();
    let seconds = Duration::from_secs;
    let owed = permit(&balancer).await;
    let began = Instant::now();
    let stood_still = |since: Duration| balancer.stood_still(owed.server(), began + since);
    assert_eq!(stood_still(seconds(0)), seconds(0), "the count was never read");
    look_for(&mut monitor, 3).await;
    assert_eq!(stood_still(seconds(0)), seconds(2), "from the first reading to the third");
    control.load.lock().generation_tokens_total = Some(5);
    look_for(&mut monitor, 1).await;
    assert_eq!(stood_still(seconds(0)), seconds(0), "it generates");
    look_for(&mut monitor, 3).await;
    tokio::time::advance(seconds(1)).await;
    assert_eq!(stood_still(seconds(0)), seconds(3), "nothing is known since the last reading");
    assert_eq!((stood_still(seconds(6)), stood_still(seconds(8))), (seconds(1), seconds(0)));
    // The server does not answer any more.
    *control.sick.lock() = true;
    look_for(&mut monitor, 1).await;
    assert_eq!(stood_still(seconds(0)), seconds(3), "it may generate");
    look_for(&mut monitor, 1).await;
    assert!(owed.revoked().now_or_never().is_some());
    assert_eq!(stood_still(seconds(0)), seconds(6), "a dead server has generated nothing");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_wasted_no_tokens_while_its_server_stood_still() {
    let (balancer, _control, mut monitor) = watched();
    let measured = permit(&balancer).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    measured.finish(Outcome::Success { tokens: 1_000 });
    look_for(&mut monitor, 1).await;
    let lost = permit(&balancer).await;
    look_for(&mut monitor, 3).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    drop(lost);
    // The count stood still until the last reading, and the server may have generated tokens for 2 s after it.
    assert_eq!(balancer.snapshot().servers[0].outcomes.tokens_wasted, 200);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_dead_after_two_lost_probes_and_not_after_one() {
    let (balancer, control, mut monitor) = watched();
    *control.sick.lock() = true;
    look_for(&mut monitor, 1).await;
    *control.sick.lock() = false;
    look_for(&mut monitor, 1).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
    *control.sick.lock() = true;
    look_for(&mut monitor, 2).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Dead);
}

#[tokio::test(start_paused = true)]
async fn exhaustion_of_this_machine_counts_against_no_server() {
    let (balancer, control, mut monitor) = watched();
    let owed = permit(&balancer).await;
    *control.unasked.lock() = true;
    look_for(&mut monitor, 30).await;
    assert!(owed.revoked().now_or_never().is_none());
    balancer.declare_dead(owed.server(), "test").unwrap();
    look_for(&mut monitor, 30).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Dead, "nor does it vouch for one");
    *control.unasked.lock() = false;
    look_for(&mut monitor, 1).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Probing);
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_with_its_scope() {
    let (_balancer, _control, monitor) = watched();
    let end = CancellationToken::new();
    let mut run = Box::pin(monitor.run(end.clone()));
    assert!((&mut run).now_or_never().is_none());
    end.cancel();
    run.await;
}

/// Runs the monitor while time passes.
async fn run_for(monitor: Monitor, time: Duration) {
    let _ = tokio::time::timeout(time, monitor.run(CancellationToken::new())).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_delays_the_verdict_on_no_other() {
    let config = MonitorConfig { stall: Duration::from_secs(3), ..MonitorConfig::default() };
    let (balancer, control, monitor) = watched_as(config, &[("silent", 2), ("stalls", 2)]);
    *control.silent.lock() = Some("silent");
    let first = PermitRequest { exclude: vec![balancer.find("silent").unwrap()], ..PermitRequest::new(1) };
    let owed = balancer.acquire(first).await.unwrap();
    let looking = run_for(monitor, Duration::from_millis(4_500));
    let lost = owed.revoked();
    let ((), is_lost) = tokio::join!(looking, async {
        tokio::time::timeout(Duration::from_millis(4_200), lost).await.is_ok()
    });
    assert!(is_lost, "it was seen standing still for three seconds");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_concurrent_probes_is_bounded() {
    #[derive(Default)]
    struct Slow(Mutex<(usize, usize)>);
    impl EngineControl for Slow {
        fn health<'a>(&'a self, _: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
            async {
                {
                    let mut seen = self.0.lock();
                    seen.0 += 1;
                    seen.1 = seen.1.max(seen.0);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.0.lock().0 -= 1;
                Ok(())
            }
            .boxed()
        }

        fn load<'a>(&'a self, _: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
            async { Ok(EngineLoad::default()) }.boxed()
        }

        fn abort<'a>(&'a self, _: &'a ServerRef, _: &'a str) -> BoxFuture<'a, Result<(), ControlError>> {
            async { Ok(()) }.boxed()
        }
    }
    let specs = (0..500).map(|number| ServerSpec::unreached(format!("s{number}"), 1)).collect();
    let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
    let slow = Arc::new(Slow::default());
    let control = Arc::clone(&slow) as Arc<dyn EngineControl>;
    Monitor::new(balancer, control, MonitorConfig::default()).look().await;
    assert_eq!(*slow.0.lock(), (0, LOOKS_MAX));
}

#[tokio::test(start_paused = true)]
async fn a_long_trial_ends_early_where_tokens_are_counted() {
    let (balancer, control, mut monitor) = watched_as(MonitorConfig::default(), &[("a", 256)]);
    look_for(&mut monitor, 2).await;
    let id = balancer.find("a").unwrap();
    balancer.declare_dead(id, "test").unwrap();
    look_for(&mut monitor, 2).await;
    let _long = permit(&balancer).await;
    for tokens in 1..=2 {
        assert_eq!(balancer.snapshot().servers[0].state, ServerState::Probing);
        control.load.lock().generation_tokens_total = Some(tokens);
        look_for(&mut monitor, 1).await;
    }
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active, "it generates");
}

#[tokio::test(start_paused = true)]
async fn tokens_that_were_counted_before_the_trial_prove_nothing() {
    let (balancer, control, mut monitor) = watched_as(MonitorConfig::default(), &[("a", 256)]);
    look_for(&mut monitor, 2).await;
    balancer.declare_dead(balancer.find("a").unwrap(), "test").unwrap();
    look_for(&mut monitor, 2).await;
    control.load.lock().generation_tokens_total = Some(7);
    let _hangs = permit(&balancer).await;
    look_for(&mut monitor, 5).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Probing);
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_that_generates_a_probe_token_is_active_again() {
    let config = MonitorConfig { probe: Probe::Generate, ..MonitorConfig::default() };
    let (balancer, control, mut monitor) = watched_as(config, &[("a", 256)]);
    balancer.declare_dead(balancer.find("a").unwrap(), "test").unwrap();
    look_for(&mut monitor, 1).await;
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
    assert_eq!((*control.probes.lock(), balancer.probe_tokens()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_paused_engine_is_not_probed_and_gets_no_more_places() {
    let adaptive = AdaptiveConfig { start: 4, min: 1, increase: 8, ..AdaptiveConfig::default() };
    let config =
        MonitorConfig { probe: Probe::Generate, adaptive: Some(adaptive), ..MonitorConfig::default() };
    let (balancer, control, mut monitor) = watched_as(config, &[("a", 4)]);
    control.load.lock().paused = Some(true);
    look_for(&mut monitor, 3).await;
    assert_eq!(*control.probes.lock(), 0, "it would not answer, and be taken for dead");
    let _all = balancer.acquire(PermitRequest::new(4)).await.unwrap();
    look_for(&mut monitor, 3).await;
    assert_eq!(balancer.snapshot().servers[0].capacity, 4);
    control.load.lock().paused = Some(false);
    look_for(&mut monitor, 1).await;
    assert_eq!(balancer.snapshot().servers[0].capacity, 12);
}

#[tokio::test(start_paused = true)]
async fn a_server_with_good_health_that_stalls_has_a_longer_cooldown_each_time() {
    let (balancer, _control, mut monitor) = watched();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let since = Instant::now();
        while balancer.snapshot().servers[0].state == ServerState::Dead {
            look_for(&mut monitor, 1).await;
        }
        waits.push(since.elapsed().as_secs());
        let owed = permit(&balancer).await;
        while owed.revoked().now_or_never().is_none() {
            look_for(&mut monitor, 1).await;
        }
    }
    assert_eq!(waits, [0, 1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn samples_of_other_clients_are_those_at_the_time_of_the_reading() {
    let (balancer, control, mut monitor) = watched_as(MonitorConfig::default(), &[("a", 64)]);
    let held = balancer.acquire(PermitRequest::new(40)).await.unwrap();
    control.load.lock().running = 40;
    // Our samples end while the server answers, so its answer shows the earlier state.
    *control.meanwhile.lock() = Some(Box::new(move || drop(held)));
    monitor.look().await;
    assert_eq!(balancer.snapshot().servers[0].foreign, 0);
    control.load.lock().running = u64::MAX;
    control.load.lock().waiting = u64::MAX;
    monitor.look().await;
    assert_eq!(balancer.snapshot().servers[0].foreign, 64, "no more than it has places");
}

/// If a server does not offer its load, this balancer routes by its own permits. Other routers have been
/// observed to route at random in this case.
#[tokio::test]
async fn a_server_without_metrics_is_chosen_by_its_permits() {
    let serve = async |router: axum::Router| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (url, async move { axum::serve(listener, router).await.unwrap() })
    };
    let health = || axum::Router::new().route("/health", axum::routing::get(|| async { "" }));
    let (first, serving_first) = serve(health()).await;
    let (second, serving_second) = serve(health()).await;
    let config = BalancerConfig { policy: Policy::LeastWork, ..BalancerConfig::default() };
    let specs = vec![ServerSpec::new("a", first, 100), ServerSpec::new("b", second, 100)];
    let balancer = LoadBalancer::new(config, specs).unwrap();
    let control = Arc::new(VllmControl::new(Duration::from_secs(5), None).unwrap());
    let adaptive = Some(AdaptiveConfig::default());
    let config = MonitorConfig { adaptive, stall: Duration::from_secs(1), ..MonitorConfig::default() };
    let mut monitor = Monitor::new(balancer.clone(), control, config);
    let testing = async {
        let mut held = Vec::new();
        for number in 0..60 {
            if number % 20 == 0 {
                monitor.look().await;
            }
            held.push(permit(&balancer).await);
        }
        let seen: Vec<_> = balancer
            .snapshot()
            .servers
            .iter()
            .map(|server| (server.state, server.in_use, server.capacity, server.foreign))
            .collect();
        assert_eq!(seen, [(ServerState::Active, 30, 256, 0); 2], "their capacity is `unreported`");
        drop(held);
    };
    tokio::select! {
        () = testing => {}
        () = serving_first => {}
        () = serving_second => {}
    }
}
