//! Serves a router at a socket, within the limits of its connections.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::accept::Acceptor;
use crate::body::{Arriving, Leaving};
use crate::client::Client;
use crate::connections::Connections;
use crate::socket::Socket;
use crate::ticket::Ticket;

/// What happens to a request whose client closes its side of the connection before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfClosed {
    /// The request is dropped: the client is assumed to have disconnected.
    Dropped,
    /// The request is answered. Waiting handlers can notice the event with [`Client::closed_its_side`].
    Answered,
}

/// Serves `router` at `listener` until `end` is cancelled. Then closes idle connections, and finishes running
/// requests.
///
/// Cancel-safe: dropping the future drops the running requests and closes all connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    half_closed: HalfClosed,
    end: CancellationToken,
) {
    let mut acceptor = Acceptor::new(listener, connections.clone());
    let mut running = JoinSet::new();
    loop {
        let (socket, ticket) = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Frees the tasks of connections that have ended.
            Some(_) = running.join_next() => continue,
            accepted = acceptor.accept() => accepted,
        };
        let handling =
            Handling { router: router.clone(), connections: connections.clone(), client: ticket.client() };
        running.spawn(converse(socket, ticket, handling, half_closed, end.clone()));
    }
    drop(acceptor);
    while running.join_next().await.is_some() {}
}

/// Serves one connection to its end.
async fn converse(
    socket: Socket,
    mut ticket: Ticket,
    handling: Handling,
    half_closed: HalfClosed,
    end: CancellationToken,
) {
    let service = service_fn(move |request| handling.clone().answer(request));
    let connection = http1::Builder::new()
        .half_close(half_closed == HalfClosed::Answered)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        () = poll_fn(|context| poll_connection(connection.as_mut(), &mut ticket, context)) => return,
        () = end.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    poll_fn(|context| poll_connection(connection.as_mut(), &mut ticket, context)).await;
}

/// Drives a connection until it ends or has to be closed. An error only means that the client has
/// disconnected.
fn poll_connection<Connection: Future>(
    connection: Pin<&mut Connection>,
    ticket: &mut Ticket,
    context: &mut Context<'_>,
) -> Poll<()> {
    if connection.poll(context).is_ready() {
        return Poll::Ready(());
    }
    ticket.poll_ended(context)
}

/// The data that a connection needs to answer requests.
#[derive(Clone)]
struct Handling {
    router: Router,
    connections: Connections,
    client: Client,
}

impl Handling {
    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Leaving<Body>>, Infallible> {
        let busy = self.client.begin().await;
        let (head, body) = request.into_parts();
        let body = Arriving::new(body, self.connections).whole_if_small().await;
        let mut request = Request::from_parts(head, body);
        request.extensions_mut().insert(self.client);
        let response = self.router.call(request).await?;
        Ok(response.map(|body| Leaving::new(body, busy)))
    }
}
