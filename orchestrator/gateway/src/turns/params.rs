//! The parameters of a request: the trajectory's sampling, and its limits.

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::{Facts, Failed, Job};
use crate::calls::Form;
use crate::refusal::Refusal;

/// Engines take seeds as signed numbers.
const SEED_MAX: u64 = i64::MAX as u64;

/// The engine's parameters with the trajectory's sampling in them. Everything that changes the distribution
/// is set, because an engine's rendering has the defaults of the model's generation config.
pub(super) fn enforce(mut params: Map<String, Value>, job: Job<'_>) -> Map<String, Value> {
    let sampling = &job.one.spec.sampling;
    for (key, value) in [
        ("n", json!(1)),
        ("temperature", json!(sampling.temperature)),
        ("top_p", json!(sampling.top_p)),
        ("top_k", json!(sampling.top_k)),
        ("min_p", json!(0.0)),
        ("presence_penalty", json!(0.0)),
        ("frequency_penalty", json!(0.0)),
        ("repetition_penalty", json!(1.0)),
        ("min_tokens", json!(0)),
        ("ignore_eos", json!(false)),
        ("bad_words", json!([])),
        ("logprobs", json!(job.asked.logprobs.unwrap_or(0))),
    ] {
        params.insert(key.to_owned(), value);
    }
    params.shift_remove("logit_bias");
    params.shift_remove("allowed_token_ids");
    params
}

/// Maximum tokens of a turn: the tokens that were reserved for it within the limits of the trajectory and the
/// agent, but at most what the prompt leaves of the model's context.
pub(super) fn limit(job: Job<'_>, facts: &Facts, prompt_tokens: usize) -> Result<u32, Failed> {
    let asked = job.admitted.tokens;
    let Some(length_max) = facts.model.length_max else { return Ok(asked) };
    let room = u64::from(length_max).saturating_sub(prompt_tokens as u64);
    match u32::try_from(room).unwrap_or(u32::MAX).min(asked) {
        0 => Err(too_long(prompt_tokens, length_max)),
        tokens => Ok(tokens),
    }
}

/// The seed of a request. Equal trajectories with equal calls draw equal tokens.
pub(super) fn turn_seed(job: Job<'_>, attempt: u32, segment: u32) -> u64 {
    let spec = &job.one.spec;
    // The seed depends on the number of turns and not on the number of the call, because a call that was cut
    // off leaves no turn.
    let turn = job.one.live.lock().turns();
    let words = format!("{}/{}/{turn}/{attempt}/{segment}", spec.seed, job.admitted.ahead);
    xxh3_64(words.as_bytes()) & SEED_MAX
}

/// The request for a server that encodes and parses by itself.
pub(super) fn fallback_request(job: Job<'_>, facts: &Facts, seed: u64) -> Value {
    let mut request = enforce(job.asked.request.clone(), job);
    request.insert("model".to_owned(), json!(facts.model.name));
    request.insert("seed".to_owned(), json!(seed));
    request.insert("return_token_ids".to_owned(), json!(true));
    request.insert("max_tokens".to_owned(), json!(job.admitted.tokens));
    match job.asked.form {
        Form::Chat => {
            request.insert("logprobs".to_owned(), json!(true));
            request.insert("top_logprobs".to_owned(), json!(job.asked.logprobs.unwrap_or(0)));
        }
        Form::Text => drop(request.insert("logprobs".to_owned(), json!(job.asked.logprobs.unwrap_or(0)))),
    }
    if let Some(salt) = job.one.cache_salt() {
        request.insert("cache_salt".to_owned(), json!(salt));
    }
    Value::Object(request)
}

/// The refusal for a prompt that leaves nothing of the model's context.
fn too_long(tokens: usize, length_max: u32) -> Failed {
    Failed::Refused(Refusal::bad_request(format!(
        "this model's maximum context length is {length_max} tokens, and the prompt has {tokens}"
    )))
}
