//! Checks a server's weights: makes the server generate a few tokens, and looks at their log-probabilities.
//!
//! Facts that shape this module, observed with vLLM 0.32:
//! - A server reports success after it has loaded a checkpoint in which a tensor is missing. Every later
//!   log-probability is -9999, the value that the engine writes in place of NaN.
//! - `/v1/completions` answers with status 400 if a log-probability is NaN. It also answers with status 400
//!   to a request for log-probabilities if the server runs without a tokenizer.

use serde_json::{Value, json};

use super::http::{HttpControl, PROBE_TOKEN, failed};
use super::{ControlError, ServerRef, logprob_is_sound};

/// Number of tokens to generate. The end-of-sequence token does not end the generation.
pub(crate) const TOKENS: u32 = 4;
const WHAT: &str = "a generation after the update";
/// The beginning of the error reason of a request that the server does not accept.
const REFUSED: &str = "status 400";
/// The part of vLLM's error message that identifies an answer with numbers that JSON cannot express.
const NOT_A_NUMBER: &str = "Out of range float";

/// Makes the server generate a few tokens, and fails unless their log-probabilities are sound.
pub(super) async fn check_generation(http: &HttpControl, server: &ServerRef) -> Result<(), ControlError> {
    let model = http.first_model(server, WHAT).await?;
    let sampling = json!({ "max_tokens": TOKENS, "ignore_eos": true, "logprobs": 0 });
    let body = json!({ "model": model, "token_ids": [PROBE_TOKEN], "sampling_params": sampling });
    let logprobs = match generated(http, server, "/inference/v1/generate", &body).await {
        Ok(answer) => {
            let content = answer["choices"][0]["logprobs"]["content"].as_array().cloned();
            content.map(|tokens| tokens.iter().map(|token| token["logprob"].as_f64()).collect())
        }
        Err(ControlError::Unsupported { .. }) => {
            let body = json!({
                "model": model, "prompt": [PROBE_TOKEN], "max_tokens": TOKENS, "ignore_eos": true, "logprobs": 0,
            });
            let answer = generated(http, server, "/v1/completions", &body).await?;
            let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().cloned();
            logprobs.map(|logprobs| logprobs.iter().map(Value::as_f64).collect())
        }
        Err(error) => return Err(error),
    };
    judge(server, logprobs.unwrap_or_default())
}

/// The answer to a request for tokens. A server that does not accept the request cannot be checked.
async fn generated(
    http: &HttpControl,
    server: &ServerRef,
    path: &str,
    body: &Value,
) -> Result<Value, ControlError> {
    match http.ask_for(server, WHAT, path, body).await {
        Ok(answer) => serde_json::from_slice(&answer)
            .map_err(|error| failed(server, WHAT, &format!("expected JSON: {error}"))),
        Err(ControlError::Failed { reason, .. })
            if reason.starts_with(REFUSED) && !reason.contains(NOT_A_NUMBER) =>
        {
            if http.is_first_time(server, WHAT) {
                tracing::warn!(
                    server = %server.name,
                    path,
                    reason,
                    "the server refuses a short generation, so its weights are not checked after updates"
                );
            }
            Err(ControlError::Unsupported { server: server.name.clone(), what: WHAT })
        }
        Err(error) => Err(error),
    }
}

fn judge(server: &ServerRef, logprobs: Vec<Option<f64>>) -> Result<(), ControlError> {
    if logprobs.is_empty() {
        return Err(ControlError::Unsupported { server: server.name.clone(), what: WHAT });
    }
    let numbers = logprobs.iter().map(|logprob| logprob.unwrap_or(f64::NAN));
    match numbers.enumerate().find(|(_, logprob)| !logprob_is_sound(*logprob)) {
        None => Ok(()),
        Some((token, logprob)) => Err(failed(
            server,
            WHAT,
            &format!("log-probability={logprob} of token={token}, so the weights are incomplete or broken"),
        )),
    }
}

#[cfg(test)]
mod tests;
