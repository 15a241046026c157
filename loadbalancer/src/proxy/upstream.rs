//! Connections to the servers. The task that waits for an answer also drives its connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::{request, response};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::{Permit, is_exhaustion};

/// Longest idle time of a connection. Engines close idle connections after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Time between two sweeps of the idle connections.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of idle connections that a thread keeps for a server.
const IDLE_CONNECTIONS_MAX: usize = 1024;

/// Headers that concern a single connection and must not be passed on.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    HOP_BY_HOP.iter().for_each(|name| {
        headers.remove(name);
    });
    headers.remove("keep-alive");
}

/// Why a server has not answered.
#[derive(Debug)]
pub(super) struct Failure {
    reason: String,
    /// Whether no part of the request can have reached the server.
    pub(super) is_unsent: bool,
    /// Whether this machine caused the failure, and not the server.
    pub(super) is_ours: bool,
}

impl Failure {
    fn unsent(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), is_unsent: true, is_ours: false }
    }

    fn unconnected(error: &std::io::Error) -> Self {
        Self { is_ours: is_exhaustion(error), ..Self::unsent(error) }
    }

    pub(super) fn lost(reason: impl ToString) -> Self {
        Self { is_unsent: false, ..Self::unsent(reason) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection to a server, with the handle that sends requests on it.
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    connection: Option<Pin<Box<Connection>>>,
}

impl Wire {
    async fn connect(authority: &str, limit: Duration) -> Result<Self, Failure> {
        let connecting = tokio::time::timeout(limit, TcpStream::connect(authority)).await;
        let stream = connecting.map_err(|_| Failure::unsent("the server takes no connections"))?;
        let stream = stream.map_err(|error| Failure::unconnected(&error))?;
        stream.set_nodelay(true).map_err(Failure::unsent)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Failure::unsent)?;
        Ok(Self { sender, connection: Some(Box::pin(connection)) })
    }

    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Whether the connection can take another request.
    pub(super) fn is_reusable(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        self.connection.is_some() && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(())))
    }

    /// Reads the whole body of an answer that arrives on this connection.
    pub(super) async fn whole(mut self, body: Limited<Incoming>) -> Result<Bytes, Failure> {
        let mut collecting = std::pin::pin!(body.collect());
        let whole = poll_fn(|context| {
            for _ in 0..2 {
                self.drive(context);
                if let Poll::Ready(whole) = collecting.as_mut().poll(context) {
                    return Poll::Ready(whole);
                }
            }
            Poll::Pending
        });
        Ok(whole.await.map_err(Failure::lost)?.to_bytes())
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<hyper::Response<Incoming>, Failure> {
        let mut response = std::pin::pin!(self.sender.send_request(request));
        let connection = &mut self.connection;
        poll_fn(|context| {
            // Polls twice: the first poll often reads bytes that the second one needs.
            for _ in 0..2 {
                if let Some(driven) = connection
                    && driven.as_mut().poll(context).is_ready()
                {
                    *connection = None;
                }
                match response.as_mut().poll(context) {
                    Poll::Ready(Ok(response)) => return Poll::Ready(Ok(response)),
                    // The connection was closed before any byte was written.
                    Poll::Ready(Err(error)) if error.is_canceled() => {
                        return Poll::Ready(Err(Failure::unsent(error)));
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::lost(error))),
                    Poll::Pending => {}
                }
            }
            match connection {
                Some(_) => Poll::Pending,
                None => Poll::Ready(Err(Failure::lost("the server closed the connection"))),
            }
        })
        .await
    }
}

/// An answer whose head has arrived.
pub(super) struct Begun {
    pub(super) head: response::Parts,
    pub(super) body: Incoming,
    pub(super) wire: Wire,
}

#[derive(Default)]
struct Idle {
    wires: Vec<(Wire, Instant)>,
}

/// The idle connections of a thread, by server address.
#[derive(Clone)]
pub(super) struct Upstreams {
    idle: Rc<RefCell<HashMap<String, Idle>>>,
    connect: Duration,
}

impl Upstreams {
    pub(super) fn new(connect: Duration) -> Self {
        Self { idle: Rc::default(), connect }
    }

