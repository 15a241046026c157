//! Measures rows on disk: puts that survive a crash of the machine, and the memory that a large partition
//! needs.

use std::time::Duration;

use anyhow::Context;
use rolldock::scope::Scope;
use rolldock_queue::{Durability, PartitionSpec, Put, Queue, Take};
use tokio::time::Instant;

use super::data;
use super::server::Server;
use rolldock_bench_figures::{Bar, Figure};

const CLIENTS: usize = 64;
/// The bound on the memory in MB, for a partition of any size.
const MEMORY_MB_MAX: f64 = 512.0;

/// Creates a folder in `target`, because the system's folder for temporary files may be in memory.
fn directory() -> anyhow::Result<tempfile::TempDir> {
    let target = rolldock_bench_figures::checkout().join("target");
    std::fs::create_dir_all(&target)?;
    Ok(tempfile::tempdir_in(target)?)
}

/// The memory of a server, without the file system's cache, while it is filled and read. With `quick`, only a
/// tenth of the rows is used.
pub(super) async fn large(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let dir = directory()?;
    let server = Server::start(Some(dir.path()))?;
    let client = server.client()?;
    let batch = data::large()?;
    let bytes = data::payload_bytes(&batch) as f64;
    let gigabytes = if quick { 1.0 } else { 10.0 };
    let puts = (gigabytes * 1e9 / bytes).ceil() as usize;
    let spec = PartitionSpec::new("train", ["train"], puts * data::LARGE_ROWS);
    client.declare(PartitionSpec { durability: Some(Durability::Os), ..spec }).await?;
    let mut most = 0.0_f64;
    let started = Instant::now();
    for group in 0..puts {
        client.put("train", Put::group(group.to_string(), batch.clone()), None).await?;
        most = most.max(server.anonymous()?);
    }
    let put = bytes * puts as f64 / started.elapsed().as_secs_f64() / 1e9;
    let started = Instant::now();
    for _ in 0..puts {
        let lease = client.take("train", &Take::groups("train", 1)).await?.context("nothing to take")?;
        anyhow::ensure!(lease.rows().len() == data::LARGE_ROWS, "{} rows", lease.rows().len());
        most = most.max(server.anonymous()?);
        lease.ack().await?;
    }
    let take = bytes * puts as f64 / started.elapsed().as_secs_f64() / 1e9;
    let what = format!("a partition of {gigabytes} GB on disk");
    Ok(vec![
        Figure::new(format!("{what}: most memory while it is put and taken"), most / 1e6, "MB")
            .bar(Bar::AtMost(MEMORY_MB_MAX)),
        Figure::new(format!("{what}: put"), put, "GB/s"),
        Figure::new(format!("{what}: take"), take, "GB/s"),
    ])
}

pub(super) async fn puts(quick: bool) -> anyhow::Result<Figure> {
    let dir = directory()?;
    let server = Server::start(Some(dir.path()))?;
    server.declared("train", 1 << 24).await?;
    let window = Duration::from_secs(if quick { 3 } else { 10 });
    let scope = Scope::new();
    let started = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = server.client()?;
            let batch = data::small(16)?;
            Ok(scope.spawn("producer", async move {
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
