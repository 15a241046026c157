//! Calls in flight.

use std::sync::Arc;

use super::live::NotAdmitted;
use super::{Admitted, Book, End, One};

/// A call in flight. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) one: Arc<One>,
    pub(crate) admitted: Admitted,
    body: u128,
    book: Arc<Book>,
}

impl InFlight {
    /// Begins a call that draws at most `asked` tokens. Waits until the calls in flight leave it enough turns
    /// and tokens. Cancel-safe.
    ///
    /// # Errors
    /// The limit that ends the trajectory.
    pub(crate) async fn begin(one: &Arc<One>, book: &Arc<Book>, body: u128, asked: u32) -> Result<Self, End> {
        loop {
            let released = one.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            let admitted = one.live.lock().admit(&one.spec.limits, body, asked);
            match admitted {
                Ok(admitted) => {
                    return Ok(Self { one: Arc::clone(one), admitted, body, book: Arc::clone(book) });
                }
                Err(NotAdmitted::End(end)) => return Err(end),
                Err(NotAdmitted::Later) => released.await,
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.one.live.lock().release(self.body, self.admitted.tokens);
        self.one.released.notify_waiters();
        self.book.changed(&self.one);
    }
}
