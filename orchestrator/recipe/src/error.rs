//! Errors of recipes. A complaint is shown with the line of the recipe that it is about.

use std::fmt;
use std::path::PathBuf;

/// A mistake in a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The file or the command-line option with the mistake.
    pub source: String,
    /// The line, counted from 1; `None` if there is no line, for example for a missing key.
    pub line: Option<usize>,
    /// The column, counted from 1.
    pub column: usize,
    /// The text of the line.
    pub text: String,
    /// Length of the wrong part, in characters.
    pub length: usize,
    /// The dotted key.
    pub key: String,
    /// The mistake, and the value that was expected.
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
    /// The recipe itself cannot be read, or has no key. For a `base` that cannot be read, the error is a
    /// complaint about the line that names the `base`.
    #[error("cannot read recipe file={path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error, or the reason why the file is refused: it is too large, not UTF-8,
        /// or empty.
        reason: String,
    },
    /// The recipe is not TOML, has a bad `base`, unknown keys, wrong types, bad values, or values that
    /// contradict each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"))]
    Wrong(Vec<Complaint>),
}
