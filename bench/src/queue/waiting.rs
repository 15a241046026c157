//! Measures the cost of clients that wait for rows. Each of them should cost only a connection.

use std::time::Duration;

use anyhow::Context;
use rolldock::scope::Scope;
use rolldock_queue::{Put, Queue, Take};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::Instant;

use super::data;
use super::server::Server;
use rolldock_bench_figures::{Bar, Figure};

const CLIENTS: usize = 2_000;
/// The time over which the waiting clients are measured.
const WINDOW: Duration = Duration::from_secs(2);
/// The longest time for all clients to connect.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Number of open files of either process besides the connections.
const FILES: u64 = 500;

/// Raises the limit of open files, which the server's process inherits.
fn allow_files() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = CLIENTS as u64 + FILES;
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).with_context(|| format!("{needed} open files are not allowed"))
}

/// The CPU time of a server while 2,000 clients wait in a take. Afterwards all of them get a row.
pub(super) async fn takes() -> anyhow::Result<Figure> {
    allow_files()?;
    let server = Server::start(None)?;
    let producer = server.declared("train", 1 << 16).await?;
    let scope = Scope::new();
    let until = Instant::now() + Duration::from_secs(600);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = server.client()?;
            Ok(scope.spawn("waiting take", async move {
                let lease = client.take("train", &Take::rows("train", 1).until(until)).await?;
                lease.context("nothing to take")?.ack().await?;
                anyhow::Ok(())
            }))
        })
        .collect::<anyhow::Result<_>>()?;
    let arrived_by = Instant::now() + ARRIVAL;
    while server.connections()? < CLIENTS {
        anyhow::ensure!(Instant::now() < arrived_by, "not all of {CLIENTS} clients have connected");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // After this time the server has received the last requests.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = server.cpu_seconds()?;
    tokio::time::sleep(WINDOW).await;
    let used = server.cpu_seconds()? - before;
    producer.put("train", Put::group("all", data::small(CLIENTS)?), None).await?;
    for client in clients {
        client.await??;
    }
    let share = used / WINDOW.as_secs_f64() * 100.0;
    let name = format!("a server with {CLIENTS} takes that wait: share of one core");
    Ok(Figure::new(name, share, "%").bar(Bar::AtMost(2.0)))
}
