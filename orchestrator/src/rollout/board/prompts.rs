//! Prompts on their way to a worker, and those that wait for it.

use std::sync::Arc;

use rolldock_dispatch::DispatchId;

use crate::data::Prompt;
use crate::rollout::carry::CarriedGroup;

/// A prompt on its way to a worker.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch {
    pub(crate) id: DispatchId,
    pub(crate) number: u64,
    pub(crate) prompt: Arc<Prompt>,
    /// The attempt with which its samples start; a carried sample continues with its own.
    pub(crate) first_attempt: u32,
    /// The servers' version when it was sent out, or that of its oldest carried token if that is lower.
    pub(crate) policy_version: u64,
    /// The finished samples and the tokens that the previous dispatch of this prompt has passed on.
    pub(crate) carried: Option<Arc<CarriedGroup>>,
    pub(crate) returns: u32,
    /// Whether an earlier process has judged the group and counted its verdict.
    pub(crate) was_judged: bool,
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this group.
    Run(Dispatch),
    /// Nothing at present; ask again when the board has changed.
    Wait,
    /// No more groups in this step.
    Done,
}

/// A prompt that waits for its next dispatch.
#[derive(Debug)]
pub(super) struct Requeued {
    pub(super) parent: DispatchId,
    pub(super) prompt: Arc<Prompt>,
    pub(super) first_attempt: u32,
    pub(super) carried: Option<Arc<CarriedGroup>>,
    pub(super) returns: u32,
    /// Whether an earlier process has judged the group and counted its verdict.
    pub(super) was_judged: bool,
}

impl Requeued {
    /// A prompt that is sent out again without tokens.
    pub(super) fn anew(parent: DispatchId, prompt: Arc<Prompt>, first_attempt: u32, returns: u32) -> Self {
        Self { parent, prompt, first_attempt, carried: None, returns, was_judged: false }
    }
}
