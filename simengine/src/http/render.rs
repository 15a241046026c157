//! `/v1/chat/completions/render` and its siblings return what a server would send to its engine for a
//! request. The client sends the answer, changed or not, to `/inference/v1/generate`.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::chat::{self, ChatRequest};
use super::params::{Sampling, parse};
use super::reply::{Refusal, json_response};
use super::tools::{ToolChoice, structural_tag};
use super::{Body, Face, completions, messages, responses};

/// The kinds of requests that are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    Completions,
    Chat,
    Messages,
    Responses,
}

/// A prompt, with the other data that the engine needs for it.
struct Rendering<'a> {
    asked: &'a Value,
    sampling: &'a Sampling,
    prompt_ids: &'a Arc<[u32]>,
    request_id: String,
    logprobs: Value,
    /// Whether a parser of calls reads the answer. The parser needs the special tokens.
    reads_calls: bool,
    outputs: Option<Value>,
}

/// The answer to a request to render `body`.
pub(crate) fn render(
    face: &Face,
    surface: Surface,
    header_id: Option<String>,
    body: &[u8],
) -> Result<Response<Body>, Refusal> {
    let asked: Value = parse(body)?;
    let rendered = match surface {
        Surface::Completions => completion(face, header_id, &asked, body)?,
        Surface::Chat => conversation(face, "chatcmpl-", header_id, &asked)?,
        Surface::Messages => conversation(face, "chatcmpl-", header_id, &messages::to_chat(&asked)?)?,
        Surface::Responses => conversation(face, "resp_", header_id, &responses::to_chat(&asked)?)?,
    };
    Ok(json_response(StatusCode::OK, &rendered))
}

fn conversation(
    face: &Face,
    prefix: &str,
    header_id: Option<String>,
    asked: &Value,
) -> Result<Value, Refusal> {
    let request = chat::read(face, asked)?;
    let rendering = Rendering {
        asked,
        sampling: &request.sampling,
        prompt_ids: &request.prompt_ids,
        request_id: format!("{prefix}{}", chosen_id(face, header_id, asked)),
        logprobs: match asked["logprobs"].as_bool() {
            Some(true) => json!(asked["top_logprobs"].as_u64().unwrap_or(0)),
            _ => Value::Null,
        },
        reads_calls: !request.tools.is_empty() && request.choice != ToolChoice::None,
        outputs: structured_outputs(asked, &request),
    };
    rendering.written(face)
}

/// A completion request has a list of prompts, so its rendering is a list.
fn completion(face: &Face, header_id: Option<String>, asked: &Value, body: &[u8]) -> Result<Value, Refusal> {
    let (sampling, prompts) = completions::read_prompts(face, body)?;
    let id = format!("cmpl-{}", chosen_id(face, header_id, asked));
    let rendered = prompts.iter().enumerate().map(|(place, prompt_ids)| {
        let rendering = Rendering {
            asked,
            sampling: &sampling,
            prompt_ids,
            request_id: if prompts.len() == 1 { id.clone() } else { format!("{id}-{place}") },
            logprobs: asked["logprobs"].clone(),
            reads_calls: false,
            outputs: None,
        };
        rendering.written(face)
    });
    rendered.collect()
}

fn chosen_id(face: &Face, header_id: Option<String>, asked: &Value) -> String {
    let given = header_id.or_else(|| asked["request_id"].as_str().map(str::to_owned));
    given.unwrap_or_else(|| face.fresh_id())
}

