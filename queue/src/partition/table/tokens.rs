//! Tokens: the changes that were made, indexed by the clients' tokens, so that repeated changes are
//! recognised.
//!
//! Only a repeated put needs the result of the first call. The rows of a put are stored as runs, which need a
//! few bytes per put. The number and the size of remembered tokens are limited. The oldest tokens are
//! forgotten first.

use std::collections::HashSet;

use super::remembered::Remembered;
use super::texts::{Texts, Value};
use super::{Admission, Table};
use crate::invariants::Violation;
use crate::row::Runs;

impl Value for Runs {
    fn heap_bytes(&self) -> usize {
        Self::heap_bytes(self)
    }
}

/// The tokens of a table.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    made: Remembered<Runs>,
    under_way: HashSet<String>,
}

impl Tokens {
    /// Checks the remembered tokens, in O(tokens).
    pub(super) fn check(&self) -> Result<(), Violation> {
        self.made.check("tokens")
    }
}

impl Table {
    /// Whether a change with this token is new, in progress or already made.
    pub(crate) fn token_state(&self, token: Option<&str>) -> Admission {
        let Some(token) = token else { return Admission::Fresh };
        match self.tokens.made.get(token) {
            Some(known) => Admission::Known(known.handles()),
            None if self.tokens.under_way.contains(token) => Admission::UnderWay,
            None => Admission::Fresh,
        }
    }

    /// Marks a change with this token as in progress.
    pub(crate) fn begin_token(&mut self, token: Option<&String>) {
        self.tokens.under_way.extend(token.cloned());
    }

    /// Ends a change. If `rows` is given, the change succeeded and created these rows.
    pub(crate) fn end_token(&mut self, token: Option<String>, rows: Option<Runs>) {
        let Some(token) = token else { return };
        self.tokens.under_way.remove(&token);
        if let Some(rows) = rows {
            self.tokens.made.insert(&token, rows);
        }
    }

    /// The remembered tokens and the rows that they created, oldest first.
    pub(super) fn remembered_tokens(&self) -> &Texts<Runs> {
        self.tokens.made.texts()
    }

    #[cfg(test)]
    pub(crate) fn token_bytes(&self) -> usize {
        self.tokens.made.bytes()
    }
}
