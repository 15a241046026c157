//! Turns, which are the nodes of the forest, and the parts of a turn.

use std::sync::Arc;

use rolldock_dispatch::{CarriedSample, FinishReason, VersionSpan};
use serde_json::Value;

use crate::{TrajectoryError, TurnId};

/// How the prompt of a turn came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// The request continues no stored turn: a first prompt, a sub-agent, or a compacted context.
    Started = 0,
    /// The prompt is the stored ids of the turn that the request continues, followed by the ids of the rest of
    /// the request.
    Spliced = 1,
    /// A fork because of the tool list: if the request had the tool list of a certain stored turn, the request
    /// would continue that turn.
    ToolsChanged = 2,
    /// A fork: the text that follows the stored ids cannot be found. To find this text, the template renders
    /// the conversation with a marker (the sentinel) as the content of the assistant's message. The text is
    /// not found if the sentinel does not appear exactly once, if the text before the assistant's message
    /// changes, or if the template refuses the conversation.
    SentinelLost = 3,
    /// A fork: the template drops or changes a part of the stored text ([`HistoryPolicy::Template`]).
    ///
    /// [`HistoryPolicy::Template`]: crate::HistoryPolicy::Template
    Dropped = 4,
}

impl Origin {
    /// All origins, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Started, Self::Spliced, Self::ToolsChanged, Self::SentinelLost, Self::Dropped];

    /// The name for metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Spliced => "spliced",
            Self::ToolsChanged => "tools_changed",
            Self::SentinelLost => "sentinel_lost",
            Self::Dropped => "dropped",
        }
    }

    /// Whether the turn is a fork: a fork continues a conversation, but not the stored ids of that
    /// conversation.
    pub fn is_fork(self) -> bool {
        matches!(self, Self::ToolsChanged | Self::SentinelLost | Self::Dropped)
    }
}

/// Whether the answer of a turn reached the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Delivery {
    /// The answer is on its way, or the process ended before the outcome was known.
    Pending = 0,
    /// The last byte of the answer was sent.
    Delivered = 1,
    /// The connection broke before the last byte.
    Failed = 2,
    /// A request that is marked as a retry received the stored answer.
    Replayed = 3,
}

impl Delivery {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivered, Self::Failed, Self::Replayed];

    /// Whether the agent has the answer.
    pub fn is_received(self) -> bool {
        matches!(self, Self::Delivered | Self::Replayed)
    }
}

/// What the engine sampled in a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token ids. If an end-of-sequence or stop token ended the turn, the ids include this token.
    pub ids: Vec<u32>,
    /// One log-probability for each id, in nats; empty if the server gives none.
    pub logprobs: Vec<f32>,
    /// Version spans that cover all ids; positions count from the turn's first sampled token.
    pub version_spans: Vec<VersionSpan>,
    /// Whether the engine reported the versions.
    pub versions_reported: bool,
    /// Why the turn ended.
    pub finish_reason: FinishReason,
}

impl Sampled {
    /// Checks that there are ids, that all or none of the ids have log-probabilities, and that the spans
    /// cover the ids.
    pub(crate) fn check(&self) -> Result<(), TrajectoryError> {
        let unsound = |reason: String| Err(TrajectoryError::Unsound { reason });
        let tokens = self.ids.len();
        if tokens == 0 {
            return unsound("expected at least one sampled token, found none".to_owned());
        }
        if !self.logprobs.is_empty() && self.logprobs.len() != tokens {
            return unsound(format!("found {} log-probabilities for {tokens} tokens", self.logprobs.len()));
        }
        check_spans(&self.version_spans, tokens).or_else(unsound)
    }
}

/// Checks that the spans follow each other without gaps and cover `tokens` tokens.
pub(crate) fn check_spans(spans: &[VersionSpan], tokens: usize) -> Result<(), String> {
    let mut covered = 0;
    for span in spans {
        if span.start != covered || span.end <= span.start {
            return Err(format!(
                "found version span {}..{}, expected a span that is not empty and starts at {covered}",
                span.start, span.end
            ));
        }
        covered = span.end;
    }
    if covered as usize == tokens {
        return Ok(());
    }
    Err(format!("the version spans cover {covered} of {tokens} tokens"))
}

impl TryFrom<CarriedSample> for Sampled {
    type Error = TrajectoryError;

    /// Takes the tokens of a finished sample. One or several requests have generated these tokens.
    fn try_from(sample: CarriedSample) -> Result<Self, TrajectoryError> {
        let CarriedSample { response_ids, logprobs, version_spans, versions_reported, finish_reason, .. } =
            sample;
        let finish_reason = finish_reason.ok_or_else(|| TrajectoryError::Unsound {
            reason: "expected a finished sample, found one that was cut off".to_owned(),
        })?;
        Ok(Self { ids: response_ids, logprobs, version_spans, versions_reported, finish_reason })
    }
}

