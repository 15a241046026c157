//! The rules that a server keeps at every moment. Debug builds check them regularly; property tests and
//! simulations check them, too.

/// The numbers that the rules compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of sequences in the batch or being prefilled.
    pub running: u64,
    /// Bound of `running`.
    pub running_max: u64,
    /// Number of sequences that wait or are held.
    pub queued: u64,
    /// Number of KV blocks in use.
    pub blocks_used: u64,
    /// Number of all KV blocks.
    pub blocks_total: u64,
    /// Number of sequences admitted so far.
    pub admitted: u64,
    /// Number of sequences ended so far.
    pub ended: u64,
    /// Number of generated tokens according to the metric.
    pub tokens_counted: u64,
    /// Number of tokens of the sequences that have ended.
    pub tokens_ended: u64,
    /// Number of tokens so far of the sequences that have not ended.
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
