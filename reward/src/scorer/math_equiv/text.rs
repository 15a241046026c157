//! The normal form of answers as text. Answers are compared in this form before they are parsed, and again if
//! they cannot be parsed.
//!
//! Answers with equal normal forms have equal values, because only parts that never change a value are
//! removed.

use crate::python_text::is_space;

/// Removes spacing, sizes and fonts, in time linear in the length of the text.
pub(super) fn normal(text: &str) -> String {
    let mut normalizer =
        Normalizer { written: String::with_capacity(text.len()), braces: Vec::new(), is_gap: false };
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let plain = rest.bytes().take_while(|byte| is_plain(*byte)).count();
        let length = match plain {
            0 => normalizer.special(next, rest),
            run => {
                normalizer.write(&rest[..run]);
                run
            }
        };
        rest = &rest[length..];
    }
    normalizer.written
}

/// Whether the byte is copied into the normal form, regardless of its neighbours.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'{' | b'}' | b'~' | b'$')
}

struct Normalizer {
    written: String,
    /// For each open brace, whether it was written.
    braces: Vec<bool>,
    is_gap: bool,
}

impl Normalizer {
    fn write(&mut self, part: &str) {
        // `1 1/2` is not `11/2`.
        let is_between_digits = self.is_gap
            && part.starts_with(|c: char| c.is_ascii_digit())
            && self.written.ends_with(|c: char| c.is_ascii_digit());
        if is_between_digits {
            self.written.push(' ');
        }
        self.is_gap = false;
        self.written.push_str(part);
    }

    /// Reads the character at the start of `rest`, which is not plain, and returns the number of bytes read.
    fn special(&mut self, next: char, rest: &str) -> usize {
        match next {
            '\\' => return self.command(&rest[1..]) + 1,
            // A thousands separator is removed.
            '{' if rest.starts_with("{,}") && self.is_before_thousands(&rest[3..]) => return 3,
            '{' => {
                self.braces.push(true);
                self.write("{");
            }
            '}' => {
                if self.braces.pop().unwrap_or(true) {
                    self.write("}");
                }
            }
            '~' | '$' => self.is_gap = true,
            '−' => self.write("-"),
            space if is_space(space) => self.is_gap = true,
            other => self.write(other.encode_utf8(&mut [0; 4])),
        }
        next.len_utf8()
    }

    /// Whether the character that was written last is a digit, and exactly three digits follow. The comma of
    /// `3{,}14` does not separate thousands.
    fn is_before_thousands(&self, behind: &str) -> bool {
        let digits = behind.bytes().take(4).take_while(u8::is_ascii_digit).count();
        let is_behind_digit = !self.is_gap && self.written.ends_with(|c: char| c.is_ascii_digit());
        is_behind_digit && digits == 3
    }

    /// Reads a command after its backslash, and returns the number of bytes read.
    fn command(&mut self, behind: &str) -> usize {
        let length = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let name = &behind[..length];
        match name {
            "" => return self.command_of_symbol(behind),
            "left" | "right" | "displaystyle" | "quad" | "qquad" => self.is_gap = true,
            "text" | "mbox" | "textrm" | "textbf" | "textit" | "mathrm" | "boxed"
                if behind[length..].starts_with('{') =>
            {
                self.braces.push(false);
                return length + 1;
            }
            "dfrac" | "tfrac" => self.write("\\frac"),
            _ => {
                self.write("\\");
                self.write(name);
            }
        }
        length
    }

    fn command_of_symbol(&mut self, behind: &str) -> usize {
        let Some(symbol) = behind.chars().next() else {
            self.write("\\");
            return 0;
        };
        match symbol {
            '!' => {}
            ',' | ';' | ':' | ' ' => self.is_gap = true,
            _ => {
                self.write("\\");
                self.write(symbol.encode_utf8(&mut [0; 4]));
            }
        }
        symbol.len_utf8()
    }
}

/// Maximum number of letters of a word that may be a product of variables; the case of these letters counts.
const VARIABLES_MAX: usize = 3;

/// A normal form without white space and with long words in lower case. The case of variables and commands is
/// kept: `x` is not `X`, and `\Delta` is not `\delta`.
pub(super) fn folded_words(normal: &str) -> String {
    let mut folded = String::with_capacity(normal.len());
    let mut rest = normal;
    while let Some(next) = rest.chars().next() {
        let is_command = next == '\\';
        let start = usize::from(is_command);
        let letters = rest[start..].find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len() - start);
        let end = if letters > 0 { start + letters } else { next.len_utf8() };
        let part = &rest[..end];
        if !is_command && part.chars().count() > VARIABLES_MAX {
            folded.push_str(&part.to_lowercase());
        } else if !is_space(next) {
            folded.push_str(part);
        }
        rest = &rest[end..];
    }
    folded
}

/// A normal form in lower case and without white space.
pub(super) fn folded(normal: &str) -> String {
    let mut words = normal.to_lowercase();
    words.retain(|c| !is_space(c));
    words
}
