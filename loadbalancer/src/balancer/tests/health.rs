//! Servers that fail, are busy, die and return.

use super::*;

fn state(balancer: &LoadBalancer) -> ServerState {
    balancer.snapshot().servers[0].state
}

/// Reports enough faults to make a server suspect.
async fn make_suspect(balancer: &LoadBalancer) {
    for _ in 0..BalancerConfig::default().faults_max {
        balancer.acquire(request(1)).await.unwrap().finish(Outcome::Fault);
    }
    assert_eq!(state(balancer), ServerState::Probing);
}

/// Waits for a permit. Returns the permit and the time of the wait.
async fn wait_for_permit(balancer: &LoadBalancer) -> (Permit, Duration) {
    let started = Instant::now();
    let acquiring = tokio::time::timeout(seconds(3600), balancer.acquire(request(1)));
    let permit = acquiring.await.expect("nothing opens any more").unwrap();
    (permit, started.elapsed())
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_dead_server_attracts_no_traffic() {
    let balancer = fleet(&[100, 100], Policy::LeastLoad);
    let mut on_bad = 0;
    let mut held = Vec::new();
    for _ in 0..100 {
        let permit = balancer.acquire(request(1)).await.unwrap();
        if &*permit.server_name() == "s0" {
            on_bad += 1;
            permit.finish(Outcome::Fault);
        } else {
            held.push(permit);
        }
    }
    assert_eq!(on_bad, 3, "faults_max of them, though it always looks idle");
}

#[tokio::test]
async fn client_errors_never_eject_a_server() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    for _ in 0..50 {
        let permit =
            balancer.acquire(request(1)).now_or_never().expect("no permit is granted on the server").unwrap();
        permit.finish(Outcome::ClientError);
    }
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
}

#[tokio::test(start_paused = true)]
async fn busy_servers_are_penalised_for_a_while_and_never_ejected() {
    let balancer = fleet(&[10, 10], Policy::LeastLoad);
    for _ in 0..20 {
        let permit = balancer.acquire(request(1)).await.unwrap();
        if permit.server() == ServerId(0) {
            permit.finish(Outcome::Backpressure { retry_after: None });
        }
    }
    let states: Vec<_> = balancer.snapshot().servers.iter().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Active, ServerState::Active]);
    let first = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(first.server(), ServerId(1), "the other one is preferred");
    tokio::time::advance(Duration::from_secs(30)).await;
    let second = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(second.server(), ServerId(0), "forgotten, and now the less loaded");
}

#[tokio::test]
async fn a_trial_cannot_stick() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let id = ServerId(0);
    balancer.declare_dead(id, "test").unwrap();
    balancer.revive(id).unwrap();
    let trial = balancer.acquire(request(1)).await.unwrap();
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "one at a time");
    drop(trial);
    let again = balancer.acquire(request(1)).now_or_never().expect("what went away is on trial").unwrap();
    again.finish(Outcome::Success { tokens: 1 });
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
    balancer.declare_dead(id, "test").unwrap();
    balancer.revive(id).unwrap();
    balancer.acquire(request(1)).await.unwrap().finish(Outcome::Fault);
    assert_eq!(state(&balancer), ServerState::Probing);
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "one fault on trial is enough");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_honoured_up_to_its_maximum() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let busy = balancer.acquire(request(1)).await.unwrap();
    let mut early = Box::pin(balancer.acquire(request(4)));
    assert!((&mut early).now_or_never().is_none());
    busy.finish(Outcome::Backpressure { retry_after: Some(Duration::from_secs(5)) });
    assert!((&mut early).now_or_never().is_none(), "there is room, but it asked to be left alone");
    let started = Instant::now();
    early.await.unwrap().finish(Outcome::Backpressure { retry_after: Some(Duration::from_secs(3600)) });
    assert_eq!(started.elapsed().as_secs(), 5);
    let started = Instant::now();
    balancer.acquire(request(1)).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 30, "no longer than retry_after_ms_max");
}

