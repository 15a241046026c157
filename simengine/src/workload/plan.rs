//! The plan of a sample: its end, the reason for the end, and its tokens on demand.

use std::sync::Arc;

use super::{Draw, Signatures, Workload};
use crate::answer::Answer;
use crate::fault::Spoil;
use crate::hash::mix;
use crate::request::{FinishReason, StopScan};

/// The log-probability that vLLM's generate endpoint writes for a value that is not a number.
pub(crate) const POISON_LOGPROB: f32 = -9999.0;

/// The limits that a request sets for its samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanRequest<'a> {
    pub(crate) max_tokens: u32,
    pub(crate) min_tokens: u32,
    pub(crate) ignore_eos: bool,
    pub(crate) stop_token_ids: &'a [u32],
    pub(crate) stop_scan: Option<&'a StopScan>,
}

/// The plan of one sample. Tokens are generated when they are needed; until then a sample needs only the
/// memory of its plan.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    workload: Arc<Workload>,
    identity: u64,
    ending: Option<Arc<[u32]>>,
    /// Length of the sample without the limits, including its ending and the end-of-sequence token. `None` if
    /// the sample never ends by itself.
    natural: Option<u32>,
    /// Number of tokens of the sample that were generated for earlier requests.
    said: u32,
    /// Number of tokens that are left for this request.
    pub(crate) total: u32,
    pub(crate) finish_reason: FinishReason,
    pub(crate) stop_token_id: Option<u32>,
}

impl Plan {
    pub(crate) fn new(
        workload: &Arc<Workload>,
        draw: Draw,
        answer: Option<&Answer>,
        request: PlanRequest<'_>,
    ) -> Self {
        let natural = (!request.ignore_eos).then_some(draw.length.max(request.min_tokens).max(1));
        let (total, finish_reason) = match natural {
            Some(length) if length <= request.max_tokens => (length, FinishReason::Stop),
            _ => (request.max_tokens, FinishReason::Length),
        };
        let mut plan = Self {
            workload: Arc::clone(workload),
            identity: draw.identity,
            ending: answer.map(|known| Arc::clone(known.ending(draw.correct))),
            natural,
            said: 0,
            total,
            finish_reason,
            stop_token_id: None,
        };
        plan.cut_at_stop(request);
        plan
    }

    /// The rest of the sample after its first tokens `said`. `None` if the sample does not begin with these
    /// tokens, or if nothing is left.
    pub(crate) fn after(mut self, said: &[u32]) -> Option<Self> {
        let tokens = u32::try_from(said.len()).ok()?;
        if tokens >= self.total || self.token_ids(0, tokens) != said {
            return None;
        }
        self.said = tokens;
        self.total -= tokens;
        Some(self)
    }

    fn cut_at_stop(&mut self, request: PlanRequest<'_>) {
        if request.stop_token_ids.is_empty() && request.stop_scan.is_none() {
            return;
        }
        let tokens = self.token_ids(0, self.total);
        let first = request.min_tokens.saturating_sub(1) as usize;
        let stops_here = |token: &u32| request.stop_token_ids.contains(token);
        let at_token = tokens.iter().skip(first).position(stops_here).map(|place| place + first);
        let at_text = request.stop_scan.and_then(|scan| scan.keep(&tokens)).map(|kept| kept.max(1) as usize);
        let token_end = at_token.map(|place| place + 1);
        let end = match (token_end, at_text) {
            (Some(by_token), Some(by_text)) => by_token.min(by_text),
            (Some(by_token), None) => by_token,
            (None, Some(by_text)) => by_text,
            (None, None) => return,
        };
        let last_natural = self.finish_reason == FinishReason::Stop && end >= tokens.len();
        let last_token = tokens.get(end - 1).copied();
        // vLLM does not report the model's own end-of-sequence token as a stop token, even if the request
        // lists it as one.
        if last_natural && last_token == Some(self.workload.config().eos_id) {
            return;
        }
        self.stop_token_id = if token_end == Some(end) { last_token } else { None };
        self.total = u32::try_from(end).unwrap_or(u32::MAX).min(self.total);
        self.finish_reason = FinishReason::Stop;
    }

    /// The tokens `start..end`, counted from the first token that is left for this request.
    pub(crate) fn token_ids(&self, start: u32, end: u32) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(end.saturating_sub(start) as usize);
        let (first, past) = (start + self.said, end + self.said);
        let ending: &[u32] = self.ending.as_deref().unwrap_or_default();
        let filler_end = match self.natural {
            Some(natural) => natural.saturating_sub(1).saturating_sub(ending.len() as u32),
            None => u32::MAX,
        };
        let filler = &self.workload.config().filler_ids;
        let mut word = 0;
        // A response that is long enough begins with its signature.
        let signatures = self.workload.signatures.as_ref().filter(|kept| kept.tokens() <= filler_end);
        let signature_end = signatures.map_or(0, Signatures::tokens);
        if let Some(spelled) = signatures {
            let positions = first..past.min(signature_end);
            tokens.extend(positions.map(|position| filler[spelled.digit(self.identity, position)]));
        }
        let from = first.max(signature_end);
        for position in from..past.min(filler_end) {
            // One hash gives four tokens of 16 bits each.
            if position.is_multiple_of(4) || position == from {
                word = mix(self.identity ^ u64::from(position / 4) ^ 0xF1 << 56);
            }
            let bits = (word >> (16 * (position % 4))) & 0xFFFF;
            tokens.push(filler[(bits as usize * filler.len()) >> 16]);
        }
        for position in first.max(filler_end)..past {
            let place = (position - filler_end) as usize;
            tokens.push(ending.get(place).copied().unwrap_or(self.workload.config().eos_id));
        }
        tokens
    }

    /// The log-probabilities of the tokens `start..end`, counted as in `token_ids`. They are negative, mostly
    /// near zero, and deterministic.
    pub(crate) fn logprobs(&self, start: u32, end: u32) -> Vec<f32> {
        let mut logprobs = Vec::with_capacity(end.saturating_sub(start) as usize);
        let (first, past) = (start + self.said, end + self.said);
        let mut word = 0;
        for position in first..past {
            if position.is_multiple_of(4) || position == first {
                word = mix(self.identity ^ u64::from(position / 4) ^ 0x1F << 56);
            }
            let bits = (word >> (16 * (position % 4))) & 0xFFFF;
            let share = (bits as f32 + 0.5) / 65_536.0;
            logprobs.push(-4.0 * share * share * share);
        }
        logprobs
    }

    /// Tokens and log-probabilities of `start..end`, corrupted by the injected fault if there is one.
    pub(crate) fn outputs(&self, start: u32, end: u32, spoil: Option<Spoil>) -> (Vec<u32>, Vec<f32>) {
        let length = end.saturating_sub(start) as usize;
        match spoil {
            None => (self.token_ids(start, end), self.logprobs(start, end)),
            Some(Spoil::Nan) => (vec![0; length], vec![f32::NAN; length]),
            Some(Spoil::Poison) => (vec![0; length], vec![POISON_LOGPROB; length]),
        }
    }
}
