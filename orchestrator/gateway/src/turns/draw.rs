//! Draws the tokens of a turn. A request that the engine ends early (a weight update may do so) is continued
//! from its tokens, so a turn can have several versions.

use rolldock_dispatch::{CarriedSample, FinishReason, PartialOutput, Stamp};
use rolldock_loadbalancer::{LoadBalancer, ServerId};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::asking::Asking;
use super::params::turn_seed;
use super::{Failed, Job};
use crate::calls::{Drawn, EngineCalls, Finish, Generate};
use crate::refusal::Refusal;

/// Maximum number of requests for the tokens of one turn.
const SEGMENTS_MAX: u32 = 16;

/// The drawing of one turn on one server.
pub(super) struct Draw<'a> {
    pub(super) job: Job<'a>,
    pub(super) attempt: u32,
    /// The server, and the balancer that granted its permit.
    pub(super) of: (&'a LoadBalancer, ServerId),
    pub(super) base: &'a str,
    pub(super) model: &'a str,
    pub(super) prompt_ids: &'a [u32],
    /// The ids of the prompt, serialized as JSON.
    pub(super) prompt_json: &'a RawValue,
    pub(super) sampling: Map<String, Value>,
    pub(super) reasoning_ended: Value,
    pub(super) reasoning_parser_kwargs: Value,
    /// Maximum tokens of the turn.
    pub(super) tokens: u32,
}

/// All tokens of a turn.
pub(super) struct Whole {
    /// The engine's id of the last request.
    pub(super) request_id: String,
    pub(super) sample: CarriedSample,
    /// The tokens of `sample`, in the form that the parsers take.
    pub(super) tokens: Drawn,
}

impl Draw<'_> {
    /// Draws all tokens. Cancel-safe.
    pub(super) async fn all(&mut self, calls: &EngineCalls) -> Result<Whole, Failed> {
        let mut sample = CarriedSample::new(0, self.attempt);
        for segment in 0..SEGMENTS_MAX {
            let request_id = self.request_id(segment);
            let continued = self.continued(&sample.response_ids)?;
            let left = self.tokens.saturating_sub(sample.tokens());
            self.sampling.insert("max_tokens".to_owned(), json!(left));
            self.sampling.insert("seed".to_owned(), json!(turn_seed(self.job, self.attempt, segment)));
            let sent = self.job.one.policy_version();
            let salt = self.job.one.cache_salt();
            let request = Generate {
                request_id: &request_id,
                model: self.model,
                token_ids: continued.as_deref().unwrap_or(self.prompt_json),
                sampling_params: &self.sampling,
                reasoning_ended: &self.reasoning_ended,
                reasoning_parser_kwargs: &self.reasoning_parser_kwargs,
                cache_salt: salt.as_deref(),
            };
            let asking = Asking::begin(self.job.one, self.of);
            let drawn = calls.generate(self.base, &request).await;
            let drawn = asking.settle(drawn, |drawn| drawn.ids.len())?;
            if !drawn.ids.is_empty() {
                metrics::counter!("rolldock_gateway_sampled_tokens_total").increment(drawn.ids.len() as u64);
                let stamp = self.job.one.stamp(sent, self.base, &drawn.spans);
                add(&mut sample, &drawn, stamp)?;
            }
            if drawn.finish != Finish::Abort {
                if sample.tokens() == 0 {
                    // The engine's parsers refuse an answer without tokens, and there is nothing to train.
                    return Err(Failed::Aborted);
                }
                return Ok(self.whole(sample, drawn, request_id));
            }
            metrics::counter!("rolldock_gateway_aborted_total").increment(1);
            if self.tokens <= sample.tokens() {
                return Err(Failed::Aborted);
            }
            if self.has_grammar() {
                // A grammar begins anew with each request, so the tokens so far cannot be continued.
                sample = CarriedSample::new(0, self.attempt);
            }
        }
        Err(Failed::Aborted)
    }

    /// The ids of the prompt and of the tokens so far, serialized as JSON; `None` if there are no tokens yet.
    fn continued(&self, drawn: &[u32]) -> Result<Option<Box<RawValue>>, Failed> {
        if drawn.is_empty() {
            return Ok(None);
        }
        written(&[self.prompt_ids, drawn].concat()).map(Some)
    }

    fn whole(&self, sample: CarriedSample, last: Drawn, request_id: String) -> Whole {
        let tokens = Drawn {
            ids: sample.response_ids.clone(),
            logprobs: sample.logprobs.clone(),
            finish: last.finish,
            spans: Vec::new(),
            // The texts of the log-probabilities cover only the last request.
            content: last.content.filter(|_| sample.segments == 1),
        };
        Whole { request_id, sample, tokens }
    }

    fn has_grammar(&self) -> bool {
        self.sampling.get("structured_outputs").is_some_and(|grammar| !grammar.is_null())
    }

    /// The id of a request, unique over trajectories, calls, attempts and requests. The capability is not
    /// part of it, because engines log their requests.
    fn request_id(&self, segment: u32) -> String {
        let (uid, call, attempt) = (&self.job.one.spec.uid, self.job.admitted.call, self.attempt);
        format!("{uid}-{:x}-{call}-{attempt}-{segment}", self.job.one.life)
    }
}

/// Serializes ids in the form that an engine reads.
pub(super) fn written(ids: &[u32]) -> Result<Box<RawValue>, Failed> {
    to_raw_value(ids).map_err(|error| Failed::Refused(Refusal::bad_request(error.to_string())))
}

/// Adds drawn tokens to a turn.
pub(super) fn add(sample: &mut CarriedSample, drawn: &Drawn, stamp: Stamp) -> Result<(), Failed> {
    let part = PartialOutput {
        response_ids: drawn.ids.clone(),
        logprobs: drawn.logprobs.clone(),
        version_spans: drawn.spans.clone(),
        finish_reason: drawn.finish.reason(),
    };
    if sample.extend(part, stamp) { Ok(()) } else { Err(Failed::Aborted) }
}

impl Finish {
    fn reason(&self) -> Option<FinishReason> {
        match self {
            Self::Stop(_) => Some(FinishReason::Stop),
            Self::Length => Some(FinishReason::Length),
            Self::Abort => None,
        }
    }
}
