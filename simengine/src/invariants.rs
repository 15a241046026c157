//! What must hold of a server at every moment. Debug builds check it regularly, property tests and
//! simulations always.

/// The numbers that the rules are checked against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Sequences in the batch or being prefilled.
    pub running: u64,
    /// Bound of `running`.
    pub running_max: u64,
    /// Sequences waiting or held.
    pub queued: u64,
    /// KV blocks in use.
    pub blocks_used: u64,
    /// All KV blocks.
    pub blocks_total: u64,
    /// Sequences admitted so far.
    pub admitted: u64,
    /// Sequences ended so far.
    pub ended: u64,
    /// Tokens counted by the metric.
    pub tokens_counted: u64,
    /// Tokens of the sequences that ended.
    pub tokens_ended: u64,
    /// Tokens so far of the sequences that have not ended.
    pub tokens_live: u64,
}

/// A broken rule, with its numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {census:?}")]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// The numbers.
    pub census: Census,
}

/// Checks all rules.
///
/// # Errors
/// The first rule that does not hold.
pub fn check(census: &Census) -> Result<(), Violation> {
    let rules = [
        ("running sequences are at most max_num_seqs", census.running <= census.running_max),
        ("blocks in use are at most the blocks there are", census.blocks_used <= census.blocks_total),
        (
            "every admitted sequence is queued, running or ended, and only one of them",
            census.admitted == census.queued + census.running + census.ended,
        ),
        ("every token is counted once", census.tokens_counted == census.tokens_ended + census.tokens_live),
    ];
    match rules.into_iter().find(|(_, holds)| !holds) {
        Some((rule, _)) => Err(Violation { rule, census: *census }),
        None => Ok(()),
    }
}
