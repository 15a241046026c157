//! `rolldock proxy`

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_listener::Connections;
use rolldock_loadbalancer::admin::AdminConfig;
use rolldock_loadbalancer::control::openai::OpenAiControl;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::membership::{Enlist, EnlistError, Membership, NewMember};
use rolldock_loadbalancer::proxy::{Proxy, ProxyConfig, aborts};
use rolldock_loadbalancer::{
    AdaptiveConfig, BalancerConfig, EngineControl, HttpControl, LoadBalancer, Monitor, MonitorConfig, Policy,
};
use rolldock_process::{
    Endings, ServingThreads, keep_metrics, of_members, say, serve_fleet, threads_default,
};
use rolldock_scope::Scope;
use tokio_util::sync::CancellationToken;

use crate::args::{EngineDialect, ProxyArgs};
use crate::usage::{UsageError, seconds, sendable};

/// Maximum time of a control call. The calls are small, so a longer time means a fault.
const CONTROL_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time for running requests to finish after Ctrl-C or SIGTERM. A second signal cuts them off.
const DRAIN: Duration = Duration::from_secs(600);

/// Lets every listed server join. A server that does not answer yet is probed until it answers.
struct AnyServer;

impl Enlist for AnyServer {
    fn enlist<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), EnlistError>> {
        async { Ok(()) }.boxed()
    }

    fn dismiss(&self, _: &str) {}
}

/// The permits of a server, and the configuration of the search for their number if it is "auto".
fn loads(words: &str, engine: EngineDialect) -> Result<(u32, Option<AdaptiveConfig>), UsageError> {
    if words == "auto" {
        if engine == EngineDialect::Openai {
            let reason = "--max-loads auto goes by vLLM's metrics, which --engine openai does not ask for: \
                          expected a number";
            return Err(UsageError(reason.to_owned()));
        }
        let adaptive = AdaptiveConfig::default();
        return Ok((adaptive.start, Some(adaptive)));
    }
    match words.parse() {
        Ok(loads) if loads > 0 => Ok((loads, None)),
        _ => Err(UsageError(format!("--max-loads: expected a number above 0, or auto, found {words:?}"))),
    }
}

fn proxy_config(args: &ProxyArgs) -> Result<ProxyConfig, UsageError> {
    Ok(ProxyConfig {
        request_timeout: seconds("--request-timeout", args.request_timeout)?,
        idle_timeout: seconds("--idle-timeout", args.idle_timeout)?,
        buffered_bytes_max: args.buffered_bytes_max,
        counts_tokens: args.policy == Policy::LeastWork,
        drain: DRAIN,
        connections: Connections::new("proxy", &args.connections.limits()?),
        ..ProxyConfig::default()
    })
}

/// `rolldock proxy`: balances requests over a fleet until a signal asks for the end.
pub async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    sendable("--admin-token", args.admin_token.as_deref())?;
    let (capacity, adaptive) = loads(&args.max_loads, args.engine)?;
    let stall = seconds("--stall", args.stall)?;
    let proxy_config = proxy_config(&args)?;
    let scope = Scope::new();
    let metrics = keep_metrics(&scope)?;
    let config = BalancerConfig {
        policy: args.policy,
        seed: args.seed,
        waiting_max: args.waiting_max,
        ..BalancerConfig::default()
    };
    let balancer = LoadBalancer::new(config, Vec::new())?;
    let metrics = of_members(metrics, balancer.clone());
    let members = Membership::new(balancer.clone(), Arc::new(AnyServer), capacity);
    for url in &args.endpoints {
        let member = NewMember { url: url.clone(), name: None, capacity: None };
        members.add(member).await.map_err(|error| UsageError(format!("--endpoint: {error}")))?;
    }
    let control = engine_control(&args)?;
    let end = scope.token().clone();
    let monitor = MonitorConfig { stall, probe: args.probe, adaptive, ..MonitorConfig::default() };
    let monitor = Monitor::new(balancer.clone(), Arc::clone(&control), monitor);
    let (aborts, aborter) = aborts(balancer.clone(), control, args.api_key.as_deref());
    let mut beside = vec![
        scope.spawn("server monitor", monitor.run(end.clone())),
        scope.spawn("proxy aborts", aborter.run(end.clone())),
    ];
    if let Some(file) = args.fleet_file.clone() {
        let (members, end) = (members.clone(), end.clone());
        beside.push(scope.spawn("fleet file", async move { members.follow(file, end).await }));
    }
    if let Some(address) = args.admin {
        let connections = Connections::new("admin", &args.connections.limits()?);
        let token = args.admin_token.clone();
        let config = AdminConfig { token, metrics: Some(metrics.clone()), connections };
        let (bound, serving) = serve_fleet(members, address, config, &scope).await?;
        beside.push(serving);
        say(&format!("admin at http://{bound}"));
    }
    let proxy_config = ProxyConfig { metrics: Some(metrics), aborts: Some(aborts), ..proxy_config };
    pass_on(&args, &balancer, proxy_config).await?;
    scope.close(Duration::from_secs(5)).await;
    drop(beside);
    Ok(())
}

fn engine_control(args: &ProxyArgs) -> anyhow::Result<Arc<dyn EngineControl>> {
    let api_key = sendable("--api-key", args.api_key.as_deref())?.map(Arc::from);
    Ok(match args.engine {
        EngineDialect::Vllm => Arc::new(VllmControl::new(CONTROL_DEADLINE, api_key)?),
        EngineDialect::Openai => Arc::new(OpenAiControl(HttpControl::new(CONTROL_DEADLINE, api_key)?)),
    })
}

/// Forwards requests, in separate threads, until Ctrl-C or SIGTERM. A second signal cuts off requests that
/// still run.
async fn pass_on(args: &ProxyArgs, balancer: &LoadBalancer, config: ProxyConfig) -> anyhow::Result<()> {
    let end = CancellationToken::new();
    let count = args.threads.unwrap_or_else(threads_default).max(1);
    let proxy = Proxy::new(balancer.clone(), config);
    let serve = {
        let end = end.clone();
        move |_: usize, listener| proxy.clone().serve(listener, end.clone()).map(Ok).boxed_local()
    };
    let mut endings = Endings::listen()?;
    let threads = ServingThreads::start("rolldock-proxy", count, args.listen, serve).await?;
    let servers = balancer.snapshot().servers.len();
    say(&format!("http://{} balances {servers} servers, {count} threads", threads.address));
    endings.asked().await;
    tracing::info!("waiting for running requests; a second Ctrl-C or SIGTERM cuts them off");
    end.cancel();
    tokio::select! {
        biased;
        finished = threads.ended(2 * DRAIN) => finished,
        _ = endings.asked() => Ok(()),
    }
}
