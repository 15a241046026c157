//! Answers of a vLLM server with thousands of tokens, and the readers with which the one of Rolldock is compared.

mod bodies;
pub mod typed;

pub use bodies::{Body, Face};
pub use typed::Columns;
