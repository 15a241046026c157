//! `rolldock queue unit`

use rolldock_process::{hold_for_files, queue_folder, say, serve_queue_on_threads, threads_default};
use rolldock_queue::{QueueConfig, RemoteConfig, RemoteQueue, TransferQueue, UnitConfig, run_unit};
use rolldock_scope::{Scope, blocking};

use super::{service, until_terminated};
use crate::args::UnitArgs;
use crate::usage::sendable;

pub(super) async fn unit(args: UnitArgs) -> anyhow::Result<()> {
    sendable("--token", args.token.as_deref())?;
    hold_for_files(threads_default());
    let folder = args.dir.as_deref().map(queue_folder);
    let config = QueueConfig { dir: folder.clone(), ..QueueConfig::default() };
    let queue = blocking("queue open", move || TransferQueue::open(config)).await??;
    let controller = RemoteConfig { token: args.token.clone(), ..RemoteConfig::new(&args.controller) };
    let controller = RemoteQueue::new(controller)?;
    let scope = Scope::new();
    let config = service(args.token, args.body_bytes_max, &args.connections)?;
    let threads = serve_queue_on_threads(queue.clone(), args.listen, config, &scope).await?;
    let url = args.advertise.unwrap_or_else(|| format!("http://{}", threads.address));
    let kept = match &folder {
        Some(dir) => format!("in {}", dir.display()),
        None => "in memory: they are lost with this process".to_owned(),
    };
    say(&format!("keeping rows for {} at {url}, {kept}", args.controller));
    let (unit, end) = (queue.clone(), scope.token().clone());
    let announcing = scope.spawn("storage unit", async move {
        run_unit(&unit, folder.as_deref(), UnitConfig::new(controller, url), &end).await
    });
    let terminated = until_terminated(queue, Some(threads), scope);
    tokio::select! {
        biased;
        // A unit that cannot announce itself to the controller is of no use.
        Ok(Err(error)) = announcing => Err(error.into()),
        ended = terminated => ended,
    }
}
