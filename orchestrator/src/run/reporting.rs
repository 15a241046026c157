//! The read-only address of a run: its metrics, and its status for `rolldock why`.
//!
//! The address is in a file of the run's directory while the run is under way. A run whose address cannot be
//! bound runs without an address.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics::gauge;
use rolldock_ledger::LedgerWriter;
use rolldock_listener::{Client, ConnectionLimits, Connections, HalfClosed, RenderMetrics};
use rolldock_loadbalancer::LoadBalancer;
use rolldock_loadbalancer::snapshot::ServerSnapshot;
use rolldock_queue::{Partition, TransferQueue};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::directory::write_whole;
use super::meters::Meters;
use super::queue::Lack;
use crate::policy::PolicyState;
use crate::process::{page, say};
use crate::recipe::Recipe;
use crate::report::{QueueStatus, ServerStatus, Status, WaitLimits};
use crate::rollout::{RequestShape, RolloutView};
use crate::scope::Scope;

/// The file with the address, inside a run's directory.
const ADDRESS_FILE: &str = "address.json";
/// The path of the status.
pub const STATUS_PATH: &str = "/v1/status";
/// The maximum number of connections. A scraper and a few users need no more connections, and the run needs
/// its descriptors for requests.
const CONNECTIONS_MAX: usize = 16;

/// The address of a run that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct RunAddress {
    /// The base URL of its metrics and status.
    pub url: String,
    /// The run's id with the number of the process, counted from 1. A status with another id belongs to
    /// another run or to another process of the run.
    pub run_id: String,
    /// The process id (pid) of the run.
    pub process: u32,
}

impl RunAddress {
    /// Reads the address that the run in `dir` has written; `None` if there is no address file. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not an address.
    pub fn read(dir: &Path) -> anyhow::Result<Option<Self>> {
        let file = dir.join(ADDRESS_FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        let parsed = serde_json::from_str(&text);
        parsed.map(Some).with_context(|| format!("{} is not the address of a run", file.display()))
    }
}

/// The sources of the run's metrics page and of its status.
pub(super) struct Reporter {
    pub(super) run_id: String,
    pub(super) view: RolloutView,
    pub(super) meters: Arc<Meters>,
    pub(super) balancer: LoadBalancer,
    pub(super) queue: TransferQueue,
    pub(super) partition: Partition,
    pub(super) ledger: LedgerWriter,
    pub(super) lack: Lack,
    pub(super) versions: Option<PolicyState>,
    pub(super) samples_per_prompt: u32,
    /// The groups of a batch of the run's own consumer, if it announces versions.
    pub(super) own_trainer_groups: Option<usize>,
    pub(super) request: RequestShape,
    pub(super) limits: WaitLimits,
    /// The metrics of the process, without those of servers that have left; `None` if other code has
    /// installed a recorder.
    pub(super) process: Option<RenderMetrics>,
}

impl Reporter {
    /// The metrics as text.
    fn page(&self) -> String {
        let of_process = self.process.as_ref().map(|RenderMetrics(render)| render()).unwrap_or_default();
        let of_run = page(|| {
            self.meters.meter(&self.view);
            self.queue.meter();
            for server in &self.balancer.snapshot().servers {
                let name = server.name.to_string();
                gauge!("rolldock_server_tokens_per_second", "server" => name)
                    .set(rate(server).unwrap_or_default());
            }
        });
        of_process + &of_run
    }

    /// The status.
    fn status(&self) -> Status {
        let (fleet, stats) = (self.balancer.snapshot(), self.partition.stats());
        let (stage, step_age) = self.meters.stage();
        let versions = self.versions.as_ref().map(PolicyState::versions);
        Status {
            run_id: self.run_id.clone(),
            stage,
            step_age_s: step_age.as_secs_f64(),
            step: self.view.look(),
            samples_per_prompt: self.samples_per_prompt,
            request: self.request,
            servers: fleet.servers.iter().map(server_status).collect(),
            waiting_for_permits: fleet.waiting,
            queue: QueueStatus {
                rows: stats.rows,
                capacity_rows: stats.capacity_rows,
                leases: stats.leases,
                tasks: stats.tasks,
            },
            full_disk: self.ledger.full_disk().map(|full| full.to_string()),
            put_lacks: self.lack.lock().clone(),
            announced_version: versions.as_ref().map(|versions| versions.announced),
            update_failure: versions.and_then(|versions| versions.failure).map(|reason| reason.to_string()),
            own_trainer_groups: self.own_trainer_groups,
            limits: self.limits,
        }
    }

