//! A client's connection: calls by number, and the regions that the server has sent.

use std::collections::HashMap;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::frame::{FrameReader, encode};
use super::outbox::Outbox;
use super::protocol::{Ask, RegionNotice, ToClient, ToServer, VERSION};
use super::requests::LOANS_MAX;
use super::socket::Socket;
use crate::QueueError;
use crate::mapped::{self, Access, Mapping};

const HELLO_MAX: Duration = Duration::from_secs(5);
/// The maximum time to send the last messages, which give regions and leases back.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The maximum number of calls in progress, not counting acks, nacks and renewals. Further calls wait.
const CALLS_MAX: usize = 1024;

/// The next number of a call. All connections of a client share it.
pub(super) type Numbers = Arc<AtomicU64>;

/// The time until which a call waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) at: Instant,
    /// Whether this is the caller's deadline. If so, a missing answer does not show that the server hangs.
    pub(super) is_callers: bool,
}

/// The reason why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered with an error.
    Refused(QueueError),
    /// The call was not sent.
    Unsent(String),
    /// The call was sent, but no answer arrived. The server may have executed the call.
    Lost(String),
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::Refused(error)
    }
}

/// The result of a call.
#[derive(Debug)]
pub(super) struct Reply {
    body: Box<RawValue>,
    pub(super) tail: Bytes,
}

impl Reply {
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let read = serde_json::from_str(self.body.get());
        read.map_err(|error| {
            Failure::Lost(format!("expected the answer of this call, found another answer: {error}"))
        })
    }
}

type Waiting = HashMap<u64, oneshot::Sender<Result<Reply, QueueError>>>;

#[derive(Debug)]
struct Shared {
    /// `None` after the connection has ended.
    calls: Mutex<Option<Waiting>>,
    regions: Mutex<HashMap<u64, Arc<Mapping>>>,
}

/// A connection. It is closed when neither a queue nor rows in its regions use it any more.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    numbers: Numbers,
    calls: Semaphore,
    pub(super) loans: Arc<Semaphore>,
    end: CancellationToken,
    _closed_at_last: DropGuard,
}

/// Cancels a call when its caller is dropped.
struct Waiter<'a> {
    connection: &'a Connection,
    id: u64,
    answered: bool,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if let Some(calls) = self.connection.shared.calls.lock().as_mut() {
            calls.remove(&self.id);
        }
        self.connection.tell(&ToServer::Cancel { id: self.id });
    }
}

impl Connection {
    /// Connects, and waits for the server's hello. If `life` is given, the hello must name the same run of
    /// the server (`life`); otherwise the result is an error.
    ///
    /// Cancel-safe.
    pub(super) async fn open(
        path: &Path,
        life: Option<u64>,
        numbers: Numbers,
        tasks: &TaskTracker,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let socket = Arc::new(Socket::new(UnixStream::connect(address(path)).await?)?);
        let mut reader = FrameReader::new(Arc::clone(&socket), true);
        let hello = tokio::time::timeout(HELLO_MAX, reader.next()).await;
        let hello = hello.map_err(|_| {
            Error::new(ErrorKind::TimedOut, "expected a hello of the server, found none in time")
        })??;
        let hello = hello.ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "the server has ended"))?;
        match serde_json::from_slice(&hello.message) {
            Ok(ToClient::Hello { version: VERSION, life: found }) => {
                if life.is_some_and(|expected| expected != found) {
                    return Err(invalid("expected the server that named this socket, found another one"));
                }
            }
            _ => return Err(invalid("expected a server of the same version")),
        }
        let shared = Arc::new(Shared { calls: Mutex::new(Some(HashMap::new())), regions: Mutex::default() });
        let outbox = Arc::new(Outbox::new(socket));
        let end = CancellationToken::new();
        let serving = serve(Arc::clone(&shared), Arc::clone(&outbox), reader, end.clone());
        crate::tasks::spawn_on(tasks, "local connection", serving, runtime);
        Ok(Self {
            shared,
            outbox,
            numbers,
            calls: Semaphore::new(CALLS_MAX),
            loans: Arc::new(Semaphore::new(LOANS_MAX)),
            _closed_at_last: end.clone().drop_guard(),
            end,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.shared.calls.lock().is_some() && !self.end.is_cancelled()
    }

    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a message that has no answer. If the connection has ended, the message is dropped.
    pub(super) fn tell(&self, message: &ToServer) {
        if let Ok(frame) = encode(message, &[]) {
            self.outbox.send(frame);
        }
    }

    /// Sends a call, and waits for its answer until the limit.
    ///
    /// Cancel-safe: the result of a dropped call is given back.
    pub(super) async fn call(&self, id: u64, ask: Ask, tail: &[u8], limit: Limit) -> Result<Reply, Failure> {
        // Calls on leases need no permit. If they had to wait for takes, no lease would end, and takes that
        // wait for these leases would not end either.
        let ends_lease = matches!(ask, Ask::Ack(_) | Ask::Nack(_) | Ask::Renew(_));
        let permit = async { if ends_lease { None } else { self.calls.acquire().await.ok() } };
        let late = |_| Failure::Unsent("too many calls are in progress".to_owned());
        let _permit = tokio::time::timeout_at(limit.at, permit).await.map_err(late)?;
        let frame = encode(&ToServer::Call { id, ask }, tail);
        let frame =
            frame.map_err(|error| Failure::Refused(QueueError::BadRequest { reason: error.to_string() }))?;
        let (sender, receiver) = oneshot::channel();
        match self.shared.calls.lock().as_mut() {
            Some(calls) => calls.insert(id, sender),
            None => return Err(Failure::Unsent("the connection has ended".to_owned())),
        };
        let mut waiter = Waiter { connection: self, id, answered: false };
        if !self.outbox.send(frame) {
            return Err(Failure::Unsent("the connection has ended".to_owned()));
        }
        match tokio::time::timeout_at(limit.at, receiver).await {
            Ok(Ok(answer)) => {
                waiter.answered = true;
                answer.map_err(Failure::Refused)
            }
            Ok(Err(_)) => Err(Failure::Lost("the connection ended before the answer".to_owned())),
            Err(_) => {
                if !limit.is_callers {
                    // The server answers no other call either, so the connection ends.
                    self.end.cancel();
                }
                Err(Failure::Lost("no answer in time".to_owned()))
            }
        }
    }

    /// Returns a region that the server has sent.
    pub(super) fn region(&self, number: u64) -> Result<Arc<Mapping>, Failure> {
        let region = self.shared.regions.lock().get(&number).cloned();
        region.ok_or_else(|| Failure::Lost(format!("region={number} was not received")))
    }
}

