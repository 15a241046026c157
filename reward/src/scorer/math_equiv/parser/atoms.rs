//! Parses words and commands: variables, fractions, roots and functions.

use super::super::lexer::{Kind, Numeral};
use super::super::tree::{Function, Node, NodeId, Unparsed};
use super::super::words::{self, Meaning};
use super::{Parser, is_letter};

impl Parser<'_> {
    /// Splits the first letter off `letters`, which is the current token.
    fn split_letter(&mut self, letters: &str) -> Result<String, Unparsed> {
        let first = letters.chars().next().ok_or(Unparsed)?;
        let rest = &letters[first.len_utf8()..];
        if rest.is_empty() {
            self.at += 1;
        } else {
            self.tokens[self.at].kind = Kind::Letters(rest.to_owned());
        }
        Ok(first.to_string())
    }

    pub(super) fn letter(&mut self, letters: &str) -> Result<NodeId, Unparsed> {
        let name = self.split_letter(letters)?;
        match name.as_str() {
            "e" => self.tree.push(Node::Euler),
            "i" => self.tree.push(Node::Imaginary),
            _ => self.variable(name),
        }
    }

    /// Reads the rest of a variable; its subscript and primes belong to its name.
    fn variable(&mut self, mut name: String) -> Result<NodeId, Unparsed> {
        if self.accept('_') {
            name.push('_');
            name.push_str(&self.subscript()?);
        }
        while self.accept('\'') {
            name.push('\'');
        }
        self.tree.push(Node::Variable(name))
    }

    fn subscript(&mut self) -> Result<String, Unparsed> {
        let is_braced = self.accept('{');
        let mut name = String::new();
        loop {
            match self.kind().ok_or(Unparsed)?.clone() {
                Kind::Symbol('}') if is_braced => {
                    self.at += 1;
                    return Ok(name);
                }
                Kind::Number(numeral) => name.push_str(&numeral.digits),
                Kind::Word(word) | Kind::Letters(word) if !is_braced => return self.split_letter(&word),
                Kind::Word(word) | Kind::Letters(word) | Kind::Command(word) | Kind::Text(word) => {
                    name.push_str(&word);
                }
                Kind::Symbol(symbol @ ('+' | '-' | ',')) if is_braced => name.push(symbol),
                _ => return Err(Unparsed),
            }
            self.at += 1;
            if !is_braced {
                return Ok(name);
            }
        }
    }

    pub(super) fn word(&mut self, meaning: Meaning, word: String) -> Result<NodeId, Unparsed> {
        // "sec" is a second, but `sec(x)` is a secant.
        let is_call = self.tokens[..self.end]
            .get(self.at + 1)
            .is_some_and(|next| next.kind == Kind::Symbol('(') && !next.is_spaced);
        if word == "sec" && is_call {
            self.at += 1;
            return self.function(Function::Sec);
        }
        match meaning {
            Meaning::Letters => self.letter(&word),
            Meaning::Percent | Meaning::Separator | Meaning::Unit | Meaning::Noun => Err(Unparsed),
            known => {
                self.at += 1;
                self.known(known)
            }
        }
    }

    fn known(&mut self, meaning: Meaning) -> Result<NodeId, Unparsed> {
        match meaning {
            Meaning::Pi => self.tree.push(Node::Pi),
            Meaning::Euler => self.tree.push(Node::Euler),
            Meaning::Imaginary => self.tree.push(Node::Imaginary),
            Meaning::Infinity => self.tree.push(Node::Infinity),
            Meaning::Sqrt => self.root(),
            Meaning::Log => self.logarithm(None),
            Meaning::Lg => self.logarithm(Some(10)),
            Meaning::Function(function) => self.function(function),
            Meaning::Multiplier(value) => self.tree.push_integer(value),
            _ => Err(Unparsed),
        }
    }

    pub(super) fn command(&mut self, name: &str) -> Result<NodeId, Unparsed> {
        match name {
            "frac" => {
                let top = self.bare_argument()?;
                let bottom = self.bare_argument()?;
                self.tree.push(Node::Quotient(top, bottom))
            }
            "binom" => {
                let of = self.bare_argument()?;
                let choose = self.bare_argument()?;
                self.tree.push(Node::Binomial { of, choose })
            }
            "sqrt" => self.indexed_root(),
            letter if is_letter(letter) => self.variable(format!("\\{letter}")),
            _ => self.known(words::classify_command(name).ok_or(Unparsed)?),
        }
    }

    /// Reads a command's argument: a group in braces, or a single digit, letter or command.
    fn bare_argument(&mut self) -> Result<NodeId, Unparsed> {
        self.nested(|parser| match parser.kind().ok_or(Unparsed)?.clone() {
            Kind::Number(numeral) if numeral.is_plain_integer() => {
                let (first, rest) = numeral.digits.split_at_checked(1).ok_or(Unparsed)?;
                let digit = first.parse().map_err(|_| Unparsed)?;
                if rest.is_empty() {
                    parser.at += 1;
                } else {
                    let rest = Numeral { digits: rest.to_owned(), ..Numeral::default() };
                    parser.tokens[parser.at].kind = Kind::Number(rest);
                }
                parser.tree.push_integer(digit)
            }
            Kind::Word(word) | Kind::Letters(word) => parser.letter(&word),
            Kind::Symbol('{' | 'π') | Kind::Command(_) => parser.atom(),
            _ => Err(Unparsed),
        })
    }

    /// Reads an optional index in brackets and an argument, after `\sqrt`.
    fn indexed_root(&mut self) -> Result<NodeId, Unparsed> {
        let index = if self.accept('[') { self.group(']')? } else { self.tree.push_integer(2)? };
        let radicand = if self.symbol() == Some('(') { self.atom()? } else { self.bare_argument()? };
        self.tree.push(Node::Root { index, radicand })
    }

    /// Reads the whole atom that follows, after a plain "sqrt" or root sign.
    pub(super) fn root(&mut self) -> Result<NodeId, Unparsed> {
        let index = self.tree.push_integer(2)?;
        let radicand = self.nested(Self::atom)?;
        self.tree.push(Node::Root { index, radicand })
    }

    fn logarithm(&mut self, fixed_base: Option<i64>) -> Result<NodeId, Unparsed> {
        let base = if self.accept('_') {
            Some(self.nested(Self::atom)?)
        } else {
            fixed_base.map(|base| self.tree.push_integer(base)).transpose()?
        };
        let power = if self.accept('^') { Some(self.exponent()?) } else { None };
        let argument = self.argument(self.is_angle)?;
        let node = match base {
            Some(base) => Node::Logarithm { base, argument },
            None => Node::Apply(Function::Ln, argument),
        };
        let logarithm = self.tree.push(node)?;
        self.raised(logarithm, power)
    }

    fn function(&mut self, function: Function) -> Result<NodeId, Unparsed> {
        let power = if self.accept('^') { Some(self.exponent()?) } else { None };
        let inverse = match power {
            // An inverse that is not known must not be read as a power: `\sec^{-1} x` is not `\cos x`.
            Some(power) if self.is_minus_one(power) => Some(function.inverse().ok_or(Unparsed)?),
            _ => None,
        };
        let argument = self.argument(function.takes_angle() && inverse.is_none())?;
        if let Some(inverse) = inverse {
            return self.tree.push(Node::Apply(inverse, argument));
        }
        let value = self.tree.push(Node::Apply(function, argument))?;
        self.raised(value, power)
    }

    fn is_minus_one(&self, node: NodeId) -> bool {
        let nodes = self.tree.nodes();
        let Some(Node::Negate(inside)) = nodes.get(node) else { return false };
        matches!(nodes.get(*inside), Some(Node::Number(one)) if *one == num_traits::One::one())
    }

    fn raised(&mut self, base: NodeId, power: Option<NodeId>) -> Result<NodeId, Unparsed> {
        match power {
            Some(exponent) => self.tree.push(Node::Power { base, exponent }),
            None => Ok(base),
        }
    }

    /// Reads a function's argument: a group, or the product that follows up to the next function or bracket.
    fn argument(&mut self, is_angle: bool) -> Result<NodeId, Unparsed> {
        let outer = std::mem::replace(&mut self.is_angle, is_angle);
        let argument = self.nested(Self::argument_in_depth);
        self.is_angle = outer;
        argument
    }

    fn argument_in_depth(&mut self) -> Result<NodeId, Unparsed> {
        if matches!(self.symbol(), Some('(' | '[' | '{' | '|')) {
            return self.atom();
        }
        let mut product = self.signed(Self::factor)?;
        loop {
            let goes_on = match self.kind() {
                Some(Kind::Letters(_)) => true,
                Some(Kind::Word(word)) => {
                    matches!(words::classify(word), Meaning::Letters | Meaning::Pi | Meaning::Euler)
                }
                Some(Kind::Command(name)) => matches!(name.as_str(), "frac" | "sqrt") || is_letter(name),
                Some(Kind::Symbol('π' | '√')) => true,
                Some(Kind::Symbol('/')) if self.is_angle => {
                    // `\sin \pi/6` is the sine of a sixth of pi.
                    self.at += 1;
                    let divisor = self.factor()?;
                    product = self.tree.push(Node::Quotient(product, divisor))?;
                    continue;
                }
                _ => false,
            };
            if !goes_on {
                return Ok(product);
            }
            let factor = self.factor()?;
            product = self.tree.push(Node::Product(product, factor))?;
        }
    }
}
