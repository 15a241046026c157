//! Tests of the client that chooses between HTTP and shared memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use rolldock_queue::{
    LocalListener, LocalPlace, LocalServiceConfig, PartitionSpec, Put, Queue, QueueClient, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, ServiceConfig, Take, TransferQueue, Transport, TransportChoice,
    UnitConfig, run_unit, serve, serve_local,
};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use support::tour::{batch, soon, tour};

/// How a served queue offers shared memory.
enum Offer {
    /// At a socket without a file.
    Unnamed,
    /// Not at all.
    Nothing,
    /// At a place that belongs to another server or to no server.
    Place(LocalPlace),
}

struct Served {
    queue: TransferQueue,
    url: String,
    end: CancellationToken,
    tasks: Vec<AbortOnDropHandle<std::io::Result<()>>>,
}

impl Served {
    async fn start(dir: Option<&Path>, address: &str, offer: Offer) -> Self {
        let queue =
            TransferQueue::open(QueueConfig { dir: dir.map(Path::to_owned), ..QueueConfig::default() });
        let (queue, end, tracker) = (queue.unwrap(), CancellationToken::new(), TaskTracker::new());
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = Vec::new();
        let local = match offer {
            Offer::Nothing => None,
            Offer::Place(place) => Some(place),
            Offer::Unnamed => {
                let listener = LocalListener::unnamed(LocalServiceConfig::default()).unwrap();
                let place = listener.place();
                tasks.push(tracker.spawn(serve_local(queue.clone(), listener, end.clone())));
                Some(place)
            }
        };
        let config = ServiceConfig { local, ..ServiceConfig::default() };
        tasks.push(tracker.spawn(serve(queue.clone(), listener, config, end.clone())));
        Self { queue, url, end, tasks: tasks.into_iter().map(AbortOnDropHandle::new).collect() }
    }

    fn client(&self, choice: TransportChoice) -> QueueClient {
        let config = RemoteConfig { patience: Duration::from_secs(5), ..RemoteConfig::new(&self.url) };
        QueueClient::new(config, choice).unwrap()
    }

    async fn stop(self) {
        self.end.cancel();
        for task in self.tasks {
            task.await.unwrap().unwrap();
        }
        self.queue.close();
    }
}

#[tokio::test]
async fn a_client_on_the_host_of_its_server_uses_shared_memory() {
    let served = Served::start(None, "127.0.0.1:0", Offer::Unnamed).await;
    let client = served.client(TransportChoice::Auto);
    assert_eq!(client.transport(), None, "nothing was sent yet");
    tour(&client).await;
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
}

#[tokio::test]
async fn each_transport_can_be_chosen() {
    let served = Served::start(None, "127.0.0.1:0", Offer::Unnamed).await;
    for (choice, transport) in
        [(TransportChoice::Http, Transport::Http), (TransportChoice::SharedMemory, Transport::SharedMemory)]
    {
        let client = served.client(choice);
        client.names().await.unwrap();
        assert_eq!(client.transport(), Some(transport));
    }
    let elsewhere = Served::start(None, "127.0.0.1:0", Offer::Nothing).await;
    let config = RemoteConfig { patience: Duration::ZERO, ..RemoteConfig::new(&elsewhere.url) };
    let refused = QueueClient::new(config, TransportChoice::SharedMemory).unwrap().names().await;
    let Err(QueueError::Unreachable { url, reason }) = refused else { panic!("{refused:?}") };
    assert_eq!((url.as_str(), reason.contains("without")), (elsewhere.url.as_str(), true), "{reason}");
}

#[tokio::test]
async fn a_server_without_a_socket_or_on_another_host_is_used_over_http() {
    let there = Served::start(None, "127.0.0.1:0", Offer::Unnamed).await;
    let others = {
        let listener = LocalListener::unnamed(LocalServiceConfig::default()).unwrap();
        listener.place()
    };
    let asked: serde_json::Value =
        reqwest::get(format!("{}/v1/local", there.url)).await.unwrap().json().await.unwrap();
    let socket = asked["place"]["socket"].as_str().unwrap().to_owned();
    // The socket of another server, and a socket that is not on this host.
    for offer in [Offer::Nothing, Offer::Place(LocalPlace { socket, life: 1 }), Offer::Place(others)] {
        let served = Served::start(None, "127.0.0.1:0", offer).await;
        let client = served.client(TransportChoice::Auto);
        tour(&client).await;
        assert_eq!(client.transport(), Some(Transport::Http));
    }
}

