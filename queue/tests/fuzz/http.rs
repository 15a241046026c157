//! Damaged requests over HTTP.

use rand::RngExt;
use rolldock_queue::{PartitionSpec, QueueConfig, Take, TransferQueue};

use super::{Damage, assert_no_panic, batch, count_panics, served};

#[tokio::test]
async fn damaged_requests_are_refused_and_the_server_lives() {
    count_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let (url, served) = served(queue.clone()).await;
    let client = reqwest::Client::new();
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch(0, 4).schema()).unwrap();
    stream.write(&batch(0, 4)).unwrap();
    let rows = stream.into_inner().unwrap();
    let spec = serde_json::to_vec(&PartitionSpec::new("p", ["a", "b"], 64)).unwrap();
    let handle = r#"{"slot":0,"generation":0}"#;
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("/v1/partitions", spec),
        ("/v1/partitions/p/rows?group=g", rows.clone()),
        ("/v1/partitions/p/columns", rows),
        ("/v1/partitions/p/take", br#"{"task":"a","groups":2,"columns":["id"],"min_policy_version":1,"sampler":{"random":{"seed":7}}}"#.to_vec()),
        ("/v1/partitions/p/take", br#"{"task":"b","rows":2,"share":{"rank":0,"ranks":2},"stale":"deliver","max_staleness":2}"#.to_vec()),
        ("/v1/partitions/p/get", format!(r#"{{"rows":[{handle}],"columns":["id"]}}"#).into_bytes()),
        ("/v1/partitions/p/clear", format!(r#"{{"rows":[{handle}]}}"#).into_bytes()),
        ("/v1/partitions/p/tags", format!(r#"{{"tags":[[{handle},{{"x":1}}]]}}"#).into_bytes()),
        ("/v1/partitions/p/find", br#"{"keys":["k"]}"#.to_vec()),
        ("/v1/partitions/p/version", br#"{"policy_version":3}"#.to_vec()),
        ("/v1/units/u/unknown", br#"{"blobs":["x"]}"#.to_vec()),
        ("/v1/restore", b"ROLLDOCK-SNAPSHOT-1\n".to_vec()),
    ];
    queue.declare(PartitionSpec::new("p", ["a", "b"], 64)).await.unwrap();
    let mut damage = Damage::new("requests");
    while damage.goes_on() {
        let (path, sound) = &bodies[damage.rng.random_range(0..bodies.len())];
        let answer = client.post(format!("{url}{path}")).body(damage.of(sound)).send().await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.bytes().await.unwrap();
        if status >= 400 {
            let words: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(words["error"]["code"].is_string() && status != 500, "{path}: {status} {words}");
        }
    }
    assert_no_panic();
    assert!(!served.is_finished());
    // Damaged bytes may still be valid rows, and reading these rows must be safe.
    for partition in queue.partitions() {
        if let Ok(Some(lease)) = partition.take(&Take::rows("a", 64)).await {
            assert!(lease.batches().iter().all(|batch| format!("{batch:?}").len() > 10));
        }
    }
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}
