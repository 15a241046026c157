//! `/v1/chat/completions`. Requests to the other chat APIs (`messages`, `responses`) are translated into chat
//! completion requests.
//!
//! A response that is not streamed contains tool calls as `tool_calls`. A stream contains them as text in the
//! content.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::Value;

use super::choice::{prepare, put_usage};
use super::completions::{FINGERPRINT, check_room};
use super::dialect::{Dialect, Piece};
use super::handle::answer;
use super::json::{put, put_ids, put_list, put_logprob, put_string};
use super::params::{Sampling, StreamOptions, check_model, parse, parse_value};
use super::reply::{Handled, Refusal, Reset, engine_error};
use super::template::{Message, render};
use super::tools::{Tool, ToolChoice, assemble, read_choice};
use super::{Body, Face};
use crate::request::{FinishReason, SimChoice, SimResponse};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChatParams {
    model: Option<String>,
    messages: Vec<Message>,
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<Value>,
    request_id: Option<String>,
    logprobs: Option<bool>,
    return_token_ids: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

/// A request that has been checked, with its prompt.
pub(crate) struct ChatRequest {
    params: ChatParams,
    pub(crate) sampling: Sampling,
    pub(crate) prompt_ids: Arc<[u32]>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
}

/// The answer to a request for one sample, before it is written in the format of an API.
pub(crate) struct ChatTurn {
    pub(crate) id: String,
    /// The assistant's message, in the form of a chat completion.
    pub(crate) message: Value,
    pub(crate) finish_reason: &'static str,
    /// The stop string that ended the sample.
    pub(crate) stop: Option<String>,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) max_tokens: u32,
}

struct ChatDialect {
    id: String,
    choice: ToolChoice,
    with_logprobs: bool,
    with_ids: bool,
    usage: bool,
    prompt_ids: Arc<[u32]>,
}

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let request = match parse::<Value>(body).and_then(|asked| read(face, &asked)) {
        Ok(request) => request,
        Err(refusal) => return Ok(refusal.response()),
    };
    let ChatRequest { params, sampling, prompt_ids, choice, .. } = request;
    let id = answer_id(face, header_id, params.request_id);
    let streams = params.stream.unwrap_or(false);
    let job = prepare(face, vec![(Arc::from(id.as_str()), Arc::clone(&prompt_ids))], &sampling, streams);
    let dialect = ChatDialect {
        id,
        choice,
        with_logprobs: params.logprobs.unwrap_or(false),
        with_ids: params.return_token_ids.unwrap_or(false),
        usage: params.stream_options.is_some_and(|options| options.include_usage),
        prompt_ids,
    };
    answer(face, job, sampling, dialect, streams).await
}

/// Runs a request for one sample to its end. The inner error is the answer to a request that failed.
///
/// Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn run(
    face: &Arc<Face>,
    header_id: Option<String>,
    asked: &Value,
) -> Result<Result<ChatTurn, Response<Body>>, Reset> {
    let ChatRequest { params, sampling, prompt_ids, choice, .. } = match read(face, asked) {
        Ok(request) => request,
        Err(refusal) => return Ok(Err(refusal.response())),
    };
    let id = answer_id(face, header_id, params.request_id);
    let engine_request = sampling.request(face, Arc::from(id.as_str()), prompt_ids, None);
    let made = async {
        let max_tokens = face.server.check(&engine_request)?;
        Ok((max_tokens, face.server.generate(engine_request).await?))
    };
    let (max_tokens, response) = match made.await {
        Ok(made) => made,
        Err(error) => return engine_error(&error).map(Err),
    };
    let Some(made) = response.choices.first() else {
        return Ok(Err(Refusal::bad_request(Some("n"), "n must be at least 1").response()));
    };
    let (shown, stop) = shown_text(face, &sampling, made);
    let (message, _) = assemble(face, &shown, &choice);
    Ok(Ok(ChatTurn {
        id,
        message,
        finish_reason: made.finish_reason.as_str(),
        stop: stop.map(str::to_owned),
        prompt_tokens: response.prompt_tokens,
        cached_tokens: response.cached_tokens,
        completion_tokens: u32::try_from(made.token_ids.len()).unwrap_or(u32::MAX),
        max_tokens,
    }))
}

fn answer_id(face: &Face, header_id: Option<String>, body_id: Option<String>) -> String {
    let suffix = header_id.or(body_id).unwrap_or_else(|| face.fresh_id());
    format!("chatcmpl-{suffix}")
}

/// The text of a sample up to its stop string, and the stop string.
fn shown_text<'a>(face: &Face, sampling: &'a Sampling, made: &SimChoice) -> (String, Option<&'a str>) {
    let text = face.codec.decode(&made.token_ids);
    let by_text = made.finish_reason == FinishReason::Stop && made.stop_token_id.is_none();
    if by_text { sampling.cut(text) } else { (text, None) }
}

/// Checks a chat completion request and renders its prompt.
pub(crate) fn read(face: &Face, asked: &Value) -> Result<ChatRequest, Refusal> {
    let params: ChatParams = parse_value(asked)?;
    let sampling: Sampling = parse_value(asked)?;
    check_model(face, params.model.as_deref())?;
    sampling.check()?;
    if params.messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(Refusal::bad_request(None, message));
    }
    let tools = params.tools.clone().unwrap_or_default();
    let choice = read_choice(params.tool_choice.as_ref(), &tools)?;
    let encoded = face.codec.encode(&render(&params.messages, &tools, true));
    let prompt_ids: Arc<[u32]> =
        encoded.map_err(|error| Refusal::bad_request(Some("messages"), error.to_string()))?.into();
    check_room(face, &prompt_ids, &sampling)?;
    Ok(ChatRequest { params, sampling, prompt_ids, tools, choice })
}

