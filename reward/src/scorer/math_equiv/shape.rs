//! Decides what kind of answer the tokens are: a value, a tuple, a set, a list, a union, a matrix, a relation
//! or words.

mod relation;
mod scalar;

use std::ops::Range;

use super::lexer::{Kind, Mode, ROW, SET_CLOSE, SET_OPEN, Token, tokenize};
use super::tree::{Node, NodeId, Scalar, Shape, Tree, Units, Unparsed};
use super::words::{self, Meaning};

/// Maximum depth of nested answers.
const DEPTH_MAX: usize = 12;

/// Maximum number of nested `\text{}` around an answer that are replaced by their content.
const TEXT_DEPTH_MAX: usize = 3;

/// An answer with its expressions.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) tree: Tree,
    pub(super) shape: Shape,
    /// Whether the other [`Mode`] may give another answer.
    pub(super) is_ambiguous: bool,
}

/// Reads an answer of bounded length.
pub(super) fn read(text: &str, mode: Mode) -> Result<Reading, Unparsed> {
    let mut lexed = tokenize(text, mode)?;
    for _ in 0..TEXT_DEPTH_MAX {
        let [Token { kind: Kind::Text(inside), .. }] = lexed.tokens.as_slice() else { break };
        lexed = tokenize(&inside.clone(), mode)?;
    }
    let mut reader = Reader {
        tokens: lexed.tokens.clone(),
        tree: Tree::default(),
        mode,
        is_ambiguous: lexed.is_ambiguous,
        is_lower_sign: false,
        has_signs: false,
    };
    let upper = reader.whole()?;
    let shape = if reader.has_signs {
        reader.tokens = lexed.tokens;
        reader.is_lower_sign = true;
        either(upper, reader.whole()?)
    } else {
        upper
    };
    Ok(Reading { tree: reader.tree, shape, is_ambiguous: reader.is_ambiguous })
}

/// Joins the two meanings of an answer with `\pm` into a set.
fn either(upper: Shape, lower: Shape) -> Shape {
    match (upper, lower) {
        (Shape::Set(mut all), Shape::Set(rest)) | (Shape::List(mut all), Shape::List(rest)) => {
            all.extend(rest);
            Shape::Set(all)
        }
        (Shape::Named { name, value, .. }, Shape::Named { value: other, .. }) => {
            Shape::Named { name, value: Box::new(either(*value, *other)), difference: None }
        }
        (one, other) => Shape::Set(vec![one, other]),
    }
}

struct Reader {
    tokens: Vec<Token>,
    tree: Tree,
    mode: Mode,
    is_ambiguous: bool,
    is_lower_sign: bool,
    has_signs: bool,
}

impl Reader {
    fn whole(&mut self) -> Result<Shape, Unparsed> {
        self.shape(0..self.tokens.len(), 0)
    }

    fn kind(&self, at: usize) -> Option<&Kind> {
        self.tokens.get(at).map(|token| &token.kind)
    }

    fn is_symbol(&self, at: usize, symbol: char) -> bool {
        self.kind(at) == Some(&Kind::Symbol(symbol))
    }

    fn shape(&mut self, range: Range<usize>, depth: usize) -> Result<Shape, Unparsed> {
        if depth >= DEPTH_MAX || range.is_empty() {
            return Err(Unparsed);
        }
        let items = self.split(range.clone(), is_separator)?;
        if items.len() > 1 {
            return self.list(items, depth);
        }
        let parts = self.split(range.clone(), |kind| *kind == Kind::Symbol('∪'))?;
        if parts.len() > 1 {
            return Ok(Shape::Union(self.shapes(parts, depth)?));
        }
        if let Some(relation) = self.relation(range.clone(), depth)? {
            return Ok(relation);
        }
        if let Some(bracketed) = self.bracketed(range.clone(), depth)? {
            return Ok(bracketed);
        }
        if let Some(text) = self.words(range.clone()) {
            return Ok(text);
        }
        if let Some(numeral) = self.based(range.clone()) {
            return Ok(numeral);
        }
        self.scalar(range)
    }

