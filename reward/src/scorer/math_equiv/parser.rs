//! Parses expressions by recursive descent over tokens, with bounded depth.
//!
//! Products and quotients have equal precedence and associate to the left, with or without a multiplication
//! sign, so `1/2x` is half of x. A sign has lower precedence than a power. A function without parentheses
//! takes the product that follows.

mod atoms;
mod mixed;
mod numeral;

use super::lexer::{Kind, Token};
use super::tree::{Function, Node, NodeId, Tree, Unparsed};
use super::words::{self, Meaning};
use numeral::rational;

/// Maximum depth of nested expressions.
const DEPTH_MAX: usize = 48;

/// Reads the expression at `at`; stops before `end` or at the first token that does not belong to the
/// expression.
pub(super) struct Parser<'a> {
    pub(super) tokens: &'a mut [Token],
    pub(super) tree: &'a mut Tree,
    pub(super) at: usize,
    pub(super) end: usize,
    /// Whether `\pm` is read as a minus, and `\mp` as a plus.
    pub(super) is_lower_sign: bool,
    /// Whether a `\pm` or `\mp` was read.
    pub(super) has_signs: bool,
    /// The value of the last percentage, and the number before its sign.
    pub(super) percent: Option<(NodeId, NodeId)>,
    depth: usize,
    /// Whether the parser is in the argument of a trigonometric function.
    is_angle: bool,
    /// Whether the parser is inside `|..|`, where a bar closes.
    is_in_bars: bool,
}

impl<'a> Parser<'a> {
    /// A parser of the tokens from `at` to `end`.
    pub(super) fn new(
        tokens: &'a mut [Token],
        tree: &'a mut Tree,
        at: usize,
        end: usize,
        is_lower_sign: bool,
    ) -> Self {
        Self {
            tokens,
            tree,
            at,
            end,
            is_lower_sign,
            has_signs: false,
            percent: None,
            depth: 0,
            is_angle: false,
            is_in_bars: false,
        }
    }

    fn kind(&self) -> Option<&Kind> {
        self.kind_at(self.at)
    }

    fn kind_at(&self, at: usize) -> Option<&Kind> {
        self.tokens[..self.end].get(at).map(|token| &token.kind)
    }

    fn symbol(&self) -> Option<char> {
        match self.kind() {
            Some(Kind::Symbol(symbol)) => Some(*symbol),
            _ => None,
        }
    }

