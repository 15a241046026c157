//! Policy versions: how new weights come into a run.
//!
//! ```text
//!  trainer --POST /v1/policy/announce--> face ----+
//!          --step-7/READY--------------> watched -+-> PolicyState --newest--> Updates --> servers
//!          (in this process) announce_next -------+    ^   |  ^                  |
//!                                                      |   |  +--- published ----+--> the run
//!                        GET /v1/policy/wait, display -+   +---> callers
//! ```
//!
//! [`PolicyState`] knows which version is announced and which one the servers have. [`Announcements`] are the
//! sources that tell it. [`Updates`] brings the newest one to the servers, through whatever implements
//! [`ApplyVersion`], at the moment that the recipe's mode allows, and tells the run.
//!
//! # Invariants
//! Versions rise; one number is one set of weights. The servers' version is published after some server has
//! it, and never passes the announced one. Every wait of a caller ends at its own deadline or with the run.
//!
//! # Deliberately absent
//! - Weights. An announcement says where they are or how they come; they go from trainer to server.
//! - What becomes of work that is too old: the rollout decides that, from the versions that it reads here.
//! - A queue of announcements. A run that is two versions behind needs the newest, not the one between.

mod announcement;
mod config;
mod error;
mod face;
mod sources;
mod state;
mod updates;
mod watched;
mod weights;

pub use announcement::{AnnounceError, Announced, version_of_label};
pub use config::{PolicyMode, PolicyUpdate, UpdateMethod, UpdatePause};
pub use error::PolicyError;
pub use sources::{Announcements, SourcesConfig};
pub use state::{PolicyState, PolicyTerms, VersionAge, Versions};
pub use updates::{
    Applied, ApplyVersion, FollowVersion, Missed, PolicyStatus, UpdateProgress, UpdateState, Updates,
};
pub use weights::{FleetUpdater, update_config};

pub use rolldock_loadbalancer::update::Announcement;
