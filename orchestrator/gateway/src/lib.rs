//! The gateway for agents: it serves the calls of unmodified agents on a fleet of engines, and records each
//! call as a turn of a trajectory, with exactly the token ids that the engine drew.
//!
//! ```text
//!   agent --/t/<capability>/v1/...--> serve --> surfaces --> turns --> calls --> engine
//!                                       |                      |
//!   harness --POST /trajectories----> serve                    v
//!                                       |               trajectories --> store (log of frames)
//!                                       v                      |
//!                                    keeping <-----------------+  --> queue (rows of whole groups)
//! ```
//!
//! [`Gateway::open`] opens the log of trajectories and continues those that are open. [`Gateway::serve`]
//! answers calls, ends trajectories at their limits, and puts the rows of groups that have ended.
//!
//! In a run there is neither a log nor a queue: [`Hosted`] serves agents, and the run itself opens trajectories
//! and takes them out.
//!
//! # Invariants
//! - Sampled tokens are never encoded again: the prompt of a turn is the ids of the path that it continues,
//!   followed by what is new.
//! - A turn is durable before the last byte of its answer is sent. An incomplete turn leaves no record.
//! - A request that is marked as a retry gets the answer of the original request. An equal request without
//!   the mark is a new turn.
//! - Each trajectory has exactly one end, at most one reward, and its rows are put once.
//! - A kill of the process at any moment loses nothing that was acknowledged.
//!
//! # Deliberately absent
//! - TLS and accounts: a capability is all that an agent needs, and engines are on private networks.
//! - Several answers in one request (`n`), images, and conversations that the server keeps.
//! - A copy of a conversation in the queue: rows have ids, and the text is for agents and rewards.

mod answer;
mod calls;
mod config;
mod core;
mod error;
mod hosted;
mod keeping;
mod refusal;
mod serve;
mod settings;
mod store;
mod surfaces;
mod trajectories;
mod turns;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use rolldock_listener::RenderMetrics;
use rolldock_loadbalancer::LoadBalancer;
use rolldock_queue::Queue;
use rolldock_scope::{Scope, blocking};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use config::{Entropy, GatewayConfig, Limits, Sampling, Unrewarded};
pub use error::{ErrorClass, GatewayError, StoreError};
pub use hosted::{Hosted, Opening, Session, Taken};
pub use keeping::schema;
pub use settings::GatewaySettings;
pub use trajectories::{CallMeter, End};

use calls::EngineCalls;
use core::Core;
use keeping::Puts;
use serve::Served;
use trajectories::Settled;
use turns::Maker;

/// Maximum time until a connection to an engine is open.
const CONNECT: Duration = Duration::from_secs(5);

/// An open gateway.
#[derive(Debug)]
pub struct Gateway {
    served: Served,
    queue: Arc<dyn Queue>,
    settled: mpsc::UnboundedReceiver<Settled>,
}

/// Answers the calls of a gateway. Clones can answer calls in other threads.
#[derive(Debug, Clone)]
pub struct GatewayServer {
    served: Served,
}

impl GatewayServer {
    /// Answers at `listener` until `end`, and finishes running calls. Cancel-safe: running calls are dropped.
    pub async fn answer(self, listener: TcpListener, end: CancellationToken) {
        serve::serve(self.served, listener, end).await;
    }
}

impl Gateway {
    /// Opens the log of trajectories, and continues those that are open.
    ///
    /// # Errors
    /// [`GatewayError`]: the directory is in use or damaged, or the configuration is wrong.
    pub async fn open(
        config: GatewayConfig,
        balancer: LoadBalancer,
        queue: Arc<dyn Queue>,
        api_key: Option<Arc<str>>,
        metrics: Option<RenderMetrics>,
    ) -> Result<Self, GatewayError> {
        let fault = config.sampling.fault().or_else(|| config.limits.fault());
        if let Some(fault) = fault {
            return Err(GatewayError::Config(fault));
        }
        let calls = EngineCalls::new(CONNECT, api_key, config.vocab_size)
            .map_err(|error| GatewayError::Client(error.to_string()))?;
        let maker = Arc::new(Maker::new(calls, balancer, config.clone()));
        let (core, settled) = Core::open(config, Scope::new()).await?;
        Ok(Self { served: Served { core, maker, metrics, has_control: true }, queue, settled })
    }

    /// The number of open trajectories. Just after [`Gateway::open`], these are the trajectories of the log.
    pub fn trajectories(&self) -> usize {
        self.served.core.book.counts().0
    }

    /// The server, which answers while the gateway [runs](Self::run).
    pub fn server(&self) -> GatewayServer {
        GatewayServer { served: self.served.clone() }
    }

    /// Serves at `listener` until `end`. Then running calls are finished, and the log is closed.
    pub async fn serve(self, listener: TcpListener, end: CancellationToken) {
        let answering = self.server().answer(listener, end.clone());
        self.run(answering, end).await;
    }

    /// Watches limits and puts rows until `end`, and waits for `answering`, the work of [`GatewayServer`]s. Then it
    /// cancels `end` in any case, closes the log, and returns the result of `answering`.
    pub async fn run<T>(self, answering: impl Future<Output = T>, end: CancellationToken) -> T {
        let Self { served, queue, settled } = self;
        let core = Arc::clone(&served.core);
        let scope = core.scope.clone();
        let watching = scope.spawn("trajectory limits", keeping::watch(Arc::clone(&core), end.clone()));
        let puts = Puts::new(Arc::clone(&core), queue);
        let putting = scope.spawn("trajectory rows", puts.run(settled, end.clone()));
        drop(served);
        let answered = answering.await;
        end.cancel();
        drop(watching);
        // The task has ended or ends now, because `end` is cancelled. An interrupted put is repeated after
        // the next start.
        let _ = putting.await;
        scope.close(CONNECT).await;
        let closing = blocking("gateway log close", move || core.store.close());
        if closing.await.is_err() {
            tracing::error!("the log of trajectories was not closed");
        }
        answered
    }
}
