//! Prompts that are sent to a worker, and prompts that wait for their next dispatch.

use std::sync::Arc;

use rolldock_dispatch::{Bucket, DispatchId, Inclusion};

use crate::data::Prompt;
use crate::rollout::carry::CarriedGroup;

/// A prompt that is sent to a worker.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch {
    pub(crate) id: DispatchId,
    pub(crate) number: u64,
    pub(crate) prompt: Arc<Prompt>,
    /// The attempt with which its samples start; a carried sample keeps its own attempt number.
    pub(crate) first_attempt: u32,
    /// The servers' version when the prompt was sent out, or the version of its oldest carried token if that
    /// is lower.
    pub(crate) policy_version: u64,
    /// The finished samples and the tokens that the previous dispatch of this prompt left.
    pub(crate) carried: Option<Arc<CarriedGroup>>,
    pub(crate) returns: u32,
    /// Whether an earlier process has judged the group and counted the result.
    pub(crate) was_judged: bool,
    /// The probabilities with which the prompt was sent out and its group runs on.
    pub(crate) inclusion: Inclusion,
}

/// The next action of a worker.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this group.
    Run(Dispatch),
    /// Wait until the board has changed, and ask again.
    Wait,
    /// The step has no more groups.
    Done,
}

/// What follows from samples that have finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// New prompts are needed now that were not needed before, so workers must be woken.
    pub(crate) needs_more: bool,
    /// The group is unlikely to become valid, and is stopped.
    pub(crate) stops_group: bool,
}

/// A prompt that waits for its next dispatch.
#[derive(Debug)]
pub(super) struct Requeued {
    pub(super) parent: DispatchId,
    pub(super) prompt: Arc<Prompt>,
    pub(super) first_attempt: u32,
    pub(super) carried: Option<Arc<CarriedGroup>>,
    /// The bucket in which the tokens of `carried` are counted. Those of a group that an earlier process held are held.
    pub(super) kept_in: Bucket,
    pub(super) returns: u32,
    /// Whether an earlier process has judged the group and counted the result.
    pub(super) was_judged: bool,
    pub(super) inclusion: Inclusion,
}

impl Requeued {
    /// A prompt that is sent out again without tokens.
    pub(super) fn anew(
        parent: DispatchId,
        (prompt, inclusion): (Arc<Prompt>, Inclusion),
        first_attempt: u32,
        returns: u32,
    ) -> Self {
        let (carried, kept_in) = (None, Bucket::Carried);
        Self { parent, prompt, first_attempt, carried, kept_in, returns, was_judged: false, inclusion }
    }
}
