use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};

use std::collections::HashSet;

use tokio::time::Instant;

use super::live::SLICE_ROWS;
use super::*;
use crate::Take;
use crate::put::{Put, columns_of};
use crate::record::{PayloadRecord, PutRecord, SamplePart, Unfinished};

fn put(group: &str, rows: i64, size: usize) -> Put {
    let ids = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("id", ids as _)]).unwrap();
    Put { group_size: size, ..Put::group(group, batch) }
}

fn publish(table: &mut Table, put: &Put, chunk: u64) -> Vec<RowHandle> {
    let claim = table.reserve(put, put.rows(), 0, &[]);
    publish_claimed(table, put, &claim, chunk);
    claim.rows
}

fn publish_claimed(table: &mut Table, put: &Put, claim: &Claim, chunk: u64) {
    table
        .publish(PutRecord {
            partition: "p".to_owned(),
            group: put.group.clone(),
            group_size: put.group_size,
            group_gone: 0,
            in_parts: None,
            sample: put.sample.clone(),
            policy_version: put.policy_version,
            priority: put.priority,
            lengths: Vec::new(),
            kib: 0,
            labels: Vec::new(),
            rows: claim.rows.clone(),
            payload: PayloadRecord {
                chunk: ChunkId(chunk),
                note: None,
                columns: vec!["id".to_owned()],
                chunk_rows: Vec::new(),
            },
            token: put.token.clone(),
            words: put.record.clone(),
        })
        .unwrap();
}

fn groups(table: &mut Table, task: usize) -> Vec<RowHandle> {
    table.choose(task, &Take::groups("", 1), false).map_or_else(Vec::new, |chosen| chosen.rows())
}

fn rows_of(table: &mut Table, task: usize, count: usize) -> Vec<RowHandle> {
    table.choose(task, &Take::rows("", count), false).map_or_else(Vec::new, |chosen| chosen.rows())
}

fn table() -> Table {
    Table::new(PartitionSpec::new("p", ["a", "b"], 16))
}

#[test]
fn a_group_that_is_being_dropped_is_out_of_reach_until_the_drop_fails() {
    let mut table = table();
    let rows = publish(&mut table, &put("g", 2, 2), 0);
    assert_eq!(table.begin_drop(), Some(rows.clone()));
    assert_eq!(groups(&mut table, 0), []);
    assert_eq!(rows_of(&mut table, 1, 2), []);
    assert_eq!(table.begin_drop(), None, "it is dropped once");
    table.undo_drop(&rows);
    assert_eq!(groups(&mut table, 1), rows);
}

#[test]
fn a_group_that_one_task_holds_is_not_dropped() {
    let mut table = table();
    let held = publish(&mut table, &put("held", 2, 2), 0);
    let other = publish(&mut table, &put("other", 2, 2), 1);
    table.lease(1, held, Instant::now() + std::time::Duration::from_secs(1));
    assert_eq!(table.begin_drop(), Some(other));
}

#[test]
fn reserved_rows_count_towards_their_group_until_they_are_released() {
    let mut table = table();
    let two_of_three = put("g", 2, 3);
    let claim = table.reserve(&two_of_three, two_of_three.rows(), 0, &[]);
    assert!(matches!(table.admit(&two_of_three, 2, &[]), Err(QueueError::GroupOverflow { rows: 4, .. })));
    assert!(matches!(table.admit(&put("g", 1, 3), 1, &[]), Ok(Admission::Fresh)));
    table.release(&claim);
    assert!(matches!(table.admit(&two_of_three, 2, &[]), Ok(Admission::Fresh)));
    assert_eq!(table.rows_reserved(), 0);
    let again = table.reserve(&two_of_three, two_of_three.rows(), 0, &[]);
    assert!(again.rows.iter().all(|row| !claim.rows.contains(row)), "a handle is never used again");
}

#[test]
fn rows_are_ready_in_order_of_their_puts_whatever_slots_they_have() {
    let mut table = table();
    let mut first = publish(&mut table, &put("first", 8, 8), 0);
    first.reverse();
    table.remove(&first, Freed::Cleared);
    let second = publish(&mut table, &put("second", 3, 3), 1);
    assert!(!second.is_sorted(), "the slots of the first rows are used again, the last one first");
    assert_eq!(rows_of(&mut table, 0, 3), second);
}

#[test]
fn a_chunk_is_sparse_below_half_and_free_when_its_last_row_is_gone() {
    let mut table = table();
    let rows = publish(&mut table, &put("g", 4, 4), 7);
    assert_eq!(table.remove(&rows[..2], Freed::Cleared).sparse, []);
    assert_eq!(table.remove(&rows[2..3], Freed::Cleared).sparse, [ChunkId(7)]);
    assert_eq!(table.chunk_rows(ChunkId(7)), [(rows[3], 3)]);
    let last = Move { from: ChunkId(7), rows: rows[3..].to_vec() };
    table.move_chunks(&[last], ChunkId(8), 0);
    assert_eq!(table.chunk_rows(ChunkId(8)), [(rows[3], 0)]);
    let released = table.remove(&rows[3..], Freed::Cleared);
    assert_eq!((released.size.rows, released.chunks, released.sparse), (1, vec![ChunkId(8)], Vec::new()));
}

