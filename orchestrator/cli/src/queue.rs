//! `rolldock queue`

mod export;
mod salvage;
mod tools;
mod unit;
mod watch;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rolldock_listener::Connections;
use rolldock_process::{
    Endings, ServingThreads, hold_for_files, keep_metrics, of_queue, queue_folder, say, serve_queue_locally,
    serve_queue_on_threads, serve_queue_unnamed, threads_default,
};
use rolldock_queue::{
    LocalConfig, LocalQueue, LocalServiceConfig, Queue, QueueConfig, QueueInspection, RemoteConfig,
    RemoteQueue, ServiceConfig, TransferQueue, UnitStatus,
};
use rolldock_scope::{Scope, blocking};

use crate::args::{QueueArgs, QueueCommand, ServeArgs, ServiceConnectionArgs};
use crate::usage::{UsageError, sendable};

/// The name of the token in errors. Commands have it in different options.
const TOKEN: &str = "the queue's token";
/// Maximum time for running answers to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The address at which a queue is served by default.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// How long the calls of an inspection and of a consumer wait for a server that does not answer. The calls of
/// an inspection fail immediately. A consumer waits for a restart of its server.
const LOOK_PATIENCE: Duration = Duration::ZERO;
pub(crate) const CONSUME_PATIENCE: Duration = Duration::from_secs(30);

/// `rolldock queue`: looks into a queue, or serves one.
pub async fn run(args: QueueArgs) -> anyhow::Result<()> {
    match args.command {
        QueueCommand::Inspect { source, token } => {
            let described = match remote(&source, token.as_deref(), LOOK_PATIENCE)? {
                Some(remote) => describe(&remote.inspect().await?, Terms::Left),
                None => describe(&open(source.as_ref()).await?.inspect(), Terms::Whole),
            };
            say(&described);
            Ok(())
        }
        QueueCommand::Serve(serve_args) => serve(serve_args).await,
        QueueCommand::Export(args) => export::export(args).await,
        QueueCommand::Snapshot(args) => tools::snapshot(args).await,
        QueueCommand::Restore(args) => tools::restore(args).await,
        QueueCommand::Unit(args) => unit::unit(args).await,
        QueueCommand::Watch(args) => watch::watch(args).await,
        QueueCommand::Verify(args) => tools::verify(args).await,
        QueueCommand::Salvage(args) => salvage::salvage(args).await,
        QueueCommand::Clear(args) => tools::clear(args).await,
    }
}

/// The server that `source` names: `unix:PATH` on this host, or a URL. `None` if `source` is a directory.
pub(crate) fn remote(
    source: &str,
    token: Option<&str>,
    patience: Duration,
) -> anyhow::Result<Option<Box<dyn Queue>>> {
    if let Some(path) = source.strip_prefix("unix:") {
        let config = LocalConfig { patience, ..LocalConfig::new(path) };
        return Ok(Some(Box::new(LocalQueue::new(config)?)));
    }
    if !source.contains("://") {
        return Ok(None);
    }
    let token = sendable(TOKEN, token)?.map(str::to_owned);
    let config = RemoteConfig { token, patience, ..RemoteConfig::new(source) };
    Ok(Some(Box::new(RemoteQueue::new(config)?)))
}

/// The HTTP server that `source` names; `None` if `source` is a directory. Operators' calls need HTTP, so
/// `unix:PATH` is an error.
fn server(source: &str, token: Option<&str>) -> anyhow::Result<Option<RemoteQueue>> {
    if source.starts_with("unix:") {
        let reason = format!("found {source}; expected a directory or an http URL: a server's --listen");
        return Err(UsageError(reason).into());
    }
    if !source.contains("://") {
        return Ok(None);
    }
    let token = sendable(TOKEN, token)?.map(str::to_owned);
    let config = RemoteConfig { token, patience: LOOK_PATIENCE, ..RemoteConfig::new(source) };
    Ok(Some(RemoteQueue::new(config)?))
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    sendable("--token", args.token.as_deref())?;
    hold_for_files(threads_default());
    let durability = args.durability;
    let folder = args.dir.as_deref().map(queue_folder);
    let config = QueueConfig { dir: folder.clone(), durability, ..QueueConfig::default() };
    // Nothing else runs yet, so this thread may read the disk.
    let queue = TransferQueue::open(config)?;
    let scope = Scope::new();
    let metrics = of_queue(Some(keep_metrics(&scope)?), queue.clone());
    let mut local_config = LocalServiceConfig::default();
    local_config.put_bytes_max = args.body_bytes_max.unwrap_or(local_config.put_bytes_max);
    let local = match &args.uds {
        Some(path) => Some(serve_queue_locally(queue.clone(), path, local_config, &scope)?),
        None => serve_queue_unnamed(queue.clone(), local_config, &scope),
    };
    let mut places = Vec::new();
    let mut threads = None;
    if let Some(listen) = args.listen.or(if args.uds.is_none() { Some(LISTEN_DEFAULT) } else { None }) {
        let config = service(args.token, args.body_bytes_max, &args.connections)?;
        let config = ServiceConfig { local, metrics: Some(metrics), ..config };
        let serving = serve_queue_on_threads(queue.clone(), listen, config, &scope).await?;
        places.push(format!("http://{}", serving.address));
        threads = Some(serving);
    }
    if let Some(path) = &args.uds {
        places.push(format!("unix:{}", path.display()));
    }
    let kept = folder
        .map_or("in memory, and lost with this process".to_owned(), |dir| format!("in {}", dir.display()));
    say(&format!("serving a queue at {}, kept {kept}", places.join(" and ")));
    until_terminated(queue, threads, scope).await
}

