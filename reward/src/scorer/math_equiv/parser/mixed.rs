//! Mixed numbers: `1\frac{1}{2}` and `1 1/2` are sums.

use num_traits::Zero;

use super::super::lexer::{Kind, Token};
use super::super::tree::{Node, NodeId, Unparsed};
use super::Parser;

impl Parser<'_> {
    /// The fraction of a mixed number: of whole numbers, below one.
    pub(super) fn proper_fraction(&mut self) -> Result<Option<NodeId>, Unparsed> {
        let is_slashed = match self.tokens[..self.end].get(self.at..self.at + 3) {
            Some([top, slash, bottom]) => {
                let is_integer =
                    |token: &Token| matches!(&token.kind, Kind::Number(n) if n.is_plain_integer());
                top.is_spaced && is_integer(top) && slash.kind == Kind::Symbol('/') && is_integer(bottom)
            }
            _ => false,
        };
        let is_command = matches!(self.kind(), Some(Kind::Command(name)) if name == "frac");
        if !is_slashed && !is_command {
            return Ok(None);
        }
        let (start, before) = (self.at, self.tokens[self.at..self.end.min(self.at + 3)].to_vec());
        let fraction = if is_slashed {
            let top = self.factor()?;
            self.at += 1;
            let bottom = self.factor()?;
            self.tree.push(Node::Quotient(top, bottom))?
        } else {
            self.atom()?
        };
        if self.is_proper(fraction) && self.symbol() != Some('^') {
            return Ok(Some(fraction));
        }
        // A factor like any other: the tokens are as they were, and the nodes are not used.
        self.tokens[start..start + before.len()].clone_from_slice(&before);
        self.at = start;
        Ok(None)
    }

    fn is_proper(&self, fraction: NodeId) -> bool {
        let nodes = self.tree.nodes();
        let Some(Node::Quotient(top, bottom)) = nodes.get(fraction) else { return false };
        let (Some(Node::Number(top)), Some(Node::Number(bottom))) = (nodes.get(*top), nodes.get(*bottom))
        else {
            return false;
        };
        top.is_integer() && bottom.is_integer() && !top.is_zero() && top < bottom
    }
}
