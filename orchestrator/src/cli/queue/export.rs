//! `rolldock queue export`

use std::io::{self, Write};

use rolldock_queue::ExportFormat;

use super::{open, server};
use crate::cli::UsageError;
use crate::cli::args::{self, ExportArgs};
use crate::cli::file::{Pipe, Unfinished};
use crate::report::say;

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<()> {
    let format = match args.format {
        args::ExportFormat::Parquet => ExportFormat::Parquet,
        args::ExportFormat::Jsonl => ExportFormat::Jsonl,
        args::ExportFormat::Arrow => ExportFormat::Arrow,
    };
    let Some(output) = &args.output else {
        if format != ExportFormat::Jsonl {
            return Err(UsageError("only jsonl is text; expected --output FILE".to_owned()).into());
        }
        return export_to(&args, format, Pipe(io::stdout())).await.map(drop);
    };
    let file = Unfinished::create(output)?;
    let rows = export_to(&args, format, file.writer()?).await?;
    let bytes = file.finish()?;
    let what = rows.map_or_else(|| format!("{bytes} bytes"), |rows| format!("{rows} rows"));
    say(&format!("{what} in {}", output.display()));
    Ok(())
}

/// Exports the rows and returns their number, which is `None` for a server.
async fn export_to(
    args: &ExportArgs,
    format: ExportFormat,
    into: impl Write + Send,
) -> anyhow::Result<Option<usize>> {
    if let Some(server) = server(&args.queue.source, args.queue.token.as_deref())? {
        server.export(&args.partition, format, into).await?;
        return Ok(None);
    }
    let partition = open(args.queue.source.as_ref()).await?.partition(&args.partition)?;
    Ok(Some(partition.export(format, into).await?))
}
