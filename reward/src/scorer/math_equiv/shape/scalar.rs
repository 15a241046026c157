//! Reads single values with their units, numerals of other bases, and words.

use std::ops::Range;

use super::super::lexer::{Kind, Mode};
use super::super::parser::Parser;
use super::super::text::{folded, normal};
use super::super::tree::{Scalar, Shape, Unparsed};
use super::super::words::{self, Meaning, UnitReader};
use super::Reader;

/// The names of bases.
const BASES: &[(&str, u32)] = &[
    ("two", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
    ("six", 6),
    ("seven", 7),
    ("eight", 8),
    ("nine", 9),
    ("ten", 10),
    ("eleven", 11),
    ("twelve", 12),
    ("sixteen", 16),
];

/// The currency of a currency sign.
fn currency(symbol: char) -> Option<&'static str> {
    match symbol {
        '$' => Some("dollar"),
        '€' => Some("euro"),
        '¥' => Some("yen"),
        '£' => Some("sterling"),
        _ => None,
    }
}

impl Reader {
    /// Reads a value with an optional currency sign before it and optional units behind it.
    pub(super) fn scalar(&mut self, range: Range<usize>) -> Result<Shape, Unparsed> {
        let mut start = range.start;
        let is_negative = self.is_symbol(start, '-') && self.money_at(start + 1).is_some();
        let money = self.money_at(start + usize::from(is_negative));
        if money.is_some() {
            start += 1;
        }
        if is_negative {
            // `-$5` is read as if it were `$-5`.
            self.tokens.swap(range.start, range.start + 1);
        }
        let mut parser = Parser::new(&mut self.tokens, &mut self.tree, start, range.end, self.is_lower_sign);
        let mut value = parser.expression()?;
        let mut at = parser.at;
        let mut percent =
            parser.percent.filter(|(hundredth, _)| *hundredth == value).map(|(_, number)| number);
        let has_signs = parser.has_signs;
        self.has_signs |= has_signs;
        if at < range.end && self.is_percent_word(at) {
            let mut behind = Parser::new(&mut self.tokens, &mut self.tree, at, range.end, self.is_lower_sign);
            percent = Some(value);
            value = behind.hundredth(value)?;
            at += 1;
        }
        let mut units = self.units(at..range.end)?;
        if let Some(money) = money {
            units.insert(money, 1);
        }
        Ok(Shape::Scalar(Scalar { value, percent, units }))
    }

    fn money_at(&self, at: usize) -> Option<&'static str> {
        match self.kind(at) {
            Some(Kind::Symbol(symbol)) => currency(*symbol),
            _ => None,
        }
    }

    fn is_percent_word(&self, at: usize) -> bool {
        match self.kind(at) {
            Some(Kind::Word(word) | Kind::Text(word)) => words::classify(word.trim()) == Meaning::Percent,
            _ => false,
        }
    }

    /// Reads the units behind a value, and skips words for counted things. Other tokens are an error.
    fn units(&self, range: Range<usize>) -> Result<super::Units, Unparsed> {
        let mut reader = UnitReader::default();
        let mut at = range.start;
        let mut is_after_slash = false;
        while at < range.end {
            let kind = self.kind(at).ok_or(Unparsed)?;
            at += 1;
            match kind {
                Kind::Text(words) => reader.read(words, true),
                Kind::Word(word) => {
                    let is_unit = matches!(words::classify(word), Meaning::Unit | Meaning::Noun);
                    if !is_unit && !is_after_slash {
                        return Err(Unparsed);
                    }
                    reader.read(word, is_after_slash);
                }
                Kind::Symbol('/') => reader.divide(),
                Kind::Symbol('*' | '.' | '°') => {}
                Kind::Symbol('^') => {
                    let is_braced = self.is_symbol(at, '{');
                    at += usize::from(is_braced);
                    reader.raise(self.unit_power(at)?);
                    at += 1 + usize::from(is_braced && self.is_symbol(at + 1, '}'));
                }
                _ => return Err(Unparsed),
            }
            is_after_slash = *kind == Kind::Symbol('/');
        }
        Ok(reader.finish())
    }

    fn unit_power(&self, at: usize) -> Result<i32, Unparsed> {
        match self.kind(at) {
            Some(Kind::Number(numeral)) if numeral.is_plain_integer() => {
                numeral.digits.parse().map_err(|_| Unparsed)
            }
            Some(Kind::Symbol('°')) => Ok(1),
            _ => Err(Unparsed),
        }
    }

    /// Reads words without a number, such as names, directions or "yes"; `None` if they may be an expression.
    pub(super) fn words(&mut self, range: Range<usize>) -> Option<Shape> {
        let mut has_long_word = false;
        let mut has_short_word = false;
        let mut text = String::new();
        for token in &self.tokens[range.clone()] {
            match &token.kind {
                Kind::Text(words) => {
                    has_long_word |= words.chars().filter(|c| c.is_alphabetic()).count() > 1;
                    text.push_str(words);
                }
                Kind::Word(word) => {
                    let is_long = word.chars().count() > 1;
                    match words::classify(word) {
                        Meaning::Letters => has_short_word |= is_long,
                        Meaning::Noun | Meaning::Unit | Meaning::Percent | Meaning::Separator => {
                            has_long_word = true;
                        }
                        _ if range.len() == 1 => return None,
                        _ => {}
                    }
                    text.push_str(word);
                }
                Kind::Symbol(symbol @ ('.' | '-' | '\'' | '!' | '?' | ':' | '"' | '(' | ')')) => {
                    text.push(*symbol);
                }
                _ => return None,
            }
        }
        if has_short_word && !has_long_word {
            self.is_ambiguous = true;
            has_long_word = self.mode == Mode::Usual && range.len() == 1;
        }
        let only_letters = text.trim_matches(|c: char| matches!(c, '.' | '!' | '?' | ':' | '"'));
        has_long_word.then(|| Shape::Text(folded(&normal(only_letters))))
    }

    /// Reads digits with their base as a subscript; `None` for anything else.
    pub(super) fn based(&self, range: Range<usize>) -> Option<Shape> {
        let bar = range.clone().find(|at| self.is_symbol(*at, '_'))?;
        let base = self.base(bar + 1..range.end)?;
        let mut digits = String::new();
        for token in &self.tokens[range.start..bar] {
            match &token.kind {
                Kind::Number(numeral) if numeral.is_plain_integer() => digits.push_str(&numeral.digits),
                Kind::Word(letters) => digits.push_str(&letters.to_uppercase()),
                _ => return None,
            }
        }
        let is_numeral = digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|digit| digit.is_digit(base));
        let significant = digits.trim_start_matches('0');
        let digits = if significant.is_empty() { "0" } else { significant }.to_owned();
        is_numeral.then_some(Shape::Based { digits, base })
    }

    fn base(&self, range: Range<usize>) -> Option<u32> {
        let is_braced = self.is_symbol(range.start, '{') && self.is_symbol(range.end - 1, '}');
        let inside = if is_braced { range.start + 1..range.end - 1 } else { range };
        if inside.len() != 1 {
            return None;
        }
        let base = match self.kind(inside.start)? {
            Kind::Number(numeral) if numeral.is_plain_integer() => numeral.digits.parse().ok()?,
            Kind::Word(name) | Kind::Text(name) => {
                let wanted = name.trim().to_lowercase();
                BASES.iter().find(|(name, _)| *name == wanted)?.1
            }
            _ => return None,
        };
        (2..=36).contains(&base).then_some(base)
    }
}
