//! Mixed numbers: `1\frac{1}{2}` and `1 1/2` are sums.
//!
//! The parser looks ahead to decide whether a fraction belongs to a mixed number, because reading the
//! fraction would change the tokens.

use super::super::lexer::{Kind, Numeral};
use super::super::tree::{Node, NodeId, Unparsed};
use super::Parser;

/// A position in the tokens. It may be inside a number, because a command's arguments may be digits of one
/// number, as in `\frac12`.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    digits_before: usize,
}

impl Parser<'_> {
    /// Reads the fraction of a mixed number, if there is one: a quotient of whole numbers, below 1, without a
    /// power or a factorial.
    pub(super) fn proper_fraction(&mut self) -> Result<Option<NodeId>, Unparsed> {
        let is_command = matches!(self.kind(), Some(Kind::Command(name)) if name == "frac");
        if is_command {
            return if self.is_proper_command() { self.atom().map(Some) } else { Ok(None) };
        }
        if !self.is_proper_slash() {
            return Ok(None);
        }
        let top = self.atom()?;
        self.at += 1;
        let bottom = self.atom()?;
        self.tree.push(Node::Quotient(top, bottom)).map(Some)
    }

    fn is_proper_command(&self) -> bool {
        let first = Place { at: self.at + 1, digits_before: 0 };
        let Some((top, second)) = self.integer_argument(first) else { return false };
        let Some((bottom, end)) = self.integer_argument(second) else { return false };
        is_proper(top, bottom) && !self.has_operator_at(end.at)
    }

    fn is_proper_slash(&self) -> bool {
        let is_spaced = self.tokens[..self.end].get(self.at).is_some_and(|token| token.is_spaced);
        let (top, bottom) = (self.integer_at(self.at), self.integer_at(self.at + 2));
        let is_fraction = self.kind_at(self.at + 1) == Some(&Kind::Symbol('/'))
            && top.zip(bottom).is_some_and(|(top, bottom)| is_proper(top, bottom));
        is_spaced && is_fraction && !self.has_operator_at(self.at + 3)
    }

    fn integer_at(&self, at: usize) -> Option<&str> {
        match self.kind_at(at)? {
            Kind::Number(numeral) => digits_of(numeral),
            _ => None,
        }
    }

    /// The whole number that is a command's argument, in braces or a single digit, and the place behind it.
    fn integer_argument(&self, place: Place) -> Option<(&str, Place)> {
        let Place { at, digits_before } = place;
        if self.kind_at(at) == Some(&Kind::Symbol('{')) {
            let is_closed = self.kind_at(at + 2) == Some(&Kind::Symbol('}'));
            let behind = Place { at: at + 3, digits_before: 0 };
            return self.integer_at(at + 1).filter(|_| is_closed).map(|digits| (digits, behind));
        }
        let digits = self.integer_at(at)?;
        let digit = digits.get(digits_before..=digits_before)?;
        let is_last = digits_before + 1 == digits.len();
        let behind = if is_last {
            Place { at: at + 1, digits_before: 0 }
        } else {
            Place { at, digits_before: digits_before + 1 }
        };
        Some((digit, behind))
    }

    /// Whether a factorial or a power (but not a degree sign) follows, so that the fraction is an ordinary
    /// factor.
    fn has_operator_at(&self, at: usize) -> bool {
        match self.kind_at(at) {
            Some(Kind::Symbol('!')) => true,
            Some(Kind::Symbol('^')) => self.degree_length_at(at + 1) == 0,
            _ => false,
        }
    }
}

fn digits_of(numeral: &Numeral) -> Option<&str> {
    numeral.is_plain_integer().then_some(numeral.digits.as_str())
}

/// Whether the quotient of two whole numbers lies between 0 and 1.
fn is_proper(top: &str, bottom: &str) -> bool {
    let (top, bottom) = (top.trim_start_matches('0'), bottom.trim_start_matches('0'));
    !top.is_empty() && (top.len(), top) < (bottom.len(), bottom)
}