    /// Keeps a connection that is free for another request.
    pub(super) fn give_back(&self, url: &str, wire: Wire) {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        match idle.get_mut(url) {
            Some(idle) => {
                if idle.wires.len() < IDLE_CONNECTIONS_MAX {
                    idle.wires.push((wire, now));
                }
            }
            None => {
                idle.insert(url.to_owned(), Idle { wires: vec![(wire, now)] });
            }
        }
    }

    /// Drops connections that have been idle for too long: engines have closed them or will soon do so. Has
    /// to be called every [`SWEEP_INTERVAL`].
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        self.idle.borrow_mut().retain(|_, idle| {
            idle.wires.retain(|(_, since)| now.duration_since(*since) <= IDLE_MAX);
            !idle.wires.is_empty()
        });
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.idle.borrow().len()
    }

    /// The most recently used connection that still works.
    async fn idle(&self, url: &str) -> Option<Wire> {
        loop {
            let (mut wire, since) = self.idle.borrow_mut().get_mut(url)?.wires.pop()?;
            if since.elapsed() > IDLE_MAX {
                continue;
            }
            if poll_fn(|context| Poll::Ready(wire.is_reusable(context))).await {
                return Some(wire);
            }
        }
    }

    /// Sends a request to the server that a permit names.
    pub(super) async fn send(
        &self,
        permit: &Permit,
        head: &request::Parts,
        body: &Bytes,
    ) -> Result<Begun, Failure> {
        let url = permit.url().ok_or_else(|| Failure::unsent("the server has no address"))?;
        self.send_to(url, head, body).await
    }

    pub(super) async fn send_to(
        &self,
        url: &str,
        head: &request::Parts,
        body: &Bytes,
    ) -> Result<Begun, Failure> {
        let target = Target::of(url, head)?;
        loop {
            let used = self.idle(url).await;
            let was_used = used.is_some();
            let mut wire = match used {
                Some(wire) => wire,
                None => Wire::connect(&target.authority, self.connect).await?,
            };
            match wire.send(target.request(head, body)).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    return Ok(Begun { head, body, wire });
                }
                // The server had closed the idle connection. Another connection is tried.
                Err(failure) if failure.is_unsent && was_used => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// The address and path that a request is sent to.
struct Target {
    authority: String,
    host: HeaderValue,
    uri: Uri,
}

impl Target {
    fn of(url: &str, head: &request::Parts) -> Result<Self, Failure> {
        let (base, path) = url
            .strip_prefix("http://")
            .map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len())))
            .ok_or_else(|| Failure::unsent("expected http://HOST:PORT"))?;
        // The colons of an IPv6 address are inside its brackets.
        let has_port = base.rfind(':') > base.rfind(']');
        let authority = if has_port { base.to_owned() } else { format!("{base}:80") };
        let asked = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = match path.trim_end_matches('/') {
            "" => asked.parse(),
            prefix => format!("{prefix}{asked}").parse(),
        };
        let host = HeaderValue::from_str(base).map_err(Failure::unsent)?;
        Ok(Self { authority, host, uri: uri.map_err(Failure::unsent)? })
    }

    fn request(&self, head: &request::Parts, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        *headers = head.headers.clone();
        strip_hop_by_hop(headers);
        headers.remove(header::EXPECT);
        headers.insert(header::HOST, self.host.clone());
        request
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_to_the_path_of_the_address() {
        let (head, ()) = Request::get("/v1/models?a=b").body(()).unwrap().into_parts();
        let of = |url: &str| {
            let Target { authority, host, uri } = Target::of(url, &head).unwrap();
            (authority, host.to_str().unwrap().to_owned(), uri.to_string())
        };
        let expected =
            |authority: &str, host: &str, uri: &str| (authority.to_owned(), host.to_owned(), uri.to_owned());
        assert_eq!(of("http://a:1"), expected("a:1", "a:1", "/v1/models?a=b"));
        assert_eq!(of("http://a/"), expected("a:80", "a", "/v1/models?a=b"));
        assert_eq!(of("http://a:1/x/y/"), expected("a:1", "a:1", "/x/y/v1/models?a=b"));
        assert_eq!(of("http://[::1]:8000"), expected("[::1]:8000", "[::1]:8000", "/v1/models?a=b"));
        assert_eq!(of("http://[::1]"), expected("[::1]:80", "[::1]", "/v1/models?a=b"));
        assert!(Target::of("https://a", &head).is_err());
    }
}
