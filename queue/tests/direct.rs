//! Clients that read and write storage units directly. The controller knows the rows but never gets their
//! payload.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/served_units.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, ListArray, RecordBatch};
use rolldock_queue::{PartitionSpec, Put, Queue, QueueError, RowHandle, ServiceConfig, Take};

use support::{BLOBS, Server, batch, names, served, served_with, spec, stats, until, until_live};

/// Rows of about 3 KB, with two tokens each.
fn wide(rows: usize) -> RecordBatch {
    let text: ArrayRef =
        Arc::new(arrow_array::StringArray::from_iter_values((0..rows).map(|_| "x".repeat(3000))));
    let tokens = (0..rows as i64).map(|row| Some([Some(row), Some(row)]));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(tokens));
    RecordBatch::try_from_iter([("text", text), ("tokens", tokens)]).unwrap()
}

#[tokio::test]
async fn clients_read_and_write_units_and_the_controller_sees_no_payload() {
    // The controller refuses bodies of more than 1.5 KB.
    let config = ServiceConfig { body_bytes_max: 1_500, ..ServiceConfig::default() };
    let controller = served_with(None, config).await;
    let units = [Server::unit(&controller, None).await, Server::unit(&controller, None).await];
    let client = controller.client();
    until_live(&client, 2).await;
    client.declare(PartitionSpec { length_columns: vec!["tokens".to_owned()], ..spec() }).await.unwrap();
    for group in 0..8 {
        let put = Put {
            keys: (0..10).map(|row| format!("{group}/{row}")).collect(),
            ..Put::group(format!("g{group}"), wide(10))
        };
        client.put("train", put, None).await.unwrap();
    }
    let on_units: usize = units.iter().map(|unit| unit.queue.partition(BLOBS).unwrap().stats().rows).sum();
    assert_eq!((on_units, controller.queue.inspect().payload_bytes), (80, 0));
    let lease = client.take("train", &Take::tokens("train", 45)).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), 20, "two groups of 20 tokens");
    assert_eq!(lease.keys()[0].as_deref(), Some("0/0"));
    assert_eq!(lease.batches()[0].columns(), wide(10).columns());
    lease.ack().await.unwrap();
    let again = Put { token: Some("t".to_owned()), ..Put::group("once", wide(10)) };
    let rows = client.put("train", again.clone(), None).await.unwrap();
    assert_eq!(client.put("train", again, None).await.unwrap(), rows);
    // Rows can also be read by their handles, with all of their columns or with some.
    let found = client.get("train", &rows, None).await.unwrap();
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 10);
    assert_eq!(found[0].columns(), wide(10).columns());
    let texts = client.get("train", &rows[3..5], Some(&["text".to_owned()])).await.unwrap();
    assert_eq!(texts[0].columns(), wide(2).project(&[0]).unwrap().columns());
    let missing = client.get("train", &rows, Some(&["none".to_owned()])).await;
    assert_eq!(missing, Err(QueueError::ColumnMissing { column: "none".to_owned() }));
}

#[tokio::test]
async fn the_first_put_to_an_undeclared_partition_creates_it() {
    let controller = served(None).await;
    let unit = Server::unit(&controller, None).await;
    let client = controller.client();
    until_live(&client, 1).await;
    for group in ["a", "b"] {
        client.put("new", Put::group(group, batch(0, 4)), None).await.unwrap();
    }
    assert_eq!(controller.queue.partition("new").unwrap().stats().rows, 8);
    assert_eq!(unit.queue.partition(BLOBS).unwrap().stats().rows, 8);
}

#[tokio::test]
async fn a_put_that_is_refused_or_waits_for_room_leaves_nothing_on_a_unit() {
    let controller = served(None).await;
    // The unit removes unknown rows only at an age that this test does not reach.
    let unit = Server::unit_with(&controller, None, Duration::from_secs(600)).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(PartitionSpec { capacity_rows: 4, ..spec() }).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    let held = unit.queue.partition(BLOBS).unwrap();
    let put =
        |wait_ms| client.put("train", Put::group("b", batch(4, 2)), Some(Duration::from_millis(wait_ms)));
    for wait_ms in [0, 50] {
        let refused = put(wait_ms).await;
        assert!(matches!(refused, Err(QueueError::Deadline { .. })), "{refused:?}");
        assert_eq!(held.stats().rows, 4);
    }
    let doubled = Put { keys: vec!["k".to_owned(), "k".to_owned()], ..Put::group("c", batch(0, 2)) };
    assert!(client.put("train", doubled, None).await.is_err());
    assert_eq!(held.stats().rows, 4);
    // A put that waits has its rows on the unit exactly once, and these rows are taken later.
    let waiting = put(20_000);
    let acking = async {
        until(async || held.stats().rows == 6).await;
        let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
        lease.ack().await.unwrap();
    };
    let (rows, ()) = tokio::join!(waiting, acking);
    assert_eq!(rows.unwrap().len(), 2);
    until(async || held.stats().rows == 2).await;
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.batches()[0].columns(), batch(4, 2).columns());
}

