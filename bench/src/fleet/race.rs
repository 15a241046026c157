//! Compares the proxy with other routers, each in front of two backends that answer immediately.
//!
//! Every round measures each router, and one backend directly, in rotated order. The overhead of a router is
//! its median time for a request minus the median time of the backend in the same round. The ratio of two
//! overheads is computed for each round. The figure is the geometric mean of these ratios, with Student's
//! confidence interval. The other times and rates are medians over the rounds, and their ratios are ratios of medians.
//! Memory is measured after the last round.
//!
//! The two backends are pinned to one core and the client of the sequential requests to another, because in a
//! fleet a client and a backend never share a core. They poll instead of sleeping, because the time to wake a
//! sleeping core of a virtual machine can change five-fold from one minute to the next. The client of the
//! concurrent requests and the routers are not pinned.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

use super::echo::{keep_to_core, request_length};
use rolldock_bench_figures::{Bar, Figure};

/// For each router: its package, its version, and the arguments of its launcher before the servers'
/// addresses.
const PEERS: [(&str, &str, &[&str]); 3] = [
    ("vllm-router", "0.1.17", &["--policy", "round_robin"]),
    ("sglang-router", "0.3.2", &["launch", "--policy", "round_robin"]),
    ("smg", "1.13.0", &["launch", "--policy", "round_robin"]),
];
const ROUNDS: usize = 25;
const ROUNDS_QUICK: usize = 9;
/// Number of sequential requests in a round.
const SEQUENTIAL: usize = 400;
/// Number of warm-up requests that precede the sequential requests and do not count.
const WARM_UP: usize = 20;
/// Number of concurrent requests in a round.
const CONCURRENT: usize = 64;
const WINDOW: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(10);
const START_WAIT: Duration = Duration::from_secs(60);
const BODY: &str = "{\"model\":\"echo\",\"prompt\":\"two and two is\",\"max_tokens\":16,\"temperature\":1.0}";

/// A process that is killed when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // An error only means that the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Resident memory of the process and its children, in bytes.
    fn resident(&self) -> f64 {
        let mut total = 0.0;
        let mut processes = vec![self.0.id()];
        while let Some(process) = processes.pop() {
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
            total += kibibytes.unwrap_or(0.0) * 1024.0;
            let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
            processes.extend(
                children.unwrap_or_default().split_whitespace().filter_map(|id| id.parse::<u32>().ok()),
            );
        }
        total
    }
}

/// A target of the requests: a router or a backend.
struct Target {
    name: String,
    address: SocketAddr,
    process: Option<Process>,
    sequential_us: Vec<f64>,
    sequential_p99_us: Vec<f64>,
    rate: Vec<f64>,
}

impl Target {
    fn new(name: &str, address: SocketAddr, process: Option<Process>) -> Self {
        let (sequential_us, sequential_p99_us, rate) = (Vec::new(), Vec::new(), Vec::new());
        Self { name: name.to_owned(), address, process, sequential_us, sequential_p99_us, rate }
    }
}

fn request(address: SocketAddr) -> Vec<u8> {
    let length = BODY.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{BODY}"
    )
    .into_bytes()
}

/// Sends a request and reads the whole answer. A non-blocking stream is polled.
fn ask(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> anyhow::Result<()> {
    stream.write_all(request)?;
    buffer.clear();
    let mut piece = [0; 8192];
    let asked_at = Instant::now();
    loop {
        let read = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                anyhow::ensure!(asked_at.elapsed() < ANSWER_MAX, "no answer within {ANSWER_MAX:?}");
                std::thread::yield_now();
                continue;
            }
            read => read?,
        };
        anyhow::ensure!(read > 0, "the connection was closed");
        buffer.extend_from_slice(&piece[..read]);
        if is_complete(buffer) {
            anyhow::ensure!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(buffer));
            return Ok(());
        }
    }
}

fn is_complete(answer: &[u8]) -> bool {
    if memchr::memmem::find(answer, b"transfer-encoding: chunked").is_some() {
        return answer.ends_with(b"0\r\n\r\n");
    }
    request_length(answer).is_some_and(|length| answer.len() >= length)
}

/// The sorted times of sequential requests, in microseconds.
fn sequential(address: SocketAddr) -> anyhow::Result<Vec<f64>> {
    let client = std::thread::spawn(move || {
        keep_to_core(0)?;
        send_sequentially(address)
    });
    client.join().map_err(|_| anyhow::anyhow!("the thread of the client panicked"))?
}

