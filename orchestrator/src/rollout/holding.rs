//! The wait of new groups that are held back, which the watchdog can report.

use std::sync::Arc;

use crate::rollout::Hold;
use crate::rollout::timeline::Timeline;
use crate::rollout::waits::{InWait, Phase, Subject, Waits};

/// The open wait while new groups are held back and no group runs.
pub(crate) struct Holding {
    waits: Arc<Waits>,
    timeline: Arc<Timeline>,
    held_for: Option<(Hold, InWait)>,
}

impl Holding {
    pub(crate) fn new(waits: Arc<Waits>, timeline: Arc<Timeline>) -> Self {
        Self { waits, timeline, held_for: None }
    }

    /// Enters a wait when new groups are held back, and leaves it when they are not. `version` is the policy
    /// version of the servers.
    pub(crate) fn note(&mut self, hold: Option<Hold>, version: u64) {
        self.timeline.hold(hold);
        let Some(hold) = hold else {
            self.held_for = None;
            return;
        };
        if self.held_for.as_ref().is_some_and(|(of, _)| *of == hold) {
            return;
        }
        let (phase, detail) = match hold {
            Hold::Trainer => (Phase::Trainer, format!("the version after version={version}")),
            Hold::Queue => (Phase::Queue, "room for accepted groups".to_owned()),
            Hold::Reward => (Phase::Reward, "the end of an outage".to_owned()),
        };
        let subject = Subject { detail: Some(detail.into()), ..Subject::default() };
        self.held_for = Some((hold, self.waits.enter(phase, subject)));
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.timeline.hold(None);
    }
}
