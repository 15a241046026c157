//! The queue room: what a served queue moves, how long a small take takes, what rows cost in memory.
//!
//! The server is a process of its own, reached over loopback, as a trainer on the same machine would. How fast the
//! machine's loopback is at all is measured in the same rounds.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arrow::array::{ArrayRef, FixedSizeBinaryArray, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Field;
use rolldock::scope::Scope;
use rolldock_queue::{PartitionSpec, Put, Queue, RemoteConfig, RemoteQueue, Take};
use tokio::time::Instant;

use crate::figures::{Bar, Figure};

const LARGE_ROWS: usize = 512;
const PROMPT_TOKENS: usize = 1024;
const RESPONSE_TOKENS: usize = 4096;
/// Rows of about 1 KB.
const SMALL_BYTES: usize = 1016;

pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        // As a task, as a trainer's loader would be one: the thread that blocks on it is not the one that hears of I/O.
        scope.spawn(figures(quick)).await?
    })
}

async fn figures(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = vec![idle()?];
    figures.extend(large_rows(quick).await?);
    figures.extend(small_rows(quick).await?);
    figures.extend(small_takes(quick).await?);
    figures.push(durable_puts(quick).await?);
    Ok(figures)
}

/// `rolldock queue serve`; killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(dir: Option<&Path>) -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("rolldock");
        anyhow::ensure!(
            binary.exists(),
            "{} is not there; build it: cargo build --release --bin rolldock",
            binary.display()
        );
        let mut command = Command::new(binary);
        command.args(["queue", "serve", "--listen", "127.0.0.1:0"]);
        if let Some(dir) = dir {
            command.arg("--dir").arg(dir);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let url = line.split_once("at ").and_then(|(_, rest)| rest.split_once(','));
        let url = url.with_context(|| format!("the server said {line:?}"))?.0.to_owned();
        Ok(Self { child, url })
    }

    fn client(&self) -> anyhow::Result<RemoteQueue> {
        Ok(RemoteQueue::new(RemoteConfig::new(&self.url))?)
    }

    /// Resident memory, bytes.
    fn resident(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
        Ok(kibibytes.trim().parse::<f64>()? * 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn declared(server: &Server, name: &str, capacity_rows: usize) -> anyhow::Result<RemoteQueue> {
    let client = server.client()?;
    client.declare(PartitionSpec::new(name, ["train"], capacity_rows)).await?;
    Ok(client)
}

fn list(values: ArrayRef, rows: usize) -> ArrayRef {
    let lengths = std::iter::repeat_n(values.len() / rows, rows);
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None))
}

/// 512 rows of a training batch: 29 MB.
fn large() -> anyhow::Result<RecordBatch> {
    let ids = |tokens: usize| -> ArrayRef {
        let values = ScalarBuffer::from_iter((0..(LARGE_ROWS * tokens) as i64).map(|id| id % 150_000));
        list(Arc::new(Int64Array::new(values, None)), LARGE_ROWS)
    };
    let logprobs =
        Float32Array::from_iter_values((0..LARGE_ROWS * RESPONSE_TOKENS).map(|at| -(at as f32) * 1e-7));
    let rewards = Float32Array::from_iter_values((0..LARGE_ROWS).map(|row| row as f32));
    Ok(RecordBatch::try_from_iter([
        ("input_ids", ids(PROMPT_TOKENS)),
        ("responses", ids(RESPONSE_TOKENS)),
        ("log_probs", list(Arc::new(logprobs), LARGE_ROWS)),
        ("reward", Arc::new(rewards) as ArrayRef),
    ])?)
}

fn payload_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// Rows of 1 KB.
fn small(rows: usize) -> anyhow::Result<RecordBatch> {
    let payload = FixedSizeBinaryArray::try_from_iter((0..rows).map(|row| vec![row as u8; SMALL_BYTES]))?;
    let rewards = Float32Array::from_iter_values((0..rows).map(|row| row as f32));
    Ok(RecordBatch::try_from_iter([
        ("payload", Arc::new(payload) as ArrayRef),
        ("reward", Arc::new(rewards) as ArrayRef),
    ])?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn idle() -> anyhow::Result<Figure> {
    let server = Server::start(None)?;
    let megabytes = server.resident()? / 1e6;
    Ok(Figure::new("a server without rows: resident memory", megabytes, "MB").bar(Bar::AtMost(20.0)))
}

/// Bytes per second through a loopback socket that does nothing else.
fn loopback(bytes: usize) -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let reading = std::thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(total),
                count => total += count,
            }
        }
    });
    let payload = vec![7; 1 << 20];
    let mut stream = TcpStream::connect(address)?;
    let started = Instant::now();
    for _ in 0..bytes.div_ceil(payload.len()) {
        stream.write_all(&payload)?;
    }
    drop(stream);
    let read = reading.join().map_err(|_| anyhow::anyhow!("the reader died"))??;
    Ok(read as f64 / started.elapsed().as_secs_f64())
}

