//! Several clients use one queue at the same time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rolldock_queue::{Amount, Partition, PartitionSpec, Put, QueueError, Take};
use tokio::task::JoinSet;

use crate::rows::{checked_ids, payload};
use crate::world::{open, restored};
use crate::{CAPACITY_ROWS, CLIENTS};

/// The ids of the rows that clients put, consumed and cleared.
#[derive(Debug, Default)]
struct Fates {
    put: BTreeSet<i64>,
    consumed: BTreeSet<i64>,
    cleared: BTreeSet<i64>,
}

const PRODUCERS: i64 = 3;
const PUTS: i64 = 250;

async fn produce(partition: Partition, producer: i64, fates: Arc<parking_lot::Mutex<Fates>>) {
    for number in 0..PUTS {
        let first = (producer * PUTS + number) * 4;
        let ids: Vec<i64> = (first..first + 1 + number % 4).collect();
        let token = Some(format!("{producer}/{number}"));
        let keys = ids.iter().map(|id| format!("k{id}")).collect();
        let put = Put { token, keys, ..Put::group(format!("{producer}/{number}"), payload(&ids)) };
        // The put is repeated before the first call has returned.
        let again = partition.put(put.clone(), None);
        let (handles, repeated) = tokio::join!(partition.put(put, None), again);
        let handles = handles.unwrap();
        assert_eq!(repeated, Ok(handles.clone()));
        fates.lock().put.extend(&ids);
        if number % 7 == 0 {
            match partition.clear(&handles).await {
                Ok(()) => fates.lock().cleared.extend(&ids),
                Err(error) => assert!(matches!(error, QueueError::StaleHandle { .. }), "{error}"),
            }
        }
    }
}

/// Acks some leases, nacks others, and drops the rest.
async fn consume(partition: Partition, consumer: usize, fates: Arc<parking_lot::Mutex<Fates>>) {
    for turn in consumer.. {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        let amount = if turn % 2 == 0 { Amount::Groups(3) } else { Amount::Rows(2) };
        let take = Take { amount, ..Take::rows("plain", 3) }.until(until);
        let Some(lease) = partition.take(&take).await.unwrap() else { return };
        let ids = checked_ids(&lease, |_| [0; 2]);
        tokio::task::yield_now().await;
        match turn % 4 {
            0 => lease.nack().await.unwrap(),
            1 => drop(lease),
            _ => {
                lease.ack().await.unwrap();
                let mut fates = fates.lock();
                ids.into_iter()
                    .for_each(|id| assert!(fates.consumed.insert(id), "id={id} is consumed twice"));
            }
        }
    }
}

/// Clients work at the same time, while snapshots are taken. No row is lost, and no row is consumed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_once_account_for_every_row() {
    for root in [None, Some(tempfile::tempdir().unwrap())] {
        let queue = open(root.as_ref().map(|root| root.path().to_owned()));
        let partition = queue.declare(PartitionSpec::new("p", ["plain"], CAPACITY_ROWS)).await.unwrap();
        let fates = Arc::new(parking_lot::Mutex::new(Fates::default()));
        let (mut producing, mut consuming) = (JoinSet::new(), JoinSet::new());
        for producer in 0..PRODUCERS {
            producing.spawn(produce(partition.clone(), producer, Arc::clone(&fates)));
        }
        for consumer in 0..CLIENTS {
            consuming.spawn(consume(partition.clone(), consumer, Arc::clone(&fates)));
        }
        for _ in 0..10 {
            let mut snapshot = queue.begin_snapshot(None).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(piece) = snapshot.next_piece().unwrap() {
                bytes.extend(piece);
                tokio::task::yield_now().await;
            }
            let restored = restored(bytes).await;
            assert!(restored.verify().await.unwrap().is_sound());
        }
        while let Some(producer) = producing.join_next().await {
            producer.unwrap();
        }
        partition.end_of_puts();
        while let Some(consumer) = consuming.join_next().await {
            consumer.unwrap();
        }
        let fates = std::mem::take(&mut *fates.lock());
        // A row that was leased when it was cleared may be acked too. Then the queue counts the row only as
        // cleared.
        let accounted: BTreeSet<i64> = fates.consumed.union(&fates.cleared).copied().collect();
        assert_eq!(accounted, fates.put);
        let stats = partition.stats();
        assert_eq!((stats.rows, stats.rows_reserved, stats.leases), (0, 0, 0));
        let gone = stats.dispositions.acked + stats.dispositions.cleared;
        assert_eq!(gone as usize, fates.put.len());
        assert!(queue.verify().await.unwrap().is_sound());
    }
}