/// The answer that the agent gets for a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Emitted {
    /// The assistant's message, in the form of a chat completion: `content`, `reasoning`, `tool_calls`. The
    /// ids that were minted for the message are in `id`, `signature`, and the `id` of each tool call.
    pub message: Value,
    /// Further minted ids by which the agent may name the turn.
    pub ids: Vec<String>,
}

impl Emitted {
    /// An answer of plain text, without minted ids.
    pub fn text(text: &str) -> Self {
        Self { message: serde_json::json!({ "role": "assistant", "content": text }), ids: Vec::new() }
    }
}

/// One call to the model: a node of the forest. The turn stores the part of the prompt that no earlier turn
/// has, followed by the tokens that the engine sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub(crate) id: TurnId,
    /// The turn whose messages the request continues.
    pub(crate) parent: Option<TurnId>,
    /// The turn whose path begins with the same ids as the path of this turn. `start` is the number of these ids.
    pub(crate) base: Option<TurnId>,
    pub(crate) start: u32,
    /// How many of `ids` belong to the prompt.
    pub(crate) input_tokens: u32,
    pub(crate) ids: Box<[u32]>,
    pub(crate) logprobs: Box<[f32]>,
    pub(crate) version_spans: Box<[VersionSpan]>,
    pub(crate) versions_reported: bool,
    pub(crate) finish_reason: FinishReason,
    pub(crate) origin: Origin,
    pub(crate) delivery: Delivery,
    pub(crate) reward: Option<f32>,
    /// Hash of the tool list, the template's arguments and the kind of the request.
    pub(crate) key: u128,
    /// Hash of the request's body; 0 if the caller gave none.
    pub(crate) body: u128,
    /// The request's new messages, each in canonical JSON and followed by a line feed. For a prompt of text,
    /// the new text. Siblings with equal messages share this string.
    pub(crate) messages: Arc<str>,
    /// The assistant's message in canonical JSON.
    pub(crate) emitted: Box<str>,
    /// The minted ids of the answer, each followed by a line feed.
    pub(crate) minted: Box<str>,
}

impl Turn {
    /// The number of the turn.
    pub fn id(&self) -> TurnId {
        self.id
    }

    /// The turn whose messages the request continued.
    pub fn parent(&self) -> Option<TurnId> {
        self.parent
    }

    /// The turn with which this turn shares the first ids of the prompt, and the number of shared ids.
    pub fn base(&self) -> Option<(TurnId, u32)> {
        self.base.map(|base| (base, self.start))
    }

    /// The ids of the prompt that no earlier turn has.
    pub fn input_ids(&self) -> &[u32] {
        &self.ids[..self.input_tokens as usize]
    }

    /// The ids that the engine sampled.
    pub fn sampled_ids(&self) -> &[u32] {
        &self.ids[self.input_tokens as usize..]
    }

    /// One log-probability for each sampled id, in nats; empty if the server gave none.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// Version spans over the sampled ids.
    pub fn version_spans(&self) -> &[VersionSpan] {
        &self.version_spans
    }

    /// Whether the engine reported the versions.
    pub fn versions_reported(&self) -> bool {
        self.versions_reported
    }

    /// Why the turn ended.
    pub fn finish_reason(&self) -> FinishReason {
        self.finish_reason
    }

    /// How the prompt came about.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether the answer reached the agent.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// The turn's own reward, if one was given.
    pub fn reward(&self) -> Option<f32> {
        self.reward
    }

    /// The number of ids of the prompt, including the shared ids.
    pub fn prompt_tokens(&self) -> u32 {
        self.start + self.input_tokens
    }

    /// The number of ids of the whole path: the prompt and the sampled ids.
    pub fn end(&self) -> u32 {
        self.start + self.ids.len() as u32
    }

    /// The new messages of the request, in canonical form. Empty for prompts of ids, and meaningless for prompts
    /// of text.
    pub fn new_messages(&self) -> Vec<Value> {
        self.messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The assistant's message as it was emitted, in canonical form.
    pub fn emitted(&self) -> Value {
        serde_json::from_str(&self.emitted).unwrap_or_default()
    }

    /// The ids that were minted for the answer.
    pub fn minted(&self) -> impl Iterator<Item = &str> {
        self.minted.lines()
    }

    /// The size in bytes of the memory that only this turn holds.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.ids)
            + size_of_val(&*self.logprobs)
            + size_of_val(&*self.version_spans)
            + self.emitted.len()
            + self.minted.len()
    }
}
