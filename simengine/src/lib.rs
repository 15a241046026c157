//! A simulated vLLM server, good enough to develop a scheduler on.
//!
//! Two faces of the same engine: [`SimServer`] in process, on real time or on a paused `tokio` clock, and
//! [`http::serve`] over loopback sockets with vLLM's endpoints, bodies and quirks.
//!
//! The engine batches continuously under a sequence limit and a KV-block budget, shares prompt prefixes,
//! preempts by recomputation, and computes in integer nanoseconds when the next thing happens; between
//! events the batch does not change, so thousands of decode steps are one multiplication. There is one task
//! and one timer per server, none per request or token. What is said is a pure function of (simulation
//! seed, prompt, sample seed): see [`Workload`].
//!
//! # Invariants
//! The module [`invariants`] names them: batch and cache bounds, every admitted sample ends exactly once,
//! every token is counted once.
//!
//! # Deliberately absent
//! Sampling: temperature and its kin are checked and ignored. Weights: a version is a label. Speculative
//! decoding, LoRA, multi-modal input and pooling endpoints. Generated tokens do not enter the prefix cache.

mod answer;
mod codec;
mod config;
mod engine;
mod error;
mod fault;
mod hash;
pub mod http;
pub mod invariants;
pub mod request;
mod server;
pub mod stats;
pub mod workload;

pub use answer::{Answer, AnswerKey, AnswerTable, NoAnswers};
pub use codec::{Codec, GuessingKey, TextCodec};
pub use config::ServerConfig;
pub use engine::PauseMode;
pub use error::SimError;
pub use fault::Fault;
pub use request::{FinishReason, Resumed, SimChoice, SimChunk, SimRequest, SimResponse, VersionSpan};
pub use server::{Phase, SimServer};
pub use workload::{LengthConfig, Workload, WorkloadConfig};
