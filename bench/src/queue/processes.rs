//! Processes that use the queue at the same time, from Python.
//!
//! Where many interpreters share few cores, each call finds cold caches, whatever it calls. How much of the best total
//! is left depends on the machine and on its neighbours. The second figure shows how much is left to processes that do
//! not use Rolldock, with a loop that takes about half the CPU time. The processes do both in turns.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use tokio::io::copy;
use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;

use super::data::SMALL_BYTES;
use super::rounds::median;
use crate::figures::{Bar, Figure};
use crate::python::Script;

/// Numbers of processes. The last is compared with the best of the others.
const COUNTS: [usize; 4] = [1, 2, 4, 16];
const ROUNDS: usize = 3;

/// Loops per second of all processes. A loop puts, takes and acks a group, or does without Rolldock.
#[derive(Deserialize)]
struct Totals {
    rolldock: f64,
    bare: f64,
}

pub(super) fn figures(quick: bool, client: &mut Script) -> anyhow::Result<Vec<Figure>> {
    let seconds = if quick { 1.0 } else { 3.0 };
    let folder = tempfile::tempdir()?;
    let socket_path = folder.path().join("echo");
    echo(&socket_path)?;
    let (mut ours, mut bare) = (COUNTS.map(|_| Vec::new()), COUNTS.map(|_| Vec::new()));
    for _ in 0..ROUNDS {
        for (count, (ours, bare)) in COUNTS.into_iter().zip(ours.iter_mut().zip(&mut bare)) {
            let totals: Totals = client.ask(&json!({
                "do": "processes", "count": count, "seconds": seconds, "payload_bytes": SMALL_BYTES,
                "socket_path": socket_path,
            }))?;
            ours.push(totals.rolldock);
            bare.push(totals.bare);
        }
    }
    let ([ours, best], [bare, best_bare]) = (totals(&ours), totals(&bare));
    let name = "the best of 1, 2 and 4 processes";
    let sixteen = Figure::new("16 processes: groups put, taken and acked", ours, "groups/s");
    let without = Figure::new("16 processes without Rolldock", bare, "loops/s");
    Ok(vec![
        sixteen.against_named(name, best).bar(Bar::RatioAtLeast(0.9)),
        without.against_named(name, best_bare),
    ])
}

/// The median total of the most processes, and the best median total of fewer processes.
fn totals(rates: &[Vec<f64>; COUNTS.len()]) -> [f64; 2] {
    let [fewer @ .., most] = rates.each_ref().map(|rates| median(rates));
    [most, fewer.into_iter().fold(0.0, f64::max)]
}

/// Returns what clients of this socket send, from a thread that ends with the bench.
fn echo(socket_path: &Path) -> anyhow::Result<()> {
    let listener = std::os::unix::net::UnixListener::bind(socket_path)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let listener = {
        let _entered = runtime.enter();
        UnixListener::from_std(listener)?
    };
    let clients = TaskTracker::new();
    std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
        runtime.block_on(async {
            while let Ok((mut stream, _)) = listener.accept().await {
                clients.spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    copy(&mut reader, &mut writer).await
                });
            }
        });
    })?;
    Ok(())
}
