//! The response tokens of this process. Each token is in exactly one bucket.
//!
//! A request counts its generated tokens as soon as their number is known. The tokens are then in flight for
//! their dispatch. [`Dispatches`](super::Dispatches) moves them to their last bucket when it counts the fate
//! of the dispatch. Tokens that become useless earlier, such as those of a failed attempt, are moved
//! immediately.
//!
//! # Invariants
//! Conservation ([`token_conservation`]) always holds, over the step and over the run. The tokens in flight
//! are the tokens of the open dispatches. A request that is dropped after its dispatch has ended counts as
//! cut.
//!
//! If both locks are held, the lock of the board is taken before the lock of the token book.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use rolldock_dispatch::invariants::{Violation, token_conservation};
use rolldock_dispatch::{Bucket, DispatchId, TokenTotals, Waste};

/// A number of tokens, and how many of them are estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) tokens: u64,
    pub(crate) estimated: u64,
}

impl Counted {
    /// A number of tokens that is known exactly.
    pub(crate) fn known(tokens: u64) -> Self {
        Self { tokens, estimated: 0 }
    }
}

/// The tokens of an open dispatch.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    /// Tokens that may still be of use.
    live: u64,
    /// Tokens of complete samples that wait for their grades.
    ungraded: u64,
}

#[derive(Debug, Default)]
struct Inner {
    run: TokenTotals,
    step: TokenTotals,
    open: BTreeMap<DispatchId, Open>,
    /// Dispatches whose groups are audited: they run on after their cut.
    audits: BTreeSet<DispatchId>,
    /// The number of probe tokens that are counted already.
    probes: u64,
}

impl Inner {
    /// The kind of waste of a dispatch that is cut off.
    fn cut_as(&self, id: DispatchId) -> Waste {
        if self.audits.contains(&id) { Waste::Audit } else { Waste::Cut }
    }

    fn both(&mut self) -> [&mut TokenTotals; 2] {
        [&mut self.run, &mut self.step]
    }

    fn generate(&mut self, counted: Counted) {
        for totals in self.both() {
            totals.generate(counted.tokens);
            totals.estimated += counted.estimated;
        }
    }

    fn settle(&mut self, bucket: Bucket, tokens: u64) {
        for totals in self.both() {
            totals.settle(bucket, tokens);
        }
    }
}

/// Counts tokens by bucket.
#[derive(Debug, Default)]
pub(crate) struct TokenBook {
    inner: Mutex<Inner>,
}

impl TokenBook {
    /// Continues from the counts of an earlier process.
    pub(crate) fn restore(&self, run: TokenTotals) {
        let mut inner = self.inner.lock();
        inner.run = run;
        inner.step = run.next_step();
    }

    /// Ends the counts of a step and returns them. Tokens that are counted later, such as those of a
    /// validation between two steps, belong to the next step.
    pub(crate) fn begin_step(&self) -> TokenTotals {
        let mut inner = self.inner.lock();
        let next = inner.run.next_step();
        std::mem::replace(&mut inner.step, next)
    }

    /// Enters a dispatch. `brought` is the bucket and the number of the tokens with which the dispatch
    /// begins.
    pub(crate) fn dispatched(&self, id: DispatchId, brought: Option<(Bucket, u64)>) {
        let mut inner = self.inner.lock();
        let mut live = 0;
        if let Some((bucket, tokens)) = brought {
            live = inner.run.bring(bucket, tokens);
            inner.step.bring(bucket, live);
        }
        inner.open.insert(id, Open { live, ungraded: 0 });
    }

    /// Counts tokens that an engine generated for a dispatch.
    pub(crate) fn generated(&self, id: DispatchId, counted: Counted) {
        let mut inner = self.inner.lock();
        inner.generate(counted);
        match inner.open.get_mut(&id) {
            Some(open) => open.live += counted.tokens,
            // Either the request's task was aborted and ended after the dispatch, or its group is audited.
            None => {
                let waste = inner.cut_as(id);
                inner.settle(Bucket::Wasted(waste), counted.tokens);
            }
        }
    }

