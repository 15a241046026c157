//! From files to prompts: data sets, tokenizers, chat templates, and the order in which prompts are drawn.
//!
//! # Invariants
//! - A prompt's [`PromptUid`] is a pure function of what its row says and of the equal rows before it.
//! - The same files, seed and position give the same prompts; nothing here asks the clock or a random source.
//! - Ground truths are strings from the file to the scorer.
//! - Memory grows by a few words a row, never by its text.

mod codec;
mod error;
mod prompt;

pub use codec::{CodecConfig, EncodedPrompt, TemplateChoice, TextCodec};
pub use error::{DataError, RowPlace};
pub use prompt::{
    DataFields, DrawCounts, Message, Position, Prompt, PromptContent, PromptSource, PromptUid,
};
