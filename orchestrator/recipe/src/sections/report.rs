//! The settings of a run's metrics, status and figures.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The value of `report.listen` that opens no address.
const OFF: &str = "off";

/// `[report]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Report {
    /// The address of the run's metrics and status, which is read-only. `"off"` opens no address, and port 0
    /// is any free port.
    pub listen: String,
    /// Whether the figures of the run are written as TensorBoard event files too.
    pub tensorboard: bool,
    /// Number of newest steps for which the times of all requests are kept, for `rolldock report`. 0 keeps
    /// none.
    pub timelines: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self { listen: "127.0.0.1:0".to_owned(), tensorboard: false, timelines: 8 }
    }
}

impl Report {
    /// The address of the metrics and the status. It is `None` if the recipe has none or, in an unchecked
    /// recipe, an invalid one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }

    /// Whether the value of `listen` is valid.
    pub(crate) fn is_sound(&self) -> bool {
        self.listen == OFF || self.address().is_some()
    }
}
