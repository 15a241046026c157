//! From files to prompts: data sets, tokenizers, chat templates, and the order in which prompts are drawn.
//!
//! [`Dataset::open`] reads every row once, checks it and keeps it on disk; a [`DatasetCursor`] draws rows in
//! a seeded order, tokenises them with a [`TextCodec`] and hands out [`Prompt`]s, behind [`PromptSource`].
//!
//! # Invariants
//! - A prompt's [`PromptUid`] is a pure function of what its row says and of the equal rows before it.
//! - The same files, seed and position give the same prompts; nothing here asks the clock or a random source.
//! - Every epoch goes through every row exactly once.
//! - Ground truths are strings from the file to the scorer.
//! - Memory grows by at most 20 bytes a row while drawing (offset, identity, order) and by some 100 more
//!   while the files are read; never by their text.
//!
//! # Deliberately absent
//! Downloads, and filters on anything but length: a data set is prepared once, by tools made for that.

mod codec;
mod config;
mod cursor;
mod dataset;
mod error;
mod prompt;
mod reader;
mod schema;
mod shuffle;
mod source;
mod spool;

pub use codec::{CodecConfig, EncodedPrompt, TemplateChoice, TextCodec};
pub use config::{Columns, DatasetConfig, Duplicates, OverlongPrompts};
pub use cursor::DatasetCursor;
pub use dataset::{Dataset, DatasetReport, PromptLengths};
pub use error::{DataError, RowPlace};
pub use prompt::{DataFields, Message, Prompt, PromptContent};
pub use rolldock_dispatch::{Position, PromptUid};
pub use source::{DrawCounts, PromptSource};
