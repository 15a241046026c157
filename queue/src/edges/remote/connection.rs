//! One connection to a queue's server, driven by the task whose call uses it.
//!
//! A call that is dropped before its answer has arrived may still have an effect: the server may have sent
//! the answer already. The client can therefore close its sending half and go on reading. A server that has
//! not answered yet then ends the call, and an answer that is on its way arrives.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::body::RequestBody;
use crate::QueueError;

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// If the last answer arrived within this time, the client polls for the next answer for this time, without
/// sleeping. Waking up would take about as long.
const AWAKE_MAX: Duration = Duration::from_micros(200);
/// The maximum number of polls, as a bound if the clock does not advance.
const AWAKE_TURNS_MAX: u32 = 10_000;

/// The reason why an attempt has no answer.
pub(super) enum Failure {
    /// The request cannot be created.
    Refused(QueueError),
    /// The request was not sent.
    Unsent(String),
    /// The request was sent, but no answer arrived. The server may have executed it.
    Lost(String),
}

impl Failure {
    fn lost(error: &(dyn std::error::Error + 'static)) -> Self {
        match own(error) {
            // The body could not be created.
            Some(error) => Self::Refused(error.clone()),
            None => Self::Lost(innermost(error)),
        }
    }
}

/// A stream whose sending half is closed when a flag is set.
struct Stream {
    stream: TcpStream,
    ends: Arc<AtomicBool>,
    has_ended: bool,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.load(Ordering::Relaxed) && !self.has_ended {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.has_ended = true;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

type Connection = http1::Connection<TokioIo<Stream>, RequestBody>;

/// The answer of a request that was sent.
pub(super) type Answer = Pin<Box<dyn Future<Output = hyper::Result<hyper::Response<Incoming>>> + Send>>;

/// A connection and the right to send on it.
pub(super) struct Wire {
    sender: SendRequest<RequestBody>,
    /// The connection. `None` after it has ended.
    connection: Option<Pin<Box<Connection>>>,
    /// Tells the stream to close its sending half.
    ends: Arc<AtomicBool>,
    /// Whether the last outcome arrived within [`AWAKE_MAX`].
    is_prompt: bool,
}

impl Wire {
    pub(super) async fn connect(authority: &str) -> Result<Self, Failure> {
        let connecting = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(authority));
        let unsent = |error: std::io::Error| Failure::Unsent(error.to_string());
        let stream = connecting
            .await
            .map_err(|_| Failure::Unsent("the server does not accept connections".to_owned()))?;
        let stream = stream.map_err(unsent)?;
        stream.set_nodelay(true).map_err(unsent)?;
        let ends = Arc::new(AtomicBool::new(false));
        let stream = Stream { stream, ends: Arc::clone(&ends), has_ended: false };
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| Failure::Unsent(innermost(&error)))?;
        Ok(Self { sender, connection: Some(Box::pin(connection)), ends, is_prompt: false })
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Drives the connection until `ours` has an outcome. Returns `None` if the connection ended first.
    pub(super) async fn until<T>(&mut self, mut ours: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let started = Instant::now();
        let stays_awake = std::mem::replace(&mut self.is_prompt, false);
        let mut turns = 0;
        let outcome = loop {
            turns += 1;
            let sleeps = !stays_awake || turns > AWAKE_TURNS_MAX || started.elapsed() > AWAKE_MAX;
            let waiting = poll_fn(|context| match self.turn(&mut ours, context) {
                Poll::Pending if !sleeps => Poll::Ready(None),
                polled => polled.map(Some),
            });
            match waiting.await {
                Some(outcome) => break outcome,
                None => tokio::task::yield_now().await,
            }
        };
        self.is_prompt = started.elapsed() < AWAKE_MAX;
        outcome
    }

    fn turn<T>(
        &mut self,
        ours: &mut impl FnMut(&mut Context<'_>) -> Poll<T>,
        context: &mut Context<'_>,
    ) -> Poll<Option<T>> {
        // There are two rounds, because the second round often has the result that the first round requested.
        for _ in 0..2 {
            self.drive(context);
            if let Poll::Ready(outcome) = ours(context) {
                return Poll::Ready(Some(outcome));
            }
        }
        if self.connection.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Whether the connection can send another request.
    pub(super) async fn is_reusable(&mut self) -> bool {
        poll_fn(|context| {
            self.drive(context);
            Poll::Ready(
                self.connection.is_some() && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))),
            )
        })
        .await
    }

    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<hyper::Response<Incoming>, Failure> {
        let mut answer = self.begin(request);
        self.finish(&mut answer).await
    }

    /// Begins a request. [`finish`](Self::finish) sends it.
    pub(super) fn begin(&mut self, request: Request<RequestBody>) -> Answer {
        Box::pin(self.sender.send_request(request))
    }

    /// Closes the sending half at the next poll of an answer. A server that has not answered yet then ends
    /// the call.
    pub(super) fn end_requests(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Waits for the head of an answer. Cancel-safe.
    pub(super) async fn finish(&mut self, answer: &mut Answer) -> Result<hyper::Response<Incoming>, Failure> {
        match self.until(|context| answer.poll_unpin(context)).await {
            Some(Ok(response)) => Ok(response),
            // The connection was closed before anything was written.
            Some(Err(error)) if error.is_canceled() => Err(Failure::Unsent(innermost(&error))),
            Some(Err(error)) => Err(Failure::lost(&error)),
            None => Err(Failure::Lost("the connection was closed".to_owned())),
        }
    }
}

pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The queue's own error that caused an error of the connection, if there is one.
fn own<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a QueueError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(own) = error.downcast_ref() {
            return Some(own);
        }
        cause = error.source();
    }
    None
}
