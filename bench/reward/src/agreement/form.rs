//! The form of an answer, with the details that are needed to make other answers from it. This code is
//! independent of the scorer.

/// How an answer is written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    /// `-1,234.50`
    Number(Number),
    /// `\frac{3}{4}` or `\frac34`, with or without a minus.
    Fraction(Fraction),
    /// `(1, 2)` or `[1, 2)`: more than one item in one pair of brackets.
    Bracketed { open: char, close: char, items: Vec<String> },
    /// `1, 2`
    List(Vec<String>),
    /// `\{1, 2\}`
    Set(Vec<String>),
    /// `\text{east}`
    Words(String),
    /// Everything else: expressions, equations, matrices, unions.
    Other,
}

/// A decimal number; thousands separators are removed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Number {
    pub(super) is_negative: bool,
    /// The digits before the point; at least one.
    pub(super) digits: String,
    /// The digits after the point.
    pub(super) decimals: String,
}

/// A fraction of whole numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fraction {
    pub(super) is_negative: bool,
    pub(super) top: u64,
    pub(super) bottom: u64,
}

impl Number {
    fn read(answer: &str) -> Option<Self> {
        let unsigned = answer.strip_prefix('-');
        let plain = unsigned.unwrap_or(answer).replace(",\\!", "").replace([' ', ','], "");
        let (digits, decimals) = plain.split_once('.').unwrap_or((&plain, ""));
        let is_sound = !plain.is_empty() && !plain.ends_with('.');
        if !is_sound || !(digits.to_owned() + decimals).bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = if digits.is_empty() { "0" } else { digits };
        // `1, 2` and `1,2` are lists; commas before groups of three digits separate thousands.
        let mut groups = unsigned.unwrap_or(answer).split('.').next()?.split(',').skip(1);
        let is_thousands =
            groups.all(|group| group.strip_prefix("\\!").map_or(group, str::trim_start).len() == 3);
        let is_negative = unsigned.is_some();
        is_thousands.then(|| Self { is_negative, digits: digits.to_owned(), decimals: decimals.to_owned() })
    }

    pub(super) fn is_zero(&self) -> bool {
        self.digits.bytes().chain(self.decimals.bytes()).all(|digit| digit == b'0')
    }

    pub(super) fn is_integer(&self) -> bool {
        self.decimals.is_empty()
    }

    /// The number as text, with a minus if `is_negative`.
    pub(super) fn signed(&self, is_negative: bool) -> String {
        let sign = if is_negative { "-" } else { "" };
        let point = if self.decimals.is_empty() { "" } else { "." };
        format!("{sign}{}{point}{}", self.digits, self.decimals)
    }

    pub(super) fn plain(&self) -> String {
        self.signed(self.is_negative)
    }

    /// The number with `separator` between groups of three digits.
    pub(super) fn grouped(&self, separator: &str) -> String {
        let mut written = String::new();
        for (index, digit) in self.digits.chars().enumerate() {
            if index > 0 && (self.digits.len() - index).is_multiple_of(3) {
                written.push_str(separator);
            }
            written.push(digit);
        }
        let grouped = Self { digits: written, ..self.clone() };
        grouped.plain()
    }

    /// The number with its point two places further to the left.
    pub(super) fn hundredth(&self) -> String {
        let padded = format!("{:0>3}", self.digits);
        let (digits, moved) = padded.split_at(padded.len() - 2);
        Self { digits: digits.to_owned(), decimals: format!("{moved}{}", self.decimals), ..self.clone() }
            .plain()
    }
}

impl Fraction {
    fn read(answer: &str) -> Option<Self> {
        let unsigned = answer.strip_prefix('-');
        let rest = unsigned.unwrap_or(answer).strip_prefix(['\\'])?;
        let rest = ["dfrac", "tfrac", "frac"].iter().find_map(|name| rest.strip_prefix(name))?;
        let (top, behind) = argument(rest)?;
        let (bottom, end) = argument(behind)?;
        let is_sound = end.is_empty() && bottom != 0;
        is_sound.then_some(Self { is_negative: unsigned.is_some(), top, bottom })
    }

    fn sign(&self) -> &'static str {
        if self.is_negative { "-" } else { "" }
    }

    pub(super) fn written(&self) -> String {
        format!("{}\\frac{{{}}}{{{}}}", self.sign(), self.top, self.bottom)
    }

    pub(super) fn slashed(&self) -> String {
        format!("{}{}/{}", self.sign(), self.top, self.bottom)
    }

    /// The number as an exact decimal; `None` if that needs more than nine places.
    pub(super) fn decimal(&self) -> Option<String> {
        const PLACES_MAX: u32 = 9;
        let scaled = |places| u128::from(self.top) * 10_u128.pow(places);
        let bottom = u128::from(self.bottom);
        let places = (1..=PLACES_MAX).find(|places| scaled(*places).is_multiple_of(bottom))?;
        Some(self.with_places(scaled(places) / bottom, places))
    }

    /// The number, rounded to this many places.
    pub(super) fn rounded(&self, places: u32) -> String {
        let bottom = u128::from(self.bottom);
        self.with_places((u128::from(self.top) * 10_u128.pow(places) + bottom / 2) / bottom, places)
    }

    fn with_places(&self, scaled: u128, places: u32) -> String {
        let unit = 10_u128.pow(places);
        format!("{}{}.{:0>width$}", self.sign(), scaled / unit, scaled % unit, width = places as usize)
    }
}

