//! Tokens: the changes that were made, by their clients' tokens, so that repeated changes are recognised.
//!
//! Only a repeated put needs its result. Its rows are stored as runs, which need a few bytes per put. The
//! number and the size of remembered tokens are limited. The oldest tokens are forgotten first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Admission, Table};
use crate::invariants::{self, Violation};
use crate::row::Runs;

/// The maximum number of remembered tokens.
const TOKENS_MAX: usize = 65_536;
/// The maximum size of the remembered tokens, in bytes.
pub(super) const TOKEN_BYTES_MAX: usize = 16 << 20;
/// The approximate size of a token without its text and runs, in bytes.
const ENTRY_BYTES: usize = 96;

/// The tokens of a table.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    made: HashMap<Arc<str>, Runs>,
    order: VecDeque<Arc<str>>,
    under_way: HashSet<String>,
    bytes: usize,
}

impl Tokens {
    fn bytes_of(token: &str, rows: &Runs) -> usize {
        ENTRY_BYTES + token.len() + rows.bytes()
    }

    fn remember(&mut self, token: String, rows: Runs) {
        if self.made.contains_key(token.as_str()) {
            return;
        }
        let token: Arc<str> = token.into();
        self.bytes += Self::bytes_of(&token, &rows);
        self.order.push_back(Arc::clone(&token));
        self.made.insert(token, rows);
        while (self.order.len() > TOKENS_MAX || self.bytes > TOKEN_BYTES_MAX)
            && self.order.len() > 1
            && let Some(oldest) = self.order.pop_front()
            && let Some(rows) = self.made.remove(&oldest)
        {
            self.bytes -= Self::bytes_of(&oldest, &rows);
        }
    }

    /// Checks the counts of remembered tokens, in O(tokens).
    pub(super) fn check(&self) -> Result<(), Violation> {
        invariants::counts_agree("tokens", self.made.len(), self.order.len())?;
        let bytes = self.made.iter().map(|(token, rows)| Self::bytes_of(token, rows)).sum();
        invariants::counts_agree("bytes of tokens", bytes, self.bytes)
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
            self.tokens.remember(token, rows);
        }
    }

    /// The remembered tokens and the rows that they created, oldest first.
    pub(crate) fn remembered(&self) -> Vec<(String, Runs)> {
        let rows_of = |token: &Arc<str>| Some((token.to_string(), self.tokens.made.get(token)?.clone()));
        self.tokens.order.iter().filter_map(rows_of).collect()
    }

    #[cfg(test)]
    pub(crate) fn token_bytes(&self) -> usize {
        self.tokens.bytes
    }
}
