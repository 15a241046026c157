//! The rewriting steps of normal forms: replacements of words, and the regular expressions of `math_dapo`,
//! written as scanners that read the text once.
//!
//! A property test compares each scanner with its expression. A scanner takes a fraction of the time of a
//! regular expression with capture groups, and almost no time on a text without the word that it searches
//! for. All scanners rely on `.` not matching a line break: a construct that does not close on its line does
//! not match.

use memchr::{memchr, memchr2, memmem, memrchr};

/// Python's `text.replace(from, to)`. Returns whether the text contained `from`. Most texts contain none of
/// the words, and such a text is not copied. Few replacements lengthen a text, so most copies need one
/// allocation.
pub(super) fn replace(text: &mut String, from: &str, to: &str) -> bool {
    let Some(first) = memmem::find(text.as_bytes(), from.as_bytes()) else { return false };
    let mut rewritten = String::with_capacity(text.len());
    let (before, mut rest) = text.split_at(first);
    rewritten.push_str(before);
    while let Some(behind) = rest.strip_prefix(from) {
        rewritten.push_str(to);
        let next = memmem::find(behind.as_bytes(), from.as_bytes()).unwrap_or(behind.len());
        let (kept, found) = behind.split_at(next);
        rewritten.push_str(kept);
        rest = found;
    }
    *text = rewritten;
    true
}

/// `(.*?)(\$)(.*?)(\$)(.*)` to `$\3$`: keeps only the first formula of each line that has one.
pub(super) fn keep_first_formulas(text: &mut String) {
    if !text.contains('$') {
        return;
    }
    let mut rewritten = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            rewritten.push('\n');
        }
        match first_formula(line) {
            Some(formula) => rewritten.extend(["$", formula, "$"]),
            None => rewritten.push_str(line),
        }
    }
    *text = rewritten;
}

fn first_formula(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('$')?;
    rest.split_once('$').map(|(formula, _)| formula)
}

/// `(opener)(.*?)(\})` to `\2`: removes an opener and the first closing brace behind it on its line.
pub(super) fn unwrap_shortest(text: &mut String, opener: &str) {
    unwrap(text, opener, |inside| match memchr2(b'}', b'\n', inside) {
        Some(at) if inside[at] == b'}' => Ok(at),
        Some(line_end) => Err(line_end),
        None => Err(inside.len()),
    });
}

/// `(opener)(.*)(\})` to `\2`: removes an opener and the last closing brace behind it on its line.
pub(super) fn unwrap_longest(text: &mut String, opener: &str) {
    unwrap(text, opener, |inside| {
        let line_end = memchr(b'\n', inside).unwrap_or(inside.len());
        memrchr(b'}', &inside[..line_end]).ok_or(line_end)
    });
}

/// Removes openers with their closing braces. `closing` finds the closing brace behind an opener, or returns
/// the end of the line as an error. No other opener on that line can close either, so the line is skipped and
/// the time stays linear.
fn unwrap(text: &mut String, opener: &str, closing: impl Fn(&[u8]) -> Result<usize, usize>) {
    let finder = memmem::Finder::new(opener);
    let mut rewritten = String::new();
    let mut rest = text.as_str();
    while let Some(at) = finder.find(rest.as_bytes()) {
        let inside = &rest[at + opener.len()..];
        match closing(inside.as_bytes()) {
            Ok(brace) => {
                rewritten.extend([&rest[..at], &inside[..brace]]);
                rest = &inside[brace + 1..];
            }
            Err(line_end) => {
                let (hopeless, next) = rest.split_at(at + opener.len() + line_end);
                rewritten.push_str(hopeless);
                rest = next;
            }
        }
    }
    replace_unless_whole(text, rewritten, rest.len());
}

/// The arguments of a command that have no braces yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bare {
    /// `([^{])`.
    One,
    /// `([^{])(.)`.
    Two,
}

impl Bare {
    /// The arguments at the start of `text`, one character each.
    fn at_start_of(self, text: &str) -> Option<&str> {
        let mut ends = text.char_indices().map(|(start, c)| start + c.len_utf8());
        let first_end = ends.next()?;
        if text.starts_with('{') {
            return None;
        }
        match self {
            Self::One => Some(&text[..first_end]),
            Self::Two => Some(&text[..ends.next()?]).filter(|both| !both[first_end..].starts_with('\n')),
        }
    }
}

/// Rewrites `command` and its bare arguments as `command{a}` or `command{a}{b}`.
pub(super) fn brace_bare(text: &mut String, command: &str, bare: Bare) {
    let finder = memmem::Finder::new(command);
    let mut rewritten = String::new();
    let mut rest = text.as_str();
    while let Some(at) = finder.find(rest.as_bytes()) {
        let (before, behind) = rest.split_at(at + command.len());
        let arguments = bare.at_start_of(behind).unwrap_or("");
        rewritten.push_str(before);
        for argument in arguments.chars() {
            rewritten.extend(['{', argument, '}']);
        }
        rest = &behind[arguments.len()..];
    }
    replace_unless_whole(text, rewritten, rest.len());
}

/// Sets `text` to `rewritten` followed by the last `rest` bytes of `text`. If `rest` is the whole text, no
/// match was found, and `text` stays as it is.
fn replace_unless_whole(text: &mut String, mut rewritten: String, rest: usize) {
    if rest == text.len() {
        return;
    }
    rewritten.push_str(&text[text.len() - rest..]);
    *text = rewritten;
}

#[cfg(test)]
mod tests;
