//! Tests of watching a partition: the rows that each client holds, and the fate of each group.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Int32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use rolldock_queue::{
    Disposition, GroupFate, OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, Share, Take,
    TransferQueue,
};
use tokio::time::Instant;

async fn partition(capacity: usize) -> Partition {
    let spec = PartitionSpec {
        on_full: OnFull::DropOldest,
        lease_ms: 10_000,
        ..PartitionSpec::new("p", ["train"], capacity)
    };
    TransferQueue::open(QueueConfig::default()).unwrap().declare(spec).await.unwrap()
}

async fn put(partition: &Partition, group: &str, rows: i32) {
    let schema = Schema::new(vec![Field::new("id", DataType::Int32, false)]);
    let ids = Int32Array::from_iter_values(0..rows);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids)]).unwrap();
    partition.put(Put::group(group, batch), None).await.unwrap();
}

/// The groups that ended after a revision, with their numbers of rows and their fates.
async fn fates(partition: &Partition, revision: u64) -> Vec<(String, usize, Disposition)> {
    let stats = partition.stats_after(revision, Instant::now()).await;
    assert!(!stats.fates_missed);
    assert!(stats.fates.iter().all(|fate| fate.revision > revision && fate.revision <= stats.revision));
    stats.fates.into_iter().map(|GroupFate { group, rows, fate, .. }| (group, rows, fate)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_watcher_learns_which_group_had_which_fate() {
    let partition = partition(6).await;
    for group in ["dropped", "acked", "cleared"] {
        put(&partition, group, 2).await;
    }
    let before = partition.stats();
    assert!(before.fates.is_empty(), "nothing was asked after");
    put(&partition, "new", 2).await;
    let after_drop = partition.stats().revision;
    let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.groups()[0], "acked");
    lease.ack().await.unwrap();
    let rows: Vec<_> = {
        let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
        lease.rows().to_vec()
    };
    partition.clear(&rows).await.unwrap();

    let group = |name: &str, fate| (name.to_owned(), 2, fate);
    let later = [group("acked", Disposition::Acked), group("cleared", Disposition::Cleared)];
    assert_eq!(fates(&partition, after_drop).await, later);
    let all = fates(&partition, before.revision).await;
    assert_eq!(all[0], group("dropped", Disposition::Dropped));
    assert_eq!(all[1..], later);
    let newest = partition.stats().revision;
    assert!(fates(&partition, newest).await.is_empty(), "each fate is reported once");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_too_late_gets_an_error() {
    let partition = partition(4).await;
    for number in 0..2_000 {
        put(&partition, &number.to_string(), 4).await;
    }
    let stats = partition.stats_after(0, Instant::now()).await;
    assert!(stats.fates_missed);
    assert_eq!(stats.fates.len(), 1024, "bounded");
    assert_eq!(stats.fates.last().unwrap().group, "1998");
}

#[tokio::test(start_paused = true)]
async fn leases_say_who_holds_what_and_for_how_long() {
    let partition = partition(8).await;
    for group in ["a", "b", "c"] {
        put(&partition, group, 2).await;
    }
    let _named = partition.take(&Take::groups("train", 1).held_by("rank 0")).await.unwrap().unwrap();
    tokio::time::advance(Duration::from_secs(4)).await;
    let _nameless = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    let leases = partition.inspect().leases;
    let shown: Vec<_> = leases
        .iter()
        .map(|lease| (lease.task.as_str(), lease.holders.clone(), lease.rows, lease.expires_in_ms))
        .collect();
    let first = ("train", vec!["rank 0".to_owned()], 2, 6_000);
    assert_eq!(shown, [first, ("train", vec![], 2, 10_000)]);

    let member = |member| {
        let share = Share { members: 2, member, ..Share::of(0, 1) };
        Take { share: Some(share), ..Take::groups("train", 1).held_by(format!("member {member}")) }
    };
    let _one = partition.take(&member(0)).await.unwrap().unwrap();
    let two = partition.take(&member(1)).await.unwrap().unwrap();
    let leases = partition.inspect().leases;
    assert_eq!(leases[2].holders, ["member 0", "member 1"]);
    two.ack().await.unwrap();
    assert_eq!((partition.inspect().leases[2].members, partition.inspect().leases[2].acked_members), (2, 1));

    let long = Take::groups("train", 1).held_by("x".repeat(257));
    assert!(matches!(partition.take(&long).await, Err(QueueError::BadRequest { .. })));
}

/// The next change of the partition, for a trainer that waits for groups without taking.
async fn next_change(partition: &Partition) -> rolldock_queue::PartitionStats {
    let revision = partition.stats().revision;
    partition.stats_after(revision, Instant::now() + Duration::from_secs(60)).await
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_time_although_no_client_takes() {
    let partition = partition(8).await;
    put(&partition, "a", 2).await;
    put(&partition, "b", 2).await;
    for renewals in 0..2_u64 {
        let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
        let taken = Instant::now();
        let watching = next_change(&partition);
        let renewing = async {
            for _ in 0..renewals {
                tokio::time::sleep(Duration::from_secs(7)).await;
                lease.renew().await.unwrap();
            }
        };
        let (seen, ()) = tokio::join!(watching, renewing);
        let expected = Duration::from_secs(10 + 7 * renewals);
        assert!(taken.elapsed().abs_diff(expected) < Duration::from_millis(10), "{:?}", taken.elapsed());
        assert_eq!((seen.leases, seen.tasks[0].ready_groups, seen.tasks[0].leased_rows), (0, 2, 0));
        assert!(matches!(lease.ack().await, Err(QueueError::LeaseGone { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_hears_of_a_lease_that_was_granted_while_it_waited() {
    let partition = partition(8).await;
    put(&partition, "a", 2).await;
    let (start, watching) = (Instant::now(), next_change(&partition));
    let taking = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        partition.take(&Take::groups("train", 1)).await.unwrap().unwrap()
    };
    let (seen, _expired) = tokio::join!(watching, taking);
    assert_eq!(seen.tasks[0].ready_groups, 1);
    assert!(
        start.elapsed().abs_diff(Duration::from_secs(13)) < Duration::from_millis(10),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn counts_contain_no_expired_lease() {
    let partition = partition(8).await;
    put(&partition, "a", 2).await;
    let _expired = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!((partition.stats().leases, partition.ready_rows("train").unwrap()), (1, 0));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(partition.ready_groups("train").unwrap(), 1);
    assert_eq!(partition.ready_rows("train").unwrap(), 2);
    assert_eq!((partition.stats().leases, partition.stats().tasks[0].leased_rows), (0, 0));
}
