//! Backends that answer immediately, so only the proxy in front of them is measured.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// How long a backend polls after a request before it sleeps.
const AWAKE: Duration = Duration::from_millis(5);
const ANSWER: &str = "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"echo\",\"choices\":[{\"index\":0,\"text\":\"hello\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1,\"total_tokens\":9}}";

/// Runs two backends that answer every request immediately. Returns only after an error. The sub-command
/// `rolldock-bench echo` runs this function in a separate process.
pub(crate) fn echo() -> anyhow::Result<()> {
    keep_to_core(1)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio_util::task::TaskTracker::new();
    let asked = Arc::new(Asked::default());
    runtime.block_on(async {
        let mut accepting = Vec::new();
        for _ in 0..2 {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?);
            let (tasks, asked) = (tasks.clone(), Arc::clone(&asked));
            accepting.push(async move {
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    tasks.spawn(answer_all(stream, Arc::clone(&asked)));
                }
            });
        }
        tasks.spawn(stay_awake(Arc::clone(&asked)));
        futures::future::try_join_all(accepting).await.map(|_: Vec<()>| ())
    })
}

/// The time at which a backend answered its last request.
#[derive(Default)]
struct Asked {
    at: parking_lot::Mutex<Option<Instant>>,
    now: tokio::sync::Notify,
}

/// Keeps the thread awake for [`AWAKE`] after each request.
async fn stay_awake(asked: Arc<Asked>) {
    loop {
        let is_recent = asked.at.lock().is_some_and(|at| at.elapsed() < AWAKE);
        if is_recent {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        } else {
            asked.now.notified().await;
        }
    }
}

async fn answer_all(mut stream: tokio::net::TcpStream, asked: Arc<Asked>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        while let Some(length) = request_length(&buffer) {
            buffer.drain(..length);
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            *asked.at.lock() = Some(Instant::now());
            asked.now.notify_one();
        }
        if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
            return;
        }
    }
}

/// The length of the message at the beginning of the bytes; `None` while it is incomplete.
pub(super) fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?.to_ascii_lowercase();
    let body = text.split("content-length:").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let whole = head + body.unwrap_or(0);
    (bytes.len() >= whole).then_some(whole)
}

/// Pins the calling thread, and the threads that it starts later, to one core, if there are two.
pub(super) fn keep_to_core(number: usize) -> anyhow::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let (Some(core), true) = (cores.get(number), cores.len() > 1) else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(*core);
    Ok(sched_setaffinity(None, &one)?)
}
