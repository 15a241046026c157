//! What a run shows of itself, for people and for other programs.

use serde::{Deserialize, Serialize};

/// `[report]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Report {
    /// Whether the figures of the run are written as TensorBoard event files too.
    pub tensorboard: bool,
    /// Number of newest steps for which the times of all requests are kept, for `rolldock report`. 0 keeps none.
    pub timelines: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self { tensorboard: false, timelines: 8 }
    }
}
