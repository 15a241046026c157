//! The tries of a request, and what follows a failed one.

use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::{CarriedSample, Spent, Waste};
use rolldock_loadbalancer::ServerId;

use super::SampleRequest;
use crate::engine::{Admission, EngineError};
use crate::rollout::stragglers::{Moves, Order, Reason};
use crate::rollout::waits::{Phase, Subject};

/// The maximum number of replays of a request that could not reach its server. Requests to a busy server are
/// repeated until the deadline.
const UNREACHABLE_REPLAYS_MAX: u32 = 8;
/// The first and the longest pause before a request to a busy server is repeated.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Why a try at a request failed.
pub(super) enum Trouble {
    Engine(EngineError),
    /// The server is dead, stalled or removed, as the balancer reported.
    ServerLost,
    /// The balancer granted no permit.
    NoPermit(String),
    /// The group was cut off.
    Cut,
    /// The sample leaves its server, which is too slow or too full.
    Moved(Order),
}

impl Trouble {
    pub(super) fn words(&self, server: &str) -> String {
        match self {
            Self::Engine(error) => error.to_string(),
            Self::ServerLost => format!("server={server} was lost"),
            Self::NoPermit(reason) => reason.clone(),
            Self::Cut => "cut off".to_owned(),
            Self::Moved(_) => format!("moved away from server={server}"),
        }
    }
}

/// The tries of a request so far.
pub(super) struct Tries {
    /// The number of the attempt, which determines the draw.
    pub(super) attempt: u32,
    /// The number of earlier tries that an engine may have seen. It is part of the next request's id.
    pub(super) sent: u32,
    pub(super) lost: u32,
    pub(super) aborted: u32,
    pub(super) unreachable: u32,
    pub(super) busy: u32,
    pub(super) failed_on: Vec<ServerId>,
    pub(super) moves: Moves,
    /// Servers that are too slow for a sample that moves.
    pub(super) avoid: Vec<ServerId>,
    pub(super) spent: Spent,
    /// The tokens so far, for a request with one sample.
    pub(super) so_far: CarriedSample,
}

impl SampleRequest<'_> {
    /// Decides whether a request is tried again after a failed try. If the request is not tried again, the
    /// error has the reason.
    pub(super) async fn after(
        &self,
        trouble: &Trouble,
        server: ServerId,
        server_name: &Arc<str>,
        tries: &mut Tries,
    ) -> Result<(), String> {
        let config = &self.context.config;
        if let Trouble::Moved(order) = trouble {
            self.moved(order, tries);
            return Ok(());
        }
        let reason = trouble.words(server_name);
        let is_replay = match trouble {
            Trouble::Engine(error @ EngineError::Refused { .. }) if !error.concerns_server() => {
                return Err(reason);
            }
            // An update paused the server and aborted the request. The server has not failed, and no token is
            // lost.
            Trouble::Engine(EngineError::Aborted { .. }) if self.outlives_abort(tries) => return Ok(()),
            Trouble::Engine(EngineError::Busy { retry_after, .. }) => {
                tries.busy += 1;
                self.wait_for_busy(server_name, busy_pause(*retry_after, tries.busy - 1), tries.busy).await;
                true
            }
            Trouble::Engine(error) if error.admission() == Admission::Never => {
                tries.unreachable += 1;
                tries.unreachable <= UNREACHABLE_REPLAYS_MAX
            }
            _ => false,
        };
        self.context.meter.request_failed(server_name, !is_replay);
        if !tries.failed_on.contains(&server) {
            tries.failed_on.push(server);
        }
        if is_replay {
            return Ok(());
        }
        tries.lost += 1;
        if tries.lost >= config.sample_attempts_max {
            let attempts = config.sample_attempts_max;
            return Err(format!("sample_attempts_max={attempts} used up; last: {reason}"));
        }
        tries.sent += 1;
        if tries.so_far.segments == 0 || tries.so_far.segments >= config.carry.segments_max {
            tries.attempt += 1;
            let lost = u64::from(tries.so_far.tokens());
            self.context.tokens.lost(self.dispatch.id, lost, Waste::FailedAttempt);
            tries.so_far = CarriedSample::new(self.first, tries.attempt);
        }
        let (attempt, segments) = (tries.attempt, tries.so_far.segments);
        tracing::debug!(dispatch = %self.dispatch.id, sample = self.first, attempt, segments, %reason, "new try");
        Ok(())
    }

    /// Whether a request of these tries may be moved to another server.
    pub(super) fn can_move(&self, tries: &Tries) -> bool {
        let segments_max = self.context.config.carry.segments_max;
        self.count == 1 && tries.so_far.segments + 1 < segments_max
    }

    /// Notes that a request was aborted, so that its sample continues elsewhere.
    fn moved(&self, order: &Order, tries: &mut Tries) {
        tries.moves.add(order.reason);
        tries.sent += 1;
        tries.avoid.clone_from(&order.avoid);
        let prefill = match order.reason {
            Reason::Faster => self.prompt_ids().len() as u64 + u64::from(tries.so_far.tokens()),
            // The server would have computed these tokens again too.
            Reason::Full => 0,
        };
        self.context.meter.moved(prefill);
    }

    /// Whether the sample continues after an abort that this run did not request.
    fn outlives_abort(&self, tries: &mut Tries) -> bool {
        let segments_max = self.context.config.carry.segments_max;
        if tries.aborted >= segments_max || tries.so_far.segments >= segments_max {
            return false;
        }
        tries.aborted += 1;
        tries.sent += 1;
        true
    }

    /// Waits before a request to a busy server is repeated.
    async fn wait_for_busy(&self, server: &Arc<str>, pause: Duration, times: u32) {
        let detail = Some(format!("it was busy times={times}").into());
        let subject = Subject { server: Some(Arc::clone(server)), detail, ..self.subject() };
        let _refused = self.context.waits.enter(Phase::Engine, subject);
        tokio::time::sleep(pause).await;
    }
}

fn busy_pause(retry_after: Option<Duration>, times: u32) -> Duration {
    let doubling = BUSY_PAUSE.saturating_mul(1 << times.min(10));
    retry_after.unwrap_or(doubling).min(BUSY_PAUSE_MAX)
}
