//! The queue over HTTP: JSON for control, Arrow IPC streams for rows.
//!
//! Any HTTP client and any Arrow library can use it; `openapi.json` beside this crate is the contract, and
//! the server gives it out at `/openapi.json`. A taken batch says itself what its rows are: the columns
//! `_handle`, `_group` and `_policy_version` stand beside those that were put.
//!
//! # Why a lost connection loses nothing
//! A put has a token, so that repeating it changes nothing; so does repeating an ack. A take whose answer
//! does not reach the client whole gives its rows back, and what reached a client that died comes back with
//! the lease's expiry.

mod body;
mod client;
mod config;
mod connection;
mod link;
mod service;

pub use client::RemoteQueue;
pub use config::RemoteConfig;
pub use service::{ServiceConfig, answer, serve};
