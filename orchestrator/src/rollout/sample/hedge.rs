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
//! The comparison is exact if answers are streamed (`rollout.carry.stream`). Otherwise the tokens of the running request are
//! estimated from the measured speed of its server.

use std::pin::pin;
use std::sync::Arc;

use rolldock_loadbalancer::Permit;

use super::sent::Sent;
use super::{SampleRequest, Tries, Trouble};
use crate::engine::Generation;
use crate::rollout::stragglers::{Course, Entered, Movable};
use crate::rollout::waits::Phase;

/// The end of a request and of its copy.
struct Ended {
    /// The answer that counts.
    answer: Result<Generation, Trouble>,
    /// Whether it is the copy's answer.
    is_of_copy: bool,
    /// The answer that does not count, if it has come.
    other: Option<Result<Generation, Trouble>>,
}

impl<'a> SampleRequest<'a> {
    /// The requests that can be copied, if a second server may be asked for the sample.
    pub(super) fn copied(&self, tries: &Tries) -> Option<&'a Arc<Movable>> {
        let movable = self.context.movable.as_ref();
        movable.filter(|movable| movable.copies() && self.can_move(tries))
    }

    /// Asks a server, and a second one if the first is slow. Returns the answer that counts, and its request.
    pub(super) async fn ask_twice(
        &self,
        sent: Sent<'a>,
        tries: &Tries,
        movable: &Arc<Movable>,
    ) -> (Sent<'a>, Result<Generation, Trouble>) {
        let mut copy = None;
        let Ended { answer, is_of_copy, other } = self.race(&sent, &mut copy, tries, movable).await;
        let Some(copy) = copy else { return (sent, answer) };
        let (mut counts, mut loses) = if is_of_copy { (copy, sent) } else { (sent, copy) };
        counts.set_hedge(false);
        loses.set_hedge(true);
        if let Some(other) = other {
            loses.ended(&other);
        }
        (counts, answer)
    }

    /// Runs a request until its answer or the answer of its copy counts.
    async fn race(
        &self,
        sent: &Sent<'a>,
        copy: &mut Option<Sent<'a>>,
        tries: &Tries,
        movable: &Arc<Movable>,
    ) -> Ended {
        let alone = |answer| Ended { answer, is_of_copy: false, other: None };
        let request_id = self.request_id(tries);
        let copy_id: Arc<str> = format!("{request_id}-copy").into();
        let course = movable.course(sent.permit.server());
        let mut entered = movable.enter(self.begun(sent, tries));
        let mut first = pin!(self.ask(sent, request_id, tries));
        let permit = tokio::select! {
            biased;
            answer = &mut first => return alone(answer),
            permit = self.permit_of_copy(&mut entered, sent, tries) => permit,
        };
        let Some(permit) = permit else { return alone(first.await) };
        self.context.meter.hedged();
        let copy = copy.insert(Sent::new(self, permit));
        copy.set_hedge(true);
        let course_of_copy = movable.course(copy.permit.server());
        let mut second = pin!(self.ask(copy, copy_id, tries));
        let (answer, is_of_copy) = tokio::select! {
            biased;
            answer = &mut first => (answer, false),
            answer = &mut second => (answer, true),
        };
        let running = match is_of_copy {
            true => self.tokens(movable, course, sent),
            false => self.tokens(movable, course_of_copy, copy),
        };
        let counts = match &answer {
            Ok(generation) => is_ahead(generation, running),
            Err(trouble) => !is_of_copy && matches!(trouble, Trouble::Cut),
        };
        if counts {
            return Ended { answer, is_of_copy, other: None };
        }
        let other = if is_of_copy { first.await } else { second.await };
        match is_of_copy || other.is_ok() {
            true => Ended { answer: other, is_of_copy: !is_of_copy, other: Some(answer) },
            false => Ended { answer, is_of_copy, other: Some(other) },
        }
    }

    /// Waits until the request must be copied. Returns the permit of the copy, or `None` if no server has a place.
    async fn permit_of_copy(&self, entered: &mut Entered, sent: &Sent<'_>, tries: &Tries) -> Option<Permit> {
        let order = entered.ordered().await;
        let _waiting = self.context.waits.enter(Phase::Permit, self.subject());
        let failed = tries.failed_on.iter().copied();
        let avoid = order.avoid.into_iter().chain([sent.permit.server()]).chain(failed).collect();
        self.context.balancer.acquire(self.permit_request(tries, avoid)).await.ok()
    }

    /// The tokens of a running request.
    fn tokens(&self, movable: &Movable, course: Course, sent: &Sent<'_>) -> f64 {
        match self.context.config.carry.stream {
            true => sent.progress.tokens() as f64,
            false => movable.tokens(course),
        }
    }
}

/// Whether an answer has at least as many tokens as a running request.
fn is_ahead(generation: &Generation, running: f64) -> bool {
    let tokens: usize = generation.samples.iter().map(|sample| sample.response_ids.len()).sum();
    tokens as f64 >= running
}

#[cfg(test)]
mod tests;