impl Rendering<'_> {
    fn written(&self, face: &Face) -> Result<Value, Refusal> {
        let asked = self.asked;
        let engine_request = self.sampling.request(face, "render".into(), Arc::clone(self.prompt_ids), None);
        let max_tokens = face.server.check(&engine_request).map_err(Refusal::from_engine)?;
        let streams = asked["stream"].as_bool().unwrap_or(false);
        Ok(json!({
            "request_id": self.request_id,
            "token_ids": self.prompt_ids.as_ref(),
            "token_offsets": null,
            "features": null,
            "content_parts": null,
            "sampling_params": self.sampling_params(max_tokens, streams),
            "model": asked["model"],
            "reasoning_ended": null,
            "reasoning_parser_kwargs": null,
            "return_token_ids": null,
            "output_mode": "tokens",
            "stream": streams,
            "stream_options": if streams { asked["stream_options"].clone() } else { Value::Null },
            "cache_salt": asked["cache_salt"],
            "priority": asked["priority"].as_i64().unwrap_or(0),
            "kv_transfer_params": null,
            "ec_transfer_params": null,
        }))
    }

    /// The parameters of the engine. As in vLLM, defaults that are decimal numbers or lists are written out,
    /// and other defaults are left out.
    fn sampling_params(&self, max_tokens: u32, streams: bool) -> Value {
        let asked = self.asked;
        let mut params = Map::new();
        let mut put = |key: &str, value: Value| params.insert(key.to_owned(), value);
        if self.sampling.samples() != 1 {
            put("n", json!(self.sampling.samples()));
        }
        for (key, default) in [
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("repetition_penalty", 1.0),
            ("temperature", 1.0),
            ("top_p", 1.0),
        ] {
            put(key, json!(asked[key].as_f64().unwrap_or(default)));
        }
        if let Some(top_k) = asked["top_k"].as_i64().filter(|top_k| *top_k > 0) {
            put("top_k", json!(top_k));
        }
        put("min_p", json!(asked["min_p"].as_f64().unwrap_or(0.0)));
        if let Some(seed) = asked["seed"].as_i64() {
            put("seed", json!(seed));
        }
        put("stop", json!(self.sampling.stops()));
        put("stop_token_ids", list(&asked["stop_token_ids"]));
        let is_set = |key: &str| asked[key].as_bool() == Some(true);
        if is_set("ignore_eos") {
            put("ignore_eos", json!(true));
        }
        put("max_tokens", json!(max_tokens));
        if let Some(min_tokens) = asked["min_tokens"].as_u64().filter(|min_tokens| *min_tokens > 0) {
            put("min_tokens", json!(min_tokens));
        }
        if !self.logprobs.is_null() {
            put("logprobs", self.logprobs.clone());
        }
        if self.reads_calls || asked["skip_special_tokens"].as_bool() == Some(false) {
            put("skip_special_tokens", json!(false));
        }
        if is_set("include_stop_str_in_output") {
            put("include_stop_str_in_output", json!(true));
        }
        // vLLM's `RequestOutputKind`: 1 for the tokens since the last output, 2 for only the last output.
        put("output_kind", json!(if streams { 1 } else { 2 }));
        put("skip_clone", json!(true));
        if let Some(outputs) = &self.outputs {
            put("structured_outputs", outputs.clone());
        }
        put("bad_words", list(&asked["bad_words"]));
        put("skip_reading_prefix_cache", json!(is_set("skip_reading_prefix_cache")));
        Value::Object(params)
    }
}

fn list(given: &Value) -> Value {
    if given.is_array() { given.clone() } else { json!([]) }
}

/// The grammar of a request, which comes from its tools or from its response format.
fn structured_outputs(asked: &Value, request: &ChatRequest) -> Option<Value> {
    let is_parallel = asked["parallel_tool_calls"].as_bool().unwrap_or(true);
    let tag = structural_tag(&request.tools, &request.choice, is_parallel);
    let format = &asked["response_format"];
    let schema = Some(format["json_schema"]["schema"].clone())
        .filter(|schema| format["type"] == "json_schema" && !schema.is_null());
    let is_object = format["type"] == "json_object";
    if tag.is_none() && schema.is_none() && !is_object {
        return None;
    }
    Some(json!({
        "json": schema,
        "regex": null,
        "choice": null,
        "grammar": null,
        "json_object": is_object.then_some(true),
        "disable_any_whitespace": false,
        "disable_additional_properties": false,
        "whitespace_pattern": null,
        "structural_tag": tag,
        "_backend": null,
        "_backend_was_auto": false,
    }))
}
