//! Storage units keep rows on other machines. The tests check the effects of the death and the return of a
//! unit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/served_units.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rolldock_queue::{PartitionSpec, Put, Queue, QueueError, ServiceConfig, Share, Take, UnitStatus, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use support::{BLOBS, Server, batch, names, open, served, spec, stats, until, until_live};

#[tokio::test]
async fn rows_lie_on_units_and_the_controller_has_none() {
    let controller = served(None).await;
    let (first, second) = (Server::unit(&controller, None).await, Server::unit(&controller, None).await);
    let client = controller.client();
    until_live(&client, 2).await;
    client.declare(spec()).await.unwrap();
    let mut handles = Vec::new();
    for group in 0..40 {
        handles.extend(
            client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap(),
        );
    }
    assert_eq!(controller.queue.inspect().payload_bytes, 0);
    let on = |unit: &Server| unit.queue.partition(BLOBS).unwrap().stats().rows;
    assert_eq!(on(&first) + on(&second), 160);
    // The unit of a group is chosen by a hash with the random names of the units.
    assert!(on(&first) > 8 && on(&second) > 8, "{} and {}", on(&first), on(&second));

    // Columns that are written later are also stored on the units.
    client.write_columns("train", &handles[..4], names(4)).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 40)).await.unwrap().unwrap();
    let ids: Vec<i64> = lease
        .batches()
        .iter()
        .flat_map(|batch| {
            let ids: &Int64Array = batch["id"].as_any().downcast_ref().unwrap();
            ids.values().to_vec()
        })
        .collect();
    assert_eq!(ids, (0..160).collect::<Vec<i64>>());
    assert_eq!(lease.batches()[0].columns()[..2], *batch(0, 4).columns());
    lease.nack().await.unwrap();
    let take = Take { columns: Some(vec!["name".to_owned(), "id".to_owned()]), ..Take::groups("train", 1) };
    let lease = client.take("train", &take).await.unwrap().unwrap();
    assert_eq!(lease.batches()[0].num_columns(), 2);
    assert_eq!(lease.batches()[0]["name"].as_ref(), names(4)["name"].as_ref());
    lease.ack().await.unwrap();
    let rest = client.take("train", &Take::groups("train", 40)).await.unwrap().unwrap();
    rest.ack().await.unwrap();
    // The units remove rows that were consumed.
    until(async || on(&first) + on(&second) == 0).await;
}

#[tokio::test]
async fn a_dead_unit_hands_out_nothing_and_its_rows_are_there_again_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let controller = served(None).await;
    let memory = Server::unit(&controller, None).await;
    let disk = Server::unit(&controller, Some(dir.path().to_owned())).await;
    let client = controller.client();
    until_live(&client, 2).await;
    client.declare(spec()).await.unwrap();
    for group in 0..30 {
        client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    let on_disk = disk.queue.partition(BLOBS).unwrap().stats().rows;
    let in_memory = 120 - on_disk;
    assert!(on_disk > 4 && in_memory > 4, "{on_disk} and {in_memory}");

    disk.die().await;
    until(async || stats(&client).await.tasks[0].away_rows == on_disk).await;
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.tasks[0].ready_rows, seen.dispositions.lost), (120, in_memory, 0));
    let lease = client.take("train", &Take::groups("train", 30)).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), in_memory);
    lease.nack().await.unwrap();
    // New rows go to the remaining unit.
    client.put("train", Put::group("late", batch(0, 4)), None).await.unwrap();

    let back = Server::unit(&controller, Some(dir.path().to_owned())).await;
    until(async || stats(&client).await.tasks[0].ready_rows == 124).await;
    let lease = client.take("train", &Take::groups("train", 40)).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), 124);
    lease.nack().await.unwrap();

    // The rows that were only in memory are lost, and the counts report them as lost.
    memory.die().await;
    until(async || stats(&client).await.dispositions.lost == in_memory as u64 + 4).await;
    let left = stats(&client).await;
    assert_eq!((left.rows, left.tasks[0].ready_rows), (on_disk, on_disk));
    drop(back);
}

