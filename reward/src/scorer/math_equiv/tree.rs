//! Expressions as a flat tree. A node's operands stand before it, so every pass over an expression is a loop.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio;

/// Maximum number of nodes of one answer. Every pass costs at most this many steps per sample point.
pub(super) const NODES_MAX: usize = 2048;

/// An exact number.
pub(super) type Rational = Ratio<BigInt>;

/// The index of a node in its tree.
pub(super) type NodeId = usize;

/// The answer cannot be parsed or exceeds a bound; it is compared as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unparsed;

/// A known function of one argument.
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
    /// The function that `^{-1}` after this function means; `None` if this module does not have that function.
    pub(super) fn inverse(self) -> Option<Self> {
        match self {
            Self::Sin => Some(Self::Arcsin),
            Self::Cos => Some(Self::Arccos),
            Self::Tan => Some(Self::Arctan),
            _ => None,
        }
    }

    /// Whether the argument is an angle, in which a degree sign multiplies by pi/180. Elsewhere the sign is ignored.
    pub(super) fn takes_angle(self) -> bool {
        matches!(self, Self::Sin | Self::Cos | Self::Tan | Self::Cot | Self::Sec | Self::Csc)
    }
}

/// A node of an expression.
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
    /// Adds a node whose operands have been added already.
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

/// Known units and their powers; unknown words are not units.
pub(super) type Units = BTreeMap<&'static str, i32>;

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scalar {
    /// The value. For a percentage, this is the number divided by 100.
    pub(super) value: NodeId,
    /// For a percentage, the number that is written before `%` or "percent".
    pub(super) percent: Option<NodeId>,
    /// The units after the value, and the currency before it.
    pub(super) units: Units,
}

/// The kind of an answer, and its content. Containers hold answers of any kind, to a bounded depth.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Scalar(Scalar),
    /// A tuple, a vector or an interval. The spelling does not distinguish them.
    Bracketed {
        open: char,
        close: char,
        items: Vec<Shape>,
    },
    /// Elements in braces (`\{1,2\}`, `{1,2}`), or the values of an answer with `\pm`. Repetitions do not matter.
    Set(Vec<Shape>),
    /// Elements separated by commas, semicolons, "and" or "or". Their order does not matter.
    List(Vec<Shape>),
    Union(Vec<Shape>),
    Matrix {
        columns: usize,
        cells: Vec<Shape>,
    },
    /// A value with the left side as its name: `x = 5`, `2 + 3 = 5`, or `x > 2`, whose value is an interval.
    /// `difference` is the left side minus the right side, if both are single expressions.
    Named {
        name: String,
        value: Box<Shape>,
        difference: Option<NodeId>,
    },
    /// An equation with variables whose left side is not a name, such as `2x = 10`. `difference` is the left side minus
    /// the right side.
    Equation {
        difference: NodeId,
    },
    /// `difference < 0` if `is_strict`, and otherwise `difference <= 0`.
    Inequality {
        difference: NodeId,
        is_strict: bool,
    },
    /// Digits with their base as a subscript, from 2 to 36.
    Based {
        digits: String,
        base: u32,
    },
    /// Words, in lower case and without spaces.
    Text(String),
}