fn send_sequentially(address: SocketAddr) -> anyhow::Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (request, mut buffer) = (request(address), Vec::new());
    let mut times = Vec::with_capacity(SEQUENTIAL);
    for number in 0..SEQUENTIAL + WARM_UP {
        let started = Instant::now();
        ask(&mut stream, &request, &mut buffer)?;
        if number >= WARM_UP {
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The number of requests per second with [`CONCURRENT`] concurrent requests.
fn concurrent(address: SocketAddr) -> anyhow::Result<f64> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let request = request(address);
    let started = Instant::now();
    let clients = (0..CONCURRENT).map(|_| async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut count, mut buffer) = (0_u64, Vec::new());
        while started.elapsed() < WINDOW {
            stream.write_all(&request).await?;
            buffer.clear();
            while !is_complete(&buffer) {
                let read = stream.read_buf(&mut buffer).await?;
                anyhow::ensure!(read > 0, "the connection was closed");
            }
            count += 1;
        }
        anyhow::Ok(count)
    });
    let counts = runtime.block_on(futures::future::try_join_all(clients))?;
    Ok(counts.iter().sum::<u64>() as f64 / started.elapsed().as_secs_f64())
}

fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn start_echo() -> anyhow::Result<(Process, [SocketAddr; 2])> {
    let mut child = Command::new(std::env::current_exe()?).arg("echo").stdout(Stdio::piped()).spawn()?;
    let mut lines =
        BufReader::new(child.stdout.take().context("the output of the process is not captured")?).lines();
    let process = Process(child);
    let mut address = || -> anyhow::Result<SocketAddr> {
        Ok(lines.next().context("the backends printed no address")??.parse()?)
    };
    Ok((process, [address()?, address()?]))
}

fn start_ours(backends: &[SocketAddr]) -> anyhow::Result<Target> {
    let binary = std::env::current_exe()?.with_file_name("rolldock");
    let mut command = Command::new(&binary);
    command.args(["proxy", "--listen", "127.0.0.1:0", "--engine", "openai"]);
    for backend in backends {
        command.arg("--endpoint").arg(format!("http://{backend}"));
    }
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.with_context(|| {
        format!("cannot start {}; build the command with the profile of the bench", binary.display())
    })?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("the output of the process is not captured")?)
        .read_line(&mut line)?;
    let process = Process(child);
    let address = line.strip_prefix("http://").and_then(|rest| rest.split(' ').next());
    let address =
        address.with_context(|| format!("expected the address of the proxy, found {line:?}"))?.parse()?;
    Ok(Target::new("rolldock proxy", address, Some(process)))
}

/// The folder with the peers, which are installed if they are missing.
fn install() -> anyhow::Result<PathBuf> {
    let folder = match std::env::var_os("ROLLDOCK_ROUTERS_ENV") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?)
            .join(".cache/rolldock-routers"),
    };
    let run = |program: &Path, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).stdout(Stdio::null()).status();
        let done = done.with_context(|| format!("cannot run {}", program.display()))?;
        anyhow::ensure!(done.success(), "{} {arguments:?} failed", program.display());
        anyhow::Ok(())
    };
    if !folder.join("bin/python").exists() {
        let path = folder.to_str().context("the path of the folder is not UTF-8")?;
        run(Path::new("python3"), &["-m", "venv", path])?;
    }
    let wanted = PEERS.map(|(name, version, _)| format!("{name}=={version}"));
    let mut arguments = vec!["install", "--quiet", "--disable-pip-version-check"];
    arguments.extend(wanted.iter().map(String::as_str));
    run(&folder.join("bin/pip"), &arguments)?;
    Ok(folder)
}

fn start_peer(folder: &Path, peer: (&str, &str, &[&str]), backends: &[SocketAddr]) -> anyhow::Result<Target> {
    let (name, version, flags) = peer;
    let (address, metrics) = (free_port()?, free_port()?);
    let mut command = Command::new(folder.join("bin").join(name));
    command.args(flags).args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--prometheus-port", &metrics.port().to_string(), "--worker-urls"]);
    command.args(backends.iter().map(|backend| format!("http://{backend}")));
    let process = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let target = Target::new(&format!("{name} {version}"), address, Some(process));
    let give_up = Instant::now() + START_WAIT;
    loop {
        match forwards(address) {
            Ok(()) => return Ok(target),
            Err(error) if Instant::now() > give_up => {
                return Err(error.context(format!("{name} does not forward a request")));
            }
            Err(_) => std::thread::park_timeout(Duration::from_millis(200)),
        }
    }
}

