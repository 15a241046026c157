//! Relays between the parts of the system. A relay can close its connections, delay their bytes, or block
//! them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// What a relay does with the bytes that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    Open,
    /// Every chunk of bytes is delayed by this time.
    Late(Duration),
    /// No byte passes. New connections are accepted, but their bytes are not read.
    Blocked,
}

#[derive(Debug, Clone, Copy)]
struct State {
    passage: Passage,
    /// The number of cuts so far. Connections that began at a lower count are closed.
    cuts: u64,
}

/// A relay in front of one address. The relay and its connections end when this value is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    /// Starts a relay on a free port of the loopback interface. Needs a tokio runtime.
    pub(crate) async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State { passage: Passage::Open, cuts: 0 });
        let tracker = TaskTracker::new();
        let connections = tracker.clone();
        let accepting = tracker.spawn(async move {
            loop {
                // `accept` fails while this process has no free descriptor, and succeeds again later.
                if let Ok((client, _)) = listener.accept().await {
                    connections.spawn(pass(client, target, seen.clone()));
                }
            }
        });
        Self { address, state, _accepting: AbortOnDropHandle::new(accepting) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Changes the treatment of the bytes of all connections from now on.
    pub(crate) fn set(&self, passage: Passage) {
        self.state.send_modify(|state| state.passage = passage);
    }
}

/// Relays one connection until a side closes it, the relay cuts it, or the relay is dropped.
async fn pass(client: TcpStream, target: SocketAddr, mut seen: watch::Receiver<State>) {
    let cuts_before = seen.borrow().cuts;
    let mut passage = seen.clone();
    let relayed = async {
        if !until_open(&mut passage).await {
            return;
        }
        // If the server does not accept the connection, the connection of the client is closed.
        let Ok(server) = TcpStream::connect(target).await else { return };
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::select! {
            () = copy(from_client, to_server, passage.clone()) => {}
            () = copy(from_server, to_client, passage.clone()) => {}
        }
    };
    tokio::select! {
        () = relayed => {}
        () = until_cut(&mut seen, cuts_before) => {}
    }
}

/// Waits until the relay has made more than `cuts_before` cuts, or is dropped.
async fn until_cut(seen: &mut watch::Receiver<State>, cuts_before: u64) {
    let _ = seen.wait_for(|state| state.cuts > cuts_before).await;
}

/// Waits while the relay is blocked. Returns `false` if the relay was dropped.
async fn until_open(seen: &mut watch::Receiver<State>) -> bool {
    seen.wait_for(|state| state.passage != Passage::Blocked).await.is_ok()
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut seen: watch::Receiver<State>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let passage = seen.borrow().passage;
        if let Passage::Late(late) = passage {
            tokio::time::sleep(late).await;
        }
        if !until_open(&mut seen).await || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
