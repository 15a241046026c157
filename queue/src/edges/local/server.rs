//! The server: its connections, and the leases and regions that they hold.

use std::collections::HashMap;
use std::io::{self, Error, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures::stream::{FuturesUnordered, StreamExt};
use rustix::process::{Resource, getrlimit};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{FRAME_BYTES_MAX, Frame, FrameReader, encode, send};
use super::listener::LocalListener;
use super::pool::RegionUse;
use super::protocol::{RegionNotice, ToClient, ToServer, VERSION};
use super::requests::{Desk, Reply, Service};
use super::socket::{DESCRIPTORS_MAX, Socket};
use crate::{QueueError, TransferQueue};

/// The maximum number of calls of one client that are in progress. The next call is read when one of them has
/// ended.
const CALLS_MAX: usize = 4096;
/// The maximum time to send the last answers when the server ends.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `queue` until `end`. Then waiting calls are told that the server is stopping, answers that have
/// begun are finished, and the socket's file is removed.
///
/// Cancel-safe: dropping the call ends every connection, and gives back the leases and regions of all
/// clients.
pub async fn serve_local(
    queue: TransferQueue,
    listener: LocalListener,
    end: CancellationToken,
) -> io::Result<()> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let regions_max = listener.config.regions_max.min(usize::try_from(files / 4).unwrap_or(usize::MAX));
    let service = Arc::new(Service {
        queue,
        regions: listener.regions.clone(),
        regions_max,
        put_bytes_max: listener.config.put_bytes_max,
        life: listener.life,
        end: end.clone(),
    });
    let accepting = UnixListener::from_std(listener.listener.try_clone()?)?;
    let connections = TaskTracker::new();
    let abandoned = CancellationToken::new();
    let _at_the_latest = abandoned.clone().drop_guard();
    while let Some(accepted) = end.run_until_cancelled(accepting.accept()).await {
        let socket = match accepted {
            Ok((socket, _)) if socket.peer_cred().is_ok_and(|peer| listener.admits(peer.uid())) => socket,
            Ok(_) => {
                tracing::debug!("a process of another user is not answered");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "a client of this host could not connect");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let serving = converse(Arc::clone(&service), socket);
        let abandoned = abandoned.clone();
        connections.spawn(async move {
            if let Some(Err(error)) = abandoned.run_until_cancelled(serving).await {
                tracing::debug!(%error, "a client's connection is closed");
            }
        });
    }
    connections.close();
    if tokio::time::timeout(CLOSE_MAX, connections.wait()).await.is_err() {
        tracing::warn!(
            clients = connections.len(),
            "clients that do not read their answers are disconnected"
        );
        abandoned.cancel();
        connections.wait().await;
    }
    Ok(())
}

type Ended = (u64, Result<Result<Reply, QueueError>, Aborted>);

/// The conversation with one client, over its connection.
struct Conversation {
    service: Arc<Service>,
    socket: Arc<Socket>,
    /// The leases and regions of the client. They are given back when the conversation ends, but a server
    /// that ends leaves the leases to the client.
    desk: Arc<Desk>,
    running: FuturesUnordered<BoxFuture<'static, Ended>>,
    cancels: HashMap<u64, AbortHandle>,
}

/// Serves a client until either side ends the connection.
///
/// Cancel-safe: the leases and regions of the client are given back.
async fn converse(service: Arc<Service>, socket: UnixStream) -> io::Result<()> {
    let socket = Arc::new(Socket::new(socket)?);
    let mut reader = FrameReader::new(Arc::clone(&socket), false);
    let mut gone = service.regions.gone();
    let end = service.end.clone();
    let mut talk = Conversation {
        desk: Arc::new(Desk::default()),
        running: FuturesUnordered::new(),
        cancels: HashMap::new(),
        service,
        socket,
    };
    let hello = ToClient::Hello { version: VERSION, life: talk.service.life };
    talk.send(&hello, &[]).await?;
    loop {
        if end.is_cancelled() && talk.running.is_empty() {
            // The next run of the server knows these leases, so the client can still end them.
            talk.desk.leave_leases();
            return Ok(());
        }
        tokio::select! {
            biased;
            Some((id, outcome)) = talk.running.next() => talk.answer(id, outcome).await?,
            frame = reader.next(), if talk.running.len() < CALLS_MAX && !end.is_cancelled() => match frame? {
                None => return Ok(()),
                Some(frame) => talk.receive(&frame)?,
            },
            Ok(()) = gone.changed() => talk.forget(&mut gone).await?,
            () = end.cancelled(), if !end.is_cancelled() => {}
        }
    }
}

impl Conversation {
    async fn send(&mut self, message: &ToClient, tail: &[u8]) -> io::Result<()> {
        send(&self.socket, &encode(message, tail)?, &[]).await
    }

    fn receive(&mut self, frame: &Frame) -> io::Result<()> {
        let message = serde_json::from_slice(&frame.message);
        match message.map_err(|error| Error::new(ErrorKind::InvalidData, error))? {
            ToServer::Call { id, ask } => {
                let (service, desk) = (Arc::clone(&self.service), Arc::clone(&self.desk));
                let tail = frame.tail.clone();
                let answering = async move { service.answer(&desk, id, ask, tail).await };
                let (answering, cancel) = abortable(answering);
                self.cancels.insert(id, cancel);
                self.running.push(answering.map(move |outcome| (id, outcome)).boxed());
            }
            ToServer::Cancel { id } => {
                if let Some(cancel) = self.cancels.remove(&id) {
                    cancel.abort();
                }
                self.desk.take_back(id);
            }
            ToServer::Release { id } => self.desk.release(id),
        }
        Ok(())
    }

    async fn answer(
        &mut self,
        id: u64,
        outcome: Result<Result<Reply, QueueError>, Aborted>,
    ) -> io::Result<()> {
        self.cancels.remove(&id);
        let Ok(outcome) = outcome else { return Ok(()) };
        let reply = match outcome {
            Ok(reply) => reply,
            Err(error) => return self.send(&ToClient::Refusal { id, error }, &[]).await,
        };
        self.introduce(&reply.regions).await?;
        match encode(&ToClient::Answer { id, body: reply.body }, &reply.tail) {
            Ok(said) => send(&self.socket, &said, &[]).await,
            Err(_) => {
                self.desk.take_back(id);
                let error = QueueError::BodyTooLarge { bytes_max: FRAME_BYTES_MAX };
                self.send(&ToClient::Refusal { id, error }, &[]).await
            }
        }
    }

    /// Sends regions to the client if it has not mapped them yet, or if it needs write access to them and
    /// does not have it yet.
    async fn introduce(&mut self, regions: &[(Arc<RegionUse>, bool)]) -> io::Result<()> {
        let new = self.desk.learn(regions);
        for some in new.chunks(DESCRIPTORS_MAX) {
            let notice_of = |(lent, writable): &(Arc<RegionUse>, bool)| RegionNotice {
                number: lent.region.number,
                bytes: lent.region.mapping.length(),
                writable: *writable,
            };
            let notice = ToClient::Regions(some.iter().map(notice_of).collect());
            let descriptors: Vec<_> = some.iter().map(|(lent, _)| lent.region.descriptor.as_fd()).collect();
            send(&self.socket, &encode(&notice, &[])?, &descriptors).await?;
        }
        Ok(())
    }

    /// Tells the client to unmap freed regions.
    async fn forget(&mut self, gone: &mut watch::Receiver<u64>) -> io::Result<()> {
        gone.borrow_and_update();
        let numbers = self.desk.forget_gone(&self.service.regions);
        if numbers.is_empty() {
            return Ok(());
        }
        self.send(&ToClient::Forget(numbers), &[]).await
    }
}
