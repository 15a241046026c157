//! Sends damaged bytes to every input of the queue: its files, snapshots, HTTP bodies and the local socket.
//! The result must be rows that were put, or an error. A panic, a row that was not put, and the end of a
//! server are failures.
//!
//! Each input is tested for a few seconds, and `ROLLDOCK_FUZZ_SECONDS` sets another time. The damage is drawn
//! from a seed, which a failure prints. `ROLLDOCK_FUZZ_SEED` repeats a run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod claims;
mod files;
mod http;
mod socket;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rolldock_queue::{
    Durability, LocalListener, LocalServiceConfig, PartitionSpec, Put, QueueConfig, ServiceConfig, Take,
    TransferQueue, serve, serve_local,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

fn seconds() -> Duration {
    let asked = std::env::var("ROLLDOCK_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(2.0))
}

/// A source of random damage for one input.
struct Damage {
    rng: SmallRng,
    until: Instant,
    rounds: u64,
    what: &'static str,
}

impl Damage {
    fn new(what: &'static str) -> Self {
        let seed = std::env::var("ROLLDOCK_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(rand::random);
        eprintln!("{what}: ROLLDOCK_FUZZ_SEED={seed}");
        Self { rng: SmallRng::seed_from_u64(seed), until: Instant::now() + seconds(), rounds: 0, what }
    }

    fn goes_on(&mut self) -> bool {
        self.rounds += 1;
        let goes_on = Instant::now() < self.until;
        if !goes_on {
            eprintln!("{}: {} rounds", self.what, self.rounds);
        }
        goes_on
    }

    /// Returns damaged bytes: flips, replaces, cuts, removes, doubles or overwrites some of them.
    fn of(&mut self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for _ in 0..self.rng.random_range(1..4) {
            if bytes.is_empty() {
                break;
            }
            let at = self.rng.random_range(0..bytes.len());
            let length = self.rng.random_range(0..=(bytes.len() - at).min(64));
            match self.rng.random_range(0..6) {
                0 => bytes[at] ^= 1 << self.rng.random_range(0..8),
                1 => bytes[at] = self.rng.random(),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..at + length)),
                4 => {
                    let piece = bytes[at..at + length].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => bytes[at..at + length].fill(self.rng.random()),
            }
        }
        bytes
    }
}

fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((first..first + rows).map(|id| format!("n{id}"))));
    RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap()
}

fn open(dir: &Path) -> TransferQueue {
    let config =
        QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

async fn fill(queue: &TransferQueue) {
    let partition = queue.declare(PartitionSpec::new("p", ["a", "b"], 64)).await.unwrap();
    for group in 0..6 {
        let put =
            Put { token: Some(format!("t{group}")), ..Put::group(format!("g{group}"), batch(group * 4, 4)) };
        partition.put(put, None).await.unwrap();
    }
    partition.take(&Take::groups("a", 2)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::groups("b", 1)).await.unwrap().unwrap().ack().await.unwrap();
}

async fn served(queue: TransferQueue) -> (String, AbortOnDropHandle<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = ServiceConfig { body_bytes_max: 1 << 20, ..ServiceConfig::default() };
    let serving = serve(queue, listener, config, CancellationToken::new());
    (url, AbortOnDropHandle::new(TaskTracker::new().spawn(serving)))
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts the panics of this process, whether or not they are caught.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            usual(panic);
        }));
    });
}

fn assert_no_panic() {
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a panic was caught");
}

fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// A frame of the socket: the lengths of both parts, the JSON text `words`, and the bytes `tail`.
fn framed(words: &str, tail: &[u8]) -> Vec<u8> {
    let mut frame = (words.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&(tail.len() as u32).to_le_bytes());
    frame.extend_from_slice(words.as_bytes());
    frame.extend_from_slice(tail);
    frame
}

/// Sends bytes to the server, and returns its answer. The answer ends after 20 ms without data or when the
/// connection is closed.
async fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut peer = UnixStream::connect(socket).await.unwrap();
    // The server may close the connection before all bytes are written.
    let _ = peer.write_all(bytes).await;
    let mut said = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let pause = Duration::from_millis(20);
    while let Ok(Ok(count)) = tokio::time::timeout(pause, peer.read(&mut piece)).await {
        if count == 0 {
            break;
        }
        said.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn served_here(queue: TransferQueue, socket: &Path) -> AbortOnDropHandle<std::io::Result<()>> {
    let listener = LocalListener::bind(socket, LocalServiceConfig::default()).unwrap();
    let serving = serve_local(queue, listener, CancellationToken::new());
    AbortOnDropHandle::new(TaskTracker::new().spawn(serving))
}
