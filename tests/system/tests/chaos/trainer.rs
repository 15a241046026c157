//! The trainer: takes batches from the queue server over HTTP, acks them, and announces versions to the run.
//! It uses none of Rolldock's code.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::StreamReader;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use crate::audit::{Audit, Batch, Row};
use crate::layout::{LEASE_MS, PARTITION, REFERENCE_COLUMN, STEP_GROUPS, TOKEN, TRAIN_TASK};

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// How long a take waits at the server.
const TAKE_MS: u64 = 500;
/// The pause after a call that failed.
const PAUSE: Duration = Duration::from_millis(100);
const BATCH_GROUPS: usize = 2;

/// The state of the trainer from a start to the next kill.
#[derive(Clone)]
pub(crate) struct Trainer {
    http: Client,
    partition_url: String,
    policy_url: String,
    audit: Arc<Audit>,
    /// While this is true, the trainer keeps its next batch until the lease has expired.
    pub(crate) dawdles: Arc<AtomicBool>,
    /// While this is true, the trainer takes nothing.
    pub(crate) rests: Arc<AtomicBool>,
}

/// A client for HTTP without a proxy. All of its calls are bounded in time.
pub(crate) fn http_client() -> Client {
    Client::builder().no_proxy().timeout(ANSWER_MAX).build().unwrap()
}

impl Trainer {
    pub(crate) fn new(queue_url: &str, policy_url: &str, audit: Arc<Audit>) -> Self {
        Self {
            http: http_client(),
            partition_url: format!("{queue_url}/v1/partitions/{PARTITION}"),
            policy_url: format!("{policy_url}/v1/policy"),
            audit,
            dawdles: Arc::default(),
            rests: Arc::default(),
        }
    }

    /// Trains until it is dropped.
    pub(crate) async fn train(self) {
        if let Some(open) = self.audit.open_batch() {
            self.settle(open).await;
        }
        loop {
            // The run needs announcements to continue, and a killed run may have lost the last one.
            if let Err(error) = self.announce().await {
                tracing::debug!(%error, "the run does not answer");
            }
            if self.rests.load(Ordering::Relaxed) {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            match self.take().await {
                Ok(Some(batch)) => {
                    if self.dawdles.swap(false, Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(LEASE_MS + 500)).await;
                    }
                    self.settle(batch).await;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "the queue does not answer");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<reqwest::Response> {
        let request = self.http.post(format!("{}/{path}", self.partition_url)).bearer_auth(TOKEN);
        Ok(request.json(&body).send().await?)
    }

    /// Takes a batch. Returns `None` if nothing is ready.
    async fn take(&self) -> anyhow::Result<Option<Batch>> {
        let asked = json!({
            "task": TRAIN_TASK, "groups": BATCH_GROUPS, "wait_ms": TAKE_MS, "holder": "trainer",
        });
        let answer = self.post("take", asked).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NO_CONTENT | StatusCode::REQUEST_TIMEOUT => return Ok(None),
            status => anyhow::bail!("status={status}: {}", answer.text().await?),
        }
        let lease = answer.headers().get("rolldock-lease").context("expected a lease")?.to_str()?.to_owned();
        // If the answer is incomplete, the rows are ready again at the latest when the lease expires.
        let rows = match rows_of(&answer.bytes().await?) {
            Ok(rows) => rows,
            Err(error) => {
                self.audit.violation(format!("lease={lease}: whole answer that cannot be read: {error:#}"));
                return Err(error);
            }
        };
        Ok(Some(self.audit.taken(lease, &rows)))
    }

    /// Acks a batch. Repeats the ack until the server has answered.
    async fn settle(&self, batch: Batch) {
        loop {
            match self
                .post(&format!("leases/{}/ack", batch.lease), json!({}))
                .await
                .map(|answer| answer.status())
            {
                Ok(StatusCode::OK) => return self.audit.trained(batch),
                // The lease has expired, and no ack of it has taken effect.
                Ok(StatusCode::GONE) => return self.audit.given_back(),
                outcome => tracing::debug!(?outcome, "the ack is repeated"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Announces the version that follows from the trained groups, if the run does not have this version yet.
    async fn announce(&self) -> anyhow::Result<()> {
        let version = self.audit.next_version(STEP_GROUPS);
        let known: Value = self.http.get(&self.policy_url).send().await?.json().await?;
        if known["announced"].as_u64().is_some_and(|known| known < version) {
            let announcement = json!({ "version": version, "label": format!("v{version}") });
            self.http.post(format!("{}/announce", self.policy_url)).json(&announcement).send().await?;
        }
        Ok(())
    }
}

/// The rows of an Arrow stream.
fn rows_of(stream: &[u8]) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for batch in StreamReader::try_new(Cursor::new(stream), None)? {
        rows.extend(rows_of_batch(&batch?)?);
    }
    Ok(rows)
}

fn rows_of_batch(batch: &RecordBatch) -> anyhow::Result<Vec<Row>> {
    let column = |name: &str| batch.column_by_name(name).with_context(|| format!("no column {name}"));
    let text = |name: &str| column(name)?.as_string_opt::<i32>().context("expected text");
    let version = |name: &str| column(name)?.as_primitive_opt::<UInt64Type>().context("expected u64");
    let (group, prompt) = (text("_group")?, text("prompt_uid")?);
    let sample = column("sample_index")?.as_primitive_opt::<UInt32Type>().context("expected u32")?;
    let (min, max) = (version("policy_version_min")?, version("policy_version_max")?);
    let (response, logprobs) = (column("response_ids")?, column("rollout_logprobs")?);
    let reference = column(REFERENCE_COLUMN)?;
    let row = |at: usize| -> anyhow::Result<Row> {
        let tokens = list(response, at)?;
        Ok(Row {
            group: group.value(at).to_owned(),
            prompt: prompt.value(at).to_owned(),
            sample: sample.value(at),
            response: tokens.as_primitive_opt::<UInt32Type>().context("expected u32")?.values().to_vec(),
            logprobs: floats(logprobs, at)?,
            reference: floats(reference, at)?,
            version_min: min.value(at),
            version_max: max.value(at),
        })
    };
    (0..batch.num_rows()).map(row).collect()
}

fn list(column: &ArrayRef, at: usize) -> anyhow::Result<ArrayRef> {
    Ok(column.as_list_opt::<i32>().context("expected lists")?.value(at))
}

fn floats(column: &ArrayRef, at: usize) -> anyhow::Result<Vec<f32>> {
    anyhow::ensure!(column.is_valid(at), "expected a value, found null");
    Ok(list(column, at)?.as_primitive_opt::<Float32Type>().context("expected f32")?.values().to_vec())
}