#[tokio::test]
async fn clients_that_know_nothing_of_units_use_the_controller() {
    let controller = served(None).await;
    let unit = Server::unit(&controller, None).await;
    until_live(&controller.client(), 1).await;
    let queue: &dyn Queue = &controller.queue;
    queue.declare(spec()).await.unwrap();
    queue.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    assert_eq!(unit.queue.partition(BLOBS).unwrap().stats().rows, 4);
    let lease = queue.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(0, 4));
    lease.nack().await.unwrap();
    let raw = reqwest::Client::new();
    let answer = raw.post(format!("http://{}/v1/partitions/train/take", controller.address));
    let answer = answer.body(r#"{"task":"train","groups":1}"#).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/vnd.apache.arrow.stream");
}

#[tokio::test]
async fn a_put_that_waited_while_its_unit_died_goes_to_another_unit() {
    let controller = served(None).await;
    let unit = Server::unit_with(&controller, None, Duration::from_secs(600)).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(PartitionSpec { capacity_rows: 4, ..spec() }).await.unwrap();
    let partition = controller.queue.partition("train").unwrap();
    client.put("train", Put::group("a", batch(0, 4)), None).await.unwrap();
    let held = unit.queue.partition(BLOBS).unwrap();
    let waiting = client.put("train", Put::group("b", batch(4, 4)), Some(Duration::from_secs(20)));
    let dying = async {
        until(async || held.stats().rows == 8).await;
        // The rows of `a` are lost with the unit, so there is space for `b`.
        unit.die().await;
    };
    let (rows, ()) = tokio::join!(waiting, dying);
    assert_eq!(rows.unwrap().len(), 4);
    let seen = partition.stats();
    assert_eq!((seen.rows, seen.tasks[0].ready_rows, seen.tasks[0].away_rows), (4, 4, 0));
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(4, 4));
}

/// A controller that refuses bodies of more than 16 KB, and two units.
async fn narrow() -> (Server, [Server; 2]) {
    let config = ServiceConfig { body_bytes_max: 16_000, ..ServiceConfig::default() };
    let controller = served_with(None, config).await;
    let units = [Server::unit(&controller, None).await, Server::unit(&controller, None).await];
    until_live(&controller.client(), 2).await;
    (controller, units)
}

fn rows_on(units: &[Server]) -> Vec<usize> {
    units.iter().map(|unit| unit.queue.partition(BLOBS).unwrap().stats().rows).collect()
}

/// Texts of about 3 KB, each of which begins with its number.
fn long_texts(rows: usize) -> RecordBatch {
    let texts = (0..rows).map(|row| format!("{row}:{}", "y".repeat(3000)));
    let texts: ArrayRef = Arc::new(arrow_array::StringArray::from_iter_values(texts));
    RecordBatch::try_from_iter([("text", texts)]).unwrap()
}

async fn put_groups(client: &dyn Queue, groups: usize) -> Vec<RowHandle> {
    let mut rows = Vec::new();
    for group in 0..groups {
        let put = Put::group(format!("g{group}"), batch(group as i64 * 2, 2));
        rows.extend(client.put("train", put, None).await.unwrap());
    }
    rows
}

#[tokio::test]
async fn columns_go_to_the_units_of_their_rows_and_not_through_the_controller() {
    let (controller, units) = narrow().await;
    let client = controller.client();
    client.declare(spec()).await.unwrap();
    let rows = put_groups(&client, 16).await;
    let before = rows_on(&units);
    assert!(before.iter().all(|rows| *rows > 0), "{before:?}");
    // In this order, the rows of a group are not adjacent.
    let mixed: Vec<RowHandle> =
        rows.iter().step_by(2).chain(rows.iter().skip(1).step_by(2)).copied().collect();
    client.write_columns("train", &mixed, long_texts(32)).await.unwrap();
    assert_eq!(controller.queue.inspect().payload_bytes, 0);
    // Columns are stored on the units of their rows, so the death of a unit affects no other groups.
    assert_eq!(rows_on(&units), before.iter().map(|rows| rows * 2).collect::<Vec<_>>());
    let found = client.get("train", &mixed, Some(&["text".to_owned()])).await.unwrap();
    let found = arrow_select::concat::concat_batches(&found[0].schema(), &found).unwrap();
    assert_eq!(found, long_texts(32));
    // The table treats these columns like other columns.
    let again = client.write_columns("train", &rows[..1], long_texts(1)).await;
    assert_eq!(again, Err(QueueError::ColumnExists { column: "text".to_owned() }));
    until(async || rows_on(&units) == before.iter().map(|rows| rows * 2).collect::<Vec<_>>()).await;
    let lease = client.take("train", &Take::groups("train", 16)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap().num_columns(), 3);
    lease.ack().await.unwrap();
    until(async || rows_on(&units) == [0, 0]).await;
}

