//! The queue over HTTP: JSON for control, Arrow IPC streams for rows.
//!
//! Any HTTP client and any Arrow library can use it; `openapi.json` beside this crate is the contract, and
//! the server gives it out at `/openapi.json`. A taken batch says itself what its rows are: the columns
//! [`HANDLE`], [`GROUP`] and [`POLICY_VERSION`] stand beside those that were put.
//!
//! # Why a lost connection loses nothing
//! A put has a token, so that repeating it changes nothing; so does repeating an ack. A take whose answer
//! does not reach the client whole gives its rows back, and what reached a client that died comes back with
//! the lease's expiry.

mod body;
mod client;
mod config;
mod connection;
pub(crate) mod ipc;
mod link;
mod service;
pub(crate) mod wire;

pub use client::RemoteQueue;
pub use config::RemoteConfig;
pub use ipc::{GROUP, HANDLE, KEY, POLICY_VERSION, RECORD, TAGS};
pub(crate) use ipc::{common_schema, conformed};
pub use service::{ServiceConfig, answer, serve};
