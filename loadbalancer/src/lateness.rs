//! Time limits that do not count the time for which this process was late.
//!
//! On an overloaded machine, and after a stop of the process, a time limit may end before any task has read
//! an answer that arrived in time. Such a limit shows nothing about the server. A wait is therefore counted
//! in slices. A slice counts with its planned length. A slice whose end is noticed late does not count at
//! all, because an answer that arrived during the slice may be unread. The number of slices that do not count
//! is bounded, so a process that is always late still ends its waits.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Number of slices of a wait, unless they would be shorter or longer than the bounds below.
const SLICES: u32 = 20;
/// The shortest slice. The end of a slice is late if it is noticed at least one slice later. Shorter delays
/// are usual on a busy machine.
const SLICE_MIN: Duration = Duration::from_millis(50);
/// The longest slice.
const SLICE_MAX: Duration = Duration::from_secs(1);
/// Maximum time that is not counted because slices were late, as a multiple of the limit. This time is also
/// measured in planned lengths.
const LATE_FACTOR_MAX: u32 = 3;

/// The time limit of a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time limit is over")]
pub struct Overdue;

/// The result of `future`, or [`Overdue`] if it takes longer than `limit`. The limit does not count the time
/// for which this process was late.
///
/// As cancel-safe as `future`.
///
/// # Errors
/// [`Overdue`].
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Overdue> {
    let mut future = pin!(future);
    let slice = (limit / SLICES).clamp(SLICE_MIN, SLICE_MAX);
    let (mut left, mut late_left) = (limit, limit.saturating_mul(LATE_FACTOR_MAX));
    loop {
        let part = slice.min(left);
        let due = Instant::now() + part;
        if let Ok(done) = timeout_at(due, future.as_mut()).await {
            return Ok(done);
        }
        if due.elapsed() > slice && !late_left.is_zero() {
            late_left = late_left.saturating_sub(part);
            continue;
        }
        left = left.saturating_sub(part);
        if left.is_zero() {
            return Err(Overdue);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_wait_on_time_ends_at_its_limit_and_not_before() {
        let began = Instant::now();
        assert_eq!(within(LIMIT, std::future::pending::<()>()).await, Err(Overdue));
        assert_eq!(began.elapsed().as_secs(), LIMIT.as_secs());
        let answer = async { tokio::time::sleep(LIMIT - Duration::from_millis(10)).await };
        assert_eq!(within(LIMIT, answer).await, Ok(()));
        assert_eq!(within(Duration::ZERO, async { 7 }).await, Ok(7), "an answer that is there counts");
        assert_eq!(within(Duration::ZERO, std::future::pending::<()>()).await, Err(Overdue));
    }

    /// The answer arrives in time, but the task that passes it on is as late as the whole process.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_late_counts_as_an_answer() {
        let (pass_on, answer) = oneshot::channel();
        let mut waiting = Box::pin(within(LIMIT, answer));
        assert!(waiting.as_mut().now_or_never().is_none());
        tokio::time::advance(20 * LIMIT).await;
        assert!(waiting.as_mut().now_or_never().is_none(), "the limit has passed, for this process alone");
        pass_on.send(7).unwrap();
        assert_eq!(waiting.await, Ok(Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_end_also_in_a_process_that_is_always_late() {
        let mut waiting = Box::pin(within(LIMIT, std::future::pending::<()>()));
        let mut turns = 0;
        while waiting.as_mut().now_or_never().is_none() {
            tokio::time::advance(LIMIT).await;
            turns += 1;
        }
        assert_eq!(turns, SLICES * (1 + LATE_FACTOR_MAX));
    }
}
