//! The command that resumes a run, and the errors that name the command.

use std::path::Path;

use crate::process::Ending;
use crate::recipe::Recipe;

/// The command that resumes the run in `out`. The command names each secret of `recipe`, because the run's
/// directory does not store secrets.
pub fn resume_command(out: &Path, recipe: &Recipe) -> String {
    let secrets: String = recipe.secrets().iter().map(|key| format!(" --set {key}=...")).collect();
    format!("rolldock run --resume {}{secrets}", shell_word(&out.to_string_lossy()))
}

/// `text` as one word of a POSIX shell.
fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+@%:,=".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The error of a run that can be resumed. Its text is the text of the cause.
#[derive(Debug, thiserror::Error)]
#[error("{cause:#}")]
pub struct Unfinished {
    /// The error that ended the run.
    pub cause: anyhow::Error,
    /// The command that resumes the run.
    pub command: String,
}

/// A signal asked the process to end while the data and the servers were being opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} before the run began")]
pub struct EndedEarly(pub Ending);

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn a_directory_is_one_word_of_a_shell() {
        assert_eq!(shell_word("runs/quickstart-2"), "runs/quickstart-2");
        assert_eq!(shell_word("my runs/$one"), "'my runs/$one'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
