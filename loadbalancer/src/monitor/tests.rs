use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::*;
use crate::{BalancerConfig, Outcome, PermitRequest, ServerSpec};

#[derive(Default)]
struct Scripted {
    sick: Mutex<bool>,
    load: Mutex<EngineLoad>,
}

impl EngineControl for Scripted {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        let failed = ControlError::Failed {
            server: Arc::clone(&server.name),
            what: "health",
            reason: "scripted".into(),
        };
        let answer = if *self.sick.lock() { Err(failed) } else { Ok(()) };
        async move { answer }.boxed()
    }

    fn load<'a>(&'a self, _server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        let load = self.load.lock().clone();
        async move { Ok(load) }.boxed()
    }

    fn abort<'a>(&'a self, _server: &'a ServerRef, _id: &'a str) -> BoxFuture<'a, Result<(), ControlError>> {
        async { Ok(()) }.boxed()
    }
}

fn watched() -> (LoadBalancer, Arc<Scripted>, Monitor) {
    let spec = ServerSpec::unreached("a", 2);
    let balancer = LoadBalancer::new(BalancerConfig::default(), vec![spec]).unwrap();
    let control = Arc::new(Scripted::default());
    control.load.lock().generation_tokens_total = Some(0);
    let config = MonitorConfig { stall: Duration::from_secs(10), ..MonitorConfig::default() };
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
async fn a_server_that_owes_answers_and_stands_still_is_dead_and_comes_back_on_trial() {
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
async fn one_that_generates_or_is_paused_or_owes_nothing_is_left_alone() {
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
async fn one_that_is_updated_may_stand_still_and_one_that_is_only_outdated_may_not() {
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
async fn one_that_does_not_count_its_tokens_is_left_to_the_samples_deadline() {
    let (balancer, control, mut monitor) = watched();
    control.load.lock().generation_tokens_total = None;
    let owed = permit(&balancer).await;
    look_for(&mut monitor, 30).await;
    assert!(owed.revoked().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn one_lost_probe_is_no_death_and_two_are() {
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
async fn the_loop_ends_with_its_scope() {
    let (_balancer, _control, monitor) = watched();
    let end = CancellationToken::new();
    let mut run = Box::pin(monitor.run(end.clone()));
    assert!((&mut run).now_or_never().is_none());
    end.cancel();
    run.await;
}
