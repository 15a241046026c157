//! What all requests of a step share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rolldock_dispatch::Stamp;
use rolldock_loadbalancer::{LoadBalancer, Priority};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::TrajectoryRunner;
use crate::engine::{Engine, SamplingParams};
use crate::rollout::RolloutConfig;
use crate::rollout::grading::Grades;
use crate::rollout::meter::Meter;
use crate::rollout::stragglers::Movable;
use crate::rollout::timeline::Timeline;
use crate::rollout::tokens::TokenBook;
use crate::rollout::waits::Waits;

/// The state that all requests of a step share.
#[derive(Clone)]
pub(crate) struct StepContext {
    pub(crate) config: Arc<RolloutConfig>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) balancer: LoadBalancer,
    pub(crate) grades: Arc<Grades>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) tokens: Arc<TokenBook>,
    pub(crate) timeline: Arc<Timeline>,
    /// The requests that can be moved; `None` if none is moved.
    pub(crate) movable: Option<Arc<Movable>>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) priority_new: Priority,
    /// The version that the servers have now, as the client sees it.
    pub(crate) policy_version: Arc<AtomicU64>,
    /// When this process began the run.
    pub(crate) epoch: Instant,
    /// Whether samples that are cut off keep their tokens.
    pub(crate) carries: bool,
    /// Cancelled when groups are cut off.
    pub(crate) cut: CancellationToken,
    /// Runs the samples as trajectories. `None` if a sample is one answer of an engine.
    pub(crate) trajectories: Option<Arc<dyn TrajectoryRunner>>,
}

impl StepContext {
    /// The cache salt of the present version. A version must not use prefixes that another version computed.
    pub(super) fn salt(&self) -> Arc<str> {
        format!("v{}", self.policy_version.load(Ordering::Relaxed)).into()
    }

    /// Completes when groups are cut off and their tokens are kept. If tokens are not kept, this never
    /// completes, and the group's future is dropped at the cut.
    pub(crate) async fn is_cut(&self) {
        if !self.carries {
            std::future::pending::<()>().await;
        }
        self.cut.cancelled().await;
    }

    /// Counts the tokens that servers generated for health probes.
    pub(crate) fn count_probes(&self) {
        self.tokens.probed(self.engine.probe_tokens() + self.balancer.probe_tokens());
    }

    pub(super) fn stamp(&self, sent: u64) -> Stamp {
        Stamp { sent, now: self.policy_version.load(Ordering::Relaxed).max(sent) }
    }
}
