//! Expressions as a flat tree: a node's operands stand before it, so that every pass over an expression is a
//! loop.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio;

/// Nodes of one answer. Every pass costs at most this many steps per sample point.
pub(super) const NODES_MAX: usize = 2048;

/// An exact number.
pub(super) type Rational = Ratio<BigInt>;

/// A node's place in its tree.
pub(super) type NodeId = usize;

/// The answer is outside of what is understood, or over a bound; it is compared as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unparsed;

/// What a known function does with its one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    Exp,
    Ln,
    Abs,
    Floor,
    Ceil,
    Factorial,
}

impl Function {
    /// The function that `\sin^{-1}` and the like mean.
    pub(super) fn inverse(self) -> Option<Self> {
        match self {
            Self::Sin => Some(Self::Arcsin),
            Self::Cos => Some(Self::Arccos),
            Self::Tan => Some(Self::Arctan),
            _ => None,
        }
    }

    /// Whether degrees in the argument are an angle rather than the unit of a number.
    pub(super) fn takes_angle(self) -> bool {
        matches!(self, Self::Sin | Self::Cos | Self::Tan | Self::Cot | Self::Sec | Self::Csc)
    }
}

/// One step of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Number(Rational),
    Pi,
    Euler,
    Imaginary,
    Infinity,
    Variable(String),
    Negate(NodeId),
    Sum(NodeId, NodeId),
    Product(NodeId, NodeId),
    Quotient(NodeId, NodeId),
    Power { base: NodeId, exponent: NodeId },
    Root { index: NodeId, radicand: NodeId },
    Logarithm { base: NodeId, argument: NodeId },
    Binomial { of: NodeId, choose: NodeId },
    Apply(Function, NodeId),
}

/// The nodes of one answer, operands first.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// Adds a node whose operands are there already.
    pub(super) fn push(&mut self, node: Node) -> Result<NodeId, Unparsed> {
        if self.nodes.len() >= NODES_MAX {
            return Err(Unparsed);
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// Adds a whole number.
    pub(super) fn push_integer(&mut self, value: i64) -> Result<NodeId, Unparsed> {
        self.push(Node::Number(Rational::from_integer(BigInt::from(value))))
    }

    /// All nodes, operands first.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether any node from `start` on is a variable.
    pub(super) fn has_variable_from(&self, start: NodeId) -> bool {
        self.nodes[start.min(self.nodes.len())..].iter().any(|node| matches!(node, Node::Variable(_)))
    }
}

/// Known units and their powers; unknown words are no units.
pub(super) type Units = BTreeMap<&'static str, i32>;

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scalar {
    /// The value; of a percentage its hundredth.
    pub(super) value: NodeId,
    /// For a percentage, the number before the sign.
    pub(super) percent: Option<NodeId>,
    /// Units behind the value.
    pub(super) units: Units,
}

/// What kind of answer it is. Each container holds answers of any kind, to a bounded depth.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Scalar(Scalar),
    /// A tuple, vector or interval: which of them, only its use tells.
    Bracketed {
        open: char,
        close: char,
        items: Vec<Shape>,
    },
    /// Written in set braces, or made of `\pm`: how often an element stands there does not matter.
    Set(Vec<Shape>),
    /// Separated by commas, "and" or "or", in any order.
    List(Vec<Shape>),
    Union(Vec<Shape>),
    Matrix {
        columns: usize,
        cells: Vec<Shape>,
    },
    /// A value with a name (`x = 5`, `x > 2`), and for an equation of expressions its two sides' difference.
    Named {
        name: String,
        value: Box<Shape>,
        difference: Option<NodeId>,
    },
    /// An equation that gives no value.
    Equation {
        difference: NodeId,
    },
    /// `difference < 0`, or `<= 0` when not strict.
    Inequality {
        difference: NodeId,
        is_strict: bool,
    },
    /// A numeral of a base other than ten.
    Based {
        digits: String,
        base: u32,
    },
    /// Words, in lower case and without spaces.
    Text(String),
}