#[tokio::test]
async fn a_queue_with_storage_units_is_used_over_http() {
    let served = Served::start(None, "127.0.0.1:0", Offer::Unnamed).await;
    let unit = Served::start(None, "127.0.0.1:0", Offer::Nothing).await;
    let operator = RemoteQueue::new(RemoteConfig::new(&served.url)).unwrap();
    let config = UnitConfig::new(operator.clone(), unit.url.clone());
    let (announced, end) = (unit.queue.clone(), unit.end.clone());
    let announcing = async move { run_unit(&announced, None, config, &end).await };
    let _announcing = AbortOnDropHandle::new(TaskTracker::new().spawn(announcing));
    let give_up = Instant::now() + Duration::from_secs(20);
    while operator.units().await.unwrap().is_empty() {
        assert!(Instant::now() < give_up, "the unit announces itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let client = served.client(TransportChoice::Auto);
    client.names().await.unwrap();
    assert_eq!(client.transport(), Some(Transport::Http));
}

/// The restarted server has another socket. The client still holds the lease of the server's earlier run.
#[tokio::test]
async fn a_lease_outlives_a_restart_of_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(Some(dir.path()), "127.0.0.1:0", Offer::Unnamed).await;
    let address = served.url.trim_start_matches("http://").to_owned();
    let client = served.client(TransportChoice::Auto);
    client.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in ["a", "b", "c"] {
        client.put("train", Put::group(group, batch(0, 2)), soon()).await.unwrap();
    }
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap());
    }
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
    served.stop().await;

    let served = Served::start(Some(dir.path()), &address, Offer::Unnamed).await;
    let partition = served.queue.partition("train").unwrap();
    assert_eq!(partition.stats().tasks[0].leased_rows, 6, "the leases last");
    let [acked, given_back, dropped] = leases.try_into().unwrap();
    acked.ack().await.unwrap();
    given_back.nack().await.unwrap();
    drop(dropped);
    let give_up = Instant::now() + Duration::from_secs(20);
    while partition.stats().tasks[0].leased_rows > 0 {
        assert!(Instant::now() < give_up, "{:?}", partition.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(partition.stats().rows, 4, "the acked rows are freed");
    let again = client.take("train", &Take::groups("train", 2)).await.unwrap().unwrap();
    assert_eq!(again.rows().len(), 4);
    again.ack().await.unwrap();
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
}

/// The server comes back without shared memory, as if it had moved.
#[tokio::test]
async fn a_server_that_moves_is_used_over_http_from_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(Some(dir.path()), "127.0.0.1:0", Offer::Unnamed).await;
    let address = served.url.trim_start_matches("http://").to_owned();
    let config = RemoteConfig { patience: Duration::from_millis(200), ..RemoteConfig::new(&served.url) };
    let client = QueueClient::new(config, TransportChoice::Auto).unwrap();
    client.names().await.unwrap();
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
    served.stop().await;
    let _moved = Served::start(Some(dir.path()), &address, Offer::Nothing).await;
    let first = client.names().await;
    assert!(matches!(first, Err(QueueError::Unreachable { .. })), "{first:?}");
    client.names().await.unwrap();
    assert_eq!(client.transport(), Some(Transport::Http));
}

#[tokio::test]
async fn a_client_that_comes_before_its_server_chooses_when_it_is_there() {
    let address = {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap().to_string()
    };
    let client =
        QueueClient::new(RemoteConfig::new(format!("http://{address}")), TransportChoice::Auto).unwrap();
    let starting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Served::start(None, &address, Offer::Unnamed).await
    };
    let (first, _served) = tokio::join!(client.names(), starting);
    first.unwrap();
    client.names().await.unwrap();
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
}
