//! Options of takes: orders, token budgets, freshness, and batches that ranks share.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::Int32Type;
use arrow_array::{Int32Array, ListArray, RecordBatch};
use proptest::prelude::*;
use rolldock_queue::{
    Lease, Partition, PartitionSpec, Put, QueueConfig, QueueError, Sampler, Share, Stale, Take, TransferQueue,
};
use tokio::time::Instant;

fn spec() -> PartitionSpec {
    let counted = vec!["prompt_tokens".to_owned(), "response_ids".to_owned()];
    PartitionSpec {
        length_columns: counted,
        lease_ms: 1_000,
        ..PartitionSpec::new("train", ["train"], 4_096)
    }
}

async fn partition() -> Partition {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    queue.declare(spec()).await.unwrap()
}

/// Rows with one prompt token each, and with responses of these lengths.
fn rows(lengths: &[i32]) -> RecordBatch {
    let responses = lengths.iter().map(|length| Some((0..*length).map(Some)));
    let responses = ListArray::from_iter_primitive::<Int32Type, _, _>(responses);
    let prompts = Int32Array::from(vec![1; lengths.len()]);
    RecordBatch::try_from_iter([
        ("prompt_tokens", Arc::new(prompts) as _),
        ("response_ids", Arc::new(responses) as _),
    ])
    .unwrap()
}

async fn put(partition: &Partition, group: &str, policy_version: u64, priority: i64, lengths: &[i32]) {
    let put = Put { policy_version, priority, ..Put::group(group, rows(lengths)) };
    partition.put(put, None).await.unwrap();
}

fn groups(lease: &Lease) -> Vec<&str> {
    let mut groups: Vec<&str> = lease.groups().iter().map(String::as_str).collect();
    groups.dedup();
    groups
}

async fn order(partition: &Partition, take: Take) -> Vec<String> {
    let lease = partition.take(&take).await.unwrap();
    lease.map_or_else(Vec::new, |lease| groups(&lease).into_iter().map(str::to_owned).collect())
}

#[tokio::test]
async fn samplers_decide_the_order_of_groups_and_of_rows() {
    let partition = partition().await;
    for (group, version, priority) in [("a", 2, 0), ("b", 1, 5), ("c", 2, 5), ("d", 3, -1)] {
        put(&partition, group, version, priority, &[1, 1]).await;
    }
    let take = |sampler| Take { sampler, ..Take::groups("train", 9) };
    assert_eq!(order(&partition, take(Sampler::Fifo)).await, ["a", "b", "c", "d"]);
    assert_eq!(order(&partition, take(Sampler::Priority)).await, ["b", "c", "a", "d"]);
    assert_eq!(order(&partition, take(Sampler::Freshest)).await, ["d", "c", "a", "b"]);
    let fresh = Take { min_policy_version: 2, ..take(Sampler::Priority) };
    assert_eq!(order(&partition, fresh).await, ["c", "a", "d"]);
    let mut orders = BTreeSet::new();
    for _ in 0..20 {
        let drawn = order(&partition, take(Sampler::Random { seed: 3 })).await;
        assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 4);
        orders.insert(drawn);
    }
    assert!(orders.len() > 5, "each take draws anew: {orders:?}");

    let row = Take { sampler: Sampler::Freshest, ..Take::rows("train", 3) };
    let lease = partition.take(&row).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["d", "d", "c"]);
    assert_eq!(lease.policy_versions(), [3, 3, 2]);
    lease.ack().await.unwrap();
    let rest = Take { sampler: Sampler::Freshest, ..Take::groups("train", 9) };
    assert_eq!(order(&partition, rest).await, ["c", "a", "b"], "the rest of a group counts as a group");
}

#[tokio::test]
async fn a_token_budget_ends_before_the_group_that_would_exceed_it() {
    let partition = partition().await;
    for (group, lengths) in [("a", &[9, 9][..]), ("b", &[4]), ("c", &[94]), ("d", &[1])] {
        put(&partition, group, 0, 0, lengths).await;
    }
    // Tokens of prompt and response count, so the groups have 20, 5, 95 and 2 tokens.
    assert_eq!(order(&partition, Take::tokens("train", 25)).await, ["a", "b"]);
    assert_eq!(order(&partition, Take::tokens("train", 119)).await, ["a", "b"]);
    assert_eq!(order(&partition, Take::tokens("train", 120)).await, ["a", "b", "c"]);
    assert_eq!(order(&partition, Take::tokens("train", 1)).await, ["a"], "at least one group is given");
}

