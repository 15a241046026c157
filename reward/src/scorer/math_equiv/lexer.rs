//! Splits LaTeX and plain text into tokens. Style commands are left out, spacing is a flag of the next token,
//! and each symbol has one spelling.

mod symbols;

use super::tree::Unparsed;
use super::words;
use crate::python_text::is_space;
use crate::scorer::boxed::balanced_from;
use symbols::{greek, is_style, one_spelling, symbol_of};

/// Maximum number of digits of a number; answers with a longer number are compared as text.
pub(super) const DIGITS_MAX: usize = 1200;

/// Maximum number of digits of an exponent as in `2e5`.
const EXPONENT_DIGITS_MAX: usize = 4;

pub(super) const SET_OPEN: char = '⦃';
pub(super) const SET_CLOSE: char = '⦄';
/// Ends a row of a matrix.
pub(super) const ROW: char = '\n';

/// A number as it is written. Its last `repeat` digits repeat forever. The `fraction` digits before them are
/// behind the decimal point.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Numeral {
    pub(super) digits: String,
    pub(super) fraction: usize,
    pub(super) repeat: usize,
    pub(super) exponent: i64,
}

impl Numeral {
    /// Whether the number is written with digits only.
    pub(super) fn is_plain_integer(&self) -> bool {
        self.fraction == 0 && self.repeat == 0 && self.exponent == 0
    }
}

/// The kind of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Number(Numeral),
    /// Consecutive letters without a backslash.
    Word(String),
    /// The rest of a word whose first letters were read as variables.
    Letters(String),
    /// The name of a command.
    Command(String),
    /// The content of `\text{}` and similar commands.
    Text(String),
    Symbol(char),
    Begin(String),
    End(String),
}

/// A token and whether white space stands before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) is_spaced: bool,
}

/// How ambiguous spellings are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// `1,234` is one number, `2e3` is two thousand, and two or three letters alone are a word.
    Usual,
    /// `1,234` is a list, `2e3` is a product with Euler's number, and two or three letters alone are a
    /// product of variables.
    Literal,
}

/// The tokens of an answer, and whether the two modes differ on it.
pub(super) struct Tokens {
    pub(super) tokens: Vec<Token>,
    pub(super) is_ambiguous: bool,
}

/// Splits `text` into tokens, in time linear in its length.
pub(super) fn tokenize(text: &str, mode: Mode) -> Result<Tokens, Unparsed> {
    let mut lexer = Lexer {
        text,
        at: 0,
        mode,
        tokens: Vec::new(),
        is_ambiguous: false,
        is_spaced: false,
        brackets: 0,
        joined_until: 0,
        split_until: 0,
    };
    while let Some(next) = lexer.rest().chars().next() {
        lexer.token(next)?;
    }
    Ok(Tokens { tokens: lexer.tokens, is_ambiguous: lexer.is_ambiguous })
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    mode: Mode,
    tokens: Vec<Token>,
    is_ambiguous: bool,
    is_spaced: bool,
    /// The number of open brackets; inside them a comma separates elements.
    brackets: i32,
    /// Before this position, commas join digits.
    joined_until: usize,
    /// Before this position, commas separate numbers.
    split_until: usize,
}

