//! `rolldock queue snapshot`, `restore`, `verify` and `clear`

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rolldock_process::{plural, queue_folder, say};
use rolldock_queue::{
    Queue, QueueConfig, QueueError, QueueInspection, RemoteQueue, SnapshotCounts, TransferQueue, VerifyReport,
};
use rolldock_scope::blocking;

use super::{open, server};
use crate::args::{ClearArgs, RestoreArgs, SnapshotArgs, SourceArgs};
use crate::file::Unfinished;

/// The maximum number of attempts to read a directory in which another process frees rows.
const ATTEMPTS: usize = 4;

fn server_of(queue: &SourceArgs) -> anyhow::Result<Option<RemoteQueue>> {
    server(&queue.source, queue.token.as_deref())
}

pub(super) async fn snapshot(args: SnapshotArgs) -> anyhow::Result<()> {
    let file = Unfinished::create(&args.file)?;
    let partition = args.partition.as_deref();
    match server_of(&args.queue)? {
        Some(server) => drop(server.snapshot(partition, file.writer()?).await?),
        None => drop(snapshot_dir(args.queue.source.as_ref(), partition, &file).await?),
    }
    let bytes = file.finish()?;
    say(&format!("{bytes} bytes in {}", args.file.display()));
    Ok(())
}

async fn snapshot_dir(
    dir: &Path,
    partition: Option<&str>,
    file: &Unfinished,
) -> anyhow::Result<SnapshotCounts> {
    let mut attempt = 1;
    loop {
        let written = open(dir).await?.snapshot(partition, file.writer()?).await;
        match written {
            // The queue's owner has freed a segment after the journal was read.
            Err(QueueError::Corrupt { .. }) if attempt < ATTEMPTS => attempt += 1,
            written => return Ok(written?),
        }
        file.start_again()?;
    }
}

pub(super) async fn restore(args: RestoreArgs) -> anyhow::Result<()> {
    let source = File::open(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let source = std::io::BufReader::new(source);
    let counts = match server(&args.target, args.token.as_deref())? {
        Some(server) => server.restore(source).await?,
        None => restore_dir(args.target.as_ref(), source).await?,
    };
    say(&format!("{} in {}", described(&counts), args.target));
    Ok(())
}

/// The counts of a snapshot, for people.
pub(super) fn described(counts: &SnapshotCounts) -> String {
    let SnapshotCounts { partitions, rows, payload_bytes, .. } = *counts;
    let (partitions, rows) = (plural(partitions, "partition"), plural(rows, "row"));
    format!("{partitions}, {rows}, {} of payload", plural(payload_bytes, "byte"))
}

async fn restore_dir(target: &Path, source: std::io::BufReader<File>) -> anyhow::Result<SnapshotCounts> {
    let folder = queue_folder(target);
    let made = [target, &folder].into_iter().find(|dir| !dir.exists()).map(Path::to_owned);
    let queue = open_to_change(folder).await?;
    let restored = queue.restore(source).await;
    close(queue).await?;
    if let (Err(_), Some(made)) = (&restored, made) {
        // Remove the directory that was created for the failed restore.
        std::fs::remove_dir_all(&made).with_context(|| format!("cannot remove {}", made.display()))?;
    }
    Ok(restored?)
}

pub(super) async fn verify(args: SourceArgs) -> anyhow::Result<()> {
    let report = match server_of(&args)? {
        Some(server) => server.verify().await?,
        None => {
            let folder = queue_folder(args.source.as_ref());
            blocking("queue verify", move || TransferQueue::verify_dir(&folder)).await??
        }
    };
    let VerifyReport { partitions, rows, chunks, bytes, unfinished_bytes, problems } = report;
    for problem in &problems {
        say(&problem.to_string());
    }
    if unfinished_bytes > 0 {
        say(&format!(
            "the last write is incomplete: {unfinished_bytes} bytes, none of which was acknowledged"
        ));
    }
    let (partitions, rows) = (plural(partitions as u64, "partition"), plural(rows as u64, "row"));
    let were = if chunks == 1 { "was" } else { "were" };
    let (chunks, bytes) = (plural(chunks as u64, "chunk"), plural(bytes, "byte"));
    say(&format!("{partitions}, {rows}; {chunks} of {bytes} {were} read"));
    let found = plural(problems.len() as u64, "problem");
    anyhow::ensure!(problems.is_empty(), "{} holds {found}", args.source);
    Ok(())
}

pub(super) async fn clear(args: ClearArgs) -> anyhow::Result<()> {
    match server_of(&args.queue)? {
        Some(server) => clear_in(&server, Changer::Server(&server), &args).await,
        None if args.dry_run => {
            let queue = open(args.queue.source.as_ref()).await?;
            clear_in(&queue, Changer::Directory(&queue), &args).await
        }
        None => {
            let folder = queue_folder(args.queue.source.as_ref());
            anyhow::ensure!(folder.exists(), "{} holds no queue", args.queue.source);
            let queue = open_to_change(folder).await?;
            let cleared = clear_in(&queue, Changer::Directory(&queue), &args).await;
            close(queue).await?;
            cleared
        }
    }
}

/// The queue on which rows are freed.
enum Changer<'a> {
    Server(&'a RemoteQueue),
    Directory(&'a TransferQueue),
}

async fn clear_in(queue: &dyn Queue, changer: Changer<'_>, args: &ClearArgs) -> anyhow::Result<()> {
    let name = &args.partition;
    let QueueInspection { partitions, .. } = queue.inspect().await?;
    let found = partitions.iter().find(|partition| partition.name == *name);
    let found = found.ok_or_else(|| QueueError::UnknownPartition { name: name.clone() })?;
    if args.dry_run {
        let (rows, groups) = (plural(found.rows as u64, "row"), plural(found.groups as u64, "group"));
        say(&format!("partition {name} has {rows} in {groups}"));
        return Ok(());
    }
    let freed = match changer {
        Changer::Server(server) => server.clear_all(name).await?,
        Changer::Directory(queue) => queue.partition(name)?.clear_all().await?,
    };
    if args.remove {
        match changer {
            Changer::Server(server) => server.remove(name).await?,
            Changer::Directory(queue) => queue.remove(name).await?,
        }
    }
    let word = if args.remove { "; it is removed" } else { "" };
    say(&format!("{freed} rows of partition {name} are freed{word}"));
    Ok(())
}

async fn open_to_change(folder: PathBuf) -> anyhow::Result<TransferQueue> {
    let config = QueueConfig { dir: Some(folder), ..QueueConfig::default() };
    Ok(blocking("queue open", move || TransferQueue::open(config)).await??)
}

async fn close(queue: TransferQueue) -> anyhow::Result<()> {
    Ok(blocking("queue close", move || queue.close()).await?)
}