#[tokio::test]
async fn lengths_and_priorities_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), journal_bytes: 1, ..QueueConfig::default() };
    for _ in 0..3 {
        let queue = TransferQueue::open(config.clone()).unwrap();
        let partition = queue.declare(spec()).await.unwrap();
        if partition.stats().rows == 0 {
            put(&partition, "a", 0, 1, &[9]).await;
            put(&partition, "b", 0, 2, &[9]).await;
        }
        let priority = Take { sampler: Sampler::Priority, ..Take::tokens("train", 10) };
        assert_eq!(order(&partition, priority).await, ["b"]);
        queue.close();
    }
}

#[tokio::test]
async fn a_length_column_of_a_type_that_cannot_be_counted_is_refused() {
    let partition = partition().await;
    let words = arrow_array::BooleanArray::from(vec![true]);
    let batch = RecordBatch::try_from_iter([("response_ids", Arc::new(words) as _)]).unwrap();
    let refused = partition.put(Put::group("a", batch), None).await;
    assert!(
        matches!(&refused, Err(QueueError::WrongType { column, .. }) if column == "response_ids"),
        "{refused:?}"
    );
    assert_eq!((partition.stats().rows, partition.stats().rows_reserved), (0, 0));
}

#[tokio::test]
async fn stale_groups_are_skipped_dropped_or_delivered() {
    let partition = partition().await;
    for (group, version) in [("old", 1), ("held", 2), ("new", 5)] {
        put(&partition, group, version, 0, &[1]).await;
    }
    let at_least = |version, stale| Take { min_policy_version: version, stale, ..Take::groups("train", 9) };
    assert_eq!(order(&partition, at_least(5, Stale::Skip)).await, ["new"]);
    assert_eq!(order(&partition, at_least(5, Stale::Deliver)).await, ["old", "held", "new"]);
    let old = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    let held = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    old.nack().await.unwrap();
    assert_eq!(order(&partition, at_least(5, Stale::Drop)).await, ["new"]);
    let dispositions = partition.stats().dispositions;
    assert_eq!((dispositions.stale, partition.stats().rows), (1, 2), "leased rows are not dropped");
    held.nack().await.unwrap();
    assert_eq!(order(&partition, at_least(9, Stale::Drop)).await, Vec::<String>::new());
    assert_eq!((partition.stats().dispositions.stale, partition.stats().rows), (3, 0));
}

fn share(rank: u32, ranks: u32) -> Take {
    Take { share: Some(Share { equal_counts: true, ..Share::of(rank, ranks) }), ..Take::groups("train", 8) }
}

fn tokens(lease: &Lease) -> usize {
    lease.batches().iter().map(|batch| batch.column_by_name("response_ids").unwrap()).fold(
        0,
        |sum, column| {
            use arrow_array::cast::AsArray;
            sum + column.as_list::<i32>().iter().flatten().map(|list| list.len()).sum::<usize>()
        },
    )
}

#[tokio::test]
async fn ranks_share_batches_evenly_and_disjointly() {
    let partition = partition().await;
    for number in 0..18_i32 {
        put(&partition, &format!("g{number}"), 0, 0, &[100 - 5 * number, number]).await;
    }
    let mut seen = BTreeSet::new();
    for batch in 0..2 {
        // The ranks may take in any order.
        let mut leases = Vec::new();
        for rank in [2, 0, 3, 1] {
            leases.push(partition.take(&share(rank, 4)).await.unwrap().unwrap());
        }
        let counts: Vec<usize> = leases.iter().map(|lease| groups(lease).len()).collect();
        assert_eq!(counts, [2, 2, 2, 2], "batch {batch}");
        let sums: Vec<usize> = leases.iter().map(tokens).collect();
        let spread = sums.iter().max().unwrap() - sums.iter().min().unwrap();
        assert!(spread <= 10, "{sums:?}");
        for lease in leases {
            assert!(
                groups(&lease).into_iter().all(|group| seen.insert(group.to_owned())),
                "{:?}",
                groups(&lease)
            );
            lease.ack().await.unwrap();
        }
    }
    assert_eq!(seen.len(), 16);
    assert!(partition.take(&share(0, 4)).await.unwrap().is_none(), "two groups are too few for four ranks");
    assert_eq!(partition.stats().rows, 4);
}

