//! A snapshot of rows that were put one by one is about as large as the live rows, and a restore returns
//! these rows unchanged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod handles;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, StringViewArray};
use proptest::prelude::*;
use rolldock_queue::{
    Durability, ExportFormat, KeyedRow, Partition, PartitionSpec, Put, RowHandle, Take, TransferQueue,
};
use serde_json::json;

use support::{Seen, advantages, all_of, assert_same, in_memory, on_disk, restore, rows, snapshot, spec};

/// The size of a row with this many tokens, in bytes: a number, the offset of its list, and the list.
fn row_bytes(tokens: i32) -> usize {
    8 + 4 + 4 * tokens as usize
}

/// Whether a producer gives each put a long random group name, token and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    None,
    Named,
}

/// A text that does not compress, like a UUID.
fn random(seed: i64) -> String {
    let mixed = u128::from(seed.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15)).pow(2) ^ 0x5bd1_e995;
    format!("{:032x}", mixed.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645))
}

async fn put_singly(
    queue: &TransferQueue,
    count: i64,
    tokens: impl Fn(i64) -> i32,
    words: Words,
) -> (Partition, Vec<RowHandle>) {
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
    let mut handles = Vec::new();
    for row in 0..count {
        let group = if words == Words::Named { random(row * 3) } else { format!("group {row}") };
        let mut put = Put::group(group, rows(row, 1, tokens(row)));
        if words == Words::Named {
            put.token = Some(random(row * 3 + 1));
            put.keys = vec![random(row * 3 + 2)];
        }
        handles.extend(partition.put(put, None).await.unwrap());
    }
    (partition, handles)
}

/// The size of a snapshot, divided by the live bytes.
async fn overhead(queue: &TransferQueue, live_bytes: usize) -> f64 {
    snapshot(queue, None).await.len() as f64 / live_bytes as f64
}

#[tokio::test]
async fn rows_that_were_put_singly_take_at_most_a_tenth_more_than_they_are() {
    const ROWS: i64 = 2_000;
    for (tokens, words, bound) in
        [(253, Words::None, 1.1), (253, Words::Named, 1.1), (72, Words::None, 1.1), (72, Words::Named, 1.25)]
    {
        let dir = tempfile::tempdir().unwrap();
        for queue in [in_memory(), on_disk(dir.path())] {
            let (partition, handles) = put_singly(&queue, ROWS, |_| tokens, words).await;
            let live = ROWS as usize * row_bytes(tokens);
            let found = overhead(&queue, live).await;
            println!("rows of {} bytes, {words:?}: {found:.3}", row_bytes(tokens));
            assert!(found <= bound, "rows of {} bytes, {words:?}: {found:.3}", row_bytes(tokens));
            // A column is written for each row by a separate call.
            for row in &handles {
                partition.write_columns(&[*row], advantages(1)).await.unwrap();
            }
            let found = overhead(&queue, live + ROWS as usize * 4).await;
            println!("rows of {} bytes, {words:?}, with columns: {found:.3}", row_bytes(tokens));
            assert!(
                found <= bound,
                "rows of {} bytes, {words:?}, with columns: {found:.3}",
                row_bytes(tokens)
            );
            // The snapshot of a copy is no larger.
            let copy = in_memory();
            restore(&copy, &snapshot(&queue, None).await).await.unwrap();
            let again = overhead(&copy, live + ROWS as usize * 4).await;
            assert!(again <= found + 0.01, "{found:.3}, then {again:.3}");
        }
    }
}

