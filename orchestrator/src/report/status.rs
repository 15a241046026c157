//! What a run says of itself at one moment, as JSON at its address.

use rolldock_queue::TaskStats;
use serde::{Deserialize, Serialize};

use crate::rollout::{RequestShape, StepLook};

/// What a run is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It collects a step, or waits for what the next one needs.
    #[default]
    Collecting,
    /// It validates between two steps.
    Validating,
    /// Its steps are done, and it waits for consumers of its rows.
    Serving,
}

/// A server of the fleet.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// What it can be used for: `active`, `draining`, `paused`, `probing` or `dead`.
    pub state: String,
    /// Why it is not active.
    pub reason: Option<String>,
    /// Permits that are taken.
    pub in_use: u32,
    /// All of its permits.
    pub capacity: u32,
    /// Tokens a second of one sample: by the server's own count, else by its answers; `None` if neither is
    /// known.
    pub tokens_per_second: Option<f64>,
}

/// The partition of training rows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct QueueStatus {
    /// Existing rows.
    pub rows: usize,
    /// The most rows that there may be.
    pub capacity_rows: usize,
    /// Leases that are held.
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

/// What a running run says of itself.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Status {
    /// The id of the run's present life, as in its request ids.
    pub run_id: String,
    /// What it does.
    pub stage: Stage,
    /// Seconds since the step in progress began.
    pub step_age_s: f64,
    /// The step.
    pub step: StepLook,
    /// Samples of a group.
    pub samples_per_prompt: u32,
    /// What one request asks for.
    pub request: RequestShape,
    /// The servers, in the order in which they joined.
    pub servers: Vec<ServerStatus>,
    /// Requests that wait for a permit, those of validations included.
    pub waiting_for_permits: usize,
    /// The rows that wait for the trainer.
    pub queue: QueueStatus,
    /// The last version that was announced; `None` if no trainer announces versions.
    pub announced_version: Option<u64>,
    /// What ends waits by themselves.
    pub limits: WaitLimits,
}
