//! Policy versions: how a run takes announcements of new weights and brings the weights to its servers.
//!
//! ```text
//!  trainer --POST /v1/policy/announce--> face ----+
//!          --step-7/READY--------------> watched -+-> PolicyState --newest--> Updates --> servers
//!          (in this process) announce_next -------+    ^   |  ^                  |
//!                                                      |   |  +--- published ----+--> the run
//!                        GET /v1/policy/wait, display -+   +---> callers
//! ```
//!
//! [`PolicyState`] holds the announced version and the version that the servers have. [`Announcements`] opens
//! the sources through which a trainer announces versions. [`Updates`] brings the newest announced version to
//! the servers, through an implementation of [`ApplyVersion`], when the recipe's mode allows it. Then it
//! notifies the run.
//!
//! # Invariants
//! Versions only rise, and one number names one set of weights. A version is published once at least one
//! server has it, or if no server is alive. The published version is never above the announced version. A
//! client's wait ends at its own deadline or with the run.
//!
//! # Deliberately absent
//! - Weights: an announcement only states where they are or how servers get them.
//! - Decisions about work that is too old: the rollout makes them, from the versions that it reads here.
//! - A queue of announcements: a run that is two versions behind needs only the newest one.

mod announcement;
mod config;
mod error;
mod face;
mod sources;
mod state;
mod updates;
mod watched;
mod weights;

pub use announcement::{AnnounceError, Announced};
pub use config::{PolicyMode, PolicyUpdate, UpdateMethod, UpdatePause};
pub use error::PolicyError;
pub use sources::{Announcements, SourcesConfig};
pub use state::{PolicyState, PolicyTerms, VersionAge, Versions};
pub use updates::{
    Applied, ApplyVersion, FollowVersion, Missed, PolicyStatus, UpdateProgress, UpdateState, Updates,
};
pub use weights::{FleetUpdater, update_config};

pub use rolldock_loadbalancer::update::Announcement;
