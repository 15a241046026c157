//! Turns files into prompts: data sets, tokenizers, chat templates, and the order in which prompts are drawn.
//!
//! [`Dataset::open`] reads and checks every row once and keeps the rows on disk. A [`DatasetCursor`], which
//! implements [`PromptSource`], draws rows in a seeded order, tokenises them with a [`TextCodec`] and returns
//! [`Prompt`]s.
//!
//! # Invariants
//! - A prompt's [`PromptUid`] depends only on the contents of its row and on the number of equal rows before
//!   it.
//! - Files, seed and position alone decide which prompts are drawn. This crate reads neither a clock nor a
//!   source of randomness.
//! - Every epoch goes through every row exactly once.
//! - Ground truths stay strings on the way from the file to the scorer.
//! - Memory grows by at most 20 bytes a row while prompts are drawn (offset, identity, order), and by about
//!   100 more while the files are read. The text of rows is not kept in memory.
//!
//! [`prepare`] makes such files once, from those that were downloaded.
//!
//! # Deliberately absent
//! Downloads, and filters other than those on length and duplicates.

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