    /// Serves the recipe's address until the scope ends, and writes the address into `out`. Returns `None` if
    /// the recipe has no address. If the address cannot be bound, logs a warning and returns `None`.
    pub(super) async fn open(self, recipe: &Recipe, out: &Path, scope: &Scope) -> Option<Reporting> {
        let address = recipe.report.address()?;
        match self.serve(address, &recipe.limits.connections, out, scope).await {
            Ok(reporting) => Some(reporting),
            Err(error) => {
                tracing::warn!(
                    "the run has neither metrics nor a status (report.listen={address}): {error:#}"
                );
                None
            }
        }
    }

    async fn serve(
        self,
        address: SocketAddr,
        limits: &ConnectionLimits,
        out: &Path,
        scope: &Scope,
    ) -> anyhow::Result<Reporting> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        if !bound.ip().is_loopback() {
            tracing::warn!(%bound, "everyone who can reach this address can read the metrics and the status");
        }
        let file = out.join(ADDRESS_FILE);
        let url = format!("http://{bound}");
        let written = RunAddress { url, run_id: self.run_id.clone(), process: std::process::id() };
        write_whole(&file, &serde_json::to_string(&written)?)?;
        let max = limits.max.map_or(CONNECTIONS_MAX, |max| max.min(CONNECTIONS_MAX));
        let limits = ConnectionLimits { max: Some(max), unauthenticated_max: Some(max), ..limits.clone() };
        let connections = Connections::new("report", &limits);
        let router = Router::new()
            .route("/metrics", get(metrics_page))
            .route(STATUS_PATH, get(status))
            .fallback(unknown)
            .with_state(Arc::new(self));
        let end = scope.token().clone();
        scope.spawn_detached("report server", async move {
            rolldock_listener::serve(listener, router, connections, HalfClosed::Dropped, end).await;
        });
        say(&format!("metrics at {0}/metrics; `rolldock why {1}` asks {0}", written.url, out.display()));
        Ok(Reporting { file })
    }
}

/// The address file of a run. Dropping the value removes the file, because the run does not answer any more.
pub(super) struct Reporting {
    file: PathBuf,
}

impl Drop for Reporting {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.file) {
            tracing::debug!(file = %self.file.display(), %error, "the run's address stays");
        }
    }
}

async fn metrics_page(State(reporter): State<Arc<Reporter>>, client: Client) -> Response {
    client.authenticated().await;
    ([("content-type", RenderMetrics::CONTENT_TYPE)], reporter.page()).into_response()
}

async fn status(State(reporter): State<Arc<Reporter>>, client: Client) -> Json<Status> {
    client.authenticated().await;
    Json(reporter.status())
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, format!("expected /metrics or {STATUS_PATH}\n")).into_response()
}

/// The token rate of a server. The rate is computed from the server's own token count if that count is known,
/// and otherwise from the server's answers.
fn rate(server: &ServerSnapshot) -> Option<f64> {
    server.decode_rate.or(server.tokens_per_second)
}

fn server_status(server: &ServerSnapshot) -> ServerStatus {
    ServerStatus {
        name: server.name.to_string(),
        state: server.state.as_str().to_owned(),
        reason: server.reason.as_deref().map(str::to_owned),
        in_use: server.in_use,
        capacity: server.capacity,
        tokens_per_second: rate(server),
    }
}

/// The recipe's time limits of waits.
pub(super) fn wait_limits(recipe: &Recipe) -> WaitLimits {
    let timeouts = &recipe.timeouts;
    WaitLimits { sample_s: timeouts.sample, permit_s: timeouts.permit, stall_s: timeouts.stall }
}