#[tokio::test]
async fn large_puts_among_single_rows_of_many_schemas_take_no_more() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let partition = queue.declare(spec("train", 65_536)).await.unwrap();
        let mut live = 0;
        for put in 0..2_000 {
            let count = if put % 400 == 399 { 300 } else { 1 };
            let rows = rows(put * 1_000, count, 253);
            let columns = [("id", &rows["id"]), (&*format!("column {}", put % 20), &rows["response_ids"])];
            let rows = RecordBatch::try_from_iter(columns.map(|(name, column)| (name, Arc::clone(column))));
            partition.put(Put::group(put.to_string(), rows.unwrap()), None).await.unwrap();
            live += count as usize * row_bytes(253);
        }
        let found = overhead(&queue, live).await;
        println!("large and small: {found:.3}");
        assert!(found <= 1.1, "{found:.3}");
        let copied = tempfile::tempdir().unwrap();
        let copy = on_disk(copied.path());
        restore(&copy, &snapshot(&queue, None).await).await.unwrap();
        assert_copied(&queue, &copy).await;
    }
}

/// Rows of one of three schemas, which differ in their columns and in the types of their texts.
fn rows_of(schema: u8, first: i64, count: i64) -> RecordBatch {
    let rows = rows(first, count, 1 + (first % 7) as i32);
    if schema == 0 {
        return rows;
    }
    let words = (0..count).map(|row| "ab".repeat((first + row) as usize % 50));
    let words: ArrayRef = match schema {
        1 => Arc::new(StringArray::from_iter_values(words)),
        _ => Arc::new(StringViewArray::from_iter_values(words)),
    };
    let name = format!("words {schema}");
    let columns = [("id", Arc::clone(&rows["id"])), (name.as_str(), words)];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[derive(Debug, Clone)]
enum Op {
    /// Puts groups of `size` rows of a schema, in puts of at most `rows` rows.
    Put {
        schema: u8,
        groups: u8,
        size: u8,
        rows: u8,
        named: bool,
    },
    /// Writes a column of every `every`th row, with one call or with one call for each row.
    Columns {
        every: usize,
        singly: bool,
    },
    Clear {
        every: usize,
        from: usize,
    },
    Take {
        task: bool,
        rows: usize,
        acks: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..3_u8, 1..30_u8, 1..5_u8, 1..5_u8, any::<bool>())
            .prop_map(|(schema, groups, size, rows, named)| Op::Put { schema, groups, size, rows, named }),
        2 => (1..4_usize, any::<bool>()).prop_map(|(every, singly)| Op::Columns { every, singly }),
        1 => (2..4_usize, 0..4_usize).prop_map(|(every, from)| Op::Clear { every, from }),
        1 => (any::<bool>(), 1..40_usize, any::<bool>())
            .prop_map(|(task, rows, acks)| Op::Take { task, rows, acks }),
    ];
    prop::collection::vec(op, 1..12)
}

/// Applies an operation, and adds the number of its put rows to `put_so_far`.
async fn apply(partition: &Partition, op: &Op, put_so_far: &mut i64) {
    let all = Take::rows("train", 4096);
    match op {
        Op::Put { schema, groups, size, rows, named } => {
            for group in 0..*groups {
                let (size, mut there) = (i64::from(*size), 0);
                let name = format!("{group} of {put_so_far}");
                while there < size {
                    let count = i64::from(*rows).min(size - there);
                    let first = *put_so_far;
                    let names = |count: i64| (first..first + count).map(|row| format!("key {row}"));
                    let put = Put {
                        group_size: size as usize,
                        token: named.then(|| format!("token {first}")),
                        keys: if *named { names(count).collect() } else { Vec::new() },
                        tags: if *named {
                            names(count).map(|name| json!({ "is": name })).collect()
                        } else {
                            Vec::new()
                        },
                        policy_version: u64::from(group) % 3,
                        priority: i64::from(group) % 2,
                        ..Put::group(name.as_str(), rows_of(*schema, first, count))
                    };
                    partition.put(put, None).await.unwrap();
                    *put_so_far += count;
                    there += count;
                    // Every fifth group gets only one put, so some groups stay incomplete.
                    if group % 5 == 4 {
                        break;
                    }
                }
            }
        }
        Op::Columns { every, singly } => {
            let Some(lease) = partition.take(&all).await.unwrap() else { return };
            let mut rows = Vec::new();
            for row in lease.rows().iter().step_by(*every) {
                if partition.get(&[*row], Some(&["advantage".to_owned()])).await.is_err() {
                    rows.push(*row);
                }
            }
            for rows in rows.chunks(if *singly { 1 } else { rows.len().max(1) }) {
                partition.write_columns(rows, advantages(rows.len())).await.unwrap();
            }
        }
        Op::Clear { every, from } => {
            let Some(lease) = partition.take(&all).await.unwrap() else { return };
            let rows: Vec<RowHandle> = lease.rows().iter().skip(*from).step_by(*every).copied().collect();
            partition.clear(&rows).await.unwrap();
        }
        Op::Take { task, rows, acks } => {
            let task = if *task { "train" } else { "score" };
            let Some(lease) = partition.take(&Take::rows(task, *rows)).await.unwrap() else { return };
            if *acks { lease.ack().await.unwrap() } else { lease.nack().await.unwrap() }
        }
    }
}

