//! Evaluates expressions exactly: rational arithmetic over big integers, within a budget.

use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::tree::{Function, Node, NodeId, Rational, Tree};

/// Maximum number of bits of a numerator or denominator; larger values are left to numeric evaluation.
const BITS_MAX: u64 = 4096;

/// Approximate maximum number of operations on 64-bit machine words for one answer.
const WORK_MAX: u64 = 1 << 22;

const FACTORIAL_MAX: u32 = 300;
const BINOMIAL_MAX: u32 = 600;
const ROOT_INDEX_MAX: u32 = 64;

/// The exact value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Exact {
    Finite(Rational),
    PlusInfinity,
    MinusInfinity,
    Unknown,
}

impl Exact {
    /// The value, if it is a finite number.
    pub(super) fn rational(&self) -> Option<&Rational> {
        match self {
            Self::Finite(number) => Some(number),
            _ => None,
        }
    }
}

/// The exact value of every node.
pub(super) fn evaluate(tree: &Tree) -> Vec<Exact> {
    let mut evaluation = Evaluation { values: Vec::with_capacity(tree.nodes().len()), work_left: WORK_MAX };
    for node in tree.nodes() {
        let value = match node {
            Node::Infinity => Exact::PlusInfinity,
            Node::Negate(inside) if evaluation.values[*inside] == Exact::PlusInfinity => Exact::MinusInfinity,
            Node::Negate(inside) if evaluation.values[*inside] == Exact::MinusInfinity => Exact::PlusInfinity,
            finite => evaluation.finite(finite).map_or(Exact::Unknown, Exact::Finite),
        };
        evaluation.values.push(value);
    }
    evaluation.values
}

/// The number of bits of the numerator or the denominator, whichever is larger.
fn bits(number: &Rational) -> u64 {
    number.numer().bits().max(number.denom().bits())
}

struct Evaluation {
    values: Vec<Exact>,
    work_left: u64,
}

impl Evaluation {
    fn of(&self, node: NodeId) -> Option<&Rational> {
        self.values.get(node)?.rational()
    }

    fn integer(&self, node: NodeId) -> Option<&BigInt> {
        self.of(node).filter(|number| number.is_integer()).map(Rational::numer)
    }

    /// Takes the cost of an operation from the budget. The cost is quadratic in `bits`. Returns `None` if the
    /// budget is too small.
    fn pay(&mut self, bits: u64) -> Option<()> {
        let words = bits / 64 + 1;
        self.work_left = self.work_left.checked_sub(bits.max(64).saturating_mul(words))?;
        Some(())
    }

    fn finite(&mut self, node: &Node) -> Option<Rational> {
        let value = match node {
            Node::Number(number) => number.clone(),
            Node::Negate(inside) => -self.of(*inside)?,
            Node::Sum(a, b) | Node::Product(a, b) | Node::Quotient(a, b) => {
                self.pay(bits(self.of(*a)?) + bits(self.of(*b)?))?;
                let (left, right) = (self.of(*a)?, self.of(*b)?);
                match node {
                    Node::Sum(..) => left + right,
                    Node::Product(..) => left * right,
                    _ if right.is_zero() => return None,
                    _ => left / right,
                }
            }
            Node::Power { base, exponent } => {
                let (base, exponent) = (self.of(*base)?.clone(), self.of(*exponent)?.clone());
                self.power(&base, &exponent)?
            }
            Node::Root { index, radicand } => {
                let index = self.integer(*index)?.to_u32()?;
                let radicand = self.of(*radicand)?.clone();
                self.root(&radicand, index)?
            }
            Node::Binomial { of, choose } => {
                let (of, choose) = (self.integer(*of)?.to_u32()?, self.integer(*choose)?.to_u32()?);
                self.binomial(of, choose)?
            }
            Node::Apply(Function::Factorial, inside) => {
                let n = self.integer(*inside)?.to_u32().filter(|n| *n <= FACTORIAL_MAX)?;
                self.pay(64 * u64::from(n))?;
                Rational::from_integer((1..=n).fold(BigInt::one(), |product, factor| product * factor))
            }
            Node::Apply(Function::Abs, inside) => self.of(*inside)?.abs(),
            Node::Apply(Function::Floor, inside) => self.of(*inside)?.floor(),
            Node::Apply(Function::Ceil, inside) => self.of(*inside)?.ceil(),
            _ => return None,
        };
        (bits(&value) <= BITS_MAX).then_some(value)
    }

    fn power(&mut self, base: &Rational, exponent: &Rational) -> Option<Rational> {
        let index = exponent.denom().to_u32()?;
        let rooted = if index == 1 { base.clone() } else { self.root(base, index)? };
        if rooted.is_zero() {
            return exponent.is_positive().then(Rational::zero);
        }
        if rooted.is_one() {
            return Some(rooted);
        }
        let count = exponent.numer().abs().to_u32()?;
        let bits_of_power = bits(&rooted).saturating_mul(u64::from(count));
        // A power of minus one depends only on the parity of the exponent.
        if rooted == -Rational::one() {
            return Some(if count.is_multiple_of(2) { Rational::one() } else { rooted });
        }
        if bits_of_power > BITS_MAX + bits(&rooted) {
            return None;
        }
        self.pay(bits_of_power)?;
        let (top, bottom) = (rooted.numer().pow(count), rooted.denom().pow(count));
        // Powers of coprime numbers are coprime, so the quotient needs no reduction. For a negative exponent,
        // `new` moves the sign to the numerator.
        Some(if exponent.is_negative() { Rational::new(bottom, top) } else { Rational::new_raw(top, bottom) })
    }

    /// The root, if it is rational; odd roots of negative numbers are real.
    fn root(&mut self, radicand: &Rational, index: u32) -> Option<Rational> {
        if !(1..=ROOT_INDEX_MAX).contains(&index) || radicand.is_negative() && index.is_multiple_of(2) {
            return None;
        }
        self.pay(bits(radicand).saturating_mul(4))?;
        let rooted = |number: &BigInt| {
            let root = number.nth_root(index);
            (root.pow(index) == *number).then_some(root)
        };
        Some(Rational::new_raw(rooted(radicand.numer())?, rooted(radicand.denom())?))
    }

    fn binomial(&mut self, of: u32, choose: u32) -> Option<Rational> {
        if of > BINOMIAL_MAX {
            return None;
        }
        if choose > of {
            return Some(Rational::zero());
        }
        self.pay(64 * u64::from(of))?;
        let steps = choose.min(of - choose);
        let value = (0..steps).fold(BigInt::one(), |product, step| product * (of - step) / (step + 1));
        Some(Rational::from_integer(value))
    }
}
