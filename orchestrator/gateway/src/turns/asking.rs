//! Reports each request that an engine may have begun exactly once: with its tokens if it was answered, and otherwise as
//! given up.

use rolldock_loadbalancer::{LoadBalancer, ServerId};
use tokio::time::Instant;

use crate::calls::CallError;
use crate::trajectories::One;

/// A request for tokens that is in progress. If it is dropped before [`Self::settle`] has seen its end, it is reported
/// as given up.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    one: &'a One,
    /// The server that is asked, and the balancer that knows when it stood still.
    of: (&'a LoadBalancer, ServerId),
    since: Instant,
    is_settled: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn begin(one: &'a One, of: (&'a LoadBalancer, ServerId)) -> Self {
        Self { one, of, since: Instant::now(), is_settled: false }
    }

    /// Reports the tokens of an answer. A request that failed before the engine could begin it is not reported. Any other
    /// failed request is reported as given up.
    pub(super) fn settle<T>(
        mut self,
        answer: Result<T, CallError>,
        tokens: impl Fn(&T) -> usize,
    ) -> Result<T, CallError> {
        self.is_settled = match &answer {
            Ok(answer) => {
                self.one.has_drawn(tokens(answer) as u64, self.since.elapsed());
                true
            }
            Err(error) => !matches!(error, CallError::Failed { .. } | CallError::Bad { .. }),
        };
        answer
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            let (balancer, server) = self.of;
            let after = self.since.elapsed();
            let still = balancer.stood_still(server, self.since);
            self.one.gave_up(after, after.saturating_sub(still));
        }
    }
}
