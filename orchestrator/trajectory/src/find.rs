//! Finds the turn that a request continues: the deepest turn whose conversation is the beginning of the
//! request.
//!
//! An assistant's message that carries a minted id belongs to the turn for which the id was minted, and to no
//! other, so turns with equal texts and different tokens are not confused. A message without such an id may
//! belong to any turn with its text. If there are several such turns, the newest delivered turn is taken.

use std::collections::HashMap;

use crate::TurnId;
use crate::forest::Trajectory;
use crate::message::{Assistant, Message};
use crate::request::{Request, RequestPrompt};
use crate::turn::Turn;

/// What [`Trajectory::find`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The turn that the request continues; `None` if it continues none.
    pub turn: Option<TurnId>,
    /// How much of the request the turn's conversation covers: messages, bytes of text, or ids.
    pub used: usize,
    /// Whether a turn with another tool list, or with other variables of the template, would cover more of the
    /// request.
    pub tools_changed: bool,
    /// For each turn of a chat, from the first, the index of its answer in the request. It has no meaning for texts and
    /// ids.
    pub(crate) own: Vec<(usize, TurnId)>,
}

impl Trajectory {
    /// The deepest turn whose conversation the request continues. Its tool list and its variables of the template are
    /// those of the request.
    pub fn find(&self, request: &Request) -> Found {
        let reached = self.reached(request, true);
        let (used, turn) = self.deepest(&reached);
        let (used_with_other_tools, _) = self.deepest(&self.reached(request, false));
        let mut own = Vec::new();
        let mut next = turn;
        while let Some(turn) = next {
            own.push((reached[turn.0 as usize].unwrap_or_default().saturating_sub(1), turn));
            next = self.turn(turn).and_then(|turn| turn.parent);
        }
        own.reverse();
        Found { turn, used, tools_changed: used_with_other_tools > used, own }
    }

    /// For each slot, how much of the request the turn's conversation covers; `None` if the request does not
    /// begin with this conversation.
    fn reached(&self, request: &Request, same_key: bool) -> Vec<Option<usize>> {
        let mut reached = vec![None; self.slots()];
        let claims = self.claims(request);
        let shared: Vec<u32> = match &request.prompt {
            RequestPrompt::Ids(ids) => self.shared_prefixes(ids).map(|(_, shared)| shared).collect(),
            RequestPrompt::Chat { .. } | RequestPrompt::Text(_) => Vec::new(),
        };
        for (index, turn) in self.turns().enumerate() {
            if same_key && turn.key != request.key {
                continue;
            }
            reached[turn.id.0 as usize] = match &request.prompt {
                RequestPrompt::Ids(_) => {
                    Some(turn.end()).filter(|end| *end == shared[index]).map(|end| end as usize)
                }
                RequestPrompt::Chat { messages, .. } => {
                    let from = turn.parent.map_or(Some(0), |parent| reached[parent.0 as usize]);
                    from.and_then(|from| covered_messages(turn, messages, from, &claims))
                }
                RequestPrompt::Text(text) => {
                    let from = turn.parent.map_or(Some(0), |parent| reached[parent.0 as usize]);
                    from.and_then(|from| covered_text(turn, text, from))
                }
            };
        }
        reached
    }

    /// The turn that covers the most of the request, and how much it covers. Among equals, the newest
    /// delivered turn is taken, or else the newest turn.
    fn deepest(&self, reached: &[Option<usize>]) -> (usize, Option<TurnId>) {
        let covered = self.turns().filter_map(|turn| Some((reached[turn.id.0 as usize]?, turn)));
        let best = covered.max_by_key(|(used, turn)| (*used, turn.delivery.is_received(), turn.id));
        best.map_or((0, None), |(used, turn)| (used, Some(turn.id)))
    }

    /// The turns by their minted ids. Empty if no message of the request has an id.
    fn claims(&self, request: &Request) -> HashMap<&str, TurnId> {
        let RequestPrompt::Chat { messages, .. } = &request.prompt else { return HashMap::new() };
        let has_ids = |message: &Message| message.assistant.as_ref().is_some_and(|said| !said.ids.is_empty());
        if !messages.iter().any(has_ids) {
            return HashMap::new();
        }
        self.turns().flat_map(|turn| turn.minted().map(|minted| (minted, turn.id))).collect()
    }
}

/// The number of messages up to and including the turn's answer, if `messages[from..]` begins with the turn's
/// new messages and its answer.
fn covered_messages(
    turn: &Turn,
    messages: &[Message],
    from: usize,
    claims: &HashMap<&str, TurnId>,
) -> Option<usize> {
    let mut at = from;
    for line in turn.messages.lines() {
        if messages.get(at)?.json != line {
            return None;
        }
        at += 1;
    }
    let said = messages.get(at)?.assistant.as_ref()?;
    let claimed: Vec<TurnId> = said.ids.iter().filter_map(|id| claims.get(id.as_str()).copied()).collect();
    if !claimed.is_empty() && !claimed.contains(&turn.id) {
        return None;
    }
    Assistant::emitted(&turn.emitted)?.may_return_as(said).then_some(at + 1)
}

/// The number of bytes up to the end of the turn's answer, if `text[from..]` begins with the turn's new text
/// and its answer.
fn covered_text(turn: &Turn, text: &str, from: usize) -> Option<usize> {
    let rest = text.get(from..)?.strip_prefix(&*turn.messages)?;
    let answer: serde_json::Value = serde_json::from_str(&turn.emitted).ok()?;
    let rest = rest.strip_prefix(answer.get("content")?.as_str()?)?;
    Some(text.len() - rest.len())
}

/// The part of the request that the found turn does not cover, as a turn stores it.
pub(crate) fn new_part(request: &Request, used: usize) -> String {
    match &request.prompt {
        RequestPrompt::Chat { messages, .. } => {
            let rest = messages.get(used..).unwrap_or_default();
            rest.iter().flat_map(|message| [message.json.as_str(), "\n"]).collect()
        }
        RequestPrompt::Text(text) => text.get(used..).unwrap_or_default().to_owned(),
        RequestPrompt::Ids(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
