#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::*;
use crate::outcome::Outcome;
use crate::server::{Hold, ServerState};
use crate::snapshot::ServerSnapshot;
use crate::{BalancerConfig, PauseMode, ServerSpec, invariants};

mod config;
mod fake;
mod hooks;
mod lives;
mod phases;
mod property;