#[tokio::test]
async fn a_dead_unit_is_noticed_by_the_client_that_asks_for_its_rows() {
    let controller = served(None).await;
    let (first, second) = (Server::unit(&controller, None).await, Server::unit(&controller, None).await);
    let client = controller.client();
    until_live(&client, 2).await;
    client.declare(spec()).await.unwrap();
    for group in 0..20 {
        client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    let left = second.queue.partition(BLOBS).unwrap().stats().rows;
    first.die().await;
    // The client notices the death immediately, long before the controller does.
    let mut taken = 0;
    while let Some(lease) = client.take("train", &Take::groups("train", 1)).await.unwrap() {
        taken += lease.rows().len();
        lease.ack().await.unwrap();
    }
    assert_eq!(taken, left);
    // Puts go to the other unit.
    for group in 20..30 {
        client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    let all = client.take("train", &Take::groups("train", 30)).await.unwrap().unwrap();
    assert_eq!(all.rows().len(), 40);
}

#[tokio::test]
async fn a_controller_that_starts_again_finds_its_units_rows() {
    let (home, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let controller = served(Some(home.path())).await;
    let unit = Server::unit(&controller, Some(dir.path().to_owned())).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    for group in 0..10 {
        client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    unit.die().await;
    controller.die().await;

    let controller = served(Some(home.path())).await;
    let client = controller.client();
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.tasks[0].away_rows), (40, 40));
    let _unit = Server::unit(&controller, Some(dir.path().to_owned())).await;
    until(async || stats(&client).await.tasks[0].ready_rows == 40).await;
    let lease = client.take("train", &Take::groups("train", 10)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(0, 40));
    lease.ack().await.unwrap();
}

#[tokio::test]
async fn blobs_that_no_table_knows_are_removed_and_drained_units_are_emptied() {
    let controller = served(None).await;
    let unit = Server::unit(&controller, None).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("known", batch(0, 4)), None).await.unwrap();
    let orphans = unit.queue.partition(BLOBS).unwrap();
    orphans.put(Put::group("orphan", batch(0, 7)), None).await.unwrap();
    assert_eq!(orphans.stats().rows, 11);
    until(async || orphans.stats().rows == 4).await;

    let name = client.units().await.unwrap()[0].card.unit.clone();
    client.drain_unit(&name).await.unwrap();
    client.put("train", Put::group("here", batch(4, 4)), None).await.unwrap();
    // There is no other unit, so the controller keeps all rows. Rows that the client sent to the unit before
    // it learned of the draining are removed.
    assert!(controller.queue.inspect().payload_bytes > 0);
    until(async || orphans.stats().rows == 0).await;
    assert_eq!(client.units().await.unwrap()[0].status, UnitStatus::Draining);
    client.forget_unit(&name).await.unwrap();
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.dispositions.lost), (8, 0));
    let unknown = client.forget_unit("missing").await;
    assert_eq!(unknown, Err(QueueError::UnknownUnit { unit: "missing".to_owned() }));
}

#[tokio::test]
async fn a_drained_units_rows_move_to_others_and_it_may_leave() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("controller");
    let controller = served(Some(&dir)).await;
    let leaving = Server::unit(&controller, None).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    let mut rows = Vec::new();
    for group in 0..20 {
        let put = Put::group(format!("g{group}"), batch(group * 4, 4));
        rows.extend(client.put("train", put, None).await.unwrap());
    }
    client.write_columns("train", &rows[..8], names(8)).await.unwrap();
    client.clear("train", &rows[4..7]).await.unwrap();
    let held = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    let name = client.units().await.unwrap()[0].card.unit.clone();
    let staying = Server::unit(&controller, None).await;
    until_live(&client, 2).await;
    client.drain_unit(&name).await.unwrap();

    // A client that takes during the draining gets whole rows from either unit.
    let mut ids = Vec::new();
    let mut take = async |groups| {
        let lease = client.take("train", &Take::groups("train", groups)).await.unwrap().unwrap();
        for batch in lease.batches() {
            let found: &Int64Array = batch["id"].as_any().downcast_ref().unwrap();
            ids.extend(found.values().to_vec());
        }
        lease.ack().await.unwrap();
    };
    take(5).await;
    until(async || {
        let units = client.units().await.unwrap();
        units.iter().any(|unit| unit.card.unit == name && unit.chunks == 0)
    })
    .await;
    client.forget_unit(&name).await.unwrap();
    leaving.die().await;
    take(14).await;
    held.ack().await.unwrap();
    ids.sort_unstable();
    assert_eq!(ids, [vec![7], (8..80).collect()].concat());
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.dispositions.lost, seen.dispositions.acked), (0, 0, 77));
    let left = staying.queue.partition(BLOBS).unwrap();
    until(async || left.stats().rows == 0).await;
}

