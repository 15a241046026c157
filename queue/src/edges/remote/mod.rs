//! The queue over HTTP: JSON for control, Arrow IPC streams for rows.
//!
//! Any HTTP client with any Arrow library can use the interface. The contract is this crate's `openapi.json`,
//! which the server also returns at `/openapi.json`. A taken batch describes its own rows: in addition to the
//! columns that were put, it has `_handle`, `_group` and `_policy_version`.
//!
//! # Why a lost connection loses nothing
//! A put has a token, so repeating it changes nothing. Repeating an ack changes nothing either. If the answer
//! to a take cannot be sent whole, the take's rows are given back. Rows that reached a client that died
//! become ready again when their lease expires.

mod body;
mod client;
mod config;
mod connection;
mod link;
mod service;

pub use client::RemoteQueue;
pub use config::RemoteConfig;
pub use service::{ServiceConfig, answer, serve};