/// A step of a sample of the group `g`, which has one sample.
fn part(is_last: bool) -> Put {
    let sample = Some(SamplePart { uid: "s".to_owned(), is_last });
    Put { sample, ..put("g", 1, 1) }
}

#[test]
fn a_group_of_samples_waits_for_rows_that_any_is_reserved_into_it() {
    for comes in [true, false] {
        let mut table = Table::new(PartitionSpec::new("p", ["a"], 16));
        let (step, last) = (part(false), part(true));
        let (late, end) =
            (table.reserve(&step, step.rows(), 0, &[]), table.reserve(&last, last.rows(), 0, &[]));
        publish_claimed(&mut table, &last, &end, 0);
        assert_eq!(table.ready_group_count(0), 0, "a row is still on its way");
        assert!(table.begin_close(Instant::now()).is_empty(), "it cannot be closed meanwhile");
        assert!(matches!(table.check_sample(&step), Err(QueueError::SampleClosed { .. })));
        if comes {
            publish_claimed(&mut table, &step, &late, 1);
        } else {
            table.release(&late);
        }
        assert_eq!((table.ready_group_count(0), table.rows_reserved()), (1, 0));
        assert!(matches!(table.check_sample(&step), Err(QueueError::GroupClosed { .. })));
        let rows: Vec<RowHandle> = table.groups.values().flat_map(|group| group.rows.clone()).collect();
        assert_eq!(rows.len(), if comes { 2 } else { 1 });
        table.finish_ack(0, &rows);
        assert!(table.groups.is_empty() && table.open_groups.is_empty());
        assert!(matches!(table.check_sample(&step), Err(QueueError::GroupClosed { .. })));
    }
}

#[test]
fn groups_that_are_being_closed_take_nothing_and_an_undone_closing_opens_them() {
    for unfinished in [Unfinished::Give, Unfinished::Drop] {
        let mut table = Table::new(PartitionSpec::new("p", ["a"], 16));
        let step = part(false);
        let claim = table.reserve(&step, step.rows(), 0, &[]);
        publish_claimed(&mut table, &step, &claim, 0);
        for round in 0..2 {
            let closing = table.begin_close(Instant::now());
            assert_eq!((closing.len(), closing[0].samples_whole, closing[0].rows), (1, 0, 1));
            assert!(table.begin_close(Instant::now()).is_empty(), "it is closed once");
            assert!(matches!(table.check_sample(&step), Err(QueueError::GroupClosed { .. })));
            if round == 0 {
                table.undo_close(&["g".to_owned()]);
                assert_eq!(table.check_sample(&step), Ok(()));
            }
        }
        table.finish_close(&["g".to_owned()], unfinished);
        let given = usize::from(unfinished == Unfinished::Give);
        assert_eq!((table.ready_group_count(0), table.groups.len(), table.rows_live), (given, given, given));
        assert!(matches!(table.check_sample(&step), Err(QueueError::GroupClosed { .. })));
    }
}

#[test]
fn a_group_that_one_task_has_acked_may_be_dropped_and_an_undone_drop_gives_it_back_to_the_other() {
    let mut table = table();
    let acked = publish(&mut table, &put("acked by a", 2, 2), 0);
    publish(&mut table, &put("ready for both", 2, 2), 1);
    table.finish_ack(0, &acked);
    for _ in 0..2 {
        assert_eq!(table.begin_drop(), Some(acked.clone()), "it is the oldest, and no lease holds it");
        assert!(!groups(&mut table, 1).contains(&acked[0]));
        table.undo_drop(&acked);
        assert_eq!(groups(&mut table, 1), acked);
        assert!(!groups(&mut table, 0).contains(&acked[0]), "it is still acked");
    }
    table.lease(1, acked.clone(), Instant::now());
    assert!(table.begin_drop().is_some_and(|rows| rows != acked), "a lease holds it");
}

#[test]
fn stale_groups_are_found_by_their_version_unless_they_are_leased() {
    let mut table = table();
    let held = publish(&mut table, &Put { policy_version: 1, ..put("held", 2, 2) }, 0);
    let old = publish(&mut table, &Put { policy_version: 2, ..put("old", 2, 2) }, 1);
    publish(&mut table, &Put { policy_version: 7, ..put("fresh", 2, 2) }, 2);
    table.lease(0, held.clone(), Instant::now());
    assert_eq!(table.begin_drop_stale(5), old);
    assert_eq!(table.begin_drop_stale(5), [], "its drop has begun");
    table.undo_drop(&old);
    table.expire(Instant::now() + std::time::Duration::from_secs(1));
    assert_eq!(table.begin_drop_stale(5), [held, old].concat());
}

