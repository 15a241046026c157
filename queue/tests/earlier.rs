//! Opens directories that an earlier build wrote, and checks that they have all of their rows.
//!
//! `fixtures/format-3` was written by the last build whose stores had no notes. `furnished` is a killed queue
//! with rows in many states. `controller` and `unit` are a controller and the unit that has its rows.
//! `expected.json` has the content that the earlier build read from these directories.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/served_units.rs"]
mod served_units;
mod support;

use std::path::{Path, PathBuf};

use rolldock_queue::{Durability, Put, Queue, QueueConfig, Sampler, Take, TransferQueue};
use served_units::{Server, served, until, until_live};
use support::{furnish, seen};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-3")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn open(dir: &Path) -> TransferQueue {
    let config = QueueConfig {
        dir: Some(dir.to_owned()),
        durability: Durability::Os,
        segment_bytes: 4 << 10,
        journal_bytes: 8 << 10,
        ..QueueConfig::default()
    };
    TransferQueue::open(config).unwrap()
}

/// The counts of a queue, and the rows of each task with their handles, groups, versions and values.
async fn all_that_is_seen(queue: &TransferQueue) -> serde_json::Value {
    let mut rows = serde_json::Map::new();
    for partition in queue.partitions() {
        for task in partition.spec().tasks {
            let seen = seen(&partition, &task.name, Sampler::Fifo).await;
            let rows_of_task: Vec<String> = seen
                .iter()
                .map(|(handle, group, version, batch)| format!("{handle:?} {group} {version} {batch:?}"))
                .collect();
            rows.insert(format!("{} {}", partition.name(), task.name), rows_of_task.into());
        }
    }
    let mut inspection = serde_json::to_value(queue.inspect()).unwrap();
    // The addresses of the units differ in every run.
    inspection["units"] = serde_json::Value::Null;
    serde_json::json!({ "inspection": inspection, "rows": rows })
}

fn expected() -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(fixture().join("expected.json")).unwrap()).unwrap()
}

#[tokio::test]
async fn a_directory_of_an_earlier_build_opens_with_all_that_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture().join("furnished"), dir.path());
    let expected = expected();
    // The second opening reads a journal that this build has written.
    for _ in 0..2 {
        let queue = open(dir.path());
        assert_eq!(all_that_is_seen(&queue).await["rows"], expected["furnished"]["rows"]);
        let inspection = &all_that_is_seen(&queue).await["inspection"];
        assert_eq!(inspection["partitions"], expected["furnished"]["inspection"]["partitions"]);
        // The earlier build also counted the bytes of freed rows.
        let counted = expected["furnished"]["inspection"]["payload_bytes"].as_u64().unwrap();
        assert!((1..=counted).contains(&inspection["payload_bytes"].as_u64().unwrap()), "{inspection}");
        assert!(queue.verify().await.unwrap().is_sound());
        let records = queue.partition("train").unwrap().records();
        assert_eq!(records.len(), 10);
        queue.close();
    }
    let queue = open(dir.path());
    let partition = queue.partition("train").unwrap();
    // After these puts, the journal has been rewritten and segments have been emptied.
    for round in 0..40 {
        let rows = partition.put(Put::group(format!("new {round}"), support::rows(0, 4, 8)), None).await;
        partition.clear(&rows.unwrap()).await.unwrap();
    }
    queue.close();
    drop((partition, queue));
    let queue = open(dir.path());
    assert_eq!(all_that_is_seen(&queue).await["rows"], expected["furnished"]["rows"]);
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn rows_that_an_earlier_build_put_on_a_unit_are_there_when_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for part in ["controller", "unit"] {
        copy(&fixture().join(part), &dir.path().join(part));
    }
    let controller = served(Some(&dir.path().join("controller"))).await;
    let away: usize = controller.queue.partition("train").unwrap().inspect().tasks[0].away;
    assert_eq!(away, 40);
    let unit = Server::unit(&controller, Some(dir.path().join("unit"))).await;
    until_live(&controller.client(), 1).await;
    until(async || controller.queue.partition("train").unwrap().stats().tasks[0].ready_rows == 40).await;
    assert_eq!(all_that_is_seen(&controller.queue).await["rows"], expected()["controller"]["rows"]);
    drop(unit);
}

/// Writes the fixture into the folder that `ROLLDOCK_FIXTURE` names. Run it with a build that has the format
/// of the fixture.
#[tokio::test]
#[ignore = "writes a fixture"]
async fn write_the_fixture() {
    let Some(to) = std::env::var_os("ROLLDOCK_FIXTURE").map(PathBuf::from) else { return };
    let dir = tempfile::tempdir().unwrap();
    let queue = open(&dir.path().join("furnished"));
    furnish(&queue).await;
    let furnished = all_that_is_seen(&queue).await;
    // The queue is copied while it is open, as a kill leaves it. All acknowledged changes are on disk.
    copy(&dir.path().join("furnished"), &to.join("furnished"));

    let controller = served(Some(&dir.path().join("controller"))).await;
    let _unit = Server::unit(&controller, Some(dir.path().join("unit"))).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(served_units::spec()).await.unwrap();
    for group in 0..10_i64 {
        let put = Put::group(format!("g{group}"), served_units::batch(group * 4, 4));
        let rows = client.put("train", put, None).await.unwrap();
        client.write_columns("train", &rows, served_units::names(4)).await.unwrap();
    }
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    lease.nack().await.unwrap();
    let on_unit = all_that_is_seen(&controller.queue).await;
    copy(&dir.path().join("controller"), &to.join("controller"));
    copy(&dir.path().join("unit"), &to.join("unit"));
    let expected = serde_json::json!({ "furnished": furnished, "controller": on_unit });
    std::fs::write(to.join("expected.json"), serde_json::to_vec_pretty(&expected).unwrap()).unwrap();
}
