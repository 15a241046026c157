//! Reads equations and inequalities, and the values and intervals that they give.

use std::ops::Range;

use super::super::lexer::Kind;
use super::super::parser::Parser;
use super::super::tree::{Node, NodeId, Shape, Unparsed};
use super::super::words::{self, Meaning};
use super::{Reader, interval};

fn relation_of(kind: &Kind) -> Option<char> {
    match kind {
        Kind::Symbol(symbol @ ('=' | '<' | '>' | '≤' | '≥' | '≠' | '∈')) => Some(*symbol),
        _ => None,
    }
}

impl Reader {
    /// Reads a relation; `None` if there is none outside of brackets.
    pub(super) fn relation(&mut self, range: Range<usize>, depth: usize) -> Result<Option<Shape>, Unparsed> {
        let sides = self.split(range, |kind| relation_of(kind).is_some())?;
        if sides.len() < 2 {
            return Ok(None);
        }
        if sides.iter().any(|side| side.is_empty()) {
            return Err(Unparsed);
        }
        let signs: Vec<char> =
            sides[1..].iter().filter_map(|side| self.kind(side.start - 1).and_then(relation_of)).collect();
        let shape = match signs.as_slice() {
            ['∈'] => self.named(sides[0].clone(), sides[1].clone(), depth)?,
            [sign @ ('<' | '>' | '≤' | '≥' | '≠')] => {
                self.inequality(*sign, sides[0].clone(), sides[1].clone())?
            }
            ['<' | '≤', '<' | '≤'] | ['>' | '≥', '>' | '≥'] => self.between(&sides, &signs)?,
            [..] if signs.iter().all(|sign| *sign == '=') => self.equation(&sides, depth)?,
            _ => return Err(Unparsed),
        };
        Ok(Some(shape))
    }

    fn text_of(&self, range: Range<usize>) -> String {
        let mut name = String::new();
        for token in &self.tokens[range] {
            match &token.kind {
                Kind::Word(text) | Kind::Letters(text) | Kind::Command(text) | Kind::Text(text) => {
                    name.push_str(text.trim());
                }
                Kind::Number(numeral) => name.push_str(&numeral.digits),
                Kind::Symbol(symbol) => name.push(*symbol),
                Kind::Begin(text) | Kind::End(text) => name.push_str(text),
            }
        }
        name
    }

    fn named(&mut self, name: Range<usize>, value: Range<usize>, depth: usize) -> Result<Shape, Unparsed> {
        let name = self.text_of(name);
        let value = Box::new(self.shape(value, depth + 1)?);
        Ok(Shape::Named { name, value, difference: None })
    }

    /// Reads an expression that fills the range.
    fn expression(&mut self, range: Range<usize>) -> Result<NodeId, Unparsed> {
        let mut parser =
            Parser::new(&mut self.tokens, &mut self.tree, range.start, range.end, self.is_lower_sign);
        let node = parser.expression()?;
        let is_whole = parser.at == range.end;
        self.has_signs |= parser.has_signs;
        if is_whole { Ok(node) } else { Err(Unparsed) }
    }

