//! Puts that survive the machine's death.

use std::time::Duration;

use rolldock::scope::Scope;
use rolldock_queue::{Put, Queue};
use tokio::time::Instant;

use super::data;
use super::server::Server;
use crate::figures::{Bar, Figure};

const CLIENTS: usize = 64;

pub(super) async fn puts(quick: bool) -> anyhow::Result<Figure> {
    // Beside the sources, because a folder for temporary files may be in memory.
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");
    std::fs::create_dir_all(target)?;
    let dir = tempfile::tempdir_in(target)?;
    let server = Server::start(Some(dir.path()))?;
    server.declared("train", 1 << 24).await?;
    let window = Duration::from_secs(if quick { 3 } else { 10 });
    let scope = Scope::new();
    let started = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = server.client()?;
            let batch = data::small(16)?;
            Ok(scope.spawn(async move {
                let mut rows = 0;
                while started.elapsed() < window {
                    client.put("train", Put::group(format!("{number}-{rows}"), batch.clone()), None).await?;
                    rows += 16;
                }
                anyhow::Ok(rows)
            }))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut rows = 0;
    for client in clients {
        rows += client.await??;
    }
    let rate = rows as f64 / started.elapsed().as_secs_f64();
    let name = format!("put that survives the machine's death, {CLIENTS} clients, 16 rows of 1 KB a put");
    Ok(Figure::new(name, rate, "rows/s").bar(Bar::AtLeast(50_000.0)))
}