fn other_names(rows: usize) -> RecordBatch {
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("other {row}"))));
    RecordBatch::try_from_iter([("name", names)]).unwrap()
}

#[tokio::test]
async fn replaced_values_lie_on_units_and_a_lease_goes_on_with_the_earlier_ones() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("controller");
    let controller = served(Some(&dir)).await;
    let (first, second) = (Server::unit(&controller, None).await, Server::unit(&controller, None).await);
    let client = controller.client();
    until_live(&client, 2).await;
    client.declare(spec()).await.unwrap();
    let mut rows = Vec::new();
    for group in 0..20 {
        let put = Put::group(format!("g{group}"), batch(group * 4, 4));
        rows.extend(client.put("train", put, None).await.unwrap());
    }
    client.write_columns("train", &rows, names(80)).await.unwrap();
    let on = || {
        let on = |unit: &Server| unit.queue.partition(BLOBS).unwrap().stats().rows;
        on(&first) + on(&second)
    };
    assert_eq!(on(), 160);
    let column = Some(vec!["name".to_owned()]);
    let member = |member| Take {
        columns: column.clone(),
        share: Some(Share { members: 2, member, ..Share::of(0, 1) }),
        ..Take::groups("train", 20)
    };
    let lease = client.take("train", &member(0)).await.unwrap().unwrap();
    client.overwrite_columns("train", &rows, other_names(80)).await.unwrap();
    assert_eq!(controller.queue.inspect().payload_bytes, 0);
    // The units keep the rows that the other member of the lease still has to read.
    let late = client.take("train", &member(1)).await.unwrap().unwrap();
    assert_eq!(late.concat().unwrap()["name"].to_data(), lease.concat().unwrap()["name"].to_data());
    let sorted = |batches: &[RecordBatch]| {
        let names = batches.iter().flat_map(|batch| batch["name"].as_string::<i32>().iter().flatten());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(late.batches()), sorted(&[names(80)]));
    let read = client.get("train", &rows, column.as_deref()).await.unwrap();
    assert_eq!(sorted(&read), sorted(&[other_names(80)]));
    late.nack().await.unwrap();
    until(async || on() == 160).await;
    // The new values move with their rows.
    let units = client.units().await.unwrap();
    client.drain_unit(&units[0].card.unit).await.unwrap();
    until(async || client.units().await.unwrap()[0].chunks == 0).await;
    let lease =
        client.take("train", &Take { columns: column, ..Take::groups("train", 20) }).await.unwrap().unwrap();
    assert_eq!(sorted(lease.batches()), sorted(&[other_names(80)]));
    lease.ack().await.unwrap();
    until(async || on() == 0).await;
}

/// Announces a unit to the controller once. The unit sends nothing to the controller by itself.
async fn announce(controller: &Server, unit: &Server, name: &str) {
    let card = serde_json::json!({
        "unit": name, "url": format!("http://{}", unit.address), "is_durable": false,
    });
    let url = format!("http://{}/v1/units", controller.address);
    let answer = reqwest::Client::new().post(url).body(card.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

async fn declared_unit() -> Server {
    let unit = served(None).await;
    unit.queue.declare(PartitionSpec::new(BLOBS, ["controller"], u32::MAX as usize)).await.unwrap();
    unit
}

#[tokio::test]
async fn a_unit_that_answers_but_does_not_announce_itself_keeps_its_rows() {
    let controller = served(None).await;
    let unit = declared_unit().await;
    announce(&controller, &unit, "mute").await;
    let client = controller.client();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    assert_eq!(unit.queue.partition(BLOBS).unwrap().stats().rows, 4);
    // The unit has been silent for long, as after a short network failure or a pause of the controller.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(client.units().await.unwrap()[0].status, UnitStatus::Live);
    let seen = stats(&client).await;
    assert_eq!((seen.tasks[0].ready_rows, seen.dispositions.lost), (4, 0));
    unit.die().await;
    until(async || stats(&client).await.dispositions.lost == 4).await;
}

#[tokio::test]
async fn a_unit_in_anothers_place_does_not_answer_for_it() {
    let controller = served(None).await;
    let unit = declared_unit().await;
    announce(&controller, &unit, "first").await;
    let client = controller.client();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    // Another unit at the same address means that the first unit has restarted and lost all rows. The
    // controller notices the loss immediately, without waiting for a silence.
    announce(&controller, &unit, "second").await;
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.dispositions.lost), (0, 4));
    let units = client.units().await.unwrap();
    assert_eq!(units.iter().map(|unit| unit.card.unit.as_str()).collect::<Vec<_>>(), ["second"]);
}

