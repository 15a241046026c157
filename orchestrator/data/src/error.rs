//! Errors of data sets and tokenizers.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::PromptUid;

/// The position of a row in its file, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowPlace {
    /// A line of a JSONL file.
    Line(PathBuf, u64),
    /// A row of a Parquet file, counted over its row groups.
    Row(PathBuf, u64),
}

impl fmt::Display for RowPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(formatter, "{}:{line}", file.display()),
            Self::Row(file, row) => write!(formatter, "{}: row {row}", file.display()),
        }
    }
}

/// An error of a data set or a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is missing or cannot be read.
    #[error("cannot read file={}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        reason: io::Error,
    },
    /// A file does not have the format of its extension, or its extension is unknown.
    #[error("file={} is not a data set: {reason}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// A row cannot be used.
    #[error("{place}: column={column}: expected {expected}, found {found}")]
    Row {
        /// File and line or row.
        place: RowPlace,
        /// Dotted path of the column; `*` for the row as a whole.
        column: String,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// A row does not have a known schema, and the recipe names no columns.
    #[error(
        "{place}: unknown schema with columns=[{columns}]; name its columns in the recipe: data.columns = {{ prompt = \
         \"...\", answer = \"...\" }}"
    )]
    Schema {
        /// The first row.
        place: RowPlace,
        /// The columns of the row.
        columns: String,
    },
    /// The files have no rows.
    #[error("the data set is empty: no rows in files=[{files}]")]
    Empty {
        /// The files that were read.
        files: String,
    },
    /// The data set has too many rows.
    #[error("the data set has more than rows_max={rows_max} rows")]
    TooManyRows {
        /// Maximum number of rows.
        rows_max: u64,
    },
    /// The temporary file for the rows cannot be written or read.
    #[error("cannot keep the rows in a temporary file below {}: {reason}", folder.display())]
    Spool {
        /// The folder of temporary files.
        folder: PathBuf,
        /// The operating system's error; often the disk is full.
        reason: io::Error,
    },
    /// This machine does not have the tokenizer.
    #[error("no tokenizer={name}: {reason}")]
    TokenizerMissing {
        /// The name in the recipe.
        name: String,
        /// Where the tokenizer was looked for, and what the user can do.
        reason: String,
    },
    /// A tokenizer or one of its files cannot be used.
    #[error("bad tokenizer file={file}: {reason}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A chat template does not compile, or fails on a prompt.
    #[error("chat template of {origin}: {reason}")]
    Template {
        /// The origin of the template.
        origin: String,
        /// The template engine's message, with a line.
        reason: String,
    },
    /// The tokenizer refuses a text.
    #[error("cannot tokenize: {reason}")]
    Encode {
        /// The tokenizer's message.
        reason: String,
    },
    /// A prompt is too long, and the recipe makes this an error.
    #[error("prompt_uid={uid} row={row} has tokens={tokens}, more than data.max_prompt_length={tokens_max}")]
    Overlong {
        /// The prompt.
        uid: PromptUid,
        /// The index of its row.
        row: u64,
        /// The length of the prompt in tokens.
        tokens: usize,
        /// Maximum length in tokens.
        tokens_max: usize,
    },
    /// Every prompt is too long.
    #[error("every one of rows={rows} has more tokens than data.max_prompt_length={tokens_max}")]
    AllOverlong {
        /// Rows of the data set.
        rows: u64,
        /// Maximum length in tokens.
        tokens_max: usize,
    },
    /// The data set does not have this position.
    #[error(
        "no position epoch={epoch} offset={offset} in a data set of rows={rows}; the data may have changed since the \
         run began"
    )]
    Position {
        /// The position's epoch, or the epoch in which a requested row was drawn.
        epoch: u32,
        /// The position's offset, or the index of a requested row.
        offset: u64,
        /// Rows of the data set.
        rows: u64,
    },
}
