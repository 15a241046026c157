//! A gateway over a scripted engine, with what an agent and its harness need to call it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt8Type, UInt32Type};
use reqwest::{Client, RequestBuilder, Response};
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_queue::{Queue, QueueConfig, Take, TransferQueue};
use rolldock_scope::Scope;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::engine::{Engine, Letters};
use crate::core::Core;
use crate::{Entropy, Gateway, GatewayConfig, GatewayError, StoreError};

/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(120);

const LOG: &str = "trajectories.log";

pub(super) struct Rig {
    pub(super) scope: Scope,
    pub(super) engine: Engine,
    pub(super) queue: TransferQueue,
    pub(super) client: Client,
    pub(super) root: String,
    pub(super) config: GatewayConfig,
    pub(super) balancer: LoadBalancer,
    core: Option<Arc<Core>>,
    end: CancellationToken,
    serving: Option<AbortOnDropHandle<()>>,
    _folder: Arc<tempfile::TempDir>,
}

pub(super) fn counted() -> Entropy {
    let next = Arc::new(AtomicU64::new(1));
    Entropy(Arc::new(move || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number)
    }))
}

impl Rig {
    pub(super) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut config = GatewayConfig::new(folder.path(), Arc::new(Letters), counted(), || 1_000);
        change(&mut config);
        let scope = Scope::new();
        let engine = Engine::start(&scope).await;
        let servers = vec![ServerSpec::new("s0", &engine.url, 64)];
        let balancer = LoadBalancer::new(BalancerConfig::default(), servers).unwrap();
        let mut rig = Self {
            scope,
            engine,
            queue: TransferQueue::open(QueueConfig::default()).unwrap(),
            client: Client::builder().no_proxy().build().unwrap(),
            root: String::new(),
            config,
            balancer,
            core: None,
            end: CancellationToken::new(),
            serving: None,
            _folder: folder,
        };
        rig.start().await;
        rig
    }

    pub(super) async fn start(&mut self) {
        let queue: Arc<dyn Queue> = Arc::new(self.queue.clone());
        let gateway = loop {
            let (config, balancer, queue) = (self.config.clone(), self.balancer.clone(), Arc::clone(&queue));
            match Gateway::open(config, balancer, queue, None, None).await {
                // Another test is starting a child process. It holds the locks of this process until it executes
                // its program.
                Err(GatewayError::Store(StoreError::InUse { .. })) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        self.core = Some(Arc::clone(&gateway.served.core));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.root = format!("http://{}", listener.local_addr().unwrap());
        self.end = CancellationToken::new();
        self.serving = Some(self.scope.spawn("test gateway", gateway.serve(listener, self.end.clone())));
    }

    /// Ends the gateway and opens its directory again.
    pub(super) async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    /// Restarts the gateway without what it wrote last.
    pub(super) async fn restart_without_the_last_frame(&mut self) {
        self.stop().await;
        let mut frames = self.frames();
        frames.pop();
        std::fs::write(self.dir().join(LOG), frames.concat()).unwrap();
        self.start().await;
    }

    /// The beginning of the log, and its frames.
    pub(super) fn frames(&self) -> Vec<Vec<u8>> {
        let bytes = std::fs::read(self.dir().join(LOG)).unwrap();
        let (mut parts, mut rest) = (Vec::new(), bytes.as_slice());
        let mut length = "ROLLDOCK-TRAJECTORIES-1\n".len();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(length);
            parts.push(part.to_vec());
            rest = after;
            // A head of 12 bytes begins with the length of its body.
            length =
                rest.get(..4).map_or(0, |bytes| 12 + u32::from_le_bytes(bytes.try_into().unwrap()) as usize);
        }
        parts
    }

    pub(super) async fn stop(&mut self) {
        self.end.cancel();
        // The gateway would wait for the connections that the old client keeps.
        self.client = Client::builder().no_proxy().build().unwrap();
        self.serving.take().unwrap().await.unwrap();
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        self.core.as_ref().unwrap()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.config.dir
    }

    /// Makes a trajectory.
    pub(super) async fn open(&self, body: Value) -> Opened {
        let made = self.control("trajectories", body).await;
        assert_eq!(made.0, 201, "{}", made.1);
        let text = |key: &str| made.1[key].as_str().unwrap().to_owned();
        let base = text("base_url").replacen(&format!("http://{}", host(&text("base_url"))), "", 1);
        Opened { uid: text("trajectory"), path: base }
    }

    pub(super) async fn control(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.client.post(format!("{}/{path}", self.root)).json(&body).send().await.unwrap()).await
    }

    pub(super) async fn complete(&self, uid: &str, body: Value) -> (u16, Value) {
        self.control(&format!("trajectories/{uid}/complete"), body).await
    }

    pub(super) async fn show(&self, uid: &str) -> Value {
        let answer = self.client.get(format!("{}/trajectories/{uid}", self.root)).send().await.unwrap();
        read(answer).await.1
    }

    pub(super) fn call(&self, opened: &Opened, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(format!("{}{}/{path}", self.root, opened.path)).json(body)
    }

    /// Asks for a turn of a chat.
    pub(super) async fn chat(&self, opened: &Opened, messages: &Value) -> Value {
        let (status, body) = self.try_chat(opened, json!({ "model": "any", "messages": messages })).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(super) async fn try_chat(&self, opened: &Opened, body: Value) -> (u16, Value) {
        read(self.call(opened, "chat/completions", &body).send().await.unwrap()).await
    }

    /// Waits for something that another task does.
    pub(super) async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let looking = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"))
    }

    /// Takes the rows of the next group.
    pub(super) async fn rows(&self) -> RecordBatch {
        let partition = self.until("a partition", async || self.queue.partition("train").ok()).await;
        let lease = tokio::time::timeout(
            PATIENCE,
            partition.take(&Take::groups("train", 1).until(tokio::time::Instant::now() + PATIENCE)),
        )
        .await
        .unwrap()
        .unwrap()
        .unwrap();
        let batch = lease.concat().unwrap();
        lease.ack().await.unwrap();
        batch
    }
}

fn host(url: &str) -> &str {
    url.trim_start_matches("http://").split('/').next().unwrap()
}

pub(super) async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.bytes().await.unwrap();
    let body = serde_json::from_slice(&bytes);
    (status, body.unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}

#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) uid: String,
    /// The path of the base URL.
    pub(super) path: String,
}

pub(super) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// The message of a chat completion, as an agent sends it back.
pub(super) fn said(completion: &Value) -> Value {
    completion["choices"][0]["message"].clone()
}

pub(super) fn numbers(batch: &RecordBatch, column: &str, row: usize) -> Vec<u32> {
    batch
        .column_by_name(column)
        .unwrap()
        .as_list::<i32>()
        .value(row)
        .as_primitive::<UInt32Type>()
        .values()
        .to_vec()
}

pub(super) fn mask(batch: &RecordBatch, row: usize) -> Vec<u8> {
    let column = batch.column_by_name("response_mask").unwrap().as_list::<i32>().value(row);
    column.as_primitive::<UInt8Type>().values().to_vec()
}

pub(super) fn floats(batch: &RecordBatch, column: &str) -> Vec<f32> {
    batch.column_by_name(column).unwrap().as_primitive::<Float32Type>().values().to_vec()
}

pub(super) fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    let column = batch.column_by_name(column).unwrap().as_string::<i32>();
    column.iter().map(|text| text.unwrap().to_owned()).collect()
}