fn service(
    token: Option<String>,
    body_bytes_max: Option<usize>,
    connections: &ServiceConnectionArgs,
) -> anyhow::Result<ServiceConfig> {
    let default = ServiceConfig::default();
    let body_bytes_max = body_bytes_max.unwrap_or(default.body_bytes_max);
    let connections = Connections::new("queue", &connections.limits()?);
    Ok(ServiceConfig { token, body_bytes_max, connections, ..default })
}

/// Serves until a signal requests the end. Then running calls end and their rows become durable.
async fn until_terminated(
    queue: TransferQueue,
    threads: Option<ServingThreads>,
    scope: Scope,
) -> anyhow::Result<()> {
    Endings::listen()?.asked().await;
    tracing::info!("ending: waiting takes are answered, and the rows of running puts become durable");
    scope.close(CLOSE_LIMIT).await;
    let served = match threads {
        Some(threads) => threads.ended(CLOSE_LIMIT).await,
        None => Ok(()),
    };
    blocking("queue close", move || queue.close()).await?;
    served?;
    Ok(())
}

async fn open(dir: &Path) -> anyhow::Result<TransferQueue> {
    let folder = queue_folder(dir);
    Ok(blocking("queue open", move || TransferQueue::open_read_only(&folder)).await??)
}

/// What is known of the terms of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Terms {
    /// The time that is left of each.
    Left,
    /// The length of each. The files of a queue have no times of leases.
    Whole,
}

fn describe(queue: &QueueInspection, terms: Terms) -> String {
    let at_most = if terms == Terms::Whole { "at most " } else { "" };
    let mut lines = vec![format!("{} bytes of payload", queue.payload_bytes)];
    for partition in &queue.partitions {
        lines.push(format!(
            "partition {}: {} rows of {} in {} groups; gone: {} acked, {} dropped, {} cleared, {} stale, {} lost",
            partition.name,
            partition.rows,
            partition.capacity_rows,
            partition.groups,
            partition.dispositions.acked,
            partition.dispositions.dropped,
            partition.dispositions.cleared,
            partition.dispositions.stale,
            partition.dispositions.lost
        ));
        for task in &partition.tasks {
            lines.push(format!(
                "  task {}: {} ready, {} leased, {} acked, {} incomplete, {} away",
                task.task, task.ready, task.leased, task.acked, task.incomplete, task.away
            ));
        }
        for lease in &partition.leases {
            let holders =
                if lease.holders.is_empty() { "unnamed".to_owned() } else { lease.holders.join(", ") };
            let left_s = lease.expires_in_ms as f64 / 1000.0;
            lines.push(format!(
                "  lease {}: {holders} has {} rows for {}, {at_most}{left_s:.1} s left",
                lease.name, lease.rows, lease.task
            ));
        }
        for column in &partition.columns {
            lines.push(format!("  column {}: {}", column.name, column.dtype));
        }
    }
    if terms == Terms::Whole && queue.partitions.iter().any(|partition| !partition.leases.is_empty()) {
        lines.push(
            "the directory does not say when leases began; ask the URL of the server for the time left"
                .into(),
        );
    }
    for unit in &queue.units {
        let status = match unit.status {
            UnitStatus::Live => "live",
            UnitStatus::Draining => "draining",
            UnitStatus::Dead => "dead",
        };
        lines
            .push(format!("unit {}: {status}, {} chunks, at {}", unit.card.unit, unit.chunks, unit.card.url));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