/// Reads a digit, or digits in braces; returns the number and the rest.
fn argument(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start();
    let (digits, rest) = match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}')?,
        None => text.split_at_checked(1)?,
    };
    Some((digits.parse().ok()?, rest))
}

/// Splits a text at the commas that are outside of brackets and braces.
fn items(inside: &str) -> Vec<String> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, character) in inside.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(inside[start..at].trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(inside[start..].trim().to_owned());
    parts
}

/// Whether no bracket closes before it opens.
fn is_nested(item: &str) -> bool {
    let mut depth = 0_i32;
    item.chars().all(|character| {
        depth += i32::from(matches!(character, '(' | '[')) - i32::from(matches!(character, ')' | ']'));
        depth >= 0
    })
}

impl Form {
    pub(super) fn of(answer: &str) -> Self {
        if let Some(number) = Number::read(answer) {
            return Self::Number(number);
        }
        if let Some(fraction) = Fraction::read(answer) {
            return Self::Fraction(fraction);
        }
        if let Some(words) = answer.strip_prefix("\\text{").and_then(|rest| rest.strip_suffix('}')) {
            return Self::Words(words.to_owned());
        }
        let bare = answer.replace("\\left", "").replace("\\right", "");
        let parts = items(&bare);
        // The comma of `\$32,\!348` does not separate items of a list.
        if parts.len() > 1 && !bare.contains(",\\!") {
            return Self::List(parts);
        }
        if let Some(inside) = bare.strip_prefix("\\{").and_then(|rest| rest.strip_suffix("\\}")) {
            return Self::Set(items(inside));
        }
        let (open, close) = (bare.chars().next(), bare.chars().last());
        let (Some(open @ ('(' | '[')), Some(close @ (')' | ']'))) = (open, close) else { return Self::Other };
        let inside = items(&bare[1..bare.len() - 1]);
        // `(1,2) \cup (3,4)` also begins and ends with brackets.
        if inside.len() < 2 || !inside.iter().all(|item| is_nested(item)) {
            return Self::Other;
        }
        Self::Bracketed { open, close, items: inside }
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, Fraction, Number};

    #[test]
    fn answers_have_a_form() {
        let number = |text: &str| match Form::of(text) {
            Form::Number(number) => number.plain(),
            other => panic!("{text} is {other:?}"),
        };
        for (text, plain) in [("-3", "-3"), (".5", "0.5"), ("10,\\!080", "10080"), ("58,500", "58500")] {
            assert_eq!(number(text), plain);
        }
        let half = Fraction { is_negative: true, top: 1, bottom: 2 };
        for text in ["-\\frac12", "-\\frac{1}{2}", "-\\dfrac 1{2}"] {
            assert_eq!(Form::of(text), Form::Fraction(half), "{text}");
        }
        let items = |all: &[&str]| all.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        assert_eq!(Form::of("1,-2"), Form::List(items(&["1", "-2"])));
        assert_eq!(Form::of("\\{1,2\\}"), Form::Set(items(&["1", "2"])));
        let pair = Form::Bracketed { open: '(', close: ']', items: items(&["\\frac{3}{5}", "3"]) };
        assert_eq!(Form::of("\\left(\\frac{3}{5},3\\right]"), pair);
        assert_eq!(Form::of("\\text{east}"), Form::Words("east".to_owned()));
        for text in ["(2,12) \\cup (12,102)", "(a+5)(b+2)", "x=5", "4210_{5}", "\\pi"] {
            assert_eq!(Form::of(text), Form::Other, "{text}");
        }
    }

    #[test]
    fn numbers_are_written_in_other_forms() {
        let number = Number { is_negative: true, digits: "1234567".to_owned(), decimals: "5".to_owned() };
        assert_eq!(number.grouped("{,}"), "-1{,}234{,}567.5");
        assert_eq!(number.hundredth(), "-12345.675");
        let five = Number { is_negative: false, digits: "5".to_owned(), decimals: String::new() };
        assert_eq!(five.hundredth(), "0.05");
        let eighth = Fraction { is_negative: false, top: 1, bottom: 8 };
        assert_eq!((eighth.decimal().as_deref(), eighth.rounded(2)), (Some("0.125"), "0.13".to_owned()));
        assert_eq!(Fraction { bottom: 3, ..eighth }.decimal(), None);
    }
}
