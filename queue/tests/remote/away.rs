//! Servers that start late, restart, end, or do not answer.

use std::time::Duration;

use rolldock_queue::{
    Put, Queue, QueueConfig, QueueError, RemoteConfig, RemoteQueue, ServiceConfig, Take, TransferQueue,
};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::support::tour::{batch, soon};
use super::{serve_at, served, spec};

#[tokio::test]
async fn a_client_waits_for_a_server_that_starts_late_or_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = RemoteQueue::new(RemoteConfig::new(format!("http://{address}"))).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
        TransferQueue::open(config).unwrap()
    };
    let starting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default())
    };
    let (declared, served) = tokio::join!(client.declare(spec()), starting);
    declared.unwrap();
    client.put("train", Put::group("a", batch(0, 2)), soon()).await.unwrap();

    served.stop().await;
    let starting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default())
    };
    let take = Take::groups("train", 1);
    let (taken, _served) = tokio::join!(client.take("train", &take), starting);
    let lease = taken.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(0, 2));
    lease.ack().await.unwrap();
}

#[tokio::test]
async fn waiting_takes_end_when_the_server_ends() {
    let served = served(ServiceConfig::default()).await;
    let config = RemoteConfig::new(format!("http://{}", served.address));
    let client = RemoteQueue::new(RemoteConfig { patience: Duration::ZERO, ..config }).unwrap();
    client.declare(spec()).await.unwrap();
    let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(30));
    let ending = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        served.end.cancel();
    };
    let (taken, ()) = tokio::join!(client.take("train", &until), ending);
    assert_eq!(taken.map(drop), Err(QueueError::Stopping));
}

#[tokio::test]
async fn a_clients_lease_outlives_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config =
            QueueConfig { dir: Some(dir.path().to_owned()), journal_bytes: 1024, ..QueueConfig::default() };
        TransferQueue::open(config).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = serve_at(open(), listener, ServiceConfig::default());
    let client = first.client();
    client.declare(spec()).await.unwrap();
    for group in ["a", "b", "c", "d"] {
        client.put("train", Put::group(group, batch(0, 2)), soon()).await.unwrap();
    }
    let take = Take::groups("train", 1);
    let (acked, held, nacked) = (
        client.take("train", &take).await.unwrap().unwrap(),
        client.take("train", &take).await.unwrap().unwrap(),
        client.take("train", &take).await.unwrap().unwrap(),
    );
    assert_eq!((acked.groups()[0].as_str(), held.groups()[0].as_str()), ("a", "b"));
    acked.ack().await.unwrap();
    nacked.nack().await.unwrap();
    first.stop().await;

    let served = serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default());
    // Other clients get the rows that were given back, but not the leased rows.
    let others = served.client().take("train", &Take::groups("train", 9)).await.unwrap().unwrap();
    assert_eq!(others.groups(), ["c", "c", "d", "d"]);
    held.renew().await.unwrap();
    held.ack().await.unwrap();
    assert_eq!(served.client().status("train").await.unwrap().dispositions.acked, 4);
}

#[tokio::test]
async fn a_dead_controller_hangs_no_client() {
    let served = served(ServiceConfig::default()).await;
    let config = RemoteConfig::new(format!("http://{}", served.address));
    let client_config = RemoteConfig { patience: Duration::from_millis(300), ..config };
    let client = RemoteQueue::new(client_config.clone()).unwrap();
    client.declare(spec()).await.unwrap();
    let forever = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(3600));
    let dying = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        served.stop().await;
    };
    let started = Instant::now();
    let (taken, ()) = tokio::join!(client.take("train", &forever), dying);
    assert!(matches!(taken, Err(QueueError::Stopping | QueueError::Unreachable { .. })), "{taken:?}");
    let put = client.put("train", Put::group("a", batch(0, 2)), None).await;
    assert!(matches!(put, Err(QueueError::Unreachable { .. })), "{put:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());

    // The client waits as long as its `patience`, not until the deadline of the take.
    let patience = Duration::from_secs(2);
    let patient = RemoteQueue::new(RemoteConfig { patience, ..client_config }).unwrap();
    let started = Instant::now();
    let taken = patient.take("train", &forever).await;
    assert!(matches!(taken, Err(QueueError::Unreachable { .. })), "{taken:?}");
    assert!(started.elapsed() < patience + Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_connections_and_does_not_answer_hangs_no_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = RemoteConfig::new(format!("http://{}", listener.local_addr().unwrap()));
    let client = RemoteQueue::new(RemoteConfig { patience: Duration::from_secs(1), ..config }).unwrap();
    let _silent = AbortOnDropHandle::new(TaskTracker::new().spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(listener.accept().await.unwrap());
        }
    }));
    let status = client.status("train").await;
    assert!(matches!(status, Err(QueueError::Unreachable { .. })), "{status:?}");
}

/// Checks that a call fails because the server is unreachable, and returns how long it took.
async fn unanswered<T: std::fmt::Debug>(call: impl Future<Output = Result<T, QueueError>>) -> Duration {
    let started = Instant::now();
    let outcome = call.await;
    assert!(matches!(outcome, Err(QueueError::Unreachable { .. })), "{outcome:?}");
    started.elapsed()
}

/// Checks calls with deadlines of 100 ms, made by a client that has a patience of 30 s.
async fn deadlines_hold(client: &RemoteQueue) {
    let wait = Duration::from_millis(100);
    let take = Take::groups("train", 1).until(Instant::now() + wait);
    let took = unanswered(client.take("train", &take)).await;
    assert!(took >= wait && took < Duration::from_secs(3), "take: {took:?}");
    let took = unanswered(client.status_after("train", 1, wait)).await;
    assert!(took < Duration::from_secs(3), "watch: {took:?}");
    let took = unanswered(client.put("train", Put::group("a", batch(0, 2)), Some(wait))).await;
    assert!(took < Duration::from_secs(7), "put: {took:?}");
}

#[tokio::test]
async fn deadlines_hold_whatever_the_server_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client =
        RemoteQueue::new(RemoteConfig::new(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
    // The server accepts connections but never answers.
    deadlines_hold(&client).await;
    drop(listener);
    deadlines_hold(&client).await;
}
