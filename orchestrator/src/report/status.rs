//! The status of a run at one moment, which the run serves as JSON.

use rolldock_queue::TaskStats;
use serde::{Deserialize, Serialize};

use crate::rollout::{RequestShape, StepLook};

/// The stage of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The run collects a step, or waits for the conditions of the next step.
    #[default]
    Collecting,
    /// The run validates between two steps.
    Validating,
    /// The steps are done, and the run waits for consumers of its rows.
    Serving,
}

/// A server of the fleet.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Its state: `active`, `draining`, `paused`, `probing` or `dead`.
    pub state: String,
    /// The reason why the server is not active.
    pub reason: Option<String>,
    /// Permits that are taken.
    pub in_use: u32,
    /// The number of its permits.
    pub capacity: u32,
    /// Tokens per second of one sample. The rate is computed from the server's own token count if that count
    /// is known, and otherwise from the server's answers. `None` if neither is known.
    pub tokens_per_second: Option<f64>,
}

/// The partition of training rows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct QueueStatus {
    /// The number of rows in the partition.
    pub rows: usize,
    /// The maximum number of rows.
    pub capacity_rows: usize,
    /// The number of open leases.
    pub leases: usize,
    /// The rows by state, for each task.
    pub tasks: Vec<TaskStats>,
}

/// The limits that end a wait, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct WaitLimits {
    /// `timeouts.sample`.
    pub sample_s: f64,
    /// `timeouts.permit`.
    pub permit_s: f64,
    /// `timeouts.stall`.
    pub stall_s: f64,
}

/// The status of a run in progress.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Status {
    /// The run's id with the number of its present process, as in its request ids.
    pub run_id: String,
    /// The stage of the run.
    pub stage: Stage,
    /// Seconds since the step in progress began.
    pub step_age_s: f64,
    /// The step in progress, or the last step.
    pub step: StepLook,
    /// The number of samples of a group.
    pub samples_per_prompt: u32,
    /// The samples that one request asks for.
    pub request: RequestShape,
    /// The servers, in the order in which they joined.
    pub servers: Vec<ServerStatus>,
    /// Requests that wait for a permit, including those of validations.
    pub waiting_for_permits: usize,
    /// The rows that wait for the trainer.
    pub queue: QueueStatus,
    /// The error of the write that the ledger repeats now, because the disk of its file is full; `None` if it does not
    /// wait.
    pub full_disk: Option<String>,
    /// The error of the put that is repeated now, because the queue's machine lacks disk space or file descriptors;
    /// `None` if no put waits for them.
    #[serde(default)]
    pub put_lacks: Option<String>,
    /// The last version that was announced; `None` if no trainer announces versions.
    pub announced_version: Option<u64>,
    /// The groups after which the run's own consumer announces a version; `None` if it announces none.
    pub own_trainer_groups: Option<usize>,
    /// Why no server has the announced version, while the servers are not being updated; `None` if no update to it has
    /// failed.
    #[serde(default)]
    pub update_failure: Option<String>,
    /// The time limits that end waits.
    pub limits: WaitLimits,
}
