use rolldock_loadbalancer::{BalancerConfig, ServerSpec};

use super::*;

fn begun(dispatch: u64) -> Begun {
    begun_on(0, dispatch, Moves::default())
}

fn begun_on(server: u32, dispatch: u64, moves: Moves) -> Begun {
    let key = (DispatchId(dispatch), 0);
    Begun { key, server: ServerId(server), moves, before: 1_000, prompt: 100, progress: None }
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_request_are_estimated_from_the_speed_of_its_server() {
    let movable = Arc::new(Movable::default());
    let clock = Clock { tokens: 100.0, read_at: Instant::now(), speed: 40.0 };
    movable.state.lock().clocks.insert(ServerId(0), clock);
    tokio::time::advance(Duration::from_secs(10)).await;
    let _entered = movable.enter(begun(1));
    tokio::time::advance(Duration::from_secs(5)).await;
    let state = movable.state.lock();
    let began_at = state.running[&(DispatchId(1), 0)].began_at;
    assert_eq!(state.clock(ServerId(0), Instant::now()) - began_at, 200.0);
    assert_eq!(state.clock(ServerId(1), Instant::now()), 0.0, "an unknown speed");
}

#[tokio::test(start_paused = true)]
async fn an_order_reaches_the_request_and_an_ended_request_is_forgotten() {
    let movable = Arc::new(Movable::default());
    let mut first = movable.enter(begun(1));
    let second = movable.enter(begun(2));
    drop(second);
    assert_eq!(movable.state.lock().running.len(), 1);
    let order = Order { reason: Reason::Faster, avoid: vec![ServerId(0)] };
    movable.state.lock().order((DispatchId(1), 0), order);
    assert_eq!(first.ordered().await, Order { reason: Reason::Faster, avoid: vec![ServerId(0)] });
}

/// A fleet of which one reading was taken.
fn fleet(number: usize) -> FleetSnapshot {
    let spec = |index: usize| ServerSpec::unreached(format!("s{index}"), 8);
    let balancer = LoadBalancer::new(BalancerConfig::default(), (0..number).map(spec).collect()).unwrap();
    let mut fleet = balancer.snapshot();
    fleet.servers.iter_mut().for_each(|server| server.load_readings = 1);
    fleet
}

/// The dispatches of the requests that were ordered to leave a full server.
fn ordered(movable: &Movable, entered: &mut [Entered]) -> Vec<u64> {
    let state = movable.state.lock();
    let has_order = |entered: &&mut Entered| state.running[&entered.key].order.is_none();
    let order = |entered: &mut Entered| {
        let order = entered.ordered.try_recv().ok()?;
        let dispatch = entered.key.0.0;
        assert_eq!(order, Order { reason: Reason::Full, avoid: vec![state.running[&entered.key].server] });
        Some(dispatch)
    };
    entered.iter_mut().filter(has_order).filter_map(order).collect()
}

#[tokio::test(start_paused = true)]
async fn as_many_samples_as_wait_leave_a_full_server_the_last_ones_first() {
    let movable = Arc::new(Movable::default());
    let mut fleet = fleet(3);
    for (full, waiting) in [(0, 2), (2, 1)] {
        let server = &mut fleet.servers[full];
        (server.kv_cache_usage, server.overhang, server.engine_waiting) = (0.97, 1, waiting);
    }
    // Dispatches 0, 3 and 6 are on server 0, and so on.
    let enter = |dispatch: u64| movable.enter(begun_on(dispatch as u32 % 3, dispatch, Moves::default()));
    let mut entered: Vec<Entered> = (0..9).map(enter).collect();
    movable.order_leaving(&fleet);
    assert_eq!(ordered(&movable, &mut entered), [3, 6, 8]);
    movable.order_leaving(&fleet);
    assert_eq!(ordered(&movable, &mut entered), [0; 0], "the same readings");
    fleet.servers[2].load_readings += 1;
    movable.order_leaving(&fleet);
    assert_eq!(ordered(&movable, &mut entered), [0; 0], "the sample that waits is already leaving");
    drop(entered.pop());
    fleet.servers[2].load_readings += 1;
    movable.order_leaving(&fleet);
    assert_eq!(ordered(&movable, &mut entered), [5], "only this reading is new");
}

#[test]
fn a_sample_that_full_servers_sent_away_may_still_leave_a_slow_one() {
    let allowed = |to_faster, from_full| {
        let moves = Moves { to_faster, from_full };
        (moves.allow(Reason::Faster), moves.allow(Reason::Full))
    };
    assert_eq!(allowed(1, 0), (true, true));
    assert_eq!(allowed(TO_FASTER_MAX, 0), (false, true));
    assert_eq!(allowed(TO_FASTER_MAX, 1), (true, true));
    assert_eq!(allowed(TO_FASTER_MAX + 1, 1), (false, true));
    // Each sample moves a bounded number of times.
    assert_eq!(allowed(TO_FASTER_MAX + FROM_FULL_MAX, FROM_FULL_MAX), (false, false));
}

#[tokio::test(start_paused = true)]
async fn no_sample_leaves_a_server_without_need() {
    let often = Moves { from_full: FROM_FULL_MAX, ..Moves::default() };
    let fleet = fleet(1);
    let full =
        ServerSnapshot { kv_cache_usage: 0.97, overhang: 1, engine_waiting: 1, ..fleet.servers[0].clone() };
    for (why, server, moves, leave) in [
        ("it waits", full.clone(), Moves::default(), 1),
        ("it was moved to a faster server before", full.clone(), Moves { to_faster: 2, from_full: 0 }, 1),
        ("the server has room", ServerSnapshot { kv_cache_usage: 0.5, ..full.clone() }, Moves::default(), 0),
        ("the server has permits", ServerSnapshot { overhang: 0, ..full.clone() }, Moves::default(), 0),
        ("none waits", ServerSnapshot { engine_waiting: 0, ..full.clone() }, Moves::default(), 0),
        ("another client's waits", ServerSnapshot { foreign: 1, ..full.clone() }, Moves::default(), 0),
        ("it has left servers often", full, often, 0),
    ] {
        let movable = Arc::new(Movable::default());
        let mut entered = [movable.enter(begun_on(0, 1, moves))];
        movable.order_leaving(&FleetSnapshot { servers: vec![server], ..fleet.clone() });
        assert_eq!(ordered(&movable, &mut entered).len(), leave, "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sample_stays_with_a_long_prompt_that_its_group_shares() {
    let mut fleet = fleet(1);
    let server = &mut fleet.servers[0];
    (server.kv_cache_usage, server.overhang, server.engine_waiting) = (0.97, 1, 1);
    // The prompt of the request has 100 tokens.
    for (kept_tokens_min, leave) in [(None, 1), (Some(101.0), 1), (Some(100.0), 0)] {
        let movable = Arc::new(Movable::default());
        let mut entered = [movable.enter(begun(1))];
        movable.order_leaving(&FleetSnapshot { kept_tokens_min, ..fleet.clone() });
        assert_eq!(ordered(&movable, &mut entered).len(), leave, "{kept_tokens_min:?}");
    }
}
