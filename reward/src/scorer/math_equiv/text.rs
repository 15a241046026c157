//! Answers as text: the normal form in which they are compared before they are read, and where they cannot be.
//!
//! Two answers with the same normal form have the same value: only what never changes a value is taken out.

use crate::python_text::is_space;

/// Commands that are taken out, longest first where one begins another.
const REMOVED: &[&str] = &[
    "\\displaystyle",
    "\\qquad",
    "\\quad",
    "\\right",
    "\\left",
    "\\!",
    "\\,",
    "\\;",
    "\\:",
    "\\ ",
    "{,}",
    "~",
    "$",
];

/// Commands that only say how what is in their braces looks.
const UNWRAPPED: &[&str] =
    &["\\textbf{", "\\textit{", "\\textrm{", "\\mathrm{", "\\text{", "\\mbox{", "\\boxed{"];

/// Commands with another name of the same meaning.
const RENAMED: &[(&str, &str)] = &[("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("−", "-")];

/// Takes out spacing, sizes and fonts. Linear in the length of the text.
pub(super) fn normal(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    // Whether each open brace was written.
    let mut braces = Vec::new();
    let mut is_gap = false;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        // Many texts have no backslash: their characters go straight through.
        let is_special = matches!(next, '\\' | '{' | '~' | '$' | '−');
        if is_special && let Some(behind) = without_prefix(rest, REMOVED) {
            // `\left(` loses its command, `\leftarrow` does not.
            if !is_cut_word(rest, behind) {
                is_gap |= !rest.starts_with("{,}") && !rest.starts_with("\\!");
                rest = behind;
                continue;
            }
        }
        if is_special && let Some(behind) = without_prefix(rest, UNWRAPPED) {
            braces.push(false);
            rest = behind;
            continue;
        }
        if is_special && let Some((behind, name)) = renamed(rest) {
            written.push_str(name);
            rest = behind;
            continue;
        }
        rest = &rest[next.len_utf8()..];
        let is_kept = match next {
            '{' => {
                braces.push(true);
                true
            }
            '}' => braces.pop().unwrap_or(true),
            space if is_space(space) => {
                is_gap = true;
                false
            }
            _ => true,
        };
        if !is_kept {
            continue;
        }
        // `1 1/2` is not `11/2`.
        if std::mem::take(&mut is_gap)
            && next.is_ascii_digit()
            && written.ends_with(|c: char| c.is_ascii_digit())
        {
            written.push(' ');
        }
        written.push(next);
    }
    written
}

fn without_prefix<'a>(text: &'a str, prefixes: &[&str]) -> Option<&'a str> {
    prefixes.iter().find_map(|prefix| text.strip_prefix(prefix))
}

/// Whether a command's name goes on behind what was taken for it.
fn is_cut_word(whole: &str, behind: &str) -> bool {
    let taken = &whole[..whole.len() - behind.len()];
    taken.ends_with(|c: char| c.is_ascii_alphabetic())
        && behind.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn renamed(text: &str) -> Option<(&str, &'static str)> {
    RENAMED.iter().find_map(|(from, to)| text.strip_prefix(from).map(|behind| (behind, *to)))
}

/// A normal form without regard to case and white space.
pub(super) fn folded(normal: &str) -> String {
    let mut words = normal.to_lowercase();
    words.retain(|c| !is_space(c));
    words
}
