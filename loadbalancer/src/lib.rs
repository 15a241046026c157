//! Permits, routing and health for a fleet of inference servers.
//!
//! A caller that wants to send a request of n samples [acquires](LoadBalancer::acquire) a [`Permit`] of weight n. The
//! permit names a server; while it lives, the server has n places less. Everything else follows from where the
//! permit is when it ends: dropped (cancelled), or [finished](Permit::finish) with an [`Outcome`] that feeds the
//! server's breaker.
//!
//! # Invariants
//! [`invariants`] has them as functions.
//! - Permits out of a server never exceed its capacity, and a permit is returned exactly once, whatever happens to
//!   its holder: it is an RAII guard, and a grant that meets a cancelled waiter returns by itself.
//! - A server that dies starts a new [`Epoch`]. Permits of the old one are [revoked](Permit::revoked), and returning
//!   them changes nothing in the new one.
//! - A permit of weight n is granted whole. Whoever waits first and fits nowhere keeps the one server that is nearest to
//!   having room for it: later and lighter requests do not overtake it there, and have all others.
//! - Nobody waits for what cannot come: a request that no server of the fleet could hold, dead ones included since they may
//!   come back, fails at once, also when the fleet changes while it waits.
//! - A server takes permits only with the weights that were announced last: one that comes back or joins takes its first
//!   after it has them.
//! - Waiting is bounded in number ([`BalancerConfig::waiting_max`]) and in time ([`PermitRequest::deadline`]).
//!
//! [`update`] gives the fleet new weights. [`proxy`] is all of it as a server of its own.
//!
//! # Deliberately absent
//! Apart from the proxy: sending requests (the caller does), retries (the caller owns its attempts), and any task of its
//! own: the [`Monitor`] runs where its owner spawns it.

mod adaptive;
pub mod admin;
mod balancer;
mod breaker;
mod config;
pub mod control;
mod error;
mod exhaustion;
mod gate;
pub mod invariants;
pub mod membership;
mod metered;
mod monitor;
mod permit;
pub mod policy;
pub mod proxy;
mod server;
mod snapshot;
mod speed;
pub mod update;

pub use adaptive::AdaptiveConfig;
pub use balancer::LoadBalancer;
pub use config::{AffinityConfig, BalancerConfig, PermitRequest, Policy, Priority, ServerSpec};
pub use control::{ControlError, EngineControl, EngineLoad, HttpControl, PauseMode, ServerRef};
pub use error::{BalancerError, ErrorClass};
pub use exhaustion::is_exhaustion;
pub use gate::Hold;
pub use metered::{aborts_confirmed, aborts_sent};
pub use monitor::{Monitor, MonitorConfig, Probe};
pub use permit::{Outcome, Permit};
pub use server::{AdminState, Epoch, ServerId, ServerState};
pub use snapshot::{FleetSnapshot, Outcomes, ServerSnapshot};
