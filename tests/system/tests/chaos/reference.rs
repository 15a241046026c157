//! The reference worker: takes groups from the run's queue, puts them into the queue server, adds the column
//! that the trainer waits for, and acks. Every call may be repeated, so a worker that dies at any point loses
//! and duplicates nothing.
//!
//! It uses the clients that ship with Rolldock, which exchange rows with the storage units directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{ListArray, RecordBatch};
use reqwest::Client;
use rolldock_queue::{Lease, Put, Queue, QueueError, RemoteConfig, RemoteQueue, Take};
use serde_json::Value;
use tokio::time::Instant;

use crate::audit::{Audit, reference_of};
use crate::layout::{PARTITION, REFERENCE_COLUMN, REFERENCE_TASK, TOKEN};
use crate::trainer::http_client;

/// How long the clients try to reach a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a take waits for rows, and how long a put waits for space.
const TAKE_MAX: Duration = Duration::from_millis(700);
const PUT_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
const BATCH_GROUPS: usize = 2;

/// The state of the reference worker from a start to the next kill.
#[derive(Clone)]
pub(crate) struct Reference {
    from: RemoteQueue,
    to: RemoteQueue,
    http: Client,
    from_url: String,
    audit: Arc<Audit>,
    /// While this is true, the worker takes nothing.
    pub(crate) rests: Arc<AtomicBool>,
}

fn client(url: &str) -> RemoteQueue {
    let token = Some(TOKEN.to_owned());
    RemoteQueue::new(RemoteConfig { token, patience: PATIENCE, ..RemoteConfig::new(url) }).unwrap()
}

impl Reference {
    pub(crate) fn new(from_url: &str, to_url: &str, audit: Arc<Audit>) -> Self {
        Self {
            from: client(from_url),
            to: client(to_url),
            http: http_client(),
            from_url: from_url.to_owned(),
            audit,
            rests: Arc::default(),
        }
    }

    /// Works until it is dropped.
    pub(crate) async fn work(self) {
        loop {
            if self.rests.load(Ordering::Relaxed) {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let take = Take::groups(REFERENCE_TASK, BATCH_GROUPS).held_by("reference");
            match self.from.take(PARTITION, &take.until(Instant::now() + TAKE_MAX)).await {
                Ok(Some(lease)) => {
                    if let Err(error) = self.pass_on(lease).await {
                        tracing::debug!(%error, "the groups are given back");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                outcome => {
                    tracing::debug!(?outcome, "nothing to take");
                    if let Err(error) = self.give_back_strays().await {
                        tracing::debug!(%error, "the run does not answer");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Puts the groups of a lease into the queue server, and acks them.
    async fn pass_on(&self, lease: Lease) -> Result<(), QueueError> {
        let mut groups = lease.groups().to_vec();
        self.audit.reference_takes(&groups);
        let rows = lease.concat()?;
        let mut first = 0;
        for same in lease.groups().chunk_by(|left, right| left == right) {
            let version = lease.policy_versions()[first];
            self.put(&same[0], version, rows.slice(first, same.len())).await?;
            first += same.len();
        }
        lease.ack().await?;
        groups.dedup();
        self.audit.referenced(groups);
        Ok(())
    }

    /// Puts a group once, with the column that the trainer waits for.
    async fn put(&self, group: &str, policy_version: u64, rows: RecordBatch) -> Result<(), QueueError> {
        let responses = rows["response_ids"].as_list::<i32>();
        let reference = responses.iter().map(|response| {
            let response = response?;
            let values = reference_of(response.as_primitive::<UInt32Type>().values());
            Some(values.into_iter().map(Some).collect::<Vec<_>>())
        });
        let reference = ListArray::from_iter_primitive::<Float32Type, _, _>(reference);
        let column = RecordBatch::try_from_iter([(REFERENCE_COLUMN, Arc::new(reference) as _)])?;
        let put = Put { policy_version, token: Some(group.to_owned()), ..Put::group(group, rows) };
        let handles = self.to.put(PARTITION, put, Some(PUT_MAX)).await?;
        match self.to.write_columns(PARTITION, &handles, column).await {
            // An earlier attempt was made, and its answer was lost. The rows may have been trained on since.
            Ok(())
            | Err(
                QueueError::ColumnExists { .. }
                | QueueError::StaleHandle { .. }
                | QueueError::RowConsumed { .. },
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives back the leases of the run's queue whose answers were lost, because these leases would last for
    /// ten minutes. This is the only worker, and it holds no lease now.
    async fn give_back_strays(&self) -> anyhow::Result<()> {
        let get = self.http.get(format!("{}/v1/inspect", self.from_url)).bearer_auth(TOKEN);
        let queue: Value = get.send().await?.json().await?;
        let partitions = queue["partitions"].as_array().into_iter().flatten();
        for lease in partitions.flat_map(|partition| partition["leases"].as_array().into_iter().flatten()) {
            let name = lease["name"].as_str().context("expected the name of a lease")?;
            let url = format!("{}/v1/partitions/{PARTITION}/leases/{name}-0/nack", self.from_url);
            self.http.post(url).bearer_auth(TOKEN).send().await?;
        }
        Ok(())
    }
}
