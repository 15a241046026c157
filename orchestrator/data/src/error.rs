//! What can be wrong with a data set or a tokenizer.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::PromptUid;

/// A row's place in its file, counted from 1 as editors do.
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

/// Errors of the data room.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is missing or cannot be read.
    #[error("cannot read file={}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The operating system's words.
        source: io::Error,
    },
    /// A file that is not what its name says, or whose name says nothing.
    #[error("file={} is not a data set: {reason}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// A row that cannot be used.
    #[error("{place}: column={column}: expected {expected}, found {found}")]
    Row {
        /// File and line or row.
        place: RowPlace,
        /// Dotted path of the column; `*` for the row as a whole.
        column: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// None of the known schemas, and the recipe names no columns.
    #[error(
        "{place}: unknown schema with columns=[{columns}]; name its columns in the recipe: data.columns = {{ prompt = \
         \"...\", answer = \"...\" }}"
    )]
    Schema {
        /// The first row.
        place: RowPlace,
        /// Its columns.
        columns: String,
    },
    /// No rows at all.
    #[error("the data set is empty: no rows in files=[{files}]")]
    Empty {
        /// What was read.
        files: String,
    },
    /// More rows than row numbers.
    #[error("the data set has more than rows_max={rows_max} rows")]
    TooManyRows {
        /// The bound.
        rows_max: u64,
    },
    /// The temporary file that holds the rows.
    #[error("cannot keep the rows in a temporary file below {}: {source}", folder.display())]
    Spool {
        /// Where temporary files go.
        folder: PathBuf,
        /// The operating system's words; a full disk, mostly.
        source: io::Error,
    },
    /// No such tokenizer on this machine.
    #[error("no tokenizer={name}: {reason}")]
    TokenizerMissing {
        /// The name in the recipe.
        name: String,
        /// Where it was looked for, and what to do.
        reason: String,
    },
    /// A tokenizer or one of its files that cannot be used.
    #[error("bad tokenizer file={file}: {reason}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A chat template that does not compile, or fails on a prompt.
    #[error("chat template of {origin}: {reason}")]
    Template {
        /// Where the template stands.
        origin: String,
        /// The template engine's words, with a line.
        reason: String,
    },
    /// A text that the tokenizer refuses.
    #[error("cannot tokenize: {reason}")]
    Encode {
        /// The tokenizer's words.
        reason: String,
    },
    /// A prompt that is too long, where the recipe asks for an error.
    #[error("prompt_uid={uid} row={row} has tokens={tokens}, more than data.max_prompt_length={tokens_max}")]
    Overlong {
        /// The prompt.
        uid: PromptUid,
        /// Its index.
        row: u64,
        /// Its length.
        tokens: usize,
        /// The limit.
        tokens_max: usize,
    },
    /// Dropping the prompts that are too long leaves none.
    #[error("every one of rows={rows} has more tokens than data.max_prompt_length={tokens_max}")]
    AllOverlong {
        /// Rows of the data set.
        rows: u64,
        /// The limit.
        tokens_max: usize,
    },
    /// A checkpoint's position that this data set does not have.
    #[error("no position epoch={epoch} offset={offset} in a data set of rows={rows}; is it the same data?")]
    Position {
        /// The position's epoch.
        epoch: u32,
        /// The position's offset.
        offset: u64,
        /// Rows of the data set.
        rows: u64,
    },
}