    fn difference(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, Unparsed> {
        let negated = self.tree.push(Node::Negate(right))?;
        self.tree.push(Node::Sum(left, negated))
    }

    /// Reads an equation or a chain of equations. A chain has the value of its last side; the sides between
    /// the first and the last are ignored.
    fn equation(&mut self, sides: &[Range<usize>], depth: usize) -> Result<Shape, Unparsed> {
        let (Some(left), Some(right)) = (sides.first(), sides.last()) else { return Err(Unparsed) };
        let is_name = self.is_name(left.clone());
        // The name is taken first, because reading an expression changes its tokens.
        let name = self.text_of(left.clone());
        let start = self.tree.nodes().len();
        let Ok(left_value) = self.expression(left.clone()) else {
            // "Area", `\angle ABC`, `(x, y)`: the left side is not an expression, so it names the value.
            let value = Box::new(self.shape(right.clone(), depth + 1)?);
            return Ok(Shape::Named { name, value, difference: None });
        };
        let value = self.shape(right.clone(), depth + 1)?;
        let Shape::Scalar(scalar) = &value else {
            return Ok(Shape::Named { name, value: Box::new(value), difference: None });
        };
        let right_value = scalar.value;
        let is_sum = !self.tree.has_variable_from(start);
        let difference = self.difference(left_value, right_value)?;
        if is_name || is_sum {
            return Ok(Shape::Named { name, value: Box::new(value), difference: Some(difference) });
        }
        Ok(Shape::Equation { difference })
    }

    /// Whether a range names a value: it is a variable, a few letters, or letters applied to something.
    fn is_name(&self, range: Range<usize>) -> bool {
        let is_letters = match self.kind(range.start) {
            Some(Kind::Command(name)) => {
                !matches!(name.as_str(), "frac" | "sqrt" | "binom") && words::classify_command(name).is_none()
            }
            Some(Kind::Word(word)) => {
                matches!(words::classify(word), Meaning::Letters | Meaning::Noun | Meaning::Unit)
            }
            Some(Kind::Text(_)) => true,
            _ => false,
        };
        let mut at = range.start + 1;
        let mut has_power = false;
        while at < range.end {
            match self.kind(at) {
                Some(Kind::Symbol('\'')) => at += 1,
                Some(Kind::Symbol(mark @ ('_' | '^'))) => {
                    has_power |= *mark == '^';
                    at = self.closing(at + 1, range.end).unwrap_or(range.end) + 1;
                }
                _ => break,
            }
        }
        let is_applied =
            self.is_symbol(at, '(') && self.closing(at, range.end).is_some_and(|last| last + 1 == range.end);
        // `f^{-1}(x)` is a name, `x^2` is not.
        is_letters && (is_applied || at == range.end && !has_power)
    }

    /// The name of the variable, if the node is a variable.
    fn variable(&self, node: NodeId) -> Option<String> {
        match self.tree.nodes().get(node) {
            Some(Node::Variable(name)) => Some(name.clone()),
            _ => None,
        }
    }

    fn inequality(&mut self, sign: char, left: Range<usize>, right: Range<usize>) -> Result<Shape, Unparsed> {
        let left_start = self.tree.nodes().len();
        let left_value = self.expression(left)?;
        let right_start = self.tree.nodes().len();
        let right_value = self.expression(right)?;
        let is_left_constant =
            !self.tree.nodes()[left_start..right_start].iter().any(|node| matches!(node, Node::Variable(_)));
        let is_right_constant = !self.tree.has_variable_from(right_start);
        if let Some(name) = self.variable(left_value).filter(|_| is_right_constant) {
            return self.ray(name, sign, right_value);
        }
        if let Some(name) = self.variable(right_value).filter(|_| is_left_constant) {
            return self.ray(name, mirrored(sign), left_value);
        }
        let (smaller, larger) = match sign {
            '<' | '≤' => (left_value, right_value),
            '>' | '≥' => (right_value, left_value),
            _ => return Err(Unparsed),
        };
        let difference = self.difference(smaller, larger)?;
        Ok(Shape::Inequality { difference, is_strict: matches!(sign, '<' | '>') })
    }

    /// All values of a variable on one side of a bound, or on both sides for `≠`.
    fn ray(&mut self, name: String, sign: char, bound: NodeId) -> Result<Shape, Unparsed> {
        let upper = self.infinity()?;
        let lower = self.tree.push(Node::Negate(upper))?;
        let value = match sign {
            '<' => interval('(', lower, bound, ')'),
            '≤' => interval('(', lower, bound, ']'),
            '>' => interval('(', bound, upper, ')'),
            '≥' => interval('[', bound, upper, ')'),
            _ => Shape::Union(vec![interval('(', lower, bound, ')'), interval('(', bound, upper, ')')]),
        };
        Ok(Shape::Named { name, value: Box::new(value), difference: None })
    }

    /// Reads a variable between two bounds.
    fn between(&mut self, sides: &[Range<usize>], signs: &[char]) -> Result<Shape, Unparsed> {
        let ([first, middle, last], [before, behind]) = (sides, signs) else { return Err(Unparsed) };
        let first_bound = self.expression(first.clone())?;
        let variable = self.expression(middle.clone())?;
        let last_bound = self.expression(last.clone())?;
        let name = self.variable(variable).ok_or(Unparsed)?;
        let is_rising = matches!(before, '<' | '≤');
        let (low, low_sign, high, high_sign) = if is_rising {
            (first_bound, before, last_bound, behind)
        } else {
            (last_bound, behind, first_bound, before)
        };
        let open = if matches!(low_sign, '≤' | '≥') { '[' } else { '(' };
        let close = if matches!(high_sign, '≤' | '≥') { ']' } else { ')' };
        Ok(Shape::Named { name, value: Box::new(interval(open, low, high, close)), difference: None })
    }
}

/// The relation with its two sides swapped.
fn mirrored(sign: char) -> char {
    match sign {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        other => other,
    }
}
