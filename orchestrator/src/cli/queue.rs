//! `rolldock queue`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use rolldock_queue::{ExportFormat, QueueInspection, TransferQueue};

use super::UsageError;
use super::args::{ExportArgs, QueueArgs, QueueCommand};
use crate::run::queue_folder;

pub(super) async fn run(args: QueueArgs) -> anyhow::Result<()> {
    match args.command {
        QueueCommand::Inspect { dir } => {
            super::say(&describe(&open(&dir).await?.inspect()));
            Ok(())
        }
        QueueCommand::Export(export_args) => export(export_args).await,
    }
}

async fn open(dir: &Path) -> anyhow::Result<TransferQueue> {
    let folder = queue_folder(dir);
    Ok(tokio::task::spawn_blocking(move || TransferQueue::open_read_only(&folder)).await??)
}

fn describe(queue: &QueueInspection) -> String {
    let mut lines = vec![format!("{} bytes of payload", queue.payload_bytes)];
    for partition in &queue.partitions {
        lines.push(format!(
            "partition {}: {} rows of {} in {} groups; gone: {} acked, {} dropped, {} cleared",
            partition.name,
            partition.rows,
            partition.capacity_rows,
            partition.groups,
            partition.dispositions.acked,
            partition.dispositions.dropped,
            partition.dispositions.cleared
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
