//! `rolldock queue`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rolldock_queue::{
    Durability, ExportFormat, LocalConfig, LocalQueue, Queue, QueueConfig, QueueInspection, RemoteConfig,
    RemoteQueue, TransferQueue,
};
use tokio::signal::unix::{SignalKind, signal};

use super::UsageError;
use super::args::{ExportArgs, QueueArgs, QueueCommand, ServeArgs};
use crate::run::{queue_folder, serve_queue, serve_queue_locally};
use crate::scope::Scope;

/// How long answers that have begun may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Where a queue is served that nobody has said a place for.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// Whoever looks wants to know now; a consumer outlives its server's restart.
const LOOK_PATIENCE: Duration = Duration::ZERO;
pub(super) const CONSUME_PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(args: QueueArgs) -> anyhow::Result<()> {
    match args.command {
        QueueCommand::Inspect { source, token } => {
            let inspection = match remote(&source, token.as_deref(), LOOK_PATIENCE)? {
                Some(remote) => remote.inspect().await?,
                None => open(source.as_ref()).await?.inspect(),
            };
            super::say(&describe(&inspection));
            Ok(())
        }
        QueueCommand::Serve(serve_args) => serve(serve_args).await,
        QueueCommand::Export(export_args) => export(export_args).await,
    }
}

/// The server that `source` names, if it is no directory: `unix:PATH` on this host, or a URL.
pub(super) fn remote(
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
    let config = RemoteConfig { token: token.map(str::to_owned), patience, ..RemoteConfig::new(source) };
    Ok(Some(Box::new(RemoteQueue::new(config)?)))
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let durability = match args.durability {
        super::args::Durability::None => Durability::None,
        super::args::Durability::Os => Durability::Os,
        super::args::Durability::Fsync => Durability::Fsync,
    };
    let folder = args.dir.as_deref().map(queue_folder);
    let config = QueueConfig { dir: folder.clone(), durability, ..QueueConfig::default() };
    let queue = tokio::task::spawn_blocking(move || TransferQueue::open(config)).await??;
    let scope = Scope::new();
    let mut places = Vec::new();
    if let Some(listen) = args.listen.or(if args.uds.is_none() { Some(LISTEN_DEFAULT) } else { None }) {
        let address = serve_queue(queue.clone(), listen, args.token, &scope).await?;
        places.push(format!("http://{address}"));
    }
    if let Some(path) = &args.uds {
        serve_queue_locally(queue.clone(), path, &scope)?;
        places.push(format!("unix:{}", path.display()));
    }
    let kept = folder
        .map_or("in memory: nothing survives the end".to_owned(), |dir| format!("in {}", dir.display()));
    super::say(&format!("serving a queue at {}, kept {kept}", places.join(" and ")));
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot listen for Ctrl-C")?,
        _ = terminate.recv() => {}
    }
    tracing::info!("ending: waiting takes are told, what is on its way becomes durable");
    scope.close(CLOSE_LIMIT).await;
    tokio::task::spawn_blocking(move || queue.close()).await?;
    Ok(())
}

async fn open(dir: &Path) -> anyhow::Result<TransferQueue> {
    let folder = queue_folder(dir);
    Ok(tokio::task::spawn_blocking(move || TransferQueue::open_read_only(&folder)).await??)
}

fn describe(queue: &QueueInspection) -> String {
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
                "  task {}: {} ready, {} leased, {} acked, {} incomplete",
                task.task, task.ready, task.leased, task.acked, task.incomplete
            ));
        }
        for column in &partition.columns {
            lines.push(format!("  column {}: {}", column.name, column.dtype));
        }
    }
    lines.join("\n")
}

async fn export(args: ExportArgs) -> anyhow::Result<()> {
    let format = match args.format {
        super::args::ExportFormat::Parquet => ExportFormat::Parquet,
        super::args::ExportFormat::Jsonl => ExportFormat::Jsonl,
    };
    if format == ExportFormat::Parquet && args.output.is_none() {
        return Err(UsageError("parquet is no text; expected --output FILE".to_owned()).into());
    }
    let partition = open(&args.dir).await?.partition(&args.partition)?;
    let Some(output) = args.output else {
        let written = partition.export(format, Pipe(io::stdout())).await;
        return written.map(drop).map_err(Into::into);
    };
    // Written beside and renamed, so that nobody reads half a file.
    let unfinished = output.with_extension("unfinished");
    let create = || format!("cannot write {}", unfinished.display());
    let mut file = BufWriter::new(File::create(&unfinished).with_context(create)?);
    let rows = partition.export(format, &mut file).await?;
    file.flush().with_context(create)?;
    std::fs::rename(&unfinished, &output).with_context(|| format!("cannot write {}", output.display()))?;
    super::say(&format!("{rows} rows in {}", output.display()));
    Ok(())
}

/// Standard output whose reader may leave early, as `head` does.
struct Pipe(io::Stdout);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}
