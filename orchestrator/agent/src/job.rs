//! The work of one agent.

use std::sync::Arc;

use rolldock_gateway::{CallMeter, Sampling};
use serde_json::Value;
use tokio::time::Instant;

/// A sample for an agent.
#[derive(Debug)]
pub struct AgentJob<'a> {
    /// The name of the trajectory, unique over the run.
    pub uid: &'a str,
    /// The index of the sample in its group.
    pub index: u32,
    /// The seed of the sample.
    pub seed: u64,
    /// The data row, as a JSON object.
    pub task: &'a Value,
    /// The text that replaces `{prompt}`.
    pub prompt: &'a str,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// When the sample's time is over.
    pub deadline: Instant,
    /// Learns of the agent's calls.
    pub meter: Arc<dyn CallMeter>,
}