    fn accept(&mut self, wanted: char) -> bool {
        let is_there = self.symbol() == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn require(&mut self, wanted: char) -> Result<(), Unparsed> {
        if self.accept(wanted) { Ok(()) } else { Err(Unparsed) }
    }

    /// Calls `part` one level deeper.
    fn nested(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<NodeId, Unparsed>,
    ) -> Result<NodeId, Unparsed> {
        if self.depth >= DEPTH_MAX {
            return Err(Unparsed);
        }
        self.depth += 1;
        let node = part(self);
        self.depth -= 1;
        node
    }

    /// Reads a sum of terms, or two sums as in `n \choose k`.
    pub(super) fn expression(&mut self) -> Result<NodeId, Unparsed> {
        self.nested(|parser| {
            let mut sum = parser.signed(Self::term)?;
            while let Some(is_minus) = parser.sign() {
                let mut term = parser.signed(Self::term)?;
                if is_minus {
                    term = parser.tree.push(Node::Negate(term))?;
                }
                sum = parser.tree.push(Node::Sum(sum, term))?;
            }
            let is_choice = matches!(parser.kind(), Some(Kind::Command(name)) if name == "choose");
            if !is_choice {
                return Ok(sum);
            }
            parser.at += 1;
            let choose = parser.expression()?;
            parser.tree.push(Node::Binomial { of: sum, choose })
        })
    }

    /// Moves past a sign, if there is one, and returns whether it is a minus.
    fn sign(&mut self) -> Option<bool> {
        let is_minus = match self.symbol()? {
            '+' => false,
            '-' => true,
            '±' => self.is_lower_sign,
            '∓' => !self.is_lower_sign,
            _ => return None,
        };
        self.has_signs |= matches!(self.symbol(), Some('±' | '∓'));
        self.at += 1;
        Some(is_minus)
    }

    /// Reads any number of signs and then `part`.
    fn signed(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<NodeId, Unparsed>,
    ) -> Result<NodeId, Unparsed> {
        let mut is_negative = false;
        while let Some(is_minus) = self.sign() {
            is_negative ^= is_minus;
        }
        let node = part(self)?;
        if !is_negative {
            return Ok(node);
        }
        let negative = self.tree.push(Node::Negate(node))?;
        if let Some((_, number)) = self.percent.filter(|(value, _)| *value == node) {
            self.percent = Some((negative, self.tree.push(Node::Negate(number))?));
        }
        Ok(negative)
    }

    fn term(&mut self) -> Result<NodeId, Unparsed> {
        let start = self.at;
        let mut product = self.factor()?;
        let is_integer = self.at == start + 1
            && matches!(&self.tokens[start].kind, Kind::Number(numeral) if numeral.is_plain_integer());
        if is_integer && let Some(part) = self.proper_fraction()? {
            product = self.tree.push(Node::Sum(product, part))?;
            let is_power = self.symbol() == Some('^') && self.degree_length_at(self.at + 1) > 0;
            self.at += usize::from(is_power);
            if self.accept_degree() {
                product = self.degrees(product)?;
            }
        }
        loop {
            if self.accept('*') {
                let factor = self.signed(Self::factor)?;
                product = self.tree.push(Node::Product(product, factor))?;
            } else if self.accept('%') {
                // `1/2\%` is half a percent.
                product = self.hundredth(product)?;
            } else if self.symbol() == Some('/') && !self.is_unit_at(self.at + 1) {
                self.at += 1;
                let divisor = self.signed(Self::factor)?;
                product = self.tree.push(Node::Quotient(product, divisor))?;
            } else if self.starts_factor() {
                let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
                let is_after_number = last.is_some_and(|token| matches!(token.kind, Kind::Number(_)));
                if is_after_number && matches!(self.kind(), Some(Kind::Number(_))) {
                    return Err(Unparsed);
                }
                let factor = self.factor()?;
                product = self.tree.push(Node::Product(product, factor))?;
            } else {
                return Ok(product);
            }
        }
    }

    fn is_unit_at(&self, at: usize) -> bool {
        match self.kind_at(at) {
            Some(Kind::Word(word)) => matches!(words::classify(word), Meaning::Unit | Meaning::Noun),
            Some(Kind::Text(_)) => true,
            _ => false,
        }
    }

    /// Whether the next token starts a factor, without a multiplication sign.
    fn starts_factor(&self) -> bool {
        match self.kind() {
            Some(Kind::Number(_) | Kind::Letters(_)) => true,
            Some(Kind::Word(word)) => is_value(words::classify(word)),
            Some(Kind::Command(name)) => is_factor(name),
            Some(Kind::Symbol(symbol)) => match symbol {
                '(' | '[' | '{' | 'π' | '√' | '⌊' | '⌈' | '∞' => true,
                '|' => !self.is_in_bars,
                _ => false,
            },
            _ => false,
        }
    }

    /// Reads an atom with its powers, factorials and degree signs.
    fn factor(&mut self) -> Result<NodeId, Unparsed> {
        let mut node = self.atom()?;
        loop {
            match self.symbol() {
                Some('!') => {
                    self.at += 1;
                    // A double factorial is not the factorial of a factorial.
                    if self.symbol() == Some('!') {
                        return Err(Unparsed);
                    }
                    node = self.tree.push(Node::Apply(Function::Factorial, node))?;
                }
                Some('°') => {
                    self.at += 1;
                    node = self.degrees(node)?;
                }
                Some('^') => {
                    self.at += 1;
                    if self.accept_degree() {
                        node = self.degrees(node)?;
                    } else {
                        let exponent = self.exponent()?;
                        node = self.tree.push(Node::Power { base: node, exponent })?;
                    }
                }
                _ => return Ok(node),
            }
        }
    }

    /// Divides a number by a hundred, and keeps both in `percent`.
    pub(super) fn hundredth(&mut self, number: NodeId) -> Result<NodeId, Unparsed> {
        let hundred = self.tree.push_integer(100)?;
        let value = self.tree.push(Node::Quotient(number, hundred))?;
        self.percent = Some((value, number));
        Ok(value)
    }

    fn accept_degree(&mut self) -> bool {
        let length = self.degree_length_at(self.at);
        self.at += length;
        length > 0
    }

    /// The number of tokens of the degree sign at `at`, with or without braces; 0 if there is none.
    fn degree_length_at(&self, at: usize) -> usize {
        let is_symbol = |at: usize, symbol: char| self.kind_at(at) == Some(&Kind::Symbol(symbol));
        if is_symbol(at, '°') {
            return 1;
        }
        let is_braced = is_symbol(at, '{') && is_symbol(at + 1, '°') && is_symbol(at + 2, '}');
        if is_braced { 3 } else { 0 }
    }

    /// Turns degrees into radians in the argument of a trigonometric function. Elsewhere degrees are a unit,
    /// and the number stays as it is.
    fn degrees(&mut self, number: NodeId) -> Result<NodeId, Unparsed> {
        if !self.is_angle {
            return Ok(number);
        }
        let pi = self.tree.push(Node::Pi)?;
        let half_turn = self.tree.push_integer(180)?;
        let product = self.tree.push(Node::Product(number, pi))?;
        self.tree.push(Node::Quotient(product, half_turn))
    }

    fn exponent(&mut self) -> Result<NodeId, Unparsed> {
        self.nested(|parser| {
            parser.signed(|inner| {
                let exponent = inner.atom()?;
                if !inner.accept('^') {
                    return Ok(exponent);
                }
                let upper = inner.exponent()?;
                inner.tree.push(Node::Power { base: exponent, exponent: upper })
            })
        })
    }

    /// Reads an expression and its closing bracket, after the opening one was read.
    fn group(&mut self, close: char) -> Result<NodeId, Unparsed> {
        let is_in_bars = std::mem::replace(&mut self.is_in_bars, close == '|');
        let node = self.expression()?;
        self.is_in_bars = is_in_bars;
        self.require(close)?;
        Ok(node)
    }

    fn atom(&mut self) -> Result<NodeId, Unparsed> {
        match self.kind().ok_or(Unparsed)? {
            Kind::Number(numeral) => {
                let number = rational(numeral)?;
                self.at += 1;
                self.tree.push(Node::Number(number))
            }
            Kind::Word(word) => {
                let (meaning, letters) = (words::classify(word), word.clone());
                self.word(meaning, letters)
            }
            Kind::Letters(letters) => {
                let letters = letters.clone();
                self.letter(&letters)
            }
            Kind::Command(name) => {
                let name = name.clone();
                self.at += 1;
                self.command(&name)
            }
            Kind::Symbol(symbol) => {
                let symbol = *symbol;
                self.at += 1;
                self.opened(symbol)
            }
            Kind::Text(_) | Kind::Begin(_) | Kind::End(_) => Err(Unparsed),
        }
    }

    fn opened(&mut self, symbol: char) -> Result<NodeId, Unparsed> {
        match symbol {
            '(' => self.group(')'),
            '[' => self.group(']'),
            '{' => self.group('}'),
            '|' => {
                let inside = self.group('|')?;
                self.tree.push(Node::Apply(Function::Abs, inside))
            }
            '⌊' => {
                let inside = self.group('⌋')?;
                self.tree.push(Node::Apply(Function::Floor, inside))
            }
            '⌈' => {
                let inside = self.group('⌉')?;
                self.tree.push(Node::Apply(Function::Ceil, inside))
            }
            'π' => self.tree.push(Node::Pi),
            '∞' => self.tree.push(Node::Infinity),
            '√' => self.root(),
            _ => Err(Unparsed),
        }
    }
}

/// Whether a word is a value or begins one. The other words stand behind values.
fn is_value(meaning: Meaning) -> bool {
    !matches!(meaning, Meaning::Percent | Meaning::Separator | Meaning::Unit | Meaning::Noun)
}

fn is_factor(name: &str) -> bool {
    matches!(name, "frac" | "sqrt" | "binom") || words::classify_command(name).is_some() || is_letter(name)
}

/// Whether a command is a variable.
fn is_letter(name: &str) -> bool {
    const LETTERS: &[&str] = &[
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
    ];
    LETTERS.contains(&name)
}
