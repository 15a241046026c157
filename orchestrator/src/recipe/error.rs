//! Complaints about a recipe, shown with the line they are about.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// A file, or the option that was given.
    pub source: String,
    /// Counted from 1; `None` where nothing was written, such as a missing key.
    pub line: Option<usize>,
    /// Counted from 1.
    pub column: usize,
    /// The line itself.
    pub text: String,
    /// Length of the part that is wrong, characters.
    pub length: usize,
    /// The dotted key.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, line, column, text, length, key, message } = self;
        match line {
            None => write!(f, "{source}: `{key}`: {message}"),
            Some(line) => {
                let gutter = line.to_string().len();
                let carets = "^".repeat((*length).max(1));
                writeln!(f, "{source}:{line}:{column}: `{key}`: {message}")?;
                writeln!(f, "{:gutter$} |", "")?;
                writeln!(f, "{line} | {text}")?;
                write!(f, "{:gutter$} | {:indent$}{carets}", "", "", indent = column - 1)
            }
        }
    }
}

/// Why a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The recipe itself cannot be read; a base that cannot is a complaint about the line that names it.
    #[error("cannot read recipe file={path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's words, or what is wrong with its bytes.
        reason: String,
    },
    /// Not TOML, a bad `base`, unknown keys, wrong types, or values that do not go together.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"))]
    Wrong(Vec<Complaint>),
}
