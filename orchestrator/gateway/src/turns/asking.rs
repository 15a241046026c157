//! Counts the tokens of a request once, whether it is answered, fails or is dropped.

use tokio::time::Instant;

use crate::calls::CallError;
use crate::trajectories::One;

/// A request for tokens that an engine works on. If this is dropped before its end is reported, the request was
/// given up.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    one: &'a One,
    since: Instant,
    is_counted: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn begin(one: &'a One) -> Self {
        Self { one, since: Instant::now(), is_counted: false }
    }

    /// Counts the tokens of an answer. A request that failed before the engine can have begun it has no
    /// tokens.
    pub(super) fn counted<T>(
        mut self,
        answer: Result<T, CallError>,
        tokens: impl Fn(&T) -> usize,
    ) -> Result<T, CallError> {
        self.is_counted = match &answer {
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
        if !self.is_counted {
            self.one.gave_up(self.since.elapsed());
        }
    }
}
