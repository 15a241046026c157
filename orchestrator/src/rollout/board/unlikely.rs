//! Groups that are stopped because they are unlikely to become valid (`rollout.stop_unlikely`).
//!
//! A group whose finished samples are alike becomes valid only if a further sample differs. The
//! [outlook](super::Outlook) estimates the probability of that from the run's own groups. When the probability falls
//! below the bound of the recipe, the rest of the group costs more tokens than it is worth. Gates that reject groups on
//! other grounds do not count: they are as likely to reject the group that takes its place. But the groups that become
//! valid late differ from the others: nearly all of their samples are right or nearly all are wrong, and their short
//! samples are alike. If all of them were stopped, the data would lack them. So a share of them, `run_on`, runs to its
//! end, and each of these groups stands for `1 / run_on` groups by its importance weight.
//!
//! # Invariants
//! - A group is drawn at most once: the draw depends only on the run's seed and the dispatch number, so a group that is
//!   dispatched again has the same draw.
//! - A weighted mean over accepted groups estimates the mean over all valid groups, even if the estimated probability is
//!   wrong, because the draw does not depend on the group's samples.

use rolldock_dispatch::bias::BiasEvent;
use rolldock_dispatch::draw::uniform;

use super::{Board, Slot};

/// The reason under which stopped groups are counted as filtered.
pub(super) const UNLIKELY: &str = "unlikely";

impl Board {
    /// Whether the running group of this number is stopped. Notes if it is unlikely to become valid and runs on.
    pub(super) fn stops_unlikely(&mut self, number: u64) -> bool {
        let Some(rule) = self.config.stop_unlikely else { return false };
        let Some(Slot::Running(dispatch, standing)) = self.slots.get_mut(&number) else { return false };
        // A group that an earlier process has judged is graded again, and its decision stays.
        if dispatch.was_judged || dispatch.inclusion.run_on < 1.0 {
            return false;
        }
        if !self.outlook.is_open(standing) || self.outlook.chance_to_differ(standing) >= rule.below {
            return false;
        }
        let share = rule.run_on as f32;
        if !runs_on(self.config.seed, number, share) {
            return true;
        }
        dispatch.inclusion.run_on = share;
        self.dispatches.note_bias(number, BiasEvent::RunsOn(share));
        false
    }
}

/// Whether the group of this number runs on, with probability `share`.
fn runs_on(seed: u64, number: u64, share: f32) -> bool {
    let mut key = *b"run on..........";
    key[8..].copy_from_slice(&number.to_le_bytes());
    uniform(seed, &key) < f64::from(share)
}
