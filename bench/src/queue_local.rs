//! The queue within a host: what goes through shared memory, beside what this machine copies at all.
//!
//! To be merged with the queue room: the server's start and the rows are the same there.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{Field, Int64Type};
use rolldock::scope::Scope;
use rolldock_queue::{LocalConfig, LocalQueue, PartitionSpec, Put, Queue, Take};
use tokio::time::Instant;

use crate::figures::{Bar, Figure};

const ROWS: usize = 512;
const PROMPT_TOKENS: usize = 1024;
const RESPONSE_TOKENS: usize = 4096;
/// Rounds that warm up: the first ones touch fresh pages.
const WARM_UP: usize = 3;

/// `rolldock queue serve --uds`; killed when dropped.
struct Server {
    child: Child,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("rolldock");
        anyhow::ensure!(
            binary.exists(),
            "{} is not there; build it: cargo build --release --bin rolldock",
            binary.display()
        );
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("queue.sock");
        let mut command = Command::new(binary);
        command.args(["queue", "serve", "--uds"]).arg(&path);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        anyhow::ensure!(line.contains("unix:"), "the server said {line:?}");
        Ok(Self { child, path, _dir: dir })
    }

    fn client(&self) -> anyhow::Result<LocalQueue> {
        Ok(LocalQueue::new(LocalConfig::new(&self.path))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn list(values: ArrayRef) -> ArrayRef {
    let lengths = std::iter::repeat_n(values.len() / ROWS, ROWS);
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None))
}

/// 512 rows of a training batch: 29 MB.
fn rows() -> anyhow::Result<RecordBatch> {
    let ids = |tokens: usize| -> ArrayRef {
        let values = ScalarBuffer::from_iter((0..(ROWS * tokens) as i64).map(|id| id % 150_000));
        list(Arc::new(Int64Array::new(values, None)))
    };
    let logprobs = Float32Array::from_iter_values((0..ROWS * RESPONSE_TOKENS).map(|at| -(at as f32) * 1e-7));
    let rewards = Float32Array::from_iter_values((0..ROWS).map(|row| row as f32));
    Ok(RecordBatch::try_from_iter([
        ("input_ids", ids(PROMPT_TOKENS)),
        ("responses", ids(RESPONSE_TOKENS)),
        ("log_probs", list(Arc::new(logprobs))),
        ("reward", Arc::new(rewards) as ArrayRef),
    ])?)
}

fn payload_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Reads every response token, as whoever trains on them does.
fn sum<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> i64 {
    let columns = batches.into_iter().filter_map(|batch| batch.column_by_name("responses"));
    let lists = columns.filter_map(|column| column.as_list_opt::<i32>());
    let tokens = lists.filter_map(|lists| lists.values().as_primitive_opt::<Int64Type>());
    tokens.flat_map(|tokens| tokens.values().iter()).fold(0, |sum, token| sum.wrapping_add(*token))
}

/// Gigabytes per second of one part of a round.
#[derive(Default)]
struct Speeds {
    copies: Vec<f64>,
    puts: Vec<f64>,
    takes: Vec<f64>,
    reads: Vec<f64>,
    grouped_puts: Vec<f64>,
    grouped_takes: Vec<f64>,
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        // As a task, as a trainer's loader would be one: the thread that blocks on it is not the one that hears of I/O.
        scope.spawn(figures(quick)).await?
    })
}

pub(crate) async fn figures(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start()?;
    let (producer, consumer) = (server.client()?, server.client()?);
    producer.declare(PartitionSpec::new("train", ["train"], 1 << 20)).await?;
    let batch = rows()?;
    let bytes = payload_bytes(&batch) as f64;
    let speed = |started: Instant| bytes / started.elapsed().as_secs_f64() / 1e9;
    let from = vec![7_u8; bytes as usize];
    let mut into = vec![1_u8; bytes as usize];
    let mut speeds = Speeds::default();
    let expected = sum([&batch]);
    for round in 0..WARM_UP + if quick { 10 } else { 40 } {
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
        anyhow::ensure!(sum(lease.batches()) == expected, "other rows than were put");
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
    Ok(report(speeds, bytes))
}

fn report(speeds: Speeds, bytes: f64) -> Vec<Figure> {
    let what = format!("{ROWS} rows of {:.0} KB, shared memory", bytes / ROWS as f64 / 1e3);
    let copy = median(speeds.copies);
    let figure = |name: String, speeds: Vec<f64>| Figure::new(name, median(speeds), "GB/s").against(copy);
    vec![
        figure(format!("put, {what} (peer: memcpy)"), speeds.puts).bar(Bar::AtLeast(6.0)),
        figure(format!("take, {what}"), speeds.takes).bar(Bar::AtLeast(6.0)),
        figure("take, every response token read".to_owned(), speeds.reads),
        figure("put, the same rows in 32 groups, one after the other".to_owned(), speeds.grouped_puts),
        figure("take, the same rows in 32 groups at once".to_owned(), speeds.grouped_takes),
    ]
}