#[tokio::test]
async fn occasional_faults_add_up_until_the_server_is_suspect() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    for answer in 0..40 {
        if state(&balancer) == ServerState::Probing {
            assert_eq!(answer, 21, "ten of the last twenty");
            return;
        }
        let permit = balancer.acquire(request(1)).await.unwrap();
        permit.finish(if answer % 2 == 0 { Outcome::Fault } else { Outcome::Success { tokens: 1 } });
    }
    panic!("half of its answers are faults");
}

#[tokio::test(start_paused = true)]
async fn failed_requests_do_not_end_running_ones() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let running = balancer.acquire(request(4)).await.unwrap();
    make_suspect(&balancer).await;
    assert!(running.revoked().now_or_never().is_none(), "what runs there runs on");
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "it gets nothing new");
    let (trial, waited) = wait_for_permit(&balancer).await;
    assert_eq!((waited, trial.epoch()), (seconds(1), running.epoch()));
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "one on trial");
    running.finish(Outcome::Success { tokens: 1 });
    assert_eq!(state(&balancer), ServerState::Probing, "it was sent before");
    trial.finish(Outcome::Success { tokens: 1 });
    assert_eq!(state(&balancer), ServerState::Active);
    assert_eq!(in_use(&balancer), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_failing_has_a_longer_cooldown_each_time() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    make_suspect(&balancer).await;
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (trial, waited) = wait_for_permit(&balancer).await;
        waits.push(waited.as_secs());
        trial.finish(Outcome::Fault);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    // The server passes its trial and answers further requests, so its relapses are forgotten.
    for _ in 0..2 {
        balancer.acquire(request(1)).await.unwrap().finish(Outcome::Success { tokens: 1 });
    }
    make_suspect(&balancer).await;
    assert_eq!(wait_for_permit(&balancer).await.1, seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_passes_only_its_trials_has_a_longer_cooldown_each_time_too() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    make_suspect(&balancer).await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        let (trial, waited) = wait_for_permit(&balancer).await;
        waits.push(waited.as_secs());
        trial.finish(Outcome::Success { tokens: 1 });
        make_suspect(&balancer).await;
    }
    assert_eq!(waits, [1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_trial_does_not_stick() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    balancer.declare_dead(ServerId(0), "test").unwrap();
    balancer.revive(ServerId(0)).unwrap();
    let hangs = balancer.acquire(request(1)).await.unwrap();
    let (second, waited) = wait_for_permit(&balancer).await;
    assert_eq!(waited, seconds(10), "the next trial begins when the time of the first is over");
    drop(hangs);
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "the second is on trial now");
    second.finish(Outcome::Success { tokens: 1 });
    assert_eq!(state(&balancer), ServerState::Active);
}

#[tokio::test(start_paused = true)]
async fn an_operators_setting_outlives_a_death_and_a_resume_is_no_trial() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let id = ServerId(0);
    balancer.declare_dead(id, "test").unwrap();
    balancer.set_paused(id, true).unwrap();
    assert_eq!(state(&balancer), ServerState::Dead);
    balancer.revive(id).unwrap();
    assert_eq!(state(&balancer), ServerState::Paused);
    balancer.set_draining(id).unwrap();
    balancer.declare_dead(id, "test").unwrap();
    balancer.revive(id).unwrap();
    assert_eq!(state(&balancer), ServerState::Draining);
    assert!(balancer.acquire(request(1)).now_or_never().is_none());
    balancer.set_paused(id, false).unwrap();
    assert_eq!(state(&balancer), ServerState::Probing);
    let _trial = balancer.acquire(request(1)).await.unwrap();
    balancer.set_paused(id, false).unwrap();
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "it is on trial all the same");
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_cooling_server() {
    let balancer = fleet(&[1, 1], Policy::LeastLoad);
    let exclude = vec![ServerId(1)];
    for _ in 0..3 {
        let only_first = PermitRequest { exclude: exclude.clone(), ..request(1) };
        balancer.acquire(only_first).await.unwrap().finish(Outcome::Fault);
    }
    let (only_first, started) = (PermitRequest { exclude, ..request(1) }, Instant::now());
    let granted = balancer.acquire(only_first).await.unwrap();
    assert_eq!((granted.server(), started.elapsed()), (ServerId(1), Duration::ZERO));
}
