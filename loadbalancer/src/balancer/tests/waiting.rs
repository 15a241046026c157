//! Requests that wait: their order, what they reserve, and when they fail.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::policy::Candidates;

#[tokio::test]
async fn a_heavy_request_is_granted_whole_and_not_overtaken() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let mut light: Vec<Permit> = Vec::new();
    for _ in 0..8 {
        light.push(balancer.acquire(request(1)).await.unwrap());
    }
    let mut heavy = Box::pin(balancer.acquire(request(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let mut behind = Box::pin(balancer.acquire(request(1)));
    assert!((&mut behind).now_or_never().is_none());
    for _ in 0..7 {
        drop(light.pop());
        assert!((&mut behind).now_or_never().is_none(), "there is room, but it is kept for the heavy one");
    }
    drop(light.pop());
    let whole = heavy.await.unwrap();
    assert_eq!(whole.weight(), 8);
    drop(whole);
    behind.await.unwrap();
}

#[tokio::test]
async fn dropping_a_heavy_waiter_frees_the_requests_behind_it() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let _held = balancer.acquire(request(4)).await.unwrap();
    let mut heavy = Box::pin(balancer.acquire(request(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let mut behind = Box::pin(balancer.acquire(request(1)));
    assert!((&mut behind).now_or_never().is_none());
    drop(heavy);
    assert!(behind.now_or_never().is_some());
}

#[tokio::test]
async fn started_groups_go_first() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    let held = balancer.acquire(request(1)).await.unwrap();
    let mut new = Box::pin(balancer.acquire(request(1)));
    let mut started = Box::pin(balancer.acquire(PermitRequest { priority: Priority::Started, ..request(1) }));
    assert!((&mut new).now_or_never().is_none() && (&mut started).now_or_never().is_none());
    drop(held);
    assert!((&mut new).now_or_never().is_none());
    assert!(started.now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn exclusion_holds_while_another_server_is_alive() {
    let balancer = fleet(&[1, 1], Policy::LeastLoad);
    let exclude = vec![ServerId(0)];
    let first = balancer.acquire(PermitRequest { exclude: exclude.clone(), ..request(1) }).await.unwrap();
    assert_eq!(first.server(), ServerId(1));
    let mut second = Box::pin(balancer.acquire(PermitRequest { exclude: exclude.clone(), ..request(1) }));
    assert!((&mut second).now_or_never().is_none(), "it waits for the other server");
    let other = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(other.server(), ServerId(0), "a request that excludes no server does not wait");
    drop(other);
    balancer.declare_dead(ServerId(1), "test").unwrap();
    assert_eq!(second.await.unwrap().server(), ServerId(0), "no other server is left");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_and_says_why() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    balancer.declare_dead(ServerId(0), "test").unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(3));
    let error = balancer.acquire(PermitRequest { deadline, ..request(1) }).await.unwrap_err();
    assert!(error.to_string().contains("1 dead"), "{error}");
    assert_eq!(balancer.snapshot().waiting, 0);
}

#[tokio::test]
async fn impossible_requests_are_refused_at_once() {
    let balancer = fleet(&[4, 8], Policy::LeastLoad);
    let error = balancer.acquire(request(9)).await.unwrap_err();
    assert_eq!(error, BalancerError::TooHeavy { weight: 9, largest: 8 });
    assert_eq!(balancer.acquire(request(0)).await.unwrap_err(), BalancerError::Weightless);
    let config = BalancerConfig { waiting_max: 1, ..BalancerConfig::default() };
    let small = LoadBalancer::new(config, vec![spec("a", 1)]).unwrap();
    let _held = small.acquire(request(1)).await.unwrap();
    let mut waiting = Box::pin(small.acquire(request(1)));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(small.acquire(request(1)).await.unwrap_err(), BalancerError::QueueFull { waiting_max: 1 });
    small.close();
    assert_eq!(waiting.await.unwrap_err(), BalancerError::Closed);
}

#[tokio::test]
async fn a_fleet_without_servers_is_waited_for() {
    let balancer = fleet(&[], Policy::LeastLoad);
    let mut waiting = Box::pin(balancer.acquire(request(1)));
    assert!((&mut waiting).now_or_never().is_none());
    balancer.add(spec("late", 1)).unwrap();
    assert!(waiting.now_or_never().is_some());
}

#[tokio::test]
async fn the_fleet_as_a_whole_has_a_bound_too() {
    let servers = vec![spec("a", 8), spec("b", 8)];
    let config = BalancerConfig { capacity_total: Some(10), ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config, servers).unwrap();
    let first = balancer.acquire(request(7)).await.unwrap();
    let mut second = Box::pin(balancer.acquire(request(4)));
    assert!((&mut second).now_or_never().is_none());
    let error = balancer.acquire(request(11)).await.unwrap_err();
    assert_eq!(error, BalancerError::TooHeavy { weight: 11, largest: 8 });
    drop(first);
    assert!(second.now_or_never().is_some());
}

#[tokio::test]
async fn a_heavy_request_empties_one_server_and_not_the_fleet() {
    let balancer = fleet(&[8, 8, 8], Policy::LeastLoad);
    let mut held: Vec<Permit> = Vec::new();
    for _ in 0..24 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let mut heavy = Box::pin(balancer.acquire(request(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let kept = held[0].server();
    let at = held.iter().position(|permit| permit.server() == kept).unwrap();
    drop(held.swap_remove(at));
    // The heavy request reserves the server `kept`, which is nearest to having room. Any request may use the
    // other servers.
    for _ in 0..50 {
        let at = held.iter().position(|permit| permit.server() != kept).unwrap();
        drop(held.swap_remove(at));
        let light = balancer.acquire(request(1)).now_or_never().unwrap().unwrap();
        assert_ne!(light.server(), kept);
        held.push(light);
    }
    held.retain(|permit| permit.server() != kept);
    assert_eq!(heavy.await.unwrap().server(), kept);
}

#[tokio::test]
async fn a_heavy_request_keeps_no_server_that_could_never_have_it() {
    let balancer = fleet(&[2, 8, 16, 16], Policy::LeastLoad);
    balancer.declare_dead(ServerId(2), "test").unwrap();
    balancer.set_draining(ServerId(3)).unwrap();
    let mut heavy = Box::pin(balancer.acquire(request(12)));
    assert!((&mut heavy).now_or_never().is_none(), "it waits for those that may come back");
    for _ in 0..10 {
        let light = balancer.acquire(request(1)).now_or_never();
        assert!(light.is_some(), "no other request waits for it");
    }
    balancer.set_paused(ServerId(3), false).unwrap();
    assert_eq!(heavy.await.unwrap().server(), ServerId(3));
}

#[tokio::test]
async fn a_capacity_that_falls_blocks_no_request() {
    let balancer = fleet(&[64], Policy::LeastLoad);
    balancer.set_capacity_ceiling(1024);
    let held = balancer.acquire(request(10)).await.unwrap();
    let mut heavy = Box::pin(balancer.acquire(request(64)));
    assert!((&mut heavy).now_or_never().is_none());
    balancer.set_capacity(ServerId(0), 48).unwrap();
    assert_eq!(balancer.snapshot().servers[0].capacity, 64, "as many as the request needs");
    drop(held);
    let whole = heavy.await.unwrap();
    assert_eq!(whole.weight(), 64);
    let mut behind = Box::pin(balancer.acquire(request(1)));
    assert!((&mut behind).now_or_never().is_none());
    drop(whole);
    assert!(behind.now_or_never().is_some());
}

#[tokio::test]
async fn a_request_for_more_than_any_server_has_fails() {
    let balancer = fleet(&[8, 64], Policy::LeastLoad);
    let _held = balancer.acquire(request(60)).await.unwrap();
    let mut heavy = Box::pin(balancer.acquire(request(48)));
    assert!((&mut heavy).now_or_never().is_none());
    balancer.declare_dead(ServerId(1), "test").unwrap();
    assert!((&mut heavy).now_or_never().is_none(), "it may come back");
    assert_eq!(balancer.largest_capacity(), 8, "of those that live");
    balancer.set_capacity(ServerId(1), 48).unwrap();
    assert!((&mut heavy).now_or_never().is_none());
    balancer.set_capacity(ServerId(1), 32).unwrap();
    assert_eq!(heavy.await.unwrap_err(), BalancerError::TooHeavy { weight: 48, largest: 32 });
    let mut other = Box::pin(balancer.acquire(request(20)));
    assert!((&mut other).now_or_never().is_none());
    balancer.remove(ServerId(1)).unwrap();
    assert_eq!(other.await.unwrap_err(), BalancerError::TooHeavy { weight: 20, largest: 8 });
    balancer.declare_dead(ServerId(0), "test").unwrap();
    assert_eq!(balancer.largest_capacity(), 8, "a fleet that is dead for a moment refuses nothing");
}

#[tokio::test]
async fn a_request_for_more_tokens_than_any_server_has_gets_the_largest_to_itself() {
    let spec = |name, tokens| ServerSpec { capacity_tokens: Some(tokens), ..spec(name, 8) };
    let servers = vec![spec("small", 100), spec("large", 1000)];
    let balancer = LoadBalancer::new(BalancerConfig::default(), servers).unwrap();
    let held = balancer.acquire(PermitRequest { expected_tokens: 1000, ..request(1) }).await.unwrap();
    let small = balancer.acquire(PermitRequest { expected_tokens: 100, ..request(1) }).await.unwrap();
    let mut waits = Box::pin(balancer.acquire(PermitRequest { expected_tokens: 800, ..request(1) }));
    assert!((&mut waits).now_or_never().is_none());
    balancer.remove(held.server()).unwrap();
    assert!((&mut waits).now_or_never().is_none());
    drop(small);
    assert_eq!(&*waits.await.unwrap().server_name(), "small");
}

#[derive(Debug)]
struct Counting {
    inner: Box<dyn RoutingPolicy>,
    picks: Arc<AtomicU64>,
}

impl RoutingPolicy for Counting {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        self.picks.fetch_add(1, Ordering::Relaxed);
        self.inner.pick(ask, servers, rng)
    }
}

/// A large fleet that is full, and the number of searches through it.
async fn full_fleet() -> (LoadBalancer, Vec<Permit>, Arc<AtomicU64>) {
    const SERVERS: u32 = 1024;
    let picks = Arc::new(AtomicU64::new(0));
    let config = BalancerConfig::default();
    let counting = Counting { inner: policy::of(config.policy, config.affinity), picks: Arc::clone(&picks) };
    let servers = (0..SERVERS).map(|number| spec(&format!("s{number}"), 4)).collect();
    let balancer = LoadBalancer::with_policy(config, Box::new(counting), servers).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 * SERVERS {
        held.push(balancer.acquire(request(2)).await.unwrap());
    }
    (balancer, held, picks)
}

#[tokio::test]
async fn a_return_to_a_full_fleet_costs_the_same_however_many_wait() {
    // Equal requests; heavier and lighter ones; requests that exclude a server, which is dead now.
    for (name, weights, excludes) in
        [("alike", [2, 2], false), ("mixed", [1, 2], false), ("failed", [1, 2], true)]
    {
        let (balancer, mut held, picks) = full_fleet().await;
        let exclude = if excludes { vec![ServerId(0), ServerId(1)] } else { Vec::new() };
        let mut waiting: Vec<_> = (0..1000)
            .map(|number| {
                let exclude = if number % 3 == 0 { Vec::new() } else { exclude.clone() };
                let request = PermitRequest { exclude, ..request(weights[number % 2]) };
                Box::pin(balancer.acquire(request))
            })
            .collect();
        waiting.iter_mut().for_each(|waits| assert!(waits.now_or_never().is_none()));
        picks.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            drop(held.pop());
        }
        let each = picks.load(Ordering::Relaxed) as f64 / 100.0;
        assert!(each <= 6.0, "{name}: the fleet was looked through {each} times at each return");
    }
}

#[tokio::test(start_paused = true)]
async fn one_waiting_request_watches_for_all_when_a_server_opens() {
    let (balancer, mut held, picks) = full_fleet().await;
    let mut waiting: Vec<_> = (0..500).map(|_| Box::pin(balancer.acquire(request(2)))).collect();
    let mut all = futures::future::join_all(waiting.iter_mut());
    assert!((&mut all).now_or_never().is_none());
    let wait = Duration::from_secs(5);
    held.remove(0).finish(Outcome::Backpressure { retry_after: Some(wait) });
    picks.store(0, Ordering::Relaxed);
    assert!(tokio::time::timeout(2 * wait, &mut all).await.is_err());
    assert!(picks.load(Ordering::Relaxed) <= 4, "{picks:?} looks through the fleet");
}

#[tokio::test(start_paused = true)]
async fn penalties_are_not_looked_at_for_every_permit() {
    let balancer = fleet(&[8; 16], Policy::LeastLoad);
    for _ in 0..16 {
        balancer.acquire(request(1)).await.unwrap().finish(Outcome::Backpressure { retry_after: None });
    }
    let loads = || balancer.shared.state.lock().candidates.iter().map(|seen| seen.load).sum::<f32>();
    let before = loads();
    tokio::time::advance(Duration::from_millis(5)).await;
    drop(balancer.acquire(request(1)).await.unwrap());
    let within_the_grain = loads();
    tokio::time::advance(Duration::from_secs(60)).await;
    drop(balancer.acquire(request(1)).await.unwrap());
    assert!((before - within_the_grain).abs() < before / 10.0, "{before} {within_the_grain}");
    assert_eq!(loads(), 0.0);
}

#[tokio::test]
async fn only_changes_of_the_fleet_are_notified() {
    let balancer = fleet(&[4, 4], Policy::LeastLoad);
    let mut news = Box::pin(balancer.changed(Duration::from_secs(3600)));
    assert!((&mut news).now_or_never().is_none());
    for _ in 0..4 {
        balancer.acquire(request(1)).await.unwrap().finish(Outcome::Success { tokens: 1 });
    }
    assert!((&mut news).now_or_never().is_none(), "permits come and go");
    balancer.set_capacity(ServerId(0), 5).unwrap();
    assert!(news.now_or_never().is_some());
    let changes: [fn(&LoadBalancer); 4] = [
        |balancer| balancer.set_paused(ServerId(0), true).unwrap(),
        |balancer| balancer.declare_dead(ServerId(0), "test").unwrap(),
        |balancer| assert!(balancer.add(spec("new", 1)).is_ok()),
        |balancer| balancer.remove(ServerId(1)).unwrap(),
    ];
    for change in changes {
        let mut news = Box::pin(balancer.changed(Duration::from_secs(3600)));
        assert!((&mut news).now_or_never().is_none());
        change(&balancer);
        assert!(news.now_or_never().is_some());
    }
}

#[tokio::test]
async fn draining_ends_when_the_server_is_resumed() {
    let balancer = fleet(&[2], Policy::LeastLoad);
    let _held = balancer.acquire(request(1)).await.unwrap();
    let mut drained = Box::pin(balancer.drain(ServerId(0)));
    assert!((&mut drained).now_or_never().is_none());
    balancer.set_paused(ServerId(0), false).unwrap();
    let error = drained.now_or_never().unwrap().unwrap_err();
    assert_eq!(error, BalancerError::Resumed { server: "s0".to_owned() });
}

/// A recorder of one gauge.
struct Recorded(Arc<AtomicU64>);

impl metrics::Recorder for Recorded {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::noop()
    }

    fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        match key.name() {
            "rolldock_permits_waiting" => metrics::Gauge::from_arc(Arc::clone(&self.0)),
            _ => metrics::Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

#[tokio::test]
async fn the_gauge_of_waiting_requests_follows_the_list() {
    let gauge = Arc::new(AtomicU64::new(0));
    let recorder = Recorded(Arc::clone(&gauge));
    let balancer = metrics::with_local_recorder(&recorder, || fleet(&[1], Policy::LeastLoad));
    let shown = || f64::from_bits(gauge.load(Ordering::Relaxed));
    let _held = balancer.acquire(request(1)).await.unwrap();
    let wait = || {
        let mut waits = Box::pin(balancer.acquire(request(1)));
        assert!((&mut waits).now_or_never().is_none());
        waits
    };
    let waiting = [wait(), wait()];
    assert_eq!(shown(), 2.0);
    drop(waiting);
    assert_eq!(shown(), 0.0, "the last one went away");
    let _waiting = wait();
    balancer.close();
    assert_eq!(shown(), 0.0);
}

#[tokio::test]
async fn series_of_servers_that_have_left_are_left_out() {
    let balancer = fleet(&[1, 1], Policy::LeastLoad);
    let text = "# TYPE up gauge\nup{server=\"s0\"} 0\nup{server=\"s1\",a=\"b\"} 1\nwaiting 3\n";
    assert_eq!(balancer.series_of_members(text), text);
    balancer.remove(ServerId(0)).unwrap();
    assert_eq!(balancer.series_of_members(text), text.replace("up{server=\"s0\"} 0\n", ""));
    balancer.add(spec("s0", 1)).unwrap();
    assert_eq!(balancer.series_of_members(text), text);
}

#[tokio::test]
async fn a_fleet_is_full_when_a_further_request_would_wait() {
    let balancer = fleet(&[2, 2], Policy::LeastLoad);
    assert!(!balancer.is_full(Priority::New));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let mut waits = Box::pin(balancer.acquire(request(1)));
    assert!((&mut waits).now_or_never().is_none());
    assert!(balancer.is_full(Priority::New), "a request waits for a permit");
    drop(waits);
    assert!(!balancer.is_full(Priority::New));
    let validation = PermitRequest { priority: Priority::Validation, ..request(1) };
    let mut waits = Box::pin(balancer.acquire(validation));
    assert!((&mut waits).now_or_never().is_none());
    assert!(!balancer.is_full(Priority::New), "a new group would go first");
    assert!(balancer.is_full(Priority::Validation));
    drop(waits);

    let servers: Vec<ServerId> = balancer.snapshot().servers.iter().map(|server| server.id).collect();
    let generation_tokens_total = Some(0);
    let waiting = EngineLoad { running: 2, waiting: 1, generation_tokens_total, ..EngineLoad::default() };
    balancer.observe(servers[0], &waiting, 2).unwrap();
    assert!(!balancer.is_full(Priority::New), "the other server has room");
    balancer.observe(servers[1], &waiting, 2).unwrap();
    assert!(balancer.is_full(Priority::New), "requests wait on both servers");
    balancer.set_draining(servers[1]).unwrap();
    balancer.observe(servers[0], &EngineLoad { waiting: 0, ..waiting.clone() }, 2).unwrap();
    assert!(!balancer.is_full(Priority::New), "a server that is closed takes no request");
    let cached = EngineLoad { waiting: 0, kv_cache_usage: 0.95, ..waiting };
    balancer.observe(servers[0], &cached, 2).unwrap();
    assert!(balancer.is_full(Priority::New), "its cache has no room");
}