#[tokio::test]
async fn columns_that_are_refused_leave_nothing_on_a_unit() {
    let controller = served(None).await;
    // The unit removes unknown rows only at an age that this test does not reach.
    let unit = Server::unit_with(&controller, None, Duration::from_secs(600)).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    let rows = put_groups(&client, 2).await;
    let held = unit.queue.partition(BLOBS).unwrap();
    client.write_columns("train", &rows[..2], names(2)).await.unwrap();
    assert_eq!(held.stats().rows, 6);
    let doubled = client.write_columns("train", &rows, names(4)).await;
    assert_eq!(doubled, Err(QueueError::ColumnExists { column: "name".to_owned() }));
    assert_eq!(held.stats().rows, 6);
    client.clear("train", &rows[2..]).await.unwrap();
    let gone = client.write_columns("train", &rows[2..], names(2)).await;
    assert!(matches!(gone, Err(QueueError::StaleHandle { .. })), "{gone:?}");
    until(async || held.stats().rows == 4).await;
    let seen = stats(&client).await;
    assert_eq!((seen.rows, seen.columns["name"]), (2, 2));
}

#[tokio::test]
async fn columns_go_on_through_the_controller_when_their_unit_has_gone() {
    let (controller, [first, second]) = narrow().await;
    let client = controller.client();
    client.declare(spec()).await.unwrap();
    let rows = put_groups(&client, 8).await;
    // At first the client still assumes that both units are alive.
    second.die().await;
    let written = client.write_columns("train", &rows, names(16)).await;
    let on_first = first.queue.partition(BLOBS).unwrap();
    match written {
        // The death was noticed before the write, so the groups of the dead unit are lost.
        Err(QueueError::StaleHandle { .. }) => {}
        written => {
            written.unwrap();
            assert!(on_first.stats().rows >= 16);
        }
    }
}

#[tokio::test]
async fn a_partition_that_must_see_its_rows_gets_columns_through_the_controller() {
    let (controller, _units) = narrow().await;
    let client = controller.client();
    client.declare(PartitionSpec { row_bytes_max: Some(1_000), ..spec() }).await.unwrap();
    let rows = put_groups(&client, 1).await;
    let refused = client.write_columns("train", &rows, long_texts(2)).await;
    assert!(
        matches!(refused, Err(QueueError::RowTooLong { .. } | QueueError::BodyTooLarge { .. })),
        "{refused:?}"
    );
    client.write_columns("train", &rows, names(2)).await.unwrap();
    assert_eq!(stats(&client).await.columns["name"], 2);
}

#[tokio::test]
async fn rows_that_a_client_says_lie_on_a_unit_are_checked_as_any_others() {
    let controller = served(None).await;
    controller.client().declare(spec()).await.unwrap();
    let rows = put_groups(&controller.queue, 1).await;
    let raw = reqwest::Client::new();
    let place = serde_json::json!({ "unit": "missing", "blob": "b", "rows": &rows[..1] });
    let column = |name: &str| serde_json::json!([{ "name": name, "dtype": "Int64" }]);
    let piece = serde_json::json!([{ "place": place, "bytes": 8 }]);
    let refused = async |to: &str, body: serde_json::Value| -> serde_json::Value {
        let url = format!("http://{}/v1/partitions/train/{to}", controller.address);
        let answer = raw.post(url).body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status().as_u16() / 100, 4);
        answer.json::<serde_json::Value>().await.unwrap()["error"].take()
    };
    let columns = |rows: &[RowHandle], name: &str| serde_json::json!({ "rows": rows, "columns": column(name), "pieces": piece });
    for name in ["_handle", "_tags"] {
        let put = serde_json::json!({ "place": place, "columns": column(name), "bytes": 8 });
        for (to, body) in [("placed?group=g", put), ("columns/placed", columns(&rows[..1], name))] {
            let error = refused(to, body).await;
            assert_eq!(error["code"], "bad_request", "{error}");
            assert!(error["reason"].as_str().unwrap().contains("not reserved for labels"), "{error}");
        }
    }
    let error = refused("columns/placed", columns(&rows, "x")).await;
    assert!(error["reason"].as_str().unwrap().contains("expected one row for each of handles=2"), "{error}");
    assert_eq!(refused("columns/placed", columns(&rows[..1], "x")).await["code"], "unknown_unit");
    assert_eq!(stats(&controller.client()).await.columns.len(), 2);
    // The refused calls reserved nothing, so columns of these rows can still be written.
    controller.queue.partition("train").unwrap().write_columns(&rows, long_texts(2)).await.unwrap();
}