    /// Counts tokens that an engine generated and that are of no use to their dispatch.
    pub(crate) fn generated_in_vain(&self, counted: Counted, waste: Waste) {
        let mut inner = self.inner.lock();
        inner.generate(counted);
        inner.settle(Bucket::Wasted(waste), counted.tokens);
    }

    /// Counts the tokens of a request that came second to a request for the same sample.
    pub(crate) fn hedged(&self, counted: Counted) {
        for totals in self.inner.lock().both() {
            totals.hedge(counted.tokens);
            totals.estimated += counted.estimated;
        }
    }

    /// Notes that tokens of a dispatch in flight are no longer useful.
    pub(crate) fn lost(&self, id: DispatchId, tokens: u64, waste: Waste) {
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get_mut(&id) else { return };
        let tokens = tokens.min(open.live);
        open.live -= tokens;
        inner.settle(Bucket::Wasted(waste), tokens);
    }

    /// Notes that a complete sample waits for its grade.
    pub(crate) fn awaits_grade(&self, id: DispatchId, tokens: u64) {
        if let Some(open) = self.inner.lock().open.get_mut(&id) {
            open.ungraded += tokens;
        }
    }

    /// Notes that a complete sample does not wait for its grade any more.
    pub(crate) fn grade_is_decided(&self, id: DispatchId, tokens: u64) {
        if let Some(open) = self.inner.lock().open.get_mut(&id) {
            open.ungraded = open.ungraded.saturating_sub(tokens);
        }
    }

    /// Notes that the group of a dispatch is complete and has `tokens` tokens. Other tokens of the dispatch
    /// belong to failed samples and are wasted.
    pub(crate) fn complete(&self, id: DispatchId, tokens: u64) {
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get_mut(&id) else { return };
        let failed = open.live.saturating_sub(tokens);
        open.live -= failed;
        inner.settle(Bucket::Wasted(Waste::FailedAttempt), failed);
    }

    /// Notes that a group is audited: it runs on after its cut. All its tokens count as audit from now on.
    pub(crate) fn audit_began(&self, id: DispatchId) {
        self.inner.lock().audits.insert(id);
    }

    /// Notes that the audit of a group has ended.
    pub(crate) fn audit_ended(&self, id: DispatchId) {
        self.inner.lock().audits.remove(&id);
    }

    /// Ends a dispatch. Its first `kept` tokens go into `bucket`, and the other tokens count as cut off.
    pub(crate) fn ended(&self, id: DispatchId, bucket: Bucket, kept: u64) {
        let mut inner = self.inner.lock();
        let Some(Open { live, ungraded }) = inner.open.remove(&id) else { return };
        let is_cut = bucket == Bucket::Wasted(Waste::Cut);
        if is_cut && inner.audits.contains(&id) {
            inner.settle(Bucket::Wasted(Waste::Audit), live);
            return;
        }
        let kept = if is_cut { 0 } else { kept.min(live) };
        let ungraded = ungraded.min(live - kept);
        inner.settle(bucket, kept);
        inner.settle(Bucket::Wasted(Waste::Ungraded), ungraded);
        inner.settle(Bucket::Wasted(Waste::Cut), live - kept - ungraded);
    }

    /// Notes that tokens in `bucket`, which is held or carried, are too old to continue from.
    pub(crate) fn kept_in_vain(&self, bucket: Bucket, tokens: u64) {
        let mut inner = self.inner.lock();
        let brought = inner.run.bring(bucket, tokens);
        inner.step.bring(bucket, brought);
        inner.settle(Bucket::Wasted(Waste::Stale), brought);
    }

    /// Counts the tokens of a validation.
    pub(crate) fn validated(&self, validation: &TokenTotals) {
        self.inner.lock().both().into_iter().for_each(|totals| totals.validate(validation));
    }

    /// Counts probe tokens. `total` is their number since the start of the process.
    pub(crate) fn probed(&self, total: u64) {
        let mut inner = self.inner.lock();
        let new = total.saturating_sub(inner.probes);
        inner.probes = inner.probes.max(total);
        inner.both().into_iter().for_each(|totals| totals.probe(new));
    }

