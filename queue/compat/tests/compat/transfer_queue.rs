//! Tests for known faults of other transfer queues.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use rolldock_queue::{PartitionSpec, QueueConfig, QueueError, Share, TransferQueue};
use rolldock_queue_compat::{MetaRequest, TransferQueueClient};

use super::{client, ints, keys_tour, longs, spec};

#[tokio::test(start_paused = true)]
async fn metadata_of_a_dead_consumer_comes_back() {
    let client = client(PartitionSpec { lease_ms: 1000, ..spec() }).await;
    client.put("train", ints("id", &[1, 2])).await.unwrap();
    let request = MetaRequest::new("train", "actor", 2);
    let meta = client.get_meta(&request).await.unwrap().unwrap();
    assert_eq!(meta.lease().batches()[0].num_columns(), 0, "no payload");
    assert_eq!(longs(&client.get_data(meta.meta(), None).await.unwrap(), "id"), [1, 2]);
    assert!(client.get_meta(&request).await.unwrap().is_none(), "held");
    drop(meta);
    // A consumer dies without giving its rows back.
    std::mem::forget(client.get_meta(&request).await.unwrap().unwrap());
    assert!(client.get_meta(&request).await.unwrap().is_none());
    let waiting = MetaRequest { wait: Some(Duration::from_secs(10)), ..request.clone() };
    let meta = client.get_meta(&waiting).await.unwrap().unwrap();
    assert!(!client.is_all_consumed("train", "actor").await.unwrap());
    meta.consume().await.unwrap();
    assert!(client.is_all_consumed("train", "actor").await.unwrap());
    assert!(client.get_meta(&request).await.unwrap().is_none(), "consumed");
    assert!(client.get_meta(&MetaRequest::new("train", "ref", 2)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_stale_meta_is_an_error_and_never_another_rows_bytes() {
    let client = client(spec()).await;
    let old = client.put("train", ints("id", &[1, 2])).await.unwrap();
    client.clear_samples(&old).await.unwrap();
    // Slots are reused in turn, after many others.
    let mut new = client.put("train", ints("id", &[3, 4])).await.unwrap();
    for _ in 0..20_000 {
        if new.rows.iter().any(|row| row.slot == old.rows[0].slot) {
            break;
        }
        client.clear_samples(&new).await.unwrap();
        new = client.put("train", ints("id", &[3, 4])).await.unwrap();
    }
    assert!(new.rows.iter().any(|row| row.slot == old.rows[0].slot), "the slots are used again");
    let stale = |error: QueueError| assert!(matches!(error, QueueError::StaleHandle { .. }), "{error}");
    stale(client.get_data(&old, None).await.unwrap_err());
    stale(client.put_fields(&old, ints("more", &[1, 2])).await.unwrap_err());
    stale(client.clear_samples(&old).await.unwrap_err());
    assert_eq!(longs(&client.get_data(&new, None).await.unwrap(), "id"), [3, 4]);
    client.clear_partition("train").await.unwrap();
    stale(client.get_data(&new, None).await.unwrap_err());
}

#[tokio::test]
async fn keys_and_tags_make_a_round_trip() {
    keys_tour(&client(spec()).await).await;
}

#[tokio::test]
async fn ranks_of_a_streaming_loader_share_a_batch_and_members_of_a_rank_get_the_same_rows() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    queue.declare(PartitionSpec::new("train", ["actor"], 64)).await.unwrap();
    let client = TransferQueueClient::new(Arc::new(queue.clone()));
    for group in 0..4 {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(group * 2..group * 2 + 2));
        client.put("train", RecordBatch::try_from_iter([("id", ids)]).unwrap()).await.unwrap();
    }
    let mut rows = Vec::new();
    for rank in 0..2 {
        let mut of_rank = Vec::new();
        for member in 0..2 {
            let share = Some(Share { member, members: 2, equal_counts: true, ..Share::of(rank, 2) });
            let request = MetaRequest { whole_groups: true, share, ..MetaRequest::new("train", "actor", 4) };
            let meta = client.get_meta(&request).await.unwrap().unwrap();
            assert_eq!(client.get_data(meta.meta(), None).await.unwrap().num_rows(), 4);
            of_rank.push(meta.meta().rows.clone());
            meta.consume().await.unwrap();
        }
        assert_eq!(of_rank[0], of_rank[1], "members of rank {rank}");
        rows.extend(of_rank.swap_remove(0));
    }
    rows.sort_unstable_by_key(|row| (row.slot, row.generation));
    rows.dedup();
    assert_eq!(rows.len(), 8, "each row is one rank's");
    assert!(client.is_all_consumed("train", "actor").await.unwrap());
}
