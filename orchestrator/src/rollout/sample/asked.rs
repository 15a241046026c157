//! Counts the tokens of a request exactly once, whether the request ends or is dropped.

use rolldock_dispatch::{DispatchId, Waste};
use rolldock_loadbalancer::{ServerId, Unanswered};
use tokio::time::Instant;

use super::{StepContext, Trouble};
use crate::engine::{Admission, EngineError, Generation, Progress};
use crate::rollout::tokens::Counted;

/// A request that an engine works on. If the value is dropped before the end of the request is reported, the
/// end of the group determines the bucket of the tokens.
pub(super) struct Asked<'a> {
    context: &'a StepContext,
    dispatch: DispatchId,
    server: ServerId,
    samples: u32,
    since: Instant,
    progress: Progress,
    /// Whether the samples come from another request, which was sent for them too.
    pub(super) is_hedge: bool,
    is_counted: bool,
}

impl<'a> Asked<'a> {
    /// Begins the count of a request. The value must be created before the engine's future, so that it is
    /// dropped after that future.
    pub(super) fn new(
        context: &'a StepContext,
        dispatch: DispatchId,
        (server, samples): (ServerId, u32),
        progress: &Progress,
    ) -> Self {
        let (since, progress) = (Instant::now(), progress.clone());
        Self { context, dispatch, server, samples, since, progress, is_hedge: false, is_counted: false }
    }

    /// Counts a complete answer. Returns the number of its tokens.
    pub(super) fn answered(mut self, generation: &Generation) -> u64 {
        self.is_counted = true;
        let tokens = generation.samples.iter().map(|sample| sample.response_ids.len() as u64).sum();
        self.generated(Counted::known(tokens));
        tokens
    }

    /// Counts a request that has failed. `kept` of its tokens are still of use, and the other tokens are
    /// wasted. Returns both numbers.
    pub(super) fn failed(mut self, kept: u64, trouble: &Trouble) -> Unanswered {
        self.is_counted = true;
        let waste = self.waste(trouble);
        let was_admitted = match trouble {
            Trouble::Engine(error) => error.admission() == Admission::Possible,
            Trouble::ServerLost | Trouble::NoPermit(_) | Trouble::Cut | Trouble::Moved(_) => true,
        };
        let all = if was_admitted { self.counted() } else { Counted::default() };
        let wasted = all.tokens.saturating_sub(kept);
        let in_vain = Counted { tokens: wasted, ..all };
        self.generated(Counted::known(kept));
        match self.is_hedge {
            true => self.context.tokens.hedged(in_vain),
            false => self.context.tokens.generated_in_vain(in_vain, waste),
        }
        Unanswered { kept, wasted }
    }

    fn generated(&self, counted: Counted) {
        match self.is_hedge {
            true => self.context.tokens.hedged(counted),
            false => self.context.tokens.generated(self.dispatch, counted),
        }
    }

    fn waste(&self, trouble: &Trouble) -> Waste {
        match trouble {
            Trouble::Cut => Waste::Cut,
            Trouble::Engine(EngineError::BadAnswer { .. }) => Waste::LostAnswer,
            Trouble::Engine(EngineError::Failed { .. }) if self.progress.generated().is_whole => {
                Waste::LostAnswer
            }
            Trouble::Engine(_) | Trouble::ServerLost | Trouble::NoPermit(_) | Trouble::Moved(_) => {
                Waste::FailedAttempt
            }
        }
    }

    /// The tokens that the engine reported as generated. Engines do not report the number if the connection
    /// is cut. In that case the tokens that did not arrive are estimated: from the age of the request, or from the
    /// time since the last tokens arrived, if they arrive while the engine generates. The time in which the server is
    /// known to have generated nothing does not count.
    fn counted(&self) -> Counted {
        let generated = self.progress.generated();
        if let Some(tokens) = generated.tokens {
            return Counted::known(tokens);
        }
        let (arrived, since) = (generated.arrived, generated.arrived_at.unwrap_or(self.since));
        let still = self.context.balancer.stood_still(self.server, since);
        let age = since.elapsed().saturating_sub(still);
        let estimated = self.context.meter.tokens_by(age, self.samples);
        let tokens = match generated.arrived_at {
            Some(_) => arrived + estimated,
            None => estimated.max(arrived),
        };
        Counted { tokens, estimated: tokens - arrived }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_counted {
            self.generated(self.counted());
        }
    }
}
