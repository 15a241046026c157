//! `rolldock gateway`

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rolldock_data::{CodecConfig, TemplateChoice, TextCodec};
use rolldock_gateway::{Entropy, Gateway, GatewayConfig, Limits, Sampling};
use rolldock_listener::Connections;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::membership::name_of;
use rolldock_loadbalancer::{
    BalancerConfig, EngineControl, LoadBalancer, Monitor, MonitorConfig, ServerSpec,
};
use rolldock_process::{
    Endings, ServingThreads, hold_for_files, keep_metrics, of_members, queue_folder, say, serve_queue,
    threads_default, unix_seconds,
};
use rolldock_queue::{PartitionSpec, Queue, QueueConfig, ServiceConfig, TransferQueue};
use rolldock_scope::{Scope, blocking};
use rolldock_trajectory::{HistoryPolicy, Template};
use tokio_util::sync::CancellationToken;

use crate::args::{GatewayArgs, History};
use crate::queue::{CONSUME_PATIENCE, remote};
use crate::usage::{UsageError, seconds, sendable};

/// Maximum time of a control call to a server.
const CONTROL_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time for running calls to finish after Ctrl-C or SIGTERM. A second signal cuts them off.
const DRAIN: Duration = Duration::from_secs(600);

/// `rolldock gateway`: serves agents until a signal asks for the end.
pub async fn run(args: GatewayArgs) -> anyhow::Result<()> {
    sendable("--token", args.token.as_deref())?;
    sendable("--queue-token", args.queue_token.as_deref())?;
    hold_for_files(threads_default());
    let api_key: Option<Arc<str>> = sendable("--api-key", args.api_key.as_deref())?.map(Arc::from);
    let config = config(&args, codec(&args).await?)?;
    let stall = seconds("--stall", args.stall)?;
    let scope = Scope::new();
    // Metrics are kept from their beginning, so the balancer is made afterwards.
    let metrics = keep_metrics(&scope)?;
    let balancer = balancer(&args)?;
    let metrics = of_members(metrics, balancer.clone());
    let control: Arc<dyn EngineControl> = Arc::new(VllmControl::new(CONTROL_DEADLINE, api_key.clone())?);
    let monitor = MonitorConfig { stall, probe: args.probe, ..MonitorConfig::default() };
    let monitor = Monitor::new(balancer.clone(), control, monitor);
    let watching = scope.spawn("server monitor", monitor.run(scope.token().clone()));
    let (queue, embedded) = queue(&args, &scope).await?;
    let gateway = Gateway::open(config, balancer, queue, api_key, Some(metrics)).await?;
    let end = CancellationToken::new();
    let answer = {
        let (server, end) = (gateway.server(), end.clone());
        move |_: usize, listener| server.clone().answer(listener, end.clone()).map(Ok).boxed_local()
    };
    let threads = ServingThreads::start("rolldock-agents", threads_default(), args.listen, answer)
        .await
        .map_err(|error| UsageError(format!("--listen: {error:#}")))?;
    let continued = gateway.trajectories();
    say(&format!(
        "http://{} serves agents; engine servers: {}; trajectories that continue: {continued}; rows go to {}",
        threads.address,
        args.endpoints.len(),
        args.queue.clone().unwrap_or_else(|| queue_folder(&args.out).display().to_string()),
    ));
    until_asked(gateway, threads, end).await?;
    drop(watching);
    scope.close(CONTROL_DEADLINE).await;
    if let Some(queue) = embedded {
        blocking("queue close", move || queue.close()).await?;
    }
    Ok(())
}

/// Serves until Ctrl-C or SIGTERM. A second signal cuts off calls that still run.
async fn until_asked(
    gateway: Gateway,
    threads: ServingThreads,
    end: CancellationToken,
) -> anyhow::Result<()> {
    let mut endings = Endings::listen()?;
    let mut serving = std::pin::pin!(gateway.run(threads.ended(Duration::MAX), end.clone()));
    tokio::select! {
        biased;
        ended = &mut serving => return ended,
        _ = endings.asked() => {}
    }
    tracing::info!("waiting for running calls; a second Ctrl-C or SIGTERM cuts them off");
    end.cancel();
    tokio::select! {
        biased;
        finished = tokio::time::timeout(DRAIN, serving) => finished.unwrap_or(Ok(())),
        _ = endings.asked() => Ok(()),
    }
}

