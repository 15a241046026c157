//! Permits, routing and health for a fleet of inference servers.
//!
//! A server has a number of *places*, its capacity, and each running sample takes one place. A caller that
//! wants to send a request of n samples [acquires](LoadBalancer::acquire) a [`Permit`] of weight n. The
//! permit names a server and takes n of its places until it is dropped. A caller that has an answer
//! [finishes](Permit::finish) the permit with an [`Outcome`], which the server's breaker counts. A permit
//! that is only dropped counts as a cancelled request.
//!
//! # Invariants
//! The functions of the module [`invariants`] check the invariants that a snapshot can show.
//! - The places taken on a server exceed its capacity only after the capacity was lowered.
//! - A permit is returned exactly once: it is an RAII guard. If a request is cancelled while its grant
//!   arrives, the places are returned, too.
//! - When a server dies, its *life* ends and its [epoch](server::Epoch), the number of the life, rises. The
//!   permits of the old life are [revoked](Permit::revoked). Returning these permits changes nothing in the
//!   new life.
//! - A permit of weight n is granted for all n samples at once. A waiting request that fits on no server
//!   reserves the server that is nearest to having room for it. Requests behind it get no place on a reserved
//!   server. They may use all other servers.
//! - A request that no server of the fleet could hold does not wait: it fails immediately, or as soon as a
//!   change of the fleet makes it too heavy. Dead servers count as servers, since they may return.
//! - Permits are granted on a server only if it has the weights that were announced last. This also holds for
//!   a server that joins, or that returns after its death.
//! - The number of waiting requests is bounded ([`BalancerConfig::waiting_max`]), and so is the time that a
//!   request waits ([`PermitRequest::deadline`]).
//!
//! The module [`update`] brings new weights to the fleet. The module [`proxy`] offers the balancer as an HTTP
//! server.
//!
//! # Deliberately absent
//! Apart from the proxy, this crate does not send the callers' requests and does not retry them. Sending and
//! retrying are up to the caller. The crate spawns a task only for weight updates. The owner of the
//! [`Monitor`] spawns the monitor.

mod adaptive;
pub mod admin;
mod balancer;
mod config;
pub mod control;
mod error;
mod exhaustion;
pub mod invariants;
mod lateness;
pub mod membership;
mod metered;
mod monitor;
mod outcome;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod snapshot;
mod tasks;
pub mod update;

pub use adaptive::AdaptiveConfig;
pub use balancer::{LoadBalancer, Permit};
pub use config::{BalancerConfig, PermitRequest, Priority, ServerSpec};
pub use control::{ControlError, EngineControl, EngineLoad, HttpControl, PauseMode, ServerRef};
pub use error::BalancerError;
pub use exhaustion::is_exhaustion;
pub use lateness::{Overdue, within};
pub use metered::{aborts_confirmed, aborts_sent};
pub use monitor::{Monitor, MonitorConfig, Probe};
pub use outcome::{Outcome, Unanswered};
pub use policy::Policy;
pub use server::ServerId;
