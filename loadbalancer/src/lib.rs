//! Permits, routing and health for a fleet of inference servers.
//!
//! A caller that wants to send a request of n samples [acquires](LoadBalancer::acquire) a [`Permit`] of
//! weight n. The permit names a server; while the permit lives, the server has n places less. When the caller
//! drops the permit, its request counts as cancelled; when the caller [finishes](Permit::finish) it, its
//! [`Outcome`] feeds the server's breaker.
//!
//! # Invariants
//! The module [`invariants`] has them as functions.
//! - The permits out of a server never exceed its capacity, and a permit is returned exactly once, whatever
//!   happens to its holder: it is an RAII guard, and a grant that arrives at a cancelled request returns its
//!   places.
//! - A server that dies starts a new [epoch](server::Epoch). Permits of the old one are
//!   [revoked](Permit::revoked), and returning them changes nothing in the new one.
//! - A permit of weight n is granted whole. The first waiting request that fits nowhere reserves the server
//!   that is nearest to having room for it: later and lighter requests do not overtake it there, and may use
//!   all other servers.
//! - No request waits for what cannot come. A request that no server of the fleet could hold fails at once,
//!   also when the fleet changes while it waits. Dead servers count, since they may come back.
//! - A server takes permits only with the weights that were announced last. A server that comes back or joins
//!   takes its first permit after it has them.
//! - Waiting is bounded in number ([`BalancerConfig::waiting_max`]) and in time
//!   ([`PermitRequest::deadline`]).
//!
//! The module [`update`] gives the fleet new weights; [`proxy`] offers the balancer as a server of its own.
//!
//! # Deliberately absent
//! Apart from the proxy: sending requests (the caller does), retries (the caller owns its attempts), and
//! tasks of its own: the [`Monitor`] runs where its owner spawns it.

mod adaptive;
pub mod admin;
mod balancer;
mod config;
pub mod control;
mod error;
mod exhaustion;
pub mod invariants;
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
pub use metered::{aborts_confirmed, aborts_sent};
pub use monitor::{Monitor, MonitorConfig, Probe};
pub use outcome::Outcome;
pub use policy::Policy;
pub use server::ServerId;
