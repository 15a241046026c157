//! The gateway's background work: it ends trajectories whose time is over, and puts the rows of ended groups
//! into the queue.

mod puts;
mod rows;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::core::Core;

pub(crate) use puts::Puts;
pub use rows::schema;

/// Until `end` is cancelled, ends trajectories that reach a time limit, and gives up rewards that are late.
/// Cancel-safe.
pub(crate) async fn watch(core: Arc<Core>, end: CancellationToken) {
    while let Some(one) = end.run_until_cancelled(core.book.alarm()).await {
        let deadline = one.live.lock().deadline(&one.spec.limits);
        match deadline {
            Some((at, why)) if at <= tokio::time::Instant::now() => match why {
                Some(why) => drop(core.end(&one, why)),
                None => core.give_up_reward(&one),
            },
            // The trajectory has changed since the alarm was set, so its alarm is set again.
            _ => core.book.changed(&one),
        }
    }
}
