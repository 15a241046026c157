//! A simulated vLLM server that is faithful enough to develop a scheduler with.
//!
//! There are two ways to use the engine. [`SimServer`] runs in process, in real time or on a paused `tokio`
//! clock. [`http::serve`] serves it over loopback sockets with vLLM's endpoints, bodies and quirks.
//!
//! The engine batches continuously under a sequence limit and a KV-block budget, shares prompt prefixes and
//! preempts by recomputation. It computes the time of its next event in integer nanoseconds. Between events
//! the batch does not change, so the cost of thousands of decode steps is computed in one operation. An
//! engine has one task and one timer, regardless of the number of requests and tokens. The tokens of a sample
//! are a pure function of (simulation seed, prompt, sample seed); [`Workload`] defines the function.
//!
//! # Invariants
//! The module [`invariants`] checks that batch and cache keep their bounds, that every admitted sample is
//! queued, running or ended, and only one of them, and that every token is counted once.
//!
//! # Deliberately absent
//! There is no sampling: the temperature is checked and then ignored, and top_p, top_k and penalties are ignored. There are no weights: a
//! version is a label. Speculative decoding, LoRA, multi-modal input and pooling endpoints are not simulated.
//! Generated tokens do not enter the prefix cache.

mod answer;
mod codec;
mod config;
mod engine;
mod error;
mod fault;
mod hash;
pub mod http;
pub mod invariants;
mod model;
pub mod request;
mod script;
mod server;
pub mod stats;
mod tasks;
pub mod workload;

pub use answer::{Answer, AnswerKey, AnswerTable, NoAnswers, prompt_hash};
pub use codec::{Codec, GuessingKey, TextCodec};
pub use config::ServerConfig;
pub use engine::PauseMode;
pub use error::SimError;
pub use fault::Fault;
pub use model::EngineModel;
pub use request::{FinishReason, Resumed, SimChoice, SimChunk, SimRequest, SimResponse, VersionSpan};
pub use script::Script;
pub use server::{Phase, SimServer};
pub use workload::{LengthConfig, Workload, WorkloadConfig};