async fn large_rows(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(None)?;
    let client = declared(&server, "train", 1 << 20).await?;
    let batch = large()?;
    let bytes = payload_bytes(&batch) as f64;
    let take = Take::groups("train", 1);
    let (mut limits, mut puts, mut takes) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=if quick { 5 } else { 20 } {
        let limit = loopback(bytes as usize)?;
        let started = Instant::now();
        client.put("train", Put::group(format!("r{round}"), batch.clone()), None).await?;
        let put = bytes / started.elapsed().as_secs_f64();
        let started = Instant::now();
        let lease = client.take("train", &take).await?.context("nothing to take")?;
        anyhow::ensure!(lease.rows().len() == LARGE_ROWS, "{} rows", lease.rows().len());
        let taken = bytes / started.elapsed().as_secs_f64();
        lease.ack().await?;
        if round > 0 {
            limits.push(limit / 1e9);
            puts.push(put / 1e9);
            takes.push(taken / 1e9);
        }
    }
    let limit = median(limits);
    let what = format!(
        "{LARGE_ROWS} rows of {:.0} KB over loopback (peer: a bare socket)",
        bytes / LARGE_ROWS as f64 / 1e3
    );
    let mut figures = vec![
        Figure::new(format!("put, {what}"), median(puts), "GB/s").against(limit).bar(Bar::RatioAtLeast(0.5)),
        Figure::new(format!("take with data, {what}"), median(takes), "GB/s").against(limit),
    ];
    let target = if quick { 250e6 } else { 1e9 };
    let before = server.resident()?;
    let batches = (target / bytes).ceil() as usize;
    for number in 0..batches {
        client.put("train", Put::group(format!("m{number}"), batch.clone()), None).await?;
    }
    let held = server.resident()? - before;
    let name = format!("resident memory for {:.0} MB of rows of 57 KB", batches as f64 * bytes / 1e6);
    let payload = batches as f64 * bytes / 1e6;
    figures.push(Figure::new(name, held / 1e6, "MB").against(payload).bar(Bar::RatioAtMost(1.15)));
    Ok(figures)
}

async fn small_rows(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(None)?;
    let client = declared(&server, "train", 1 << 20).await?;
    let mut figures = Vec::new();
    for (rows, calls) in [(1, 1000), (16, 500), (512, 100)] {
        let calls = if quick { calls / 4 } else { calls };
        let batch = small(rows)?;
        let started = Instant::now();
        for call in 0..calls {
            client.put("train", Put::group(format!("{rows}-{call}"), batch.clone()), None).await?;
        }
        let put = (rows * calls) as f64 / started.elapsed().as_secs_f64();
        let started = Instant::now();
        let take = Take::groups("train", 1);
        for _ in 0..calls {
            client.take("train", &take).await?.context("nothing to take")?.ack().await?;
        }
        let taken = (rows * calls) as f64 / started.elapsed().as_secs_f64();
        figures.push(Figure::new(format!("put, rows of 1 KB, {rows} a call, one client"), put, "rows/s"));
        figures.push(Figure::new(
            format!("take and ack, rows of 1 KB, {rows} a call, one client"),
            taken,
            "rows/s",
        ));
    }
    Ok(figures)
}

/// Median time of a take of 16 rows of one column, microseconds.
async fn small_take(client: &RemoteQueue, quick: bool) -> anyhow::Result<f64> {
    let take = Take { columns: Some(vec!["reward".to_owned()]), ..Take::groups("train", 1) };
    let mut times = Vec::new();
    for _ in 0..if quick { 300 } else { 2_000 } {
        let started = Instant::now();
        let lease = client.take("train", &take).await?.context("nothing to take")?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        anyhow::ensure!(lease.rows().len() == 16, "{} rows", lease.rows().len());
        lease.nack().await?;
    }
    Ok(median(times))
}

async fn small_takes(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let resident_rows: usize = if quick { 100_000 } else { 1_000_000 };
    let (empty, full) = (Server::start(None)?, Server::start(None)?);
    let (few, many) = (declared(&empty, "train", 1 << 21).await?, declared(&full, "train", 1 << 21).await?);
    let batch = small(16)?;
    few.put("train", Put::group("only", batch.clone()), None).await?;
    let before = full.resident()?;
    for number in 0..resident_rows / 16 {
        many.put("train", Put::group(format!("g{number}"), batch.clone()), None).await?;
    }
    let held = (full.resident()? - before) / 1e6;
    let payload = (resident_rows * payload_bytes(&batch) / 16) as f64 / 1e6;
    // In turn, so that the machine's moods meet both.
    let (mut alone, mut among) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        alone.push(small_take(&few, quick).await?);
        among.push(small_take(&many, quick).await?);
    }
    let (alone, among) = (median(alone), median(among));
    let name = format!("the same among {resident_rows} rows (peer: alone)");
    Ok(vec![
        Figure::new("take of 16 rows, one column, median", alone, "us").bar(Bar::AtMost(150.0)),
        Figure::new(name, among, "us").against(alone).bar(Bar::RatioAtMost(1.2)),
        Figure::new(format!("resident memory for {payload:.0} MB of rows of 1 KB, groups of 16"), held, "MB")
            .against(payload)
            .bar(Bar::RatioAtMost(1.5)),
    ])
}

async fn durable_puts(quick: bool) -> anyhow::Result<Figure> {
    const CLIENTS: usize = 64;
    let dir = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../target"))?;
    let server = Server::start(Some(dir.path()))?;
    declared(&server, "train", 1 << 24).await?;
    let window = Duration::from_secs(if quick { 3 } else { 10 });
    let scope = Scope::new();
    let started = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = server.client()?;
            let batch = small(16)?;
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
