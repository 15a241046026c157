//! `rolldock queue watch`

use std::time::Duration;

use rolldock_process::say;
use rolldock_queue::{Disposition, PartitionStats, TransferQueue};

use super::{CONSUME_PATIENCE, open, remote};
use crate::args::WatchArgs;
use crate::usage::UsageError;

/// Maximum wait of one call for a change.
const WAIT: Duration = Duration::from_secs(15);
/// How often a directory is read again. A directory does not report changes by another process.
const READ_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn watch(args: WatchArgs) -> anyhow::Result<()> {
    let every = Duration::try_from_secs_f64(args.every)
        .map_err(|error| UsageError(format!("--every {}: {error}", args.every)))?;
    let server = remote(&args.source, args.token.as_deref(), CONSUME_PATIENCE)?;
    let mut last: Option<PartitionStats> = None;
    let mut lines = 0;
    while args.lines.is_none_or(|most| lines < most) {
        let stats = match (&server, &last) {
            (Some(server), None) => server.status(&args.partition).await?,
            (Some(server), Some(last)) => server.status_after(&args.partition, last.revision, WAIT).await?,
            (None, _) => {
                let queue: TransferQueue = open(args.source.as_ref()).await?;
                queue.partition(&args.partition)?.stats()
            }
        };
        let lost = fates(&stats);
        // A server reports fates only once, so they must not count as a change.
        let stats = PartitionStats { fates: Vec::new(), fates_missed: false, ..stats };
        if last.as_ref() != Some(&stats) {
            say(&line(&stats));
            lost.iter().for_each(|line| say(line));
            lines += 1;
        }
        if stats.ended && stats.rows + stats.rows_reserved == 0 {
            break;
        }
        let pause = if server.is_some() { every } else { every.max(READ_EVERY) };
        tokio::time::sleep(pause).await;
        last = Some(stats);
    }
    Ok(())
}

/// One line for each reported group with a fate other than acked.
fn fates(stats: &PartitionStats) -> Vec<String> {
    let told = stats.fates.iter().filter(|fate| fate.fate != Disposition::Acked);
    let told = told.map(|fate| format!("  group {}: {} rows {}", fate.group, fate.rows, fate.fate.as_str()));
    let missed = stats.fates_missed.then(|| "  and groups before those".to_owned());
    told.chain(missed).collect()
}

fn line(stats: &PartitionStats) -> String {
    let tasks = stats.tasks.iter().map(|task| {
        format!(
            "; {}: {} ready in {} groups, {} leased, {} acked, {} incomplete",
            task.task,
            task.ready_rows,
            task.ready_groups,
            task.leased_rows,
            task.acked_rows,
            task.incomplete_rows
        )
    });
    let gone = stats.dispositions;
    format!(
        "{} rows of {} in {} groups, version {}{}; gone: {} acked, {} dropped, {} cleared, {} stale, {} lost{}",
        stats.rows,
        stats.capacity_rows,
        stats.groups,
        stats.policy_version,
        tasks.collect::<String>(),
        gone.acked,
        gone.dropped,
        gone.cleared,
        gone.stale,
        gone.lost,
        if stats.ended { "; the puts have ended" } else { "" }
    )
}