fn forwards(address: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    ask(&mut stream, &request(address), &mut Vec::new())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The geometric mean of ratios, and the ends of its 95 % confidence interval.
fn interval(ratios: &[f64]) -> (f64, f64, f64) {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student(count - 1.0) * (variance / count).sqrt();
    (mean.exp(), (mean - half).exp(), (mean + half).exp())
}

/// Student's t for a two-sided interval of 95 %, computed from the normal quantile and the first terms of its
/// expansion. The error is below 1 % with at least six degrees of freedom.
fn student(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.959_964;
    let cubic = (NORMAL.powi(3) + NORMAL) / 4.0;
    let quintic = (5.0 * NORMAL.powi(5) + 16.0 * NORMAL.powi(3) + 3.0 * NORMAL) / 96.0;
    NORMAL + cubic / freedom + quintic / freedom.powi(2)
}

/// Measures Rolldock's proxy in rounds. With `with_peers`, also measures the other routers.
pub(super) fn measure(quick: bool, with_peers: bool) -> anyhow::Result<Vec<Figure>> {
    let (_echo, backends) = start_echo()?;
    let mut targets = vec![Target::new("the backend itself", backends[0], None), start_ours(&backends)?];
    if with_peers {
        let folder = install()?;
        for peer in PEERS {
            targets.push(start_peer(&folder, peer, &backends)?);
        }
    }
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    for round in 0..rounds {
        let count = targets.len();
        for step in 0..count {
            let target = &mut targets[(round + step) % count];
            let times = sequential(target.address).with_context(|| target.name.clone())?;
            target.sequential_us.push(times[times.len() / 2]);
            target.sequential_p99_us.push(times[times.len() * 99 / 100]);
            target.rate.push(concurrent(target.address).with_context(|| target.name.clone())?);
        }
    }
    Ok(figures(&targets))
}

fn figures(targets: &[Target]) -> Vec<Figure> {
    let [direct, ours, peers @ ..] = targets else { return Vec::new() };
    // An overhead below a microsecond is noise, and counts as one microsecond.
    let added = |target: &Target| -> Vec<f64> {
        target
            .sequential_us
            .iter()
            .zip(&direct.sequential_us)
            .map(|(with, without)| (with - without).max(1.0))
            .collect()
    };
    let ours_added = added(ours);
    let memory = ours.process.as_ref().map_or(0.0, Process::resident) / 1e6;
    let mut figures = vec![
        Figure::new("proxy, sequential requests: overhead", median(&ours_added), "us"),
        Figure::new("proxy, sequential requests: 99th percentile", median(&ours.sequential_p99_us), "us"),
        Figure::new(format!("proxy, {CONCURRENT} concurrent requests"), median(&ours.rate), "requests/s"),
        Figure::new("proxy: resident memory", memory, "MB").bar(Bar::AtMost(20.0)),
    ];
    for peer in peers {
        let theirs_added = added(peer);
        let ratios: Vec<f64> =
            ours_added.iter().zip(&theirs_added).map(|(ours, theirs)| ours / theirs).collect();
        let (mean, low, high) = interval(&ratios);
        let name = format!("overhead divided by that of {} (95 % interval {low:.2} to {high:.2})", peer.name);
        figures.push(Figure::new(name, mean, "x").bar(Bar::AtMost(1.0)));
        let rate = Figure::new(format!("{CONCURRENT} concurrent requests"), median(&ours.rate), "requests/s");
        figures.push(rate.against_named(&peer.name, median(&peer.rate)).bar(Bar::RatioAtLeast(1.5)));
        let p99 =
            Figure::new("99th percentile of sequential requests", median(&ours.sequential_p99_us), "us");
        figures.push(p99.against_named(&peer.name, median(&peer.sequential_p99_us)));
        let theirs = peer.process.as_ref().map_or(0.0, Process::resident) / 1e6;
        figures.push(Figure::new("resident memory", memory, "MB").against_named(&peer.name, theirs));
    }
    figures
}
