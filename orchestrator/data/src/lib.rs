//! Turns files into prompts: data sets, tokenizers, chat templates, and the order in which prompts are drawn.
//!
//! [`Dataset::open`] reads and checks every row once and keeps the rows on disk. A [`DatasetCursor`], which
//! implements [`PromptSource`], draws rows in a seeded order, tokenises them with a [`TextCodec`] and returns
//! [`Prompt`]s.
//!
//! # Invariants
//! - A prompt's [`PromptUid`] depends only on the contents of its row and on the number of equal rows before
//!   it.
//! - Only the files, the seed and the position determine which prompts are drawn. This crate reads neither a
//!   clock nor a source of randomness.
//! - Every epoch goes through every row exactly once.
//! - Ground truths stay strings from the file to the scorer.
//! - Memory is at most 20 bytes per row while prompts are drawn (offset, identity, order), and about 100
//!   bytes more per row while the files are read. The text of rows is not kept in memory.
//!
//! [`prepare`] makes data-set files from downloaded files.
//!
//! # Deliberately absent
//! There are no downloads, and no filters except those on length and duplicates.

mod codec;
mod config;
mod cursor;
mod dataset;
mod error;
mod prepare;
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
pub use prepare::{Prepare, PrepareError, Prepared, Split, prepare};
pub use prompt::{DataFields, Message, Prompt, PromptContent};
pub use rolldock_dispatch::{Position, PromptUid};
pub use source::{DrawCounts, PromptSource};
