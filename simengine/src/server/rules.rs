//! The rules for requests. The error messages are those of vLLM. The messages about resumed samples are an
//! exception, because vLLM has no such samples.

use crate::request::SimRequest;
use crate::{ServerConfig, SimError};

/// Maximum number of samples of one request (vLLM's `VLLM_MAX_N_SEQUENCES`).
const SAMPLES_MAX: u32 = 16_384;

/// Checks a request and returns the maximum number of tokens of its samples.
pub(crate) fn check(request: &SimRequest, config: &ServerConfig, vocab_size: u32) -> Result<u32, SimError> {
    let prompt_tokens = u32::try_from(request.prompt_ids.len()).unwrap_or(u32::MAX);
    let longest = config.max_model_len;
    if prompt_tokens == 0 {
        return Err(SimError::bad_request(None, "You must pass at least one prompt".to_owned()));
    }
    if request.n == 0 {
        return Err(SimError::bad_request(None, "n must be at least 1, got 0.".to_owned()));
    }
    if request.n > SAMPLES_MAX {
        let message = format!(
            "n must be at most {SAMPLES_MAX}, got {}. To increase this limit, set the VLLM_MAX_N_SEQUENCES \
             environment variable.",
            request.n
        );
        return Err(SimError::bad_request(None, message));
    }
    if let Some(max_tokens) = request.max_tokens.filter(|max_tokens| *max_tokens > longest) {
        let message = format!(
            "max_tokens={max_tokens} cannot be greater than max_model_len={longest}. Please request fewer \
             output tokens. (parameter=max_tokens, value={max_tokens})"
        );
        return Err(SimError::bad_request(Some("max_tokens"), message));
    }
    if prompt_tokens > longest {
        return Err(prompt_too_long(prompt_tokens, longest));
    }
    let room = longest - prompt_tokens;
    let max_tokens = request.max_tokens.map_or(room, |asked| asked.min(room));
    if max_tokens == 0 {
        let message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)".to_owned();
        return Err(SimError::bad_request(Some("max_tokens"), message));
    }
    if request.min_tokens > max_tokens {
        let message = format!(
            "min_tokens must be less than or equal to max_tokens={max_tokens}, got {}.",
            request.min_tokens
        );
        return Err(SimError::bad_request(None, message));
    }
    if let Some(token) = request.prompt_ids.iter().find(|token| **token >= vocab_size) {
        return Err(SimError::bad_request(None, format!("Token id {token} is out of vocabulary")));
    }
    Ok(max_tokens)
}

/// The prompt with which the sample began, and the tokens that have been generated for it.
pub(crate) fn split_resumed(request: &SimRequest) -> Result<(&[u32], &[u32]), SimError> {
    let said = request.resumed.map_or(0, |resumed| resumed.tokens) as usize;
    let prompt_tokens = request.prompt_ids.len();
    if said >= prompt_tokens {
        let message = format!("resumed tokens={said} leave nothing of the prompt_tokens={prompt_tokens}");
        return Err(SimError::bad_request(None, message));
    }
    if said > 0 && request.n != 1 {
        let message = format!("resumed tokens={said} are of one sample, got n={}", request.n);
        return Err(SimError::bad_request(None, message));
    }
    Ok(request.prompt_ids.split_at(prompt_tokens - said))
}

/// The error for a resumed sample if the given tokens are not its first tokens, or if they are the whole
/// sample. A real model would accept such a prompt and generate other tokens. Here the prompt is always a
/// mistake of the caller, and the generated tokens would falsify the results of the simulation.
pub(crate) fn not_its_own() -> SimError {
    let message = "the resumed tokens are not the first ones of this sample, or are all of it".to_owned();
    SimError::bad_request(None, message)
}

fn prompt_too_long(prompt_tokens: u32, longest: u32) -> SimError {
    let message = format!(
        "This model's maximum context length is {longest} tokens. However, your prompt contains \
         {prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce \
         the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
    );
    SimError::bad_request(Some("input_tokens"), message)
}
