//! The data that the clones of an updater and its task share: the book, and the list of engines that have to
//! be resumed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::book::Book;
use super::metered::UpdateMetrics;
use super::target::Target;
use super::{Phase, UpdateConfig, UpdatePhase};
use crate::control::{ControlError, EngineControl};
use crate::server::{ServerId, ServerState};
use crate::{LoadBalancer, PauseMode, ServerRef};

/// Longest time of one call in a phase that may repeat the call. A healthy engine answers in milliseconds.
pub(super) const CALL_MAX: Duration = Duration::from_secs(5);
/// Pause before a server is asked to resume a second time. It doubles each time.
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const RESUME_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The data that an updater's clones and its task share.
pub(super) struct Inner {
    pub(super) balancer: LoadBalancer,
    pub(super) control: Arc<dyn EngineControl>,
    pub(super) config: UpdateConfig,
    /// The client that calls the user's URL, if there is one.
    pub(super) hook: Option<reqwest::Client>,
    pub(super) tracker: TaskTracker,
    pub(super) end: CancellationToken,
    pub(super) book: Mutex<Book>,
    pub(super) metrics: UpdateMetrics,
}

impl Inner {
    /// Resumes an engine, so that permits are granted on its server again. Repeats the call until it
    /// succeeds, the server is lost, `until` is reached, or the token is cancelled.
    ///
    /// A round passes no token. In that case, the engine is resumed only if the book says that the engine has
    /// to be resumed. A recovery passes its token, because the recovery has found the engine paused.
    pub(super) async fn resume(
        &self,
        target: &Target,
        needs_abort: bool,
        until: Instant,
        token: Option<&CancellationToken>,
    ) -> Result<(), String> {
        let Target { id, ref server, .. } = *target;
        let is_owed = self.book.lock().servers.get(id).is_some_and(|known| known.is_owed);
        if !is_owed && token.is_none() {
            self.balancer.release(id);
            return Ok(());
        }
        let call_until = || until.min(Instant::now() + CALL_MAX);
        if needs_abort {
            // The permits of the engine's requests are revoked. Even if this call fails, no caller reads
            // their answers.
            let _ = tokio::time::timeout_at(call_until(), self.control.pause(server, PauseMode::Abort)).await;
        }
        let mut pause = RESUME_PAUSE_MIN;
        loop {
            let asked = tokio::time::timeout_at(call_until(), self.control.resume(server)).await;
            let reason = match asked {
                // An engine that does not offer resuming has not been paused.
                Ok(Ok(()) | Err(ControlError::Unsupported { .. })) => {
                    self.book.lock().servers.known(id).is_owed = false;
                    self.balancer.release(id);
                    return Ok(());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            let is_hopeless = !self.is_alive(id) || Instant::now() + pause >= until;
            if is_hopeless || token.is_some_and(CancellationToken::is_cancelled) {
                return Err(reason);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RESUME_PAUSE_MAX);
        }
    }

    fn is_alive(&self, id: ServerId) -> bool {
        let fleet = self.balancer.snapshot().servers;
        fleet.iter().any(|server| server.id == id && server.state != ServerState::Dead)
    }

    /// Notes that the engines of these servers are about to be paused, and have to be resumed.
    pub(super) fn owe(&self, servers: impl Iterator<Item = ServerId>) {
        let mut book = self.book.lock();
        servers.for_each(|id| book.servers.known(id).is_owed = true);
    }

    /// Shows a phase and the servers that it waits for.
    pub(super) fn enter_phase(&self, phase: Phase, version: Option<u64>, servers: &[ServerRef]) {
        let awaited = servers.iter().map(|server| Arc::clone(&server.name)).collect();
        let deadline = self.config.deadlines.of(phase);
        self.book.lock().phase =
            Some(UpdatePhase { phase, version, since: Instant::now(), deadline, awaited });
    }

    /// Notes that the phase no longer waits for this server.
    pub(super) fn leave_phase(&self, server: &str) {
        if let Some(phase) = &mut self.book.lock().phase {
            phase.awaited.retain(|awaited| **awaited != *server);
        }
    }

    pub(super) fn forget_phase(&self) {
        self.book.lock().phase = None;
    }
}
