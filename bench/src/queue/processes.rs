//! Processes that use the queue at the same time, from Python.
//!
//! The bar is for the batch of 29 MB, like the bars of a single process. With small groups the calls themselves are the
//! work. Where many interpreters share few cores, each call finds cold caches, whatever it calls, and how much of the
//! best total is left depends on the machine and on its neighbours. So a second figure shows how much is left to
//! processes that do not use Rolldock, with a loop that takes about half the CPU time of small groups. The processes do
//! both in turns.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::copy;
use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;

use super::data::{LARGE_ROWS, PROMPT_TOKENS, RESPONSE_TOKENS, SMALL_BYTES};
use super::rounds::median;
use rolldock_bench_figures::python::Script;
use rolldock_bench_figures::{Bar, Figure};

/// Numbers of processes. The last is compared with the best of the others.
const COUNTS: [usize; 4] = [1, 2, 4, 16];
const ROUNDS: usize = 8;
const ROUNDS_QUICK: usize = 4;
/// Time of the loops that are counted, and of those before them. In the warm-up, each process maps the regions of shared
/// memory that it has not used yet.
const SECONDS: f64 = 1.5;
const WARM_UP_S: f64 = 1.0;
/// Rows of a small group.
const SMALL_ROWS: usize = 16;

/// Loops per second of all processes. A loop puts, takes and acks one batch, or does without Rolldock.
#[derive(Deserialize)]
struct Rates {
    rolldock: f64,
    bare: f64,
}

pub(super) fn figures(quick: bool, client: &mut Script) -> anyhow::Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let socket_path = folder.path().join("echo");
    echo(&socket_path)?;
    let large = json!({
        "rows": LARGE_ROWS, "prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS,
    });
    let small = json!({"rows": SMALL_ROWS, "payload_bytes": SMALL_BYTES});
    let mut figures = Vec::new();
    for (what, shape) in [("batches of 29 MB", &large), ("groups of 16 rows of 1 KB", &small)] {
        let ([ours, best], [bare, best_bare]) = measured(quick, client, shape, &socket_path)?;
        let name = "the best of 1, 2 and 4 processes";
        let sixteen = Figure::new(format!("16 processes: {what} put, taken and acked"), ours, "1/s");
        let sixteen = sixteen.against_named(name, best);
        figures.push(if shape == &large { sixteen.bar(Bar::RatioAtLeast(0.9)) } else { sixteen });
        let without = Figure::new(format!("16 processes without Rolldock: {what}, loops"), bare, "1/s");
        figures.push(without.against_named(name, best_bare));
    }
    Ok(figures)
}

/// The total of the most processes and the best total of fewer processes, with Rolldock and without.
fn measured(
    quick: bool,
    client: &mut Script,
    shape: &Value,
    socket_path: &Path,
) -> anyhow::Result<([f64; 2], [f64; 2])> {
    let most = COUNTS[COUNTS.len() - 1];
    let start = json!({"do": "start_processes", "count": most, "shape": shape, "socket_path": socket_path});
    client.ask::<Value>(&start)?;
    let (mut ours, mut bare) = (COUNTS.map(|_| Vec::new()), COUNTS.map(|_| Vec::new()));
    for round in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        let mut places: [usize; COUNTS.len()] = std::array::from_fn(|place| place);
        // A machine that becomes slower or faster favours neither end.
        places.rotate_left(round % COUNTS.len());
        for place in places {
            let rates: Rates = client.ask(&json!({
                "do": "rates", "count": COUNTS[place], "warm_up_s": WARM_UP_S, "seconds": SECONDS,
            }))?;
            ours[place].push(rates.rolldock);
            bare[place].push(rates.bare);
        }
    }
    client.ask::<Value>(&json!({"do": "end_processes"}))?;
    Ok((totals(&ours), totals(&bare)))
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
