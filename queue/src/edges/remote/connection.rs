//! One connection to a queue's server, driven by the task whose call uses it.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::body::RequestBody;
use crate::QueueError;

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// If the last answer arrived within this time, the client polls for the next answer for the same time,
/// without sleeping. Waking up would take about as long.
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

type Connection = http1::Connection<TokioIo<TcpStream>, RequestBody>;

/// A connection and the right to send on it.
pub(super) struct Wire {
    sender: SendRequest<RequestBody>,
    /// The connection. `None` after it has ended.
    connection: Option<Pin<Box<Connection>>>,
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
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| Failure::Unsent(innermost(&error)))?;
        Ok(Self { sender, connection: Some(Box::pin(connection)), is_prompt: false })
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Drives the connection until `ours` has an outcome. Returns `None` if the connection ended before.
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
        let mut response = Box::pin(self.sender.send_request(request));
        match self.until(|context| response.poll_unpin(context)).await {
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
