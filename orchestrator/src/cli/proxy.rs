//! `rolldock proxy`

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_loadbalancer::admin::AdminConfig;
use rolldock_loadbalancer::control::openai::OpenAiControl;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::membership::{Enlist, Membership, NewMember};
use rolldock_loadbalancer::proxy::{self, ProxyConfig};
use rolldock_loadbalancer::{
    AdaptiveConfig, BalancerConfig, EngineControl, HttpControl, LoadBalancer, Monitor, MonitorConfig, Policy,
};
use tokio_util::sync::CancellationToken;

use super::UsageError;
use super::args::{EngineDialect, ProxyArgs};
use crate::run::{
    ServingThreads, balancing_policy, health_probe, keep_metrics, serve_fleet, threads_default,
};
use crate::scope::Scope;

/// Control calls are small; one that takes longer says that something is wrong.
const CONTROL_DEADLINE: Duration = Duration::from_secs(5);
/// After Ctrl-C requests that run are finished, for so long; a second one cuts them off.
const DRAIN: Duration = Duration::from_secs(600);

/// Whoever is listed may join: a server that is not there yet is probed until it is.
struct Anyone;

impl Enlist for Anyone {
    fn enlist<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        async { Ok(()) }.boxed()
    }

    fn dismiss(&self, _: &str) {}
}

/// Permits of a server, and how they are found out if they are.
fn loads(words: &str) -> Result<(u32, Option<AdaptiveConfig>), UsageError> {
    if words == "auto" {
        let adaptive = AdaptiveConfig::default();
        return Ok((adaptive.start, Some(adaptive)));
    }
    match words.parse() {
        Ok(loads) if loads > 0 => Ok((loads, None)),
        _ => Err(UsageError(format!("--max-loads: expected a number above 0, or auto, found {words:?}"))),
    }
}

pub(super) async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    let (capacity, adaptive) = loads(&args.max_loads)?;
    let stall = Duration::try_from_secs_f64(args.stall)
        .map_err(|error| UsageError(format!("--stall: expected seconds: {error}")))?;
    let scope = Scope::new();
    let metrics = keep_metrics(&scope)?;
    let policy = balancing_policy(args.policy);
    let config = BalancerConfig { policy, seed: args.seed, ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config, Vec::new())?;
    let members = Membership::new(balancer.clone(), Arc::new(Anyone), capacity);
    for url in &args.endpoints {
        let member = NewMember { url: url.clone(), name: None, capacity: None };
        members.add(member).await.map_err(|error| UsageError(format!("--endpoint: {error}")))?;
    }
    let http = |deadline| HttpControl::new(deadline, args.api_key.as_deref().map(Arc::from));
    let control: Arc<dyn EngineControl> = match args.engine {
        EngineDialect::Vllm => {
            Arc::new(VllmControl::new(CONTROL_DEADLINE, args.api_key.as_deref().map(Arc::from))?)
        }
        EngineDialect::Openai => Arc::new(OpenAiControl(http(CONTROL_DEADLINE)?)),
    };
    let end = scope.token().clone();
    let monitor =
        MonitorConfig { stall, probe: health_probe(args.probe), adaptive, ..MonitorConfig::default() };
    let monitor = Monitor::new(balancer.clone(), control, monitor);
    let mut beside = vec![scope.spawn(monitor.run(end.clone()))];
    if let Some(file) = args.fleet_file.clone() {
        let (members, end) = (members.clone(), end.clone());
        beside.push(scope.spawn(async move { members.follow(file, end).await }));
    }
    if let Some(address) = args.admin {
        let config = AdminConfig { token: args.admin_token.clone(), metrics: Some(metrics.clone()) };
        let (bound, serving) = serve_fleet(members, address, config, &scope).await?;
        beside.push(serving);
        super::say(&format!("admin at http://{bound}"));
    }
    let config = ProxyConfig {
        counts_tokens: policy == Policy::LeastWork,
        metrics: Some(metrics),
        drain: DRAIN,
        ..ProxyConfig::default()
    };
    pass_on(&args, &balancer, &config).await?;
    scope.close(Duration::from_secs(5)).await;
    drop(beside);
    Ok(())
}

/// Passes requests on, on threads of their own, until Ctrl-C; a second one ends what still runs.
async fn pass_on(args: &ProxyArgs, balancer: &LoadBalancer, config: &ProxyConfig) -> anyhow::Result<()> {
    let end = CancellationToken::new();
    let count = args.threads.unwrap_or_else(threads_default).max(1);
    let serve = {
        let (balancer, config, end) = (balancer.clone(), config.clone(), end.clone());
        move |_: usize, listener| {
            let serving = proxy::serve(balancer.clone(), config.clone(), listener, end.clone());
            serving.map(Ok).boxed_local()
        }
    };
    let threads = ServingThreads::start("rolldock-proxy", count, args.listen, serve).await?;
    let servers = balancer.snapshot().servers.len();
    super::say(&format!("http://{} balances {servers} servers, {count} threads", threads.address));
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
    tracing::info!("requests that run are finished; again Ctrl-C cuts them off");
    end.cancel();
    tokio::select! {
        biased;
        finished = threads.ended(2 * DRAIN) => finished,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
