//! Conditions that hold for the rows of every trajectory.

use std::collections::BTreeMap;

use crate::TurnId;
use crate::forest::Trajectory;
use crate::prompt::Prompt;
use crate::row::Row;
use crate::turn::Origin;

/// A broken invariant, as a message that names the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Checks that exactly one row trains each sampled token of an answer that the agent has received, and that
/// no row trains any other token.
///
/// # Errors
/// A [`Violation`] that names the turn.
pub fn trained_once(trajectory: &Trajectory, rows: &[Row]) -> Result<(), Violation> {
    let mut trained: BTreeMap<TurnId, usize> = BTreeMap::new();
    let mut masked_in = 0;
    for row in rows {
        masked_in += ones(&row.response_mask);
        for part in &row.turns {
            let Some(mask) = row.response_mask.get(part.start as usize..part.end as usize) else {
                return Err(Violation(format!("turn={} ends behind its row", part.turn)));
            };
            *trained.entry(part.turn).or_default() += ones(mask);
        }
    }
    let received = trajectory.received();
    let mut expected = 0;
    for turn in trajectory.turns() {
        let sampled = if received[turn.id().0 as usize] { turn.sampled_ids().len() } else { 0 };
        let found = trained.get(&turn.id()).copied().unwrap_or_default();
        if found != sampled {
            return Err(Violation(format!("turn={} has tokens={sampled}, trained={found}", turn.id())));
        }
        expected += sampled;
    }
    if masked_in != expected {
        return Err(Violation(format!("the masks add up to {masked_in}, expected sampled={expected}")));
    }
    Ok(())
}

/// Checks the lengths and positions within each row.
///
/// # Errors
/// A [`Violation`] that names the branch.
pub fn aligned(rows: &[Row]) -> Result<(), Violation> {
    for row in rows {
        let broken = |what: &str| Err(Violation(format!("branch={}: {what}", row.branch)));
        let tokens = row.response_ids.len();
        if row.response_mask.len() != tokens {
            return broken("the mask and the response differ in length");
        }
        if !row.logprobs.is_empty() && row.logprobs.len() != tokens {
            return broken("the log-probabilities and the response differ in length");
        }
        if row.turns.first().is_none_or(|first| first.start != 0) {
            return broken("the response does not begin with a sampled token");
        }
        let ends = row.turns.windows(2).all(|pair| pair[0].end <= pair[1].start);
        if !ends || row.turns.last().is_none_or(|last| last.end as usize != tokens) {
            return broken("the turns overlap or do not end with the response");
        }
        let sampled: u32 = row.turns.iter().map(|turn| turn.end - turn.start).sum();
        let versioned: u32 = row.version_spans.iter().map(|span| span.end - span.start).sum();
        if sampled != versioned {
            return broken("the version spans do not cover the sampled tokens");
        }
    }
    Ok(())
}

/// Checks that a turn's path is the prompt that was sent, followed by what was sampled.
///
/// # Errors
/// A [`Violation`] that names the turn and the first id that differs.
pub fn sent_as_stored(
    trajectory: &Trajectory,
    turn: TurnId,
    prompt: &[u32],
    sampled: &[u32],
) -> Result<(), Violation> {
    let path = trajectory.path_ids(turn).map_err(|error| Violation(error.to_string()))?;
    let sent = || prompt.iter().chain(sampled);
    if path.iter().eq(sent()) {
        return Ok(());
    }
    let differs = path.iter().zip(sent()).position(|(stored, sent)| stored != sent);
    let at = differs.unwrap_or(path.len().min(prompt.len() + sampled.len()));
    Err(Violation(format!("turn={turn}: the path differs from what was sent and sampled at position={at}")))
}

/// Checks that a prompt that was spliced begins with the ids of the path that it continues. A prompt whose
/// sampled part was decoded and encoded again fails this check.
///
/// # Errors
/// A [`Violation`] that names the turn that is continued.
pub fn spliced(trajectory: &Trajectory, prompt: &Prompt) -> Result<(), Violation> {
    let Some(parent) = prompt.parent().filter(|_| prompt.origin() == Origin::Spliced) else { return Ok(()) };
    let path = trajectory.path_ids(parent).map_err(|error| Violation(error.to_string()))?;
    if prompt.ids().starts_with(&path) {
        return Ok(());
    }
    Err(Violation(format!("the prompt does not begin with the ids of turn={parent}, which it continues")))
}

fn ones(mask: &[u8]) -> usize {
    mask.iter().filter(|bit| **bit == 1).count()
}
