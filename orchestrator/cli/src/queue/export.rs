//! `rolldock queue export`

use std::io::{self, Write};

use anyhow::Context;
use rolldock_process::say;
use rolldock_queue::{ExportFormat, Exported, QueueError};

use super::{open, server};
use crate::args::{self, ExportArgs};
use crate::file::{Pipe, Unfinished};
use crate::usage::UsageError;

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
    let exported = export_to(&args, format, file.writer()?).await?;
    let bytes = file.finish()?;
    let what = match exported {
        None => format!("{bytes} bytes"),
        Some(Exported { rows, skipped_rows: 0 }) => format!("{rows} rows"),
        Some(Exported { rows, skipped_rows }) => format!("{rows} rows, without {skipped_rows} damaged ones,"),
    };
    say(&format!("{what} in {}", output.display()));
    Ok(())
}

/// Exports the rows and returns their numbers, which are `None` for a server.
async fn export_to(
    args: &ExportArgs,
    format: ExportFormat,
    into: impl Write + Send,
) -> anyhow::Result<Option<Exported>> {
    let (name, source) = (&args.partition, &args.queue.source);
    if let Some(server) = server(source, args.queue.token.as_deref())? {
        let exported = match args.skip_damaged {
            true => server.export_sound(name, format, into).await,
            false => server.export(name, format, into).await,
        };
        let advice = || format!("the export is incomplete; `rolldock queue verify {source}` lists damage");
        exported.with_context(advice)?;
        return Ok(None);
    }
    let partition = open(source.as_ref()).await?.partition(name)?;
    if args.skip_damaged {
        return Ok(Some(partition.export_sound(format, into).await?));
    }
    match partition.export(format, into).await {
        Ok(rows) => Ok(Some(Exported { rows, skipped_rows: 0 })),
        Err(error @ QueueError::Corrupt { .. }) => {
            Err(anyhow::Error::from(error).context("payload is damaged; --skip-damaged leaves its rows out"))
        }
        Err(error) => Err(error.into()),
    }
}
