#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, post};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::*;
use crate::connections::Seat;

const PATIENCE: Duration = Duration::from_secs(10);

fn limits(max: usize, unauthenticated_max: usize) -> ConnectionLimits {
    let (max, unauthenticated_max) = (Some(max), Some(unauthenticated_max));
    ConnectionLimits { max, unauthenticated_max, ..ConnectionLimits::default() }
}

async fn until(mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "the condition never held");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Connections without a server. Each consists of the client's end and a ticket.
struct Joining {
    listener: TcpListener,
    connections: Connections,
}

impl Joining {
    async fn new(limits: &ConnectionLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, connections: Connections::new("test", limits) }
    }

    async fn join(&self) -> Option<(TcpStream, Ticket)> {
        let near = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = self.listener.accept().await.unwrap();
        self.connections.join(far).map(|seat: Arc<Seat>| (near, Ticket::new(seat)))
    }
}

fn is_ended(ticket: &mut Ticket) -> bool {
    ticket.poll_ended(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

#[tokio::test]
async fn the_first_idle_connection_without_a_token_makes_room() {
    let joining = Joining::new(&limits(10, 3)).await;
    let (mut near, mut unread) = joining.join().await.unwrap();
    near.write_all(b"GET /").await.unwrap();
    until(|| unread.client().seat().unwrap().unread_bytes() > 0).await;
    let (_b, mut busy) = joining.join().await.unwrap();
    let _request = busy.client().begin().await;
    let (_c, mut idle) = joining.join().await.unwrap();
    let (_d, mut late) = joining.join().await.unwrap();
    assert!(is_ended(&mut idle), "nothing has come from its client");
    assert!(idle.client().begin().now_or_never().is_none(), "a request on it has no effect");
    drop(idle);
    assert!(![&mut unread, &mut busy, &mut late].into_iter().any(is_ended));
    // If no connection is idle, the first one is closed.
    let _other = late.client().begin().await;
    let (_e, mut last) = joining.join().await.unwrap();
    assert!(is_ended(&mut unread) && !is_ended(&mut last));
    assert_eq!(joining.connections.open(), (3, 0));
}

#[tokio::test]
async fn an_authenticated_connection_goes_only_where_it_is_idle_and_has_no_lease() {
    let joining = Joining::new(&limits(3, 3)).await;
    let mut joined = Vec::new();
    for _ in 0..3 {
        let (near, ticket) = joining.join().await.unwrap();
        ticket.client().authenticated().await;
        joined.push((near, ticket));
    }
    assert_eq!(joining.connections.open(), (3, 3));
    joined[0].1.client().leases_for(Duration::from_secs(60));
    let request = joined[1].1.client().begin().await;
    let (_near, mut fourth) = joining.join().await.unwrap();
    assert!(is_ended(&mut joined[2].1), "it has neither a request nor a lease");
    // A connection without a token is closed before all others.
    let (_near, fifth) = joining.join().await.unwrap();
    assert!(is_ended(&mut fourth));
    fifth.client().authenticated().await;
    let _other = fifth.client().begin().await;
    assert!(joining.join().await.is_none(), "a new connection is refused where none can go");
    drop(request);
    joined[1].1.client().leases_for(Duration::ZERO);
    let (_near, _sixth) = joining.join().await.unwrap();
    assert!(is_ended(&mut joined[1].1), "its answer is whole, and its lease is over");
    assert!(!is_ended(&mut joined[0].1), "it has a lease");
}

#[tokio::test]
async fn a_connection_with_an_unsent_answer_stays_open() {
    let joining = Joining::new(&limits(1, 1)).await;
    let (_near, ticket) = joining.join().await.unwrap();
    let client = ticket.client();
    client.authenticated().await;
    drop(client.begin().await);
    client.seat().unwrap().writes(true);
    assert!(joining.join().await.is_none());
    client.seat().unwrap().writes(false);
    assert!(joining.join().await.is_some());
}

/// A server whose `/echo` returns a body, whose `/late` answers after a while, and whose `/token` counts as a
/// valid token.
struct Served {
    address: SocketAddr,
    connections: Connections,
    end: CancellationToken,
    _serving: AbortOnDropHandle<()>,
}

impl Served {
    async fn new(limits: &ConnectionLimits, half_closed: HalfClosed) -> Self {
        let late = async |client: Client| {
            tokio::select! {
                () = client.closed_its_side() => "closed",
                () = tokio::time::sleep(Duration::from_millis(200)) => "late",
            }
        };
        let echo = async |body: Result<Bytes, axum::extract::rejection::BytesRejection>| match body {
            Ok(body) => (StatusCode::OK, body),
            Err(error) => (StatusCode::REQUEST_TIMEOUT, Bytes::from(error.body_text())),
        };
        let router = Router::new()
            .route("/echo", post(echo))
            .route("/ack", post(async || "done"))
            .route("/late", get(late))
            .route("/token", get(async |client: Client| client.authenticated().await));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, end) = (Connections::new("test", limits), CancellationToken::new());
        let serving = serve(listener, router, connections.clone(), half_closed, end.clone());
        let _serving = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
        Self { address, connections, end, _serving }
    }

    async fn connect(&self, sent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream
    }
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that is closed with unread bytes is reset.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it is still open");
    String::from_utf8(bytes).unwrap()
}

async fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn heads_bodies_and_pauses_have_time_limits() {
    let brief = ConnectionLimits { head_timeout: 0.1, body_timeout: 0.1, ..limits(10, 10) };
    let served = Served::new(&brief, HalfClosed::Dropped).await;
    for sent in ["", "GET /token HT"] {
        assert_eq!(rest(&mut served.connect(sent).await).await, "", "{sent}");
    }
    let announced = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc";
    let answer = rest(&mut served.connect(announced).await).await;
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("no byte of the body for 0.1 s"),
        "{answer}"
    );
    // A request has no time limit, and an authenticated connection may pause.
    let mut client = served.connect("GET /token HTTP/1.1\r\nhost: x\r\n\r\n").await;
    head(&mut client).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.write_all(b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    // The head of a later request has a time limit, too.
    let mut late = [0; 4];
    client.read_exact(&mut late).await.unwrap();
    client.write_all(b"GET /tok").await.unwrap();
    assert_eq!((&late, rest(&mut client).await.as_str()), (b"late", ""));
    let quick = ConnectionLimits { keep_alive: 0.1, ..limits(10, 10) };
    let served = Served::new(&quick, HalfClosed::Dropped).await;
    let mut client = served.connect("GET /token HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 200"), "it is closed after the pause");
    until(|| served.connections.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_client_that_has_closed_its_side_is_answered_or_dropped() {
    let request = "GET /late HTTP/1.1\r\nhost: x\r\n\r\n";
    for (half_closed, answer) in [(HalfClosed::Answered, "closed"), (HalfClosed::Dropped, "")] {
        let served = Served::new(&limits(10, 10), half_closed).await;
        let mut client = served.connect(request).await;
        client.shutdown().await.unwrap();
        let said = rest(&mut client).await;
        assert_eq!(said.rsplit("\r\n\r\n").next().unwrap(), answer, "{half_closed:?}");
    }
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_finishes_requests() {
    let served = Served::new(&limits(10, 10), HalfClosed::Answered).await;
    let mut idle = served.connect("").await;
    let mut asking = served.connect("GET /late HTTP/1.1\r\nhost: x\r\n\r\n").await;
    until(|| served.connections.open().0 == 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    served.end.cancel();
    assert_eq!(rest(&mut idle).await, "");
    assert!(rest(&mut asking).await.ends_with("late"));
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn a_small_body_that_comes_late_and_is_not_read_keeps_the_connection() {
    let served = Served::new(&limits(8, 8), HalfClosed::Dropped).await;
    let mut client = served.connect("").await;
    for _ in 0..2 {
        client.write_all(b"POST /ack HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n").await.unwrap();
        // The head has been read long before the body arrives.
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.write_all(b"{}").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"done") {
            let read = tokio::time::timeout(PATIENCE, client.read_buf(&mut answer)).await.unwrap().unwrap();
            assert!(read > 0, "closed after {}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}