#[test]
fn slots_after_the_last_row_are_freed_and_no_handle_names_another_row() {
    let mut table = table();
    let mut seen = HashSet::new();
    for round in 0..6 {
        let puts: Vec<Vec<RowHandle>> = (0..8)
            .map(|at| publish(&mut table, &put(&format!("{round}/{at}"), 2, 2), round * 8 + at))
            .collect();
        assert!(puts.iter().flatten().all(|row| seen.insert(*row)), "a handle came twice");
        let kept = &puts[1];
        for rows in puts.iter().filter(|rows| *rows != kept) {
            table.remove(rows, Freed::Cleared);
        }
        assert!(table.slots.count() <= kept[1].slot as usize + 1 + 8, "slots={}", table.slots.count());
        assert!(table.violations().is_empty());
        table.remove(kept, Freed::Cleared);
        assert!(puts.iter().flatten().all(|row| table.row(*row).is_err()));
    }
    assert!(table.generation_floor() > seen.iter().map(|row| row.generation).max().unwrap());
}

#[test]
fn the_memory_of_tokens_is_bounded_in_bytes() {
    let mut table = table();
    // The rows use every second slot, so each row is a separate run.
    let ragged: Vec<RowHandle> = (0..1000).map(|at| RowHandle { slot: at * 2, generation: 0 }).collect();
    for number in 0..3000 {
        table.end_token(Some(format!("token {number}")), Some(crate::row::Runs::of(&ragged)));
    }
    assert!(table.token_bytes() <= remembered::BYTES_MAX);
    assert!(matches!(table.token_state(Some("token 0")), Admission::Fresh), "the oldest goes first");
    let Admission::Known(rows) = table.token_state(Some("token 2999")) else { panic!() };
    assert_eq!(rows, ragged);
}

#[test]
fn a_put_that_fails_leaves_the_types_of_its_columns_free() {
    let mut table = table();
    let first = put("a", 1, 1);
    let columns = columns_of(first.batches[0].schema_ref());
    let other = vec![ColumnSpec::new("id", arrow_schema::DataType::Utf8)];
    let claim = table.reserve(&first, 1, 0, &columns);
    assert!(
        matches!(table.check_columns(&other), Err(QueueError::WrongType { .. })),
        "while it is under way"
    );
    table.release(&claim);
    assert_eq!(table.check_columns(&other), Ok(()));
    let claim = table.reserve(&first, 1, 0, &columns);
    table.settle_columns(claim.columns(), true);
    assert!(matches!(table.check_columns(&other), Err(QueueError::WrongType { .. })));
    let many: Vec<ColumnSpec> =
        (0..5000).map(|number| ColumnSpec::new(format!("c{number}"), arrow_schema::DataType::Int8)).collect();
    assert!(matches!(table.check_columns(&many), Err(QueueError::BadRequest { .. })));
}

#[test]
fn a_chunk_is_sparse_by_bytes_and_earlier_when_the_partition_keeps_too_much() {
    let mut table = table();
    let rows = publish(&mut table, &put("g", 4, 4), 7);
    let sizes = |rows: [u32; 4]| crate::store::ChunkSizes {
        held_bytes: rows.iter().map(|bytes| u64::from(*bytes)).sum(),
        rows: rows.to_vec(),
    };
    table.size_chunk(ChunkId(7), &sizes([1000, 10, 10, 10]));
    assert_eq!(
        table.remove(&rows[..1], Freed::Cleared).sparse,
        [ChunkId(7)],
        "one of four rows had most of the bytes"
    );
    let rows = publish(&mut table, &put("h", 4, 4), 8);
    table.size_chunk(ChunkId(8), &sizes([40 << 20; 4]));
    assert_eq!(table.remove(&rows[..1], Freed::Cleared).sparse, [], "three quarters of the chunk are needed");
    assert_eq!(
        table.remove(&rows[1..2], Freed::Cleared).sparse,
        [ChunkId(8)],
        "half is needed, and the partition keeps too much"
    );
}

/// Takes wait while a slice is read, so a slice must not grow with the table.
#[test]
fn a_slice_ends_with_the_group_that_reaches_slice_rows() {
    let mut table = table();
    let groups = 8;
    for group in 0..groups {
        let rows = 1 + group % 3;
        publish(&mut table, &put(&group.to_string(), rows as i64, rows), group as u64);
    }
    let (mut range, mut seen) = (0..table.next_group(), Vec::new());
    while !range.is_empty() {
        let mut checked = range.clone();
        let slice = table.next_groups(&mut range);
        let rows: usize = slice.iter().map(|(_, group)| group.rows.len()).sum();
        assert!(rows < SLICE_ROWS + 3, "rows={rows}");
        seen.extend(slice.into_iter().map(|(id, _)| id));
        assert_eq!(table.violations_of_groups(&mut checked), []);
        assert_eq!(checked, range, "the check takes the same slices");
    }
    assert_eq!(seen, (0..groups as u64).collect::<Vec<_>>());
}
