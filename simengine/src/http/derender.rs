//! `/v1/chat/completions/derender` and `/v1/completions/derender` turn answers of `/inference/v1/generate`
//! into completions.
//!
//! They reproduce the pitfalls of the real endpoints. `finish_reason` is that of the engine and never
//! `tool_calls`. The text includes everything after a stop string, because all ids are decoded. The content
//! of a chat completion also includes special tokens, such as the end-of-turn token. A choice without tokens
//! is refused.
//!
//! # Deliberately absent
//! The real parser of reasoning reads the ids of the prompt. The simulated model has no reasoning, so
//! `prompt_token_ids` is checked and not used. Chunks of streams are not accepted.

use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::ChatParams;
use super::params::{check_model, parse};
use super::reply::{Refusal, json_response};
use super::tools::{ToolChoice, assemble, read_choice};
use super::{Body, Face};

#[derive(Debug, Deserialize)]
struct DerenderParams {
    #[serde(default)]
    model: Option<String>,
    generate_response: Generated,
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    chat_request: Option<ChatParams>,
}

/// The answer of `/inference/v1/generate`.
#[derive(Debug, Deserialize)]
struct Generated {
    request_id: String,
    choices: Vec<GeneratedChoice>,
    #[serde(default)]
    output_mode: Option<String>,
}

#[derive(Debug, Deserialize)]
struct GeneratedChoice {
    index: u32,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Value,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Debug, Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Vec<TokenLogprob>,
}

#[derive(Debug, Deserialize)]
struct TokenLogprob {
    token_id: u32,
    logprob: f64,
    #[serde(default)]
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Deserialize)]
struct TopLogprob {
    token_id: u32,
    logprob: f64,
}

#[derive(Debug, Deserialize)]
struct CompletionsParams {
    #[serde(default)]
    model: Option<String>,
    generate_responses: Vec<Generated>,
    #[serde(default)]
    prompt_tokens: Option<Vec<u64>>,
}