    /// The counts of the run so far.
    pub(crate) fn run(&self) -> TokenTotals {
        self.inner.lock().run
    }

    /// The counts of the step so far.
    pub(crate) fn step(&self) -> TokenTotals {
        self.inner.lock().step
    }

    /// Checks conservation, and that the tokens in flight are those of `open` dispatches.
    pub(crate) fn check(&self, open: usize) -> Result<(), Violation> {
        let inner = self.inner.lock();
        token_conservation(&inner.run)?;
        token_conservation(&inner.step)?;
        let live: u64 = inner.open.values().map(|open| open.live).sum();
        if (live, live, open) == (inner.run.in_flight, inner.step.in_flight, inner.open.len()) {
            return Ok(());
        }
        Err(Violation(format!(
            "tokens in flight={} in the run and {} in the step, but open dispatches={open} of {} have {live}",
            inner.run.in_flight,
            inner.step.in_flight,
            inner.open.len()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: DispatchId = DispatchId(3);

    fn counted(tokens: u64, estimated: u64) -> Counted {
        Counted { tokens, estimated }
    }

    #[test]
    fn what_a_dispatch_leaves_is_split_by_reason() {
        let book = TokenBook::default();
        book.begin_step();
        book.dispatched(ID, None);
        book.generated(ID, Counted::known(100));
        book.generated_in_vain(counted(9, 4), Waste::LostAnswer);
        book.lost(ID, 10, Waste::FailedAttempt);
        book.awaits_grade(ID, 40);
        book.grade_is_decided(ID, 15);
        assert_eq!(book.check(1), Ok(()));
        book.ended(ID, Bucket::Carried, 50);
        let step = book.step();
        assert_eq!((step.carried, step.wasted.ungraded, step.wasted.cut), (50, 25, 15));
        assert_eq!((step.wasted.lost_answer, step.wasted.failed_attempt), (9, 10));
        assert_eq!((step.generated, step.estimated, step.in_flight), (109, 4, 0));
        book.generated(ID, Counted::known(7));
        assert_eq!(book.step().wasted.cut, 22, "a request that is dropped too late");
        assert_eq!(book.check(0), Ok(()));
    }

    #[test]
    fn all_tokens_of_an_audited_group_are_audit() {
        let book = TokenBook::default();
        book.dispatched(ID, None);
        book.generated(ID, Counted::known(30));
        book.audit_began(ID);
        book.ended(ID, Bucket::Wasted(Waste::Cut), u64::MAX);
        book.generated(ID, counted(12, 12));
        assert_eq!((book.run().wasted.audit, book.run().wasted.cut, book.run().estimated), (42, 0, 12));
        book.audit_ended(ID);
        book.generated(ID, Counted::known(5));
        assert_eq!((book.run().wasted.audit, book.run().wasted.cut), (42, 5));
        assert_eq!(book.check(0), Ok(()));
    }

    #[test]
    fn the_next_step_begins_with_what_is_left() {
        let book = TokenBook::default();
        book.dispatched(ID, None);
        book.generated(ID, Counted::known(60));
        book.ended(ID, Bucket::Carried, u64::MAX);
        assert_eq!(book.begin_step().carried, 60);
        let next = DispatchId(4);
        book.dispatched(next, Some((Bucket::Carried, 60)));
        book.generated(next, Counted::known(5));
        book.complete(next, 62);
        book.ended(next, Bucket::Accepted, u64::MAX);
        let step = book.step();
        assert_eq!((step.earlier, step.generated, step.carried), (60, 5, 0));
        assert_eq!((step.accepted, step.wasted.failed_attempt), (62, 3));
        book.probed(2);
        book.probed(3);
        book.validated(&TokenTotals { generated: 8, probes: 3, ..TokenTotals::default() });
        assert_eq!((book.run().probes, book.run().validation, book.run().generated), (3, 5, 73));
        assert_eq!(book.check(0), Ok(()));
    }
}