    fn shapes(&mut self, ranges: Vec<Range<usize>>, depth: usize) -> Result<Vec<Shape>, Unparsed> {
        ranges.into_iter().map(|range| self.shape(range, depth + 1)).collect()
    }

    /// Reads a list, or a union of ranges if "or" joins them. Empty items are skipped: they are between two
    /// separators that belong together, as in `1, 2, and 3`.
    fn list(&mut self, items: Vec<Range<usize>>, depth: usize) -> Result<Shape, Unparsed> {
        let separators = items[..items.len() - 1].iter().filter_map(|item| self.kind(item.end));
        let words: Vec<String> = separators.filter_map(word_of).collect();
        let is_choice = !words.is_empty() && words.iter().all(|word| word == "or");
        let filled: Vec<_> = items.into_iter().filter(|item| !item.is_empty()).collect();
        let shapes = self.shapes(filled, depth)?;
        let is_range = |shape: &Shape| match shape {
            Shape::Named { value, .. } => matches!(**value, Shape::Bracketed { .. } | Shape::Union(_)),
            _ => false,
        };
        if is_choice && shapes.len() > 1 && shapes.iter().all(is_range) {
            return Ok(union_of_ranges(shapes));
        }
        Ok(Shape::List(shapes))
    }

    /// Splits a range at the tokens for which `is_split` holds, except inside brackets.
    fn split(
        &self,
        range: Range<usize>,
        is_split: impl Fn(&Kind) -> bool,
    ) -> Result<Vec<Range<usize>>, Unparsed> {
        let mut parts = Vec::new();
        let mut start = range.start;
        let mut level = 0_i32;
        for at in range.clone() {
            let Some(kind) = self.kind(at) else { break };
            level += nesting(kind);
            if level < 0 {
                return Err(Unparsed);
            }
            if level == 0 && is_split(kind) {
                parts.push(start..at);
                start = at + 1;
            }
        }
        if level != 0 {
            return Err(Unparsed);
        }
        parts.push(start..range.end);
        Ok(parts)
    }

    /// The place at which the bracket at `open` is closed, by a closing bracket of any kind.
    fn closing(&self, open: usize, end: usize) -> Option<usize> {
        let mut level = 0;
        (open..end).find(|at| {
            level += self.kind(*at).map_or(0, nesting);
            level == 0
        })
    }

    /// Reads a tuple, interval, set or matrix that fills the range; `None` if there is none.
    fn bracketed(&mut self, range: Range<usize>, depth: usize) -> Result<Option<Shape>, Unparsed> {
        let last = range.end - 1;
        let opening = self.kind(range.start).cloned();
        let is_empty_set = match &opening {
            Some(Kind::Symbol('∅')) => range.len() == 1,
            Some(Kind::Symbol(SET_OPEN)) => range.len() == 2,
            _ => false,
        };
        if is_empty_set {
            return Ok(Some(Shape::Set(Vec::new())));
        }
        if range.len() == 1 && opening == Some(Kind::Command("mathbbR".to_owned())) {
            return self.all_reals().map(Some);
        }
        if self.closing(range.start, range.end) != Some(last) || range.len() < 3 {
            return Ok(None);
        }
        let inside = range.start + 1..last;
        match (opening, self.kind(last).cloned()) {
            (Some(Kind::Begin(name)), Some(Kind::End(_))) => self.matrix(&name, inside, depth).map(Some),
            (Some(Kind::Symbol(SET_OPEN)), Some(Kind::Symbol(SET_CLOSE))) => {
                let items = self.split(inside, is_separator)?;
                Ok(Some(Shape::Set(self.shapes(items, depth)?)))
            }
            (Some(Kind::Symbol('{')), Some(Kind::Symbol('}'))) => {
                let items = self.split(inside.clone(), is_separator)?;
                if items.len() > 1 {
                    return Ok(Some(Shape::Set(self.shapes(items, depth)?)));
                }
                self.shape(inside, depth + 1).map(Some)
            }
            (Some(Kind::Symbol(open @ ('(' | '[' | '⟨'))), Some(Kind::Symbol(close @ (')' | ']' | '⟩')))) =>
            {
                let is_matrix = matches!(self.kind(inside.start), Some(Kind::Begin(_)))
                    && self.closing(inside.start, inside.end) == Some(inside.end - 1);
                if is_matrix {
                    return self.shape(inside, depth + 1).map(Some);
                }
                let items = self.split(inside, is_separator)?;
                if items.len() < 2 {
                    return Ok(None);
                }
                let (open, close) = if open == '⟨' { ('(', ')') } else { (open, close) };
                Ok(Some(Shape::Bracketed { open, close, items: self.shapes(items, depth)? }))
            }
            _ => Ok(None),
        }
    }