/// Puts a row of each schema. A snapshot has only the column types of live rows, so without these rows a copy
/// could lack types that the original queue still has.
async fn put_all_columns(partition: &Partition, put_so_far: &mut i64) {
    for schema in 0..3 {
        let put = Put::group(format!("last {put_so_far}"), rows_of(schema, *put_so_far, 1));
        let handles = partition.put(put, None).await.unwrap();
        partition.write_columns(&handles, advantages(1)).await.unwrap();
        *put_so_far += 1;
    }
}

/// The keys and tags of the rows, which [`assert_same`] does not compare.
fn names(queue: &TransferQueue) -> Vec<KeyedRow> {
    queue.partition("train").unwrap().keyed_rows()
}

async fn assert_copied(queue: &TransferQueue, copy: &TransferQueue) {
    assert_same(queue, copy, "train").await;
    assert_eq!(names(queue), names(copy));
    let exported = |queue: &TransferQueue| {
        let partition = queue.partition("train").unwrap();
        async move {
            let mut bytes = Vec::new();
            partition.export(ExportFormat::Jsonl, &mut bytes).await.unwrap();
            bytes
        }
    };
    assert_eq!(exported(queue).await, exported(copy).await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn mixtures_of_schemas_groups_and_columns_come_back_as_they_were(before in ops(), after in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (dir, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            for first in [in_memory(), on_disk(dir.path())] {
                let partition = first.declare(spec("train", 4096)).await.unwrap();
                let mut put_so_far = 0;
                for op in &before {
                    apply(&partition, op, &mut put_so_far).await;
                }
                put_all_columns(&partition, &mut put_so_far).await;
                let second = on_disk(&copied.path().join(if first.durability() == Durability::None { "a" } else { "b" }));
                restore(&second, &snapshot(&first, None).await).await.unwrap();
                assert_copied(&first, &second).await;
                // The copies behave like the queue under further operations.
                let third = in_memory();
                restore(&third, &snapshot(&second, None).await).await.unwrap();
                for queue in [&first, &second, &third] {
                    let mut put_so_far = put_so_far;
                    let partition = queue.partition("train").unwrap();
                    for op in &after {
                        apply(&partition, op, &mut put_so_far).await;
                    }
                    put_all_columns(&partition, &mut put_so_far).await;
                }
                assert_same_rows(&first, &second).await;
                assert_same_rows(&first, &third).await;
                let fourth = in_memory();
                restore(&fourth, &snapshot(&second, None).await).await.unwrap();
                assert_copied(&second, &fourth).await;
            }
        });
    }
}

/// Compares all rows except their handles, because new rows of a copy have different handles.
async fn assert_same_rows(left: &TransferQueue, right: &TransferQueue) {
    let bare = |queue: &TransferQueue| {
        let queue = queue.clone();
        async move {
            let all = all_of(&queue, "train").await.into_iter();
            let bare = |(_, group, version, row): Seen| (group, version, row);
            all.map(|seen| seen.into_iter().map(bare).collect::<Vec<_>>()).collect::<Vec<_>>()
        }
    };
    assert_eq!(bare(left).await, bare(right).await);
    for queue in [left, right] {
        let report = queue.verify().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}
