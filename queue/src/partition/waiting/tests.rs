#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch};
use tokio::time::Instant;

use crate::{Amount, Partition, PartitionSpec, Put, QueueConfig, QueueError, Share, Take, TransferQueue};

async fn partition() -> Partition {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    queue.declare(PartitionSpec::new("p", ["t"], 64)).await.unwrap()
}

fn put(group: &str, rows: i64) -> Put {
    let ids = Arc::new(Int64Array::from_iter_values(0..rows));
    Put::group(group, RecordBatch::try_from_iter([("id", ids as _)]).unwrap())
}

fn looks(partition: &Partition) -> u64 {
    partition.shared.looks.load(Ordering::Relaxed)
}

/// Starts takes that find nothing, and lets each of them begin to wait.
async fn waiting(partition: &Partition, takes: Vec<Take>) -> Vec<tokio::task::JoinHandle<()>> {
    let mut waiting = Vec::new();
    for take in takes {
        let partition = partition.clone();
        waiting.push(tokio::task::spawn_local(async move {
            let _ = partition.take(&take).await;
        }));
    }
    settle().await;
    waiting
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn soon(take: Take) -> Take {
    take.until(Instant::now() + Duration::from_secs(60))
}

#[tokio::test(start_paused = true)]
async fn waiters_that_find_nothing_do_not_wake_each_other() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let partition = partition().await;
            let fresh = || soon(Take { min_policy_version: 9, ..Take::groups("t", 1) });
            let waiting = waiting(&partition, vec![fresh(), fresh(), fresh()]).await;
            let before = looks(&partition);
            partition.put(put("old", 1), None).await.unwrap();
            settle().await;
            let woken = looks(&partition) - before;
            assert!((1..=3).contains(&woken), "three waiters looked {woken} times at one group");
            waiting.iter().for_each(tokio::task::JoinHandle::abort);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn waiters_for_the_end_look_once_for_each_change() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let partition = partition().await;
            partition.put(put("held", 2), None).await.unwrap();
            let held = partition.take(&Take::groups("t", 1)).await.unwrap().unwrap();
            let takes = (0..4).map(|_| soon(Take::groups("t", 1))).collect();
            let mut waiting = waiting(&partition, takes).await;
            let before = looks(&partition);
            partition.end_of_puts();
            settle().await;
            // Other takes read the table too.
            for _ in 0..3 {
                assert!(partition.take(&Take::groups("t", 1)).await.unwrap().is_none());
            }
            settle().await;
            let woken = looks(&partition) - before;
            assert!(woken <= 4 + 3, "four waiters and three others looked {woken} times");
            held.ack().await.unwrap();
            for one in waiting.drain(..) {
                one.await.unwrap();
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_woken_take_that_ends_before_it_looks_wakes_another() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let partition = partition().await;
            let first = soon(Take::groups("t", 1));
            let mut dropped = Box::pin(partition.take(&first));
            assert!(futures::poll!(&mut dropped).is_pending());
            let second = soon(Take::groups("t", 1));
            let mut stays = Box::pin(partition.take(&second));
            assert!(futures::poll!(&mut stays).is_pending());
            partition.put(put("g", 1), None).await.unwrap();
            drop(dropped);
            assert_eq!(stays.await.unwrap().unwrap().rows().len(), 1);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_shares_of_a_batch_wake_the_ranks_that_wait_for_them() {
    let partition = partition().await;
    let share = |rank, at_least| {
        let share = Some(Share::of(rank, 2));
        soon(Take { share, at_least, amount: Amount::Groups(4), ..Take::groups("t", 4) })
    };
    // This take needs more groups than the other take.
    let patient = share(1, 4);
    let mut waiting = Box::pin(partition.take(&patient));
    assert!(futures::poll!(&mut waiting).is_pending());
    partition.put(put("a", 1), None).await.unwrap();
    partition.put(put("b", 1), None).await.unwrap();
    assert!(futures::poll!(&mut waiting).is_pending());
    let ours = partition.take(&share(0, 1)).await.unwrap().unwrap();
    let theirs = tokio::time::timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap().unwrap();
    assert_ne!(ours.groups(), theirs.groups());
}

#[tokio::test(start_paused = true)]
async fn a_take_of_given_rows_ends_when_they_are_consumed() {
    let partition = partition().await;
    partition.put(put("a", 1), None).await.unwrap();
    let held = partition.take(&Take::groups("t", 1)).await.unwrap().unwrap();
    let given = soon(Take::only("t", held.rows().to_vec()));
    let mut waiting = Box::pin(partition.take(&given));
    assert!(futures::poll!(&mut waiting).is_pending());
    let acked = Instant::now();
    held.ack().await.unwrap();
    let error = waiting.await.unwrap_err();
    assert!(matches!(error, QueueError::StaleHandle { .. }), "{error:?}");
    assert!(acked.elapsed() < Duration::from_secs(1), "{:?}", acked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_puts_wakes_takes_that_wait_for_more_than_can_come() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let length_columns = vec!["id".to_owned()];
    let spec = PartitionSpec { length_columns, ..PartitionSpec::new("p", ["t"], 64) };
    let partition = queue.declare(spec).await.unwrap();
    let all = soon(Take { at_least: usize::MAX, amount: Amount::Tokens(8), ..Take::groups("t", 1) });
    let (mut first, mut second) = (Box::pin(partition.take(&all)), Box::pin(partition.take(&all)));
    assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
    let ended = Instant::now();
    partition.end_of_puts();
    assert!(first.await.unwrap().is_none() && second.await.unwrap().is_none());
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
}