    fn all_reals(&mut self) -> Result<Shape, Unparsed> {
        let upper = self.infinity()?;
        let lower = self.tree.push(Node::Negate(upper))?;
        Ok(interval('(', lower, upper, ')'))
    }

    fn infinity(&mut self) -> Result<NodeId, Unparsed> {
        self.tree.push(Node::Infinity)
    }

    fn matrix(&mut self, name: &str, inside: Range<usize>, depth: usize) -> Result<Shape, Unparsed> {
        if !matches!(name, "pmatrix" | "bmatrix" | "matrix" | "array" | "Bmatrix" | "smallmatrix") {
            return Err(Unparsed);
        }
        let mut rows = self.split(inside, |kind| *kind == Kind::Symbol(ROW))?;
        if rows.last().is_some_and(|row| row.is_empty()) {
            rows.pop();
        }
        let mut columns = 0;
        let mut cells = Vec::new();
        for row in rows {
            let ranges = self.split(row, |kind| *kind == Kind::Symbol('&'))?;
            if columns != 0 && columns != ranges.len() {
                return Err(Unparsed);
            }
            columns = ranges.len();
            cells.extend(self.shapes(ranges, depth)?);
        }
        Ok(Shape::Matrix { columns, cells })
    }
}

fn union_of_ranges(ranges: Vec<Shape>) -> Shape {
    let mut parts = Vec::new();
    let mut first_name = None;
    for range in ranges {
        let Shape::Named { name, value, .. } = range else { continue };
        first_name.get_or_insert(name);
        match *value {
            Shape::Union(inner) => parts.extend(inner),
            other => parts.push(other),
        }
    }
    let name = first_name.unwrap_or_default();
    Shape::Named { name, value: Box::new(Shape::Union(parts)), difference: None }
}

/// The interval between two values without units.
fn interval(open: char, low: NodeId, high: NodeId, close: char) -> Shape {
    Shape::Bracketed { open, close, items: vec![plain(low), plain(high)] }
}

fn plain(value: NodeId) -> Shape {
    Shape::Scalar(Scalar { value, percent: None, units: Units::new() })
}

fn nesting(kind: &Kind) -> i32 {
    match kind {
        Kind::Symbol('(' | '[' | '{' | '⟨' | '⌊' | '⌈' | SET_OPEN) | Kind::Begin(_) => 1,
        Kind::Symbol(')' | ']' | '}' | '⟩' | '⌋' | '⌉' | SET_CLOSE) | Kind::End(_) => -1,
        _ => 0,
    }
}

/// A word in lower case, without other characters at its ends; `None` for other tokens.
fn word_of(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Word(word) | Kind::Text(word) => {
            Some(word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
        }
        _ => None,
    }
}

/// Whether a token is a comma, a semicolon, "and" or "or".
fn is_separator(kind: &Kind) -> bool {
    let is_mark = matches!(kind, Kind::Symbol(',' | ';'));
    is_mark || word_of(kind).is_some_and(|word| words::classify(&word) == Meaning::Separator)
}