#[tokio::test]
async fn rows_in_memory_that_died_while_the_controller_was_away_are_lost_and_not_away_for_ever() {
    let home = tempfile::tempdir().unwrap();
    let controller = served(Some(home.path())).await;
    let (dying, living) = (Server::unit(&controller, None).await, declared_unit().await);
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    let first = client.units().await.unwrap()[0].card.unit.clone();
    client.drain_unit(&first).await.unwrap();
    announce(&controller, &living, "living").await;
    // Waits until the controller has recorded that the rows of the first unit have moved to the unit that
    // stays alive. The copies exist before this record.
    until(async || {
        let units = client.units().await.unwrap();
        units.iter().all(|unit| unit.card.unit != first || unit.chunks == 0)
    })
    .await;
    assert_eq!(living.queue.partition(BLOBS).unwrap().stats().rows, 4);
    client.forget_unit(&first).await.unwrap();
    dying.die().await;
    let dying = Server::unit(&controller, None).await;
    until_live(&client, 2).await;
    let on_dying = async || dying.queue.partition(BLOBS).unwrap().stats().rows;
    let mut group = 0;
    while on_dying().await == 0 {
        client.put("train", Put::group(format!("g{group}"), batch(4, 4)), None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        group += 1;
    }
    let kept = stats(&client).await.rows - 4;
    dying.die().await;
    controller.die().await;

    let controller = served(Some(home.path())).await;
    let client = controller.client();
    announce(&controller, &living, "living").await;
    until(async || stats(&client).await.dispositions.lost == 4).await;
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.tasks[0].ready_rows, seen.tasks[0].away_rows), (kept, kept, 0));
    until(async || client.units().await.unwrap().len() == 1).await;
}

#[tokio::test]
async fn a_unit_forgets_freed_blobs_even_if_others_are_absent() {
    let controller = served(None).await;
    // The rows stay too young for the unit to ask the controller about them.
    let unit = Server::unit_with(&controller, None, Duration::from_secs(600)).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    for group in 0..10 {
        client.put("train", Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    // Some rows are already freed on the unit. This happens if the answer to a clear is lost, or if the
    // controller restarts. The controller then clears the same rows again.
    let held = unit.queue.partition(BLOBS).unwrap();
    let one = held.take(&Take::rows("controller", 3)).await.unwrap().unwrap();
    held.clear(one.rows()).await.unwrap();
    assert_eq!(held.stats().rows, 37);
    assert_eq!(client.clear_all("train").await.unwrap(), 40);
    until(async || held.stats().rows == 0).await;
}

#[tokio::test]
async fn a_unit_asks_again_about_blobs_that_a_controller_knew() {
    let controller = served(None).await;
    let unit = Server::unit(&controller, None).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    let held = unit.queue.partition(BLOBS).unwrap();
    // After this time, the unit has asked about its rows, and the controller has answered that they still
    // exist.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(held.stats().rows, 4);
    let address = controller.address;
    controller.die().await;
    let listener = TcpListener::bind(address).await.unwrap();
    let (queue, end) = (open(None), CancellationToken::new());
    let serving = serve(queue, listener, ServiceConfig::default(), end);
    let _again = AbortOnDropHandle::new(TaskTracker::new().spawn(async move { serving.await.unwrap() }));
    until(async || held.stats().rows == 0).await;
}