fn digits_at(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, kind: Kind) {
        self.tokens.push(Token { kind, is_spaced: std::mem::take(&mut self.is_spaced) });
    }

    fn symbol(&mut self, symbol: char) {
        match symbol {
            '(' | '[' | '⟨' | SET_OPEN => self.brackets += 1,
            ')' | ']' | '⟩' | SET_CLOSE => self.brackets -= 1,
            _ => {}
        }
        self.push(Kind::Symbol(symbol));
    }

    fn token(&mut self, next: char) -> Result<(), Unparsed> {
        if is_space(next) || next == '~' {
            self.at += next.len_utf8();
            self.is_spaced = true;
            return Ok(());
        }
        let is_number = next.is_ascii_digit()
            || (next == '.' && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()));
        if is_number {
            return self.number();
        }
        if next == '\\' {
            return self.command();
        }
        if next.is_alphabetic() && greek(next).is_none() && next != 'π' {
            let length = self.rest().find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest().len());
            let length = length.max(next.len_utf8());
            self.push(Kind::Word(self.rest()[..length].to_owned()));
            self.at += length;
            return Ok(());
        }
        self.character(next);
        Ok(())
    }

    /// Reads a character that begins no number, word or command.
    fn character(&mut self, next: char) {
        for (spelling, symbol) in [("**", '^'), ("<=", '≤'), (">=", '≥'), ("!=", '≠'), ("==", '=')] {
            // `5!=120` has a factorial, `x != 5` has none.
            let is_meant = symbol != '≠' || self.is_spaced;
            if is_meant && self.rest().starts_with(spelling) {
                self.at += spelling.len();
                return self.symbol(symbol);
            }
        }
        self.at += next.len_utf8();
        if let Some(name) = greek(next) {
            return self.push(Kind::Command(name.to_owned()));
        }
        let integer =
            |digits: &str| Kind::Number(Numeral { digits: digits.to_owned(), ..Numeral::default() });
        match next {
            '²' | '³' => {
                self.symbol('^');
                self.push(integer(if next == '²' { "2" } else { "3" }));
            }
            '½' | '¼' | '¾' => {
                self.push(Kind::Command("frac".to_owned()));
                self.push(integer(if next == '¾' { "3" } else { "1" }));
                self.push(integer(if next == '½' { "2" } else { "4" }));
            }
            // A dollar sign is money only before a number; elsewhere it delimits formulas.
            '$' if !self.rest().trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                self.is_spaced = true;
            }
            _ => self.symbol(one_spelling(next)),
        }
    }

    fn command(&mut self) -> Result<(), Unparsed> {
        self.at += 1;
        let length = self.rest().bytes().take_while(u8::is_ascii_alphabetic).count();
        if length == 0 {
            return self.command_of_symbol();
        }
        let name = &self.rest()[..length];
        self.at += length;
        match name {
            "left" | "right" => {
                if self.rest().starts_with('.') {
                    self.at += 1;
                }
            }
            "dfrac" | "tfrac" | "cfrac" | "frac" => self.push(Kind::Command("frac".to_owned())),
            "dbinom" | "tbinom" | "binom" => self.push(Kind::Command("binom".to_owned())),
            "quad" | "qquad" => self.is_spaced = true,
            "text" | "mbox" | "hbox" | "textrm" | "textbf" | "textit" | "textnormal" | "mathrm"
            | "operatorname" => {
                let content = self.argument().ok_or(Unparsed)?.to_owned();
                let is_name = matches!(name, "mathrm" | "operatorname")
                    && (content == "i" || content == "e" || words::classify_command(&content).is_some());
                self.text(content, is_name);
            }
            "mathbb" => {
                let set = self.argument().ok_or(Unparsed)?;
                self.push(Kind::Command(format!("mathbb{set}")));
            }
            "begin" | "end" => {
                let environment = self.argument().ok_or(Unparsed)?.to_owned();
                if name == "end" {
                    self.brackets -= 1;
                    self.push(Kind::End(environment));
                } else {
                    if environment == "array" {
                        self.argument();
                    }
                    self.brackets += 1;
                    self.push(Kind::Begin(environment));
                }
            }
            _ if is_style(name) => {}
            _ => match symbol_of(name) {
                Some(symbol) => self.symbol(symbol),
                None => self.push(Kind::Command(name.to_owned())),
            },
        }
        Ok(())
    }

    /// Appends `content` as text, or as a word if it is a name. A number word at its start ("million")
    /// becomes a token of its own.
    fn text(&mut self, content: String, is_name: bool) {
        if is_name {
            return self.push(Kind::Word(content));
        }
        let bare = content.trim_start();
        let first = &bare[..bare.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(bare.len())];
        if !matches!(words::classify(first), words::Meaning::Multiplier(_)) {
            return self.push(Kind::Text(content));
        }
        let rest = bare[first.len()..].to_owned();
        self.push(Kind::Word(first.to_owned()));
        if !rest.trim().is_empty() {
            self.push(Kind::Text(rest));
        }
    }

    /// Reads the character after a backslash that no letter follows.
    fn command_of_symbol(&mut self) -> Result<(), Unparsed> {
        let next = self.rest().chars().next().ok_or(Unparsed)?;
        self.at += next.len_utf8();
        match next {
            ',' | ';' | ':' | '!' | '>' | '(' | ')' | '[' | ']' => self.is_spaced = true,
            space if is_space(space) => self.is_spaced = true,
            '{' => self.symbol(SET_OPEN),
            '}' => self.symbol(SET_CLOSE),
            '\\' => self.symbol(ROW),
            '%' | '$' => self.symbol(next),
            _ => return Err(Unparsed),
        }
        Ok(())
    }

    /// Returns the content of the braces that follow, and moves past them.
    fn argument(&mut self) -> Option<&'a str> {
        let gap = self.rest().len() - self.rest().trim_start_matches(is_space).len();
        let start = self.at + gap;
        if !self.text[start..].starts_with('{') {
            return None;
        }
        let whole = balanced_from(self.text, start)?;
        self.at = start + whole.len();
        whole.strip_prefix('{')?.strip_suffix('}')
    }

    fn number(&mut self) -> Result<(), Unparsed> {
        let mut numeral = Numeral::default();
        self.look_at_commas();
        self.take_digits(&mut numeral.digits);
        let first_group = numeral.digits.len();
        while let Some(length) = self.separator(first_group) {
            self.at += length;
            self.take_digits(&mut numeral.digits);
        }
        let is_fraction = self.rest().starts_with('.')
            && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit() || c == '\\');
        if is_fraction && (digits_at(&self.rest()[1..]) > 0 || repeating(&self.rest()[1..]).is_some()) {
            self.at += 1;
            let whole = numeral.digits.len();
            self.take_digits(&mut numeral.digits);
            numeral.fraction = numeral.digits.len() - whole;
            if let Some((digits, length)) = repeating(self.rest()) {
                numeral.digits.push_str(digits);
                numeral.repeat = digits.len();
                self.at += length;
            }
        }
        self.power_of_ten(&mut numeral)?;
        if numeral.digits.len() > DIGITS_MAX {
            return Err(Unparsed);
        }
        self.push(Kind::Number(numeral));
        Ok(())
    }

    fn take_digits(&mut self, digits: &mut String) {
        let length = digits_at(self.rest());
        digits.push_str(&self.rest()[..length]);
        self.at += length;
    }

    /// Reads a power of ten such as `e5` behind a number.
    fn power_of_ten(&mut self, numeral: &mut Numeral) -> Result<(), Unparsed> {
        let Some(behind) = self.rest().strip_prefix(['e', 'E']) else { return Ok(()) };
        let unsigned = behind.strip_prefix(['+', '-']).unwrap_or(behind);
        let length = digits_at(unsigned);
        let is_word = unsigned[length..].starts_with(|c: char| c.is_ascii_alphabetic());
        if length == 0 || is_word {
            return Ok(());
        }
        self.is_ambiguous = true;
        if self.mode == Mode::Literal {
            return Ok(());
        }
        if length > EXPONENT_DIGITS_MAX {
            return Err(Unparsed);
        }
        let signed = &behind[..behind.len() - unsigned.len() + length];
        numeral.exponent = signed.parse().map_err(|_| Unparsed)?;
        self.at += 1 + signed.len();
        Ok(())
    }

    /// Decides whether commas join or separate digits in the run of digits and commas that starts here.
    fn look_at_commas(&mut self) {
        if self.at < self.split_until {
            return;
        }
        let mut groups = 0;
        let mut is_thousands = !self.rest().starts_with('0');
        let mut end = self.at;
        loop {
            let length = digits_at(&self.text[end..]);
            is_thousands &= if groups == 0 { (1..=3).contains(&length) } else { length == 3 };
            groups += 1;
            end += length;
            let goes_on = self.text[end..].strip_prefix(',').is_some_and(|behind| digits_at(behind) > 0);
            if !goes_on {
                break;
            }
            end += 1;
        }
        if !is_thousands || groups == 1 || self.brackets > 0 {
            self.split_until = end;
            return;
        }
        self.is_ambiguous = true;
        match self.mode {
            Mode::Usual => self.joined_until = end,
            Mode::Literal => self.split_until = end,
        }
    }

    /// The length in bytes of a thousands separator, if one with exactly three digits behind it starts here.
    fn separator(&self, first_group: usize) -> Option<usize> {
        let rest = self.rest();
        if !(1..=3).contains(&first_group) {
            return None;
        }
        if rest.starts_with(',') && self.at < self.joined_until {
            return Some(1);
        }
        let explicit = ["{,}", ",\\!", ",\\,"].into_iter().find(|mark| rest.starts_with(mark));
        let gap = ["\\,", "\\ ", " "].into_iter().find(|mark| rest.starts_with(mark));
        let mark = explicit.or(gap)?;
        let behind = &rest[mark.len()..];
        let group = match explicit {
            Some(_) => behind.trim_start_matches(' '),
            None => behind,
        };
        let is_group = digits_at(group) == 3 && (explicit.is_some() || !group[3..].starts_with('/'));
        is_group.then(|| rest.len() - group.len())
    }
}

/// The digits of `\overline{3}` at the start of `text`, and the length of the whole command in bytes.
fn repeating(text: &str) -> Option<(&str, usize)> {
    let braced = text.strip_prefix("\\overline").or_else(|| text.strip_prefix("\\bar"))?.strip_prefix('{')?;
    let length = digits_at(braced);
    let is_closed = length > 0 && braced[length..].starts_with('}');
    is_closed.then(|| (&braced[..length], text.len() - braced.len() + length + 1))
}
