//! Calls in flight.

use std::sync::Arc;

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
    /// Begins a call.
    ///
    /// # Errors
    /// The limit that ends the trajectory.
    pub(crate) fn begin(one: &Arc<One>, book: &Arc<Book>, body: u128) -> Result<Self, End> {
        let admitted = one.live.lock().admit(&one.spec.limits, body)?;
        Ok(Self { one: Arc::clone(one), admitted, body, book: Arc::clone(book) })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.one.live.lock().release(self.body);
        self.one.released.notify_waiters();
        self.book.changed(&self.one);
    }
}
