//! A value that many groups watch.
//!
//! It does what a `tokio::sync::watch` channel does, except for the order in which it wakes: a `watch` channel with many
//! receivers wakes them in a random order. Groups that are cut off together would then end in a random order, and the
//! places that they free would go to other requests in each run. A [`Signal`] wakes its waiters in the order in
//! which they began to wait, so a run is reproducible. A `Signal` wakes no waiter if its value stays the same.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A value, and the tasks that wait for a change of it.
#[derive(Debug)]
pub(crate) struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy + PartialEq> Signal<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Replaces the value.
    pub(crate) fn set(&self, value: T) {
        self.change(|_| value);
    }

    /// Replaces the value by a function of it.
    pub(crate) fn change(&self, change: impl FnOnce(T) -> T) {
        let mut value = self.value.lock();
        let changed = change(*value);
        if changed != *value {
            *value = changed;
            drop(value);
            self.changed.notify_waiters();
        }
    }

    /// Completes when the value meets the condition; at once if it does so already. Cancel-safe.
    pub(crate) async fn until(&self, is_met: impl Fn(T) -> bool) {
        loop {
            // The waiter is registered before the value is read, so that it misses no change.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_met(*self.value.lock()) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::stream::{FuturesUnordered, StreamExt};
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn waiters_are_woken_in_the_order_in_which_they_began_to_wait() {
        let signal = Arc::new(Signal::new(0_u64));
        let woken: Arc<Mutex<Vec<u64>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for number in 0..40 {
            let (signal, woken) = (Arc::clone(&signal), Arc::clone(&woken));
            tasks.spawn(async move {
                signal.until(|value| value > number % 2).await;
                woken.lock().push(number);
            });
        }
        tokio::task::yield_now().await;
        for value in [0, 1, 2] {
            signal.set(value);
            tokio::task::yield_now().await;
        }
        while tasks.join_next().await.is_some() {}
        let expected: Vec<u64> = (0..40).step_by(2).chain((1..40).step_by(2)).collect();
        assert_eq!(*woken.lock(), expected);
    }

    #[tokio::test]
    async fn a_condition_that_is_met_needs_no_change() {
        let signal = Signal::new(3_u64);
        signal.until(|value| value == 3).await;
        signal.change(|value| value + 1);
        let mut waiting: FuturesUnordered<_> =
            [3, 4].map(|wanted| signal.until(move |v| v == wanted)).into_iter().collect();
        assert_eq!(waiting.next().await, Some(()));
        assert_eq!(waiting.len(), 1, "the value is not 3 any more");
    }
}
