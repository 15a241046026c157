//! Signals that end a run.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::process::{Ending, Endings, say_error};

/// Ends a run after a signal.
pub(super) struct Interrupt {
    /// The first signal that asked the run to end.
    pub(super) ended_by: Arc<OnceLock<Ending>>,
    /// The command that resumes the run.
    pub(super) command: String,
}

impl Interrupt {
    /// Handles signals until `end` is cancelled. The first signal cuts the step off, and accepted groups are
    /// kept. A second signal ends the process immediately.
    pub(super) async fn watch(self, mut endings: Endings, steps: CancellationToken, end: CancellationToken) {
        let Some(first) = end.run_until_cancelled(endings.asked()).await else { return };
        // No other task sets this value.
        let _ = self.ended_by.set(first);
        tracing::warn!(
            "interrupted: cancelling the requests on the engines; press Ctrl-C again to end immediately"
        );
        steps.cancel();
        let Some(second) = end.run_until_cancelled(endings.asked()).await else { return };
        say_error(&format!("ended immediately; go on with: {}", self.command));
        #[expect(clippy::disallowed_methods, reason = "the user asked twice; the ledger survives this")]
        std::process::exit(second.exit_code().into());
    }
}
