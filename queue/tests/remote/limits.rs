//! Limits of connections: connections without a token do not displace clients, and a client that closes its
//! sending side gets its answer.

use std::time::Duration;

use rolldock_listener::{ConnectionLimits, Connections};
use rolldock_queue::{
    Put, Queue, QueueConfig, RemoteConfig, RemoteQueue, ServiceConfig, Take, TransferQueue,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::support::tour::{batch, soon};
use super::{Served, serve_at, served, spec};

const TOKEN: &str = "secret";

/// A server that accepts `max` connections, of which `unauthenticated_max` may be without the token.
async fn limited(max: usize, unauthenticated_max: usize) -> Served {
    let (max, unauthenticated_max) = (Some(max), Some(unauthenticated_max));
    let limits = ConnectionLimits { max, unauthenticated_max, ..ConnectionLimits::default() };
    let connections = Connections::new("queue", &limits);
    served(ServiceConfig { token: Some(TOKEN.to_owned()), connections, ..ServiceConfig::default() }).await
}

fn client(served: &Served) -> RemoteQueue {
    let url = format!("http://{}", served.address);
    RemoteQueue::new(RemoteConfig { token: Some(TOKEN.to_owned()), ..RemoteConfig::new(url) }).unwrap()
}

/// Raises the limit of open files, because both ends of each connection are in this process.
fn allow_files(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).unwrap();
    }
}

/// A request with the token.
fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: q\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Sends a request on a connection that stays open, and returns the status of its answer.
async fn ask(stream: &mut TcpStream, request: &str) -> u16 {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
    let length =
        head.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    stream.read_exact(&mut vec![0; length]).await.unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A connection that has a lease of the only group.
async fn holder_of_a_lease(served: &Served) -> TcpStream {
    let owner = client(served);
    owner.declare(spec()).await.unwrap();
    owner.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
    let mut holder = TcpStream::connect(served.address).await.unwrap();
    let take = request("POST", "/v1/partitions/train/take", r#"{"task":"train","groups":1}"#);
    assert_eq!(ask(&mut holder, &take).await, 200);
    holder
}

#[tokio::test]
async fn idle_connections_without_a_token_keep_no_client_out() {
    const STRANGERS: usize = 1_100;
    allow_files(STRANGERS as u64 + 500);
    let served = limited(64, 16).await;
    let mut holder = holder_of_a_lease(&served).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        strangers.push(TcpStream::connect(served.address).await.unwrap());
        // The server's task gets a turn to accept the connection.
        tokio::task::yield_now().await;
    }
    let newcomer = client(&served);
    let inspected =
        timeout(Duration::from_secs(1), newcomer.inspect()).await.expect("served within a second");
    assert_eq!(inspected.unwrap().partitions[0].rows, 1);
    assert_eq!(
        ask(&mut holder, &request("GET", "/v1/inspect", "")).await,
        200,
        "the lease's connection lives"
    );
}

#[tokio::test]
async fn clients_with_a_token_do_not_close_the_connection_of_a_lease() {
    let served = limited(4, 4).await;
    let mut holder = holder_of_a_lease(&served).await;
    let inspect = request("GET", "/v1/inspect", "");
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut other = TcpStream::connect(served.address).await.unwrap();
        assert_eq!(ask(&mut other, &inspect).await, 200);
        others.push(other);
    }
    assert_eq!(ask(&mut holder, &inspect).await, 200);
    let mut closed = 0;
    for other in &mut others {
        closed += usize::from(timeout(Duration::from_millis(10), other.read_u8()).await.is_ok());
    }
    assert!(closed >= 16, "the server closed {closed} of 20 connections, expected at least 16");
}

#[tokio::test]
async fn a_client_that_has_closed_its_side_gets_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(folder.path().join("queue")), ..QueueConfig::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = serve_at(TransferQueue::open(config).unwrap(), listener, ServiceConfig::default());
    let half_closed = async |request: String| {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        timeout(Duration::from_secs(10), reading).await.expect("an answer").unwrap();
        answer
    };
    // The declaration is synced before it is answered.
    let declared = r#"{"name":"train","tasks":[{"name":"train"}],"capacity_rows":64}"#;
    let answer = half_closed(request("POST", "/v1/partitions", declared)).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("capacity_rows"), "{answer}");
    let answer = half_closed(request("GET", "/v1/verify", "")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A waiting take ends, because the client may have died: later rows must not be leased to it.
    let take = r#"{"task":"train","groups":1,"wait_ms":60000}"#;
    let answer = half_closed(request("POST", "/v1/partitions/train/take", take)).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 204") && answer.contains("ended: false"), "{answer}");
    let owner = served.client();
    owner.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let lease = owner.take("train", &Take::groups("train", 1).until(until)).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["a"]);
}
