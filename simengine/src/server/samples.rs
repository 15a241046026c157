//! Makes the plans of a request's samples, and the response when the samples have ended.

use std::sync::Arc;

use crate::SimError;
use crate::answer::{Answer, AnswerKey, prompt_hash};
use crate::engine::{Completion, Ending};
use crate::hash::mix;
use crate::request::{SimChoice, SimRequest, SimResponse};
use crate::workload::{Plan, PlanRequest, Workload};

use super::rules;

/// The plan of each sample of a request. For a resumed sample, this is the plan of the rest of the sample.
pub(super) fn plans(
    workload: &Arc<Workload>,
    key: &dyn AnswerKey,
    request: &SimRequest,
    max_tokens: u32,
) -> Result<Vec<Plan>, SimError> {
    if let Some(rest) = recognised(workload, key, request, max_tokens) {
        return Ok(vec![rest]);
    }
    let (prompt_ids, said) = rules::split_resumed(request)?;
    let hash = prompt_hash(prompt_ids);
    let answer = key.answer(hash);
    // Without a seed the real server draws one at random. Here the seed is made from the request's id, which
    // also differs between requests.
    let unseeded = || mix(prompt_hash(&request.request_id.bytes().map(u32::from).collect::<Vec<_>>()));
    let first_seed = request.resumed.map(|resumed| resumed.seed).or(request.seed);
    let seed = first_seed.unwrap_or_else(unseeded);
    let limits = limits_of(request, said, max_tokens);
    let plans = (0..u64::from(request.n)).map(|index| {
        let sample_seed = seed.wrapping_add(index);
        let mut draw = workload.draw_known(hash, sample_seed, answer.as_ref(), key);
        let script = key.scripted(prompt_ids, sample_seed).map(|ids| {
            // The sample is the script and the end-of-sequence token, with no filler before them.
            draw.length = u32::try_from(ids.len() + 1).unwrap_or(u32::MAX);
            Answer { right_ids: Arc::clone(&ids), wrong_ids: ids, difficulty: None }
        });
        let whole = Plan::new(workload, draw, script.as_ref().or(answer.as_ref()), limits);
        whole.after(said).ok_or_else(rules::not_its_own)
    });
    plans.collect()
}

/// The plan of the rest of a sample, if the prompt ends with the beginning of that sample. A sample that is
/// long enough begins with its signature: filler tokens that encode the sample's identity. The last signature
/// in the prompt identifies the sample. `None` if the request does not ask for this, or if no such sample is
/// found.
fn recognised(
    workload: &Arc<Workload>,
    key: &dyn AnswerKey,
    request: &SimRequest,
    max_tokens: u32,
) -> Option<Plan> {
    let is_asked = request.recognise_resumed && request.resumed.is_none() && request.n == 1;
    let found = is_asked.then(|| workload.recognise(&request.prompt_ids));
    let (begins_at, identity) = found.flatten()?;
    let (prompt_ids, said) = request.prompt_ids.split_at(begins_at);
    let hash = prompt_hash(prompt_ids);
    let answer = key.answer(hash);
    let draw = workload.draw_identified(identity, hash, answer.as_ref());
    Plan::new(workload, draw, answer.as_ref(), limits_of(request, said, max_tokens)).after(said)
}

/// The limits of the whole sample. `said` holds the tokens of the sample that the prompt already contains.
/// The limits of the request are for the tokens after them.
fn limits_of<'a>(request: &'a SimRequest, said: &[u32], max_tokens: u32) -> PlanRequest<'a> {
    let said_tokens = u32::try_from(said.len()).unwrap_or(u32::MAX);
    let asked_min = Some(request.min_tokens).filter(|min_tokens| *min_tokens > 0);
    PlanRequest {
        max_tokens: said_tokens.saturating_add(max_tokens),
        min_tokens: asked_min.map_or(0, |min_tokens| said_tokens.saturating_add(min_tokens)),
        ignore_eos: request.ignore_eos,
        stop_token_ids: &request.stop_token_ids,
        stop_scan: request.stop_scan.as_ref(),
    }
}

/// Generates the tokens of a response. The request's own task calls this, outside the engine's lock.
pub(super) fn respond(completion: Completion, prompt_tokens: u32) -> SimResponse {
    let spoil = completion.spoil;
    let choice = |ending: Ending| {
        let (token_ids, logprobs) = ending.plan.outputs(0, ending.tokens, spoil);
        let is_whole = ending.tokens == ending.plan.total;
        SimChoice {
            index: ending.index,
            token_ids,
            logprobs,
            finish_reason: ending.finish_reason,
            stop_token_id: ending.plan.stop_token_id.filter(|_| is_whole),
            version_spans: ending.version_spans,
        }
    };
    SimResponse {
        choices: completion.endings.into_iter().map(choice).collect(),
        prompt_tokens,
        cached_tokens: completion.cached_tokens,
        queue_ns: completion.queue_ns,
        first_token_ns: completion.first_token_ns,
        total_ns: completion.total_ns,
    }
}