/// `/v1/completions/derender`: the completion for `body`, with one choice for each sample of each prompt.
pub(crate) fn completions(face: &Face, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let params: CompletionsParams = parse(body)?;
    check_model(face, params.model.as_deref())?;
    let Some(first) = params.generate_responses.first() else {
        return Err(Refusal::bad_request(None, "generate_responses must not be empty"));
    };
    let mut choices = Vec::new();
    let mut completion = 0;
    for generated in &params.generate_responses {
        for made in &generated.choices {
            let ids = made.token_ids.as_deref().unwrap_or_default();
            if ids.is_empty() {
                let (index, id) = (made.index, &generated.request_id);
                let message = format!("choice {index} in response {id} has empty or null token_ids");
                return Err(Refusal::bad_request(None, message));
            }
            completion += ids.len() as u64;
            choices.push(text_choice(face, choices.len(), made, ids));
        }
    }
    let prompt = params.prompt_tokens.iter().flatten().sum();
    let answer = json!({
        "id": first.request_id,
        "object": "text_completion",
        "created": face.unix_s(),
        "model": face.server.config().model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage(prompt, completion),
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "metrics": null,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

fn usage(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}

fn text_choice(face: &Face, place: usize, made: &GeneratedChoice, ids: &[u32]) -> Value {
    let logprobs = made.logprobs.as_ref().map(|known| {
        let texts: Vec<&str> = known.content.iter().map(|entry| face.codec.piece(entry.token_id)).collect();
        let starts =
            texts.iter().scan(0, |end, text| Some(std::mem::replace(end, *end + text.chars().count())));
        let top = known.content.iter().map(|entry| {
            let named = entry.top_logprobs.iter();
            named
                .map(|other| (face.codec.piece(other.token_id).to_owned(), json!(other.logprob)))
                .collect::<Map<_, _>>()
        });
        json!({
            "text_offset": starts.collect::<Vec<_>>(),
            "token_logprobs": known.content.iter().map(|entry| entry.logprob).collect::<Vec<_>>(),
            "tokens": texts,
            "top_logprobs": top.collect::<Vec<_>>(),
        })
    });
    json!({
        "index": place,
        "text": face.codec.decode(ids),
        "logprobs": logprobs,
        "finish_reason": made.finish_reason,
        "stop_reason": made.stop_reason,
        "token_ids": null,
        "prompt_logprobs": null,
        "prompt_token_ids": null,
        "routed_experts": null,
    })
}

/// `/v1/chat/completions/derender`: the chat completion for `body`.
pub(crate) fn chat(face: &Face, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let params: DerenderParams = parse(body)?;
    check_model(face, params.model.as_deref())?;
    let choice = check(face, &params)?;
    let generated = &params.generate_response;
    let choices: Vec<Value> = generated.choices.iter().map(|made| chat_choice(face, made, &choice)).collect();
    let prompt = params.prompt_tokens.unwrap_or(0);
    let completion: usize =
        generated.choices.iter().map(|made| made.token_ids.as_ref().map_or(0, Vec::len)).sum();
    let answer = json!({
        "id": generated.request_id,
        "object": "chat.completion",
        "created": face.unix_s(),
        "model": face.server.config().model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage(prompt, completion as u64),
        "prompt_logprobs": null,
        "prompt_token_ids": null,
        "prompt_text": null,
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "metrics": null,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// Checks a request in the order of the real server. Returns the tool choice of `chat_request`.
fn check(face: &Face, params: &DerenderParams) -> Result<ToolChoice, Refusal> {
    let longest = face.server.config().max_model_len as usize;
    let refuse = |message: String| Err(Refusal::bad_request(None, message));
    for made in &params.generate_response.choices {
        let length = made.token_ids.as_ref().map_or(0, Vec::len);
        if length > longest {
            let index = made.index;
            return refuse(format!(
                "token_ids length ({length}) in choice {index} exceeds max_model_len ({longest})."
            ));
        }
    }
    let prompt_length = params.prompt_token_ids.as_ref().map_or(0, Vec::len);
    if prompt_length > longest {
        return refuse(format!(
            "prompt_token_ids length ({prompt_length}) exceeds max_model_len ({longest})."
        ));
    }
    let Some(chat_request) = &params.chat_request else {
        return refuse(
            "chat_request is required when a tool or reasoning parser is configured because plain \
             detokenization would leak raw parser markup into content."
                .to_owned(),
        );
    };
    if params.generate_response.output_mode.as_deref().is_some_and(|mode| mode != "tokens") {
        return refuse("output_mode must be \"tokens\"".to_owned());
    }
    for made in &params.generate_response.choices {
        if made.token_ids.as_ref().is_none_or(Vec::is_empty) {
            return refuse(format!("choice {} has empty or null token_ids", made.index));
        }
    }
    let tools = chat_request.tools.as_deref().unwrap_or_default();
    read_choice(chat_request.tool_choice.as_ref(), tools)
}

fn chat_choice(face: &Face, made: &GeneratedChoice, choice: &ToolChoice) -> Value {
    let text = face.codec.decode_all(made.token_ids.as_deref().unwrap_or_default());
    let (message, _) = assemble(face, &text, choice);
    let logprobs = made.logprobs.as_ref().map(|known| {
        let content: Vec<Value> = known.content.iter().map(|entry| token_logprob(face, entry)).collect();
        json!({ "content": content })
    });
    json!({
        "index": made.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": made.finish_reason,
        "stop_reason": made.stop_reason,
        "token_ids": null,
        "routed_experts": null,
    })
}

fn token_logprob(face: &Face, entry: &TokenLogprob) -> Value {
    let shown = |token_id: u32, logprob: f64| {
        let text = face.codec.piece(token_id);
        json!({ "token": text, "logprob": logprob, "bytes": text.as_bytes() })
    };
    let mut written = shown(entry.token_id, entry.logprob);
    let top: Vec<Value> =
        entry.top_logprobs.iter().map(|other| shown(other.token_id, other.logprob)).collect();
    written["top_logprobs"] = Value::Array(top);
    written
}