impl ChatDialect {
    fn put_head(&self, buffer: &mut Vec<u8>, face: &Face, object: &str) {
        put!(buffer, "{{\"id\":");
        put_string(buffer, &self.id);
        put!(buffer, ",\"object\":\"{object}\",\"created\":{},\"model\":", face.unix_s());
        put_string(buffer, &face.server.config().model);
    }

    fn put_choice(&self, buffer: &mut Vec<u8>, face: &Face, sampling: &Sampling, choice: &SimChoice) {
        let (shown, stop) = shown_text(face, sampling, choice);
        let (message, has_calls) = assemble(face, &shown, &self.choice);
        let piece = Piece { stop, ..Piece::whole(choice) };
        put!(buffer, "{{\"index\":{},\"message\":{message},\"logprobs\":", choice.index);
        self.put_logprobs(buffer, face, &piece, true);
        put!(buffer, ",\"finish_reason\":");
        let ended = choice.finish_reason == FinishReason::Stop;
        // vLLM reports `stop` for a call of the function that the request named.
        let calls = match self.choice {
            ToolChoice::Auto => has_calls,
            ToolChoice::Required => ended,
            ToolChoice::None | ToolChoice::Named(_) => false,
        };
        piece.put_finish_as(buffer, calls.then_some("tool_calls"));
        put!(buffer, ",\"token_ids\":");
        self.put_optional_ids(buffer, piece.token_ids);
        put!(buffer, ",\"routed_experts\":null}}");
    }

    fn put_optional_ids(&self, buffer: &mut Vec<u8>, ids: &[u32]) {
        if self.with_ids { put_ids(buffer, ids) } else { put!(buffer, "null") }
    }

    fn put_logprobs(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>, repeats: bool) {
        if !self.with_logprobs {
            return put!(buffer, "null");
        }
        let pairs: Vec<(u32, f32)> =
            piece.token_ids.iter().copied().zip(piece.logprobs.iter().copied()).collect();
        put!(buffer, "{{\"content\":");
        put_list(buffer, &pairs, |list, (token, logprob)| {
            let mut entry = Vec::with_capacity(64);
            let text = face.codec.piece(*token);
            put!(entry, "\"token\":");
            put_string(&mut entry, text);
            put!(entry, ",\"logprob\":");
            put_logprob(&mut entry, *logprob);
            put!(entry, ",\"bytes\":");
            put_list(&mut entry, text.as_bytes(), |bytes, byte| put!(bytes, "{byte}"));
            list.push(b'{');
            list.extend_from_slice(&entry);
            put!(list, ",\"top_logprobs\":[");
            if repeats {
                list.push(b'{');
                list.extend_from_slice(&entry);
                list.push(b'}');
            }
            put!(list, "]}}");
        });
        buffer.push(b'}');
    }
}

impl Dialect for ChatDialect {
    fn whole(&self, face: &Face, sampling: &Sampling, responses: &[SimResponse]) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(1024);
        self.put_head(&mut buffer, face, "chat.completion");
        put!(buffer, ",\"choices\":");
        let choices: Vec<&SimChoice> = responses.iter().flat_map(|response| &response.choices).collect();
        put_list(&mut buffer, &choices, |list, choice| self.put_choice(list, face, sampling, choice));
        put!(buffer, ",\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":");
        put_usage(&mut buffer, responses, "0");
        put!(buffer, ",\"prompt_logprobs\":null,\"prompt_token_ids\":");
        self.put_optional_ids(&mut buffer, &self.prompt_ids);
        put!(
            buffer,
            ",\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}"
        );
        buffer
    }

    fn refuses_nan(&self) -> bool {
        self.with_logprobs
    }

    fn put_opening(&self, buffer: &mut Vec<u8>, face: &Face, index: u32) -> bool {
        self.put_head(buffer, face, "chat.completion.chunk");
        put!(
            buffer,
            ",\"choices\":[{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\
             \"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":"
        );
        self.put_optional_ids(buffer, &self.prompt_ids);
        put!(buffer, ",\"prompt_text\":null}}");
        true
    }

    fn put_piece(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>) {
        self.put_head(buffer, face, "chat.completion.chunk");
        put!(buffer, ",\"choices\":[{{\"index\":{},\"delta\":{{\"content\":", piece.index);
        put_string(buffer, &face.codec.decode(piece.token_ids));
        put!(buffer, "}},\"logprobs\":");
        self.put_logprobs(buffer, face, piece, false);
        put!(buffer, ",\"finish_reason\":");
        match piece.finish {
            Some(_) => piece.put_finish(buffer),
            None => put!(buffer, "null"),
        }
        if self.with_ids {
            put!(buffer, ",\"token_ids\":");
            put_ids(buffer, piece.token_ids);
        }
        put!(buffer, "}}]}}");
    }

    fn put_usage(&self, buffer: &mut Vec<u8>, face: &Face, usage: &str) -> bool {
        if !self.usage {
            return false;
        }
        self.put_head(buffer, face, "chat.completion.chunk");
        put!(buffer, ",\"choices\":[],\"usage\":{usage},\"system_fingerprint\":\"{FINGERPRINT}\"}}");
        true
    }
}
