//! Measures the queue within a host: the rate through shared memory, compared with the machine's rate of
//! copying. Also measures the queue within a process, where no bytes are copied.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Context;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rolldock_queue::{LocalConfig, LocalQueue, PartitionSpec, Put, Queue, QueueConfig, Take, TransferQueue};
use tokio::time::Instant;

use super::data::{self, LARGE_ROWS as ROWS};
use super::rounds::{median, rounds};
use crate::process::Process;
use rolldock_bench_figures::held_bytes;
use rolldock_bench_figures::{Bar, Figure};

/// Number of warm-up rounds; the first rounds touch fresh pages.
const WARM_UP: usize = 3;

/// A server that is reached through a Unix socket.
struct Server {
    _process: Process,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("queue.sock");
        let (process, line) = Process::start(&[
            OsStr::new("queue"),
            OsStr::new("serve"),
            OsStr::new("--uds"),
            path.as_os_str(),
        ])?;
        anyhow::ensure!(
            line.contains("unix:"),
            "expected a line with the address of the server, found {line:?}"
        );
        Ok(Self { _process: process, path, _dir: dir })
    }

    fn client(&self) -> anyhow::Result<LocalQueue> {
        Ok(LocalQueue::new(LocalConfig::new(&self.path))?)
    }
}

/// Reads every response token, as a trainer does.
fn sum<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> i64 {
    let columns = batches.into_iter().filter_map(|batch| batch.column_by_name("responses"));
    let lists = columns.filter_map(|column| column.as_list_opt::<i32>());
    let tokens = lists.filter_map(|lists| lists.values().as_primitive_opt::<Int64Type>());
    tokens.flat_map(|tokens| tokens.values().iter()).fold(0, |sum, token| sum.wrapping_add(*token))
}

/// The speeds of the parts of each round, in gigabytes per second.
#[derive(Default)]
struct Speeds {
    copies: Vec<f64>,
    puts: Vec<f64>,
    takes: Vec<f64>,
    reads: Vec<f64>,
    grouped_puts: Vec<f64>,
    grouped_takes: Vec<f64>,
}

pub(super) async fn figures(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start()?;
    let (producer, consumer) = (server.client()?, server.client()?);
    producer.declare(PartitionSpec::new("train", ["train"], 1 << 20)).await?;
    let batch = data::large()?;
    let bytes = data::payload_bytes(&batch) as f64;
    let speed = |started: Instant| bytes / started.elapsed().as_secs_f64() / 1e9;
    let from = vec![7_u8; bytes as usize];
    let mut into = vec![1_u8; bytes as usize];
    let mut speeds = Speeds::default();
    let expected = sum([&batch]);
    for round in 0..WARM_UP + rounds(quick) {
        let started = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut into);
        let copy = speed(started);

        let started = Instant::now();
        producer.put("train", Put::group(format!("r{round}"), batch.clone()), None).await?;
        let put = speed(started);
        let started = Instant::now();
        let lease = consumer.take("train", &Take::groups("train", 1)).await?.context("nothing to take")?;
        let taken = speed(started);
        anyhow::ensure!(sum(lease.batches()) == expected, "the taken rows are not those that were put");
        let read = speed(started);
        lease.ack().await?;

        let started = Instant::now();
        for group in 0..32 {
            let rows = batch.slice(group * 16, 16);
            producer.put("train", Put::group(format!("r{round}/{group}"), rows), None).await?;
        }
        let grouped_put = speed(started);
        let started = Instant::now();
        let lease = consumer.take("train", &Take::groups("train", 32)).await?.context("nothing to take")?;
        let grouped_take = speed(started);
        anyhow::ensure!(lease.rows().len() == ROWS, "{} rows", lease.rows().len());
        lease.ack().await?;
        if round >= WARM_UP {
            speeds.copies.push(copy);
            speeds.puts.push(put);
            speeds.takes.push(taken);
            speeds.reads.push(read);
            speeds.grouped_puts.push(grouped_put);
            speeds.grouped_takes.push(grouped_take);
        }
    }
    let mut figures = report(&speeds, bytes);
    figures.push(embedded(&batch).await?);
    Ok(figures)
}

fn report(speeds: &Speeds, bytes: f64) -> Vec<Figure> {
    let what = format!("{ROWS} rows of {:.0} KB, shared memory", bytes / ROWS as f64 / 1e3);
    let copy = median(&speeds.copies);
    let figure = |name: String, speeds: &[f64]| Figure::new(name, median(speeds), "GB/s").against(copy);
    vec![
        figure(format!("put, {what} (peer: memcpy by one core)"), &speeds.puts).bar(Bar::AtLeast(6.0)),
        figure(format!("take, {what}"), &speeds.takes).bar(Bar::AtLeast(6.0)),
        figure("take, every response token read".to_owned(), &speeds.reads),
        figure("put, the same rows in 32 groups, one after the other".to_owned(), &speeds.grouped_puts),
        figure("take, the same rows in 32 groups at once".to_owned(), &speeds.grouped_takes),
    ]
}

/// The bytes that a take in the same process allocates and keeps while the lease exists.
async fn embedded(batch: &RecordBatch) -> anyhow::Result<Figure> {
    let queue = TransferQueue::open(QueueConfig::default())?;
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 1 << 20)).await?;
    partition.put(Put::group("g", batch.clone()), None).await?;
    let before = held_bytes();
    let lease = partition.take(&Take::groups("train", 1)).await?.context("nothing to take")?;
    let allocated = held_bytes().saturating_sub(before);
    anyhow::ensure!(lease.rows().len() == ROWS, "{} rows", lease.rows().len());
    let payload = data::payload_bytes(batch) as f64 / 1e6;
    let name = format!("take in the same process, {payload:.0} MB of payload: allocated");
    Ok(Figure::new(name, allocated as f64 / 1e3, "KB").bar(Bar::AtMost(100.0)))
}
