//! Objects of Python that columns no longer need.
//!
//! A column of a NumPy array uses the array's memory, and the thread that drops the last column may not hold the
//! GIL. pyo3 puts the objects that such threads drop into one list for the whole process, which has a lock. Suppose
//! that a thread holds this lock while another thread forks. The child does not have the thread that would unlock it.
//! As soon as the child drops an object, it waits for the lock forever. The list in this module belongs to one process:
//! a child makes a list of its own.

use std::mem::{forget, take};
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::runtime::Own;

type Dropped = Mutex<Vec<Py<PyAny>>>;

/// The list of this process. A thread locks it only while it holds the GIL, so a forked child finds it unlocked.
static CURRENT: Mutex<Option<Own<Arc<Dropped>>>> = Mutex::new(None);

fn current(_py: Python<'_>) -> Arc<Dropped> {
    let mut current = CURRENT.lock();
    if let Some(known) = current.as_ref().and_then(Own::get) {
        return Arc::clone(known);
    }
    let own = Arc::<Dropped>::default();
    *current = Some(Own::new(Arc::clone(&own)));
    own
}

/// Releases the objects that threads without the GIL have dropped.
pub(crate) fn release(py: Python<'_>) {
    release_from(&current(py));
}

fn release_from(list: &Dropped) {
    // The list is unlocked before the objects are released, because a finalizer of Python may make columns.
    let dropped = take(&mut *list.lock());
    drop(dropped);
}

/// An object of Python whose memory a column uses. Any thread may drop it. The next [`release`] releases the object.
pub(crate) struct Owner {
    object: Option<Py<PyAny>>,
    dropped: Own<Arc<Dropped>>,
}

impl Owner {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Self {
        let dropped = current(object.py());
        // A caller that makes columns and never puts them does not keep their memory.
        release_from(&dropped);
        Self { object: Some(object.clone().unbind()), dropped: Own::new(dropped) }
    }
}

impl RefUnwindSafe for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        match self.dropped.get() {
            Some(dropped) => dropped.lock().push(object),
            // The column comes from the parent of a fork. The child's reference is never released.
            None => forget(object),
        }
    }
}
