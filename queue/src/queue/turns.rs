//! Turns limit how much work on the whole queue runs at the same time.
//!
//! Snapshots, checks and exports use megabytes of memory and a processor while they run. Therefore only a few
//! of them run at the same time, even if many clients request them. Each of them runs on its own thread.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::TransferQueue;
use crate::error::QueueError;
use crate::tasks;

/// The number of turns at the same time. With two turns, a short job does not wait for a single long job.
const TURNS: usize = 2;

/// The turns of a queue.
#[derive(Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

impl TransferQueue {
    /// Waits for a turn, and runs `work` on its own thread. `work` must not wait for a client.
    ///
    /// Cancel-safe until the turn begins. After that, the work continues even if the call is dropped.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let turn = Arc::clone(&self.inner.turns.0).acquire_owned().await.map_err(|_| QueueError::Stopping)?;
        let working = tasks::on_own_thread(name, move || {
            let _turn = turn;
            work()
        });
        let outcome = working.map_err(QueueError::io("start a thread", name))?;
        outcome.await.map_err(|_| QueueError::Arrow { reason: format!("the work on {name} panicked") })?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use futures::future::{join, join_all};

    use super::*;
    use crate::QueueConfig;

    #[tokio::test]
    async fn a_few_run_at_a_time_and_the_others_after_them() {
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begun, begins) = channel();
        let (go, wait) = channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        let work = || {
            let (running, most, begun, wait) =
                (Arc::clone(&running), Arc::clone(&most), begun.clone(), Arc::clone(&wait));
            queue.in_turn("test", move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // The receiver waits only for the first `TURNS` messages, and may no longer exist.
                let _ = begun.send(());
                wait.lock().recv().unwrap();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        };
        let works = join_all((0..9).map(|_| work()));
        let driving = tasks::blocking("test", move || {
            (0..TURNS).for_each(|_| begins.recv().unwrap());
            (0..9).for_each(|_| go.send(()).unwrap());
        });
        let (done, driven) = join(works, driving).await;
        driven.unwrap();
        assert!(done.into_iter().all(|done| done.is_ok()));
        assert_eq!((most.load(Ordering::SeqCst), running.load(Ordering::SeqCst)), (TURNS, 0));
    }
}