async fn codec(args: &GatewayArgs) -> anyhow::Result<Arc<TextCodec>> {
    let config = CodecConfig {
        tokenizer: args.tokenizer.clone(),
        chat_template: TemplateChoice::from(args.chat_template.as_str()),
        unix_seconds: i64::try_from(unix_seconds()).ok(),
    };
    let codec = blocking("tokenizer", move || TextCodec::open(&config)).await??;
    Ok(Arc::new(codec))
}

fn config(args: &GatewayArgs, codec: Arc<TextCodec>) -> anyhow::Result<GatewayConfig> {
    let entropy = Entropy(Arc::new(rand::random::<u128>));
    let (sampling, limits) = (&args.sampling, &args.limits);
    let vocab_size = Some(codec.vocab_size_max());
    let template: Arc<dyn Template> = codec;
    Ok(GatewayConfig {
        vocab_size,
        durability: args.durability,
        history: match args.history {
            History::Append => HistoryPolicy::Append,
            History::Template => HistoryPolicy::Template,
        },
        model: args.model.clone(),
        partition: args.partition.clone(),
        sampling: Sampling {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            seed: None,
        },
        limits: Limits {
            turns: limits.turns_max,
            tokens: limits.tokens_max,
            turn_tokens: limits.turn_tokens_max,
            wall: seconds("--wall", limits.wall)?.as_secs_f64(),
            idle: seconds("--idle", limits.idle)?.as_secs_f64(),
            reward: seconds("--reward-wait", limits.reward_wait)?.as_secs_f64(),
        },
        trajectories_max: args.trajectories_max as usize,
        unrewarded: args.unrewarded,
        advantage: args.advantage.estimator(),
        seed: sampling.seed,
        token: args.token.clone(),
        advertise: args.advertise.clone(),
        heartbeat: seconds("--heartbeat", args.heartbeat)?,
        permit_wait: seconds("--permit-wait", args.permit_wait)?,
        call_timeout: seconds("--call-timeout", args.call_timeout)?,
        attempts_max: args.attempts_max,
        connections: Connections::new("gateway", &args.connections.limits()?),
        ..GatewayConfig::new(&args.out, template, entropy, unix_seconds)
    })
}

fn balancer(args: &GatewayArgs) -> anyhow::Result<LoadBalancer> {
    let spec = |url: &String| ServerSpec::new(name_of(url), url.as_str(), args.max_loads);
    let servers = args.endpoints.iter().map(spec).collect();
    Ok(LoadBalancer::new(BalancerConfig::default(), servers)?)
}

/// The queue for rows, with its partition. A queue in this process is also returned as a `TransferQueue`.
async fn queue(args: &GatewayArgs, scope: &Scope) -> anyhow::Result<(Arc<dyn Queue>, Option<TransferQueue>)> {
    let spec = PartitionSpec {
        length_columns: ["prompt_ids", "response_ids"].map(str::to_owned).to_vec(),
        ..PartitionSpec::new(&args.partition, &args.tasks, args.capacity_rows)
    };
    if let Some(source) = &args.queue {
        let Some(queue) = remote(source, args.queue_token.as_deref(), CONSUME_PATIENCE)? else {
            let reason = format!("--queue: expected http://HOST:PORT or unix:PATH, found {source}");
            return Err(UsageError(reason).into());
        };
        let queue: Arc<dyn Queue> = Arc::from(queue);
        queue.declare(spec).await?;
        return Ok((queue, None));
    }
    let config = QueueConfig {
        dir: Some(queue_folder(&args.out)),
        durability: args.durability,
        ..QueueConfig::default()
    };
    let queue = blocking("queue open", move || TransferQueue::open(config)).await??;
    drop(queue.declare(spec).await?);
    if let Some(address) = args.queue_listen {
        let config = ServiceConfig { token: args.queue_token.clone(), ..ServiceConfig::default() };
        let bound = serve_queue(queue.clone(), address, config, scope).await?;
        say(&format!("the queue is served at http://{bound}"));
    }
    Ok((Arc::new(queue.clone()), Some(queue)))
}