/// The regions that contain the rows of a take. When the last row is dropped, the server may use the regions
/// again.
#[derive(Debug)]
struct Reading {
    connection: Arc<Connection>,
    take: u64,
    /// Whether the answer referred to regions.
    any: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.any {
            return;
        }
        self.connection.tell(&ToServer::Release { id: self.take });
    }
}

/// The regions of a take as buffers. The server does not use a region again while a buffer of it exists.
#[derive(Debug)]
pub(super) struct TakenRegions {
    reading: Arc<Reading>,
    buffers: Mutex<HashMap<u64, Buffer>>,
}

impl TakenRegions {
    /// Must be called as soon as the answer has arrived: from then on, the client has to release the regions
    /// to which the answer refers.
    pub(super) fn new(connection: Arc<Connection>, take: u64, any: bool) -> Self {
        Self { reading: Arc::new(Reading { connection, take, any }), buffers: Mutex::default() }
    }

    /// Returns a whole region as a buffer.
    pub(super) fn buffer(&self, number: u64) -> Option<Buffer> {
        let mut buffers = self.buffers.lock();
        if let Some(buffer) = buffers.get(&number) {
            return Some(buffer.clone());
        }
        let mapping = self.reading.connection.region(number).ok()?;
        let buffer = mapped::buffer(&mapping, mapping.length(), Arc::clone(&self.reading))?;
        buffers.insert(number, buffer.clone());
        Some(buffer)
    }
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}

/// Reads frames, and writes the frames that could not be written immediately, until the connection ends.
async fn serve(shared: Arc<Shared>, outbox: Arc<Outbox>, reader: FrameReader, end: CancellationToken) {
    // Messages that gave leases and regions back before the end are still sent.
    let until_end = async {
        end.cancelled().await;
        tokio::time::timeout(FLUSH_MAX, outbox.flush()).await.unwrap_or(Ok(()))
    };
    let ended = tokio::select! {
        read = listen(&shared, reader) => read,
        written = outbox.drain() => written,
        flushed = until_end => flushed,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the connection to a queue of this host has ended");
    }
    outbox.close();
    // This drop informs waiting callers of the end.
    let waiting = shared.calls.lock().take();
    drop(waiting);
    shared.regions.lock().clear();
}

async fn listen(shared: &Shared, mut reader: FrameReader) -> io::Result<()> {
    while let Some(frame) = reader.next().await? {
        match serde_json::from_slice(&frame.message)? {
            ToClient::Hello { .. } => return Err(invalid("expected one hello, found a second one")),
            ToClient::Regions(notices) => {
                for RegionNotice { number, bytes, writable } in notices {
                    let descriptor = reader.descriptor()?;
                    let access = if writable { Access::Write } else { Access::Read };
                    let mapping = Mapping::of(&descriptor, bytes, access)?;
                    shared.regions.lock().insert(number, Arc::new(mapping));
                }
            }
            ToClient::Forget(numbers) => {
                let mut regions = shared.regions.lock();
                numbers.iter().for_each(|number| drop(regions.remove(number)));
            }
            ToClient::Answer { id, body } => answer(shared, id, Ok(Reply { body, tail: frame.tail })),
            ToClient::Refusal { id, error } => answer(shared, id, Err(error)),
        }
    }
    Ok(())
}

fn answer(shared: &Shared, id: u64, answer: Result<Reply, QueueError>) {
    let waiting = shared.calls.lock().as_mut().and_then(|calls| calls.remove(&id));
    if let Some(waiting) = waiting {
        // A caller that no longer waits has cancelled the call at the server.
        let _ = waiting.send(answer);
    }
}

/// The address of a socket, as the operating system writes it: a name without a file begins with a null byte.
fn address(path: &Path) -> PathBuf {
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => PathBuf::from(format!("\0{name}")),
        None => path.to_owned(),
    }
}