#[tokio::test]
async fn members_of_a_rank_get_the_same_rows_until_all_have_acked() {
    let partition = partition().await;
    for number in 0..4 {
        put(&partition, &format!("g{number}"), 0, 0, &[1]).await;
    }
    let member = |rank, member| {
        let share = Share { member, members: 2, ..Share::of(rank, 2) };
        Take { share: Some(share), ..Take::groups("train", 4) }
    };
    let first = partition.take(&member(0, 0)).await.unwrap().unwrap();
    let second = partition.take(&member(0, 1)).await.unwrap().unwrap();
    let other = partition.take(&member(1, 1)).await.unwrap().unwrap();
    assert_eq!((first.rows(), first.groups()), (second.rows(), second.groups()));
    assert!(other.groups().iter().all(|group| !first.groups().contains(group)));
    first.ack().await.unwrap();
    assert_eq!(partition.stats().rows, 4, "the other member still has the rows");
    second.ack().await.unwrap();
    assert_eq!(partition.stats().rows, 2);
    assert!(partition.take(&member(0, 0)).await.unwrap().is_none(), "nothing is ready");
    drop(other);
    assert_eq!(partition.stats().tasks[0].ready_groups, 2, "one member's nack gives the rows back");
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_rank_that_never_comes_is_given_again() {
    let partition = partition().await;
    put(&partition, "a", 0, 0, &[1]).await;
    put(&partition, "b", 0, 0, &[1]).await;
    let ours = partition.take(&share(0, 2)).await.unwrap().unwrap();
    ours.ack().await.unwrap();
    let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(5));
    let lease = partition.take(&until).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), 1);
}

#[tokio::test]
async fn a_waiting_rank_is_woken_by_the_one_that_splits() {
    let partition = partition().await;
    let waiting = share(1, 2).until(Instant::now() + Duration::from_secs(20));
    let splitting = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        put(&partition, "a", 0, 0, &[1]).await;
        put(&partition, "b", 0, 0, &[1]).await;
        partition.take(&share(0, 2)).await.unwrap()
    };
    let (waited, _split) = tokio::join!(partition.take(&waiting), splitting);
    assert_eq!(waited.unwrap().unwrap().rows().len(), 1);
}

#[tokio::test]
async fn an_unsound_share_is_refused() {
    let partition = partition().await;
    for share in [
        Share::of(2, 2),
        Share { member: 1, ..Share::of(0, 2) },
        Share { equal_counts: true, ..Share::of(0, 9) },
    ] {
        let take = Take { share: Some(share), ..Take::groups("train", 8) };
        assert!(matches!(partition.take(&take).await, Err(QueueError::BadRequest { .. })), "{share:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With takes of any kind in any order, no row is consumed twice and no row is lost.
    #[test]
    fn every_row_is_taken_once_by_any_mixture_of_takes(
        versions in prop::collection::vec((0_u64..4, -2_i64..3, 1_usize..4), 1..30),
        asks in prop::collection::vec((0_u8..4, 0_u8..3, 1_usize..5, any::<bool>()), 60..61),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let partition = partition().await;
            let mut left = BTreeSet::new();
            for (number, (version, priority, size)) in versions.iter().enumerate() {
                put(&partition, &number.to_string(), *version, *priority, &vec![2; *size]).await;
                left.extend((0..*size).map(|place| (number.to_string(), place)));
            }
            let total = left.len();
            let mut taken = 0;
            for (sampler, amount, count, ack) in asks.iter().cycle().take(600) {
                let sampler = match sampler {
                    0 => Sampler::Fifo,
                    1 => Sampler::Priority,
                    2 => Sampler::Freshest,
                    _ => Sampler::Random { seed: 5 },
                };
                let take = match amount {
                    0 => Take::groups("train", *count),
                    1 => Take::rows("train", *count),
                    _ => Take::tokens("train", *count as u64 * 4),
                };
                let Some(lease) = partition.take(&Take { sampler, ..take }).await.unwrap() else { break };
                let distinct: BTreeSet<_> = lease.rows().iter().collect();
                assert_eq!(distinct.len(), lease.rows().len());
                if *ack {
                    taken += lease.rows().len();
                    lease.ack().await.unwrap();
                } else {
                    lease.nack().await.unwrap();
                }
                assert_eq!(partition.stats().rows, total - taken);
                let task = &partition.stats().tasks[0];
                assert_eq!(task.ready_rows, total - taken);
            }
        });
    }
}
