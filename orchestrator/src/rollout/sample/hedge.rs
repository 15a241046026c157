//! Asks a second server for a sample whose server is slow (`rollout.stragglers = "hedge"`).
//!
//! The copy of a request has the prompt, the earlier tokens and the seed of the first request. The first request goes on,
//! so servers need no aborts by id, and a first server that fails costs no time. The tokens of the request whose answer
//! does not count are in the bucket `hedges`.
//!
//! # Which answer counts
//! Two servers may draw different tokens with one seed. If the first answer to end counted, short answers would be
//! preferred. So an answer that ends counts only if it is ahead: if the other request has at most as many tokens at this
//! moment. Otherwise the other answer counts, however long it takes. The speeds of the servers alone determine the number
//! of tokens at which the faster request overtakes the other. A first answer that is shorter than this number counts. If
//! it is longer, either the copy counts, which is then longer too, or the copy has ended before and does not count. In
//! each case the length has the distribution of one draw.
//!
//! The comparison is exact if answers are streamed (`rollout.stream`). Otherwise the tokens of the running request are
//! estimated from the measured speed of its server.

use std::sync::Arc;

use rolldock_loadbalancer::Permit;

use super::{SampleRequest, Sent, Tries, Trouble};
use crate::engine::{Generation, Progress};
use crate::rollout::stragglers::{Course, Movable, Order};
use crate::rollout::waits::Phase;

impl<'a> SampleRequest<'a> {
    /// Whether a second server may be asked for the sample.
    pub(super) fn copies(&self, tries: &Tries) -> bool {
        self.context.movable.as_ref().is_some_and(|movable| movable.copies()) && self.can_move(tries)
    }

    /// Asks a server, and a second one if the first is slow. `sent` is the request to the first server. It is replaced by
    /// the copy if the copy's answer counts.
    pub(super) async fn ask_twice(
        &self,
        permit: Permit,
        sent: &mut Sent<'a>,
        tries: &Tries,
    ) -> Result<Generation, Trouble> {
        let (request_id, progress) = (self.request_id(tries), sent.progress.clone());
        let copy_id: Arc<str> = format!("{request_id}-copy").into();
        let Some(movable) = &self.context.movable else {
            return self.ask(permit, request_id, tries, &progress).await;
        };
        let course = movable.course(sent.server);
        let mut entered = movable.enter(self.begun(sent.server, tries, self.streamed(&progress)));
        let mut first = Box::pin(self.ask(permit, request_id, tries, &progress));
        let permit = tokio::select! {
            biased;
            answer = &mut first => return answer,
            permit = async { self.permit_of_copy(entered.ordered().await, sent, tries).await } => permit,
        };
        let Some(permit) = permit else { return first.await };
        self.context.meter.hedged();
        let mut second = self.sent(&permit);
        second.asked.is_hedge = true;
        let (course_of_copy, progress_of_copy) = (movable.course(second.server), second.progress.clone());
        let mut copy = Box::pin(self.ask(permit, copy_id, tries, &progress_of_copy));
        tokio::select! {
            biased;
            answer = &mut first => {
                let counts = match &answer {
                    Ok(generation) => is_ahead(generation, self.tokens(movable, course_of_copy, &progress_of_copy)),
                    Err(trouble) => matches!(trouble, Trouble::Cut),
                };
                if counts {
                    return answer;
                }
                match copy.await {
                    Ok(generation) => {
                        replace(sent, second).asked.end(&answer);
                        Ok(generation)
                    }
                    failure => {
                        second.asked.end(&failure);
                        answer
                    }
                }
            }
            answer = &mut copy => match answer {
                Ok(generation) if is_ahead(&generation, self.tokens(movable, course, &progress)) => {
                    drop(first);
                    drop(replace(sent, second));
                    Ok(generation)
                }
                answer => {
                    second.asked.end(&answer);
                    first.await
                }
            },
        }
    }

    /// The permit of a copy; `None` if no server has a place for the copy.
    async fn permit_of_copy(&self, order: Order, sent: &Sent<'_>, tries: &Tries) -> Option<Permit> {
        let _waiting = self.context.waits.enter(Phase::Permit, self.subject());
        let failed = tries.failed_on.iter().copied();
        let avoid = order.avoid.into_iter().chain([sent.server]).chain(failed).collect();
        self.context.balancer.acquire(self.permit_request(tries, avoid)).await.ok()
    }

    fn streamed(&self, progress: &Progress) -> Option<Progress> {
        self.context.config.carry.stream.then(|| progress.clone())
    }

    /// The tokens of a running request.
    fn tokens(&self, movable: &Movable, course: Course, progress: &Progress) -> f64 {
        let streamed = self.streamed(progress);
        streamed.map_or_else(|| movable.tokens(course), |progress| progress.tokens() as f64)
    }
}

/// Replaces the request whose answer does not count, and returns it.
fn replace<'a>(sent: &mut Sent<'a>, copy: Sent<'a>) -> Sent<'a> {
    let mut replaced = std::mem::replace(sent, copy);
    (sent.asked.is_hedge, replaced.asked.is_hedge) = (false, true);
    replaced
}

/// Whether an answer has at least as many tokens as a running request.
fn is_ahead(generation: &Generation, running: f64) -> bool {
    let tokens: usize = generation.samples.iter().map(|sample| sample.response_ids.len()).sum();
    tokens as f64 >= running
}

#[cfg(test)]
mod tests;
