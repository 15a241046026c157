//! `/v1/chat/completions` and the chat template of the simulated model (ChatML).

use std::sync::Arc;

use serde::Deserialize;

use super::Face;
use super::choice::{prepare, put_usage};
use super::completions::{FINGERPRINT, check_room};
use super::dialect::{Dialect, Piece};
use super::handle::answer;
use super::json::{put, put_ids, put_list, put_logprob, put_string};
use super::params::{Sampling, StreamOptions, check_model, parse};
use super::reply::{Handled, Refusal};
use crate::request::{FinishReason, SimChoice, SimResponse};

/// A turn of a conversation.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
}

/// A text, or a list of parts. Parts without text are ignored.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatParams {
    model: Option<String>,
    messages: Vec<Message>,
    request_id: Option<String>,
    logprobs: Option<bool>,
    return_token_ids: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

struct ChatDialect {
    id: String,
    with_logprobs: bool,
    with_ids: bool,
    usage: bool,
    prompt_ids: Arc<[u32]>,
}

/// The prompt of a conversation. With `add_generation_prompt` it ends in the beginning of the assistant's
/// turn.
pub(crate) fn render(messages: &[Message], add_generation_prompt: bool) -> String {
    let mut text = String::new();
    for message in messages {
        let content = match &message.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => parts.iter().map(|part| part.text.as_str()).collect(),
        };
        text.push_str(&format!("<|im_start|>{}\n{content}<|im_end|>\n", message.role));
    }
    if add_generation_prompt {
        text.push_str("<|im_start|>assistant\n");
    }
    text
}

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let (params, sampling, prompt_ids) = match read(face, body) {
        Ok(read) => read,
        Err(refusal) => return Ok(refusal.response()),
    };
    let suffix = header_id.or(params.request_id).unwrap_or_else(|| face.fresh_id());
    let id = format!("chatcmpl-{suffix}");
    let streams = params.stream.unwrap_or(false);
    let job = prepare(face, vec![(Arc::from(id.as_str()), Arc::clone(&prompt_ids))], &sampling, streams);
    let dialect = ChatDialect {
        id,
        with_logprobs: params.logprobs.unwrap_or(false),
        with_ids: params.return_token_ids.unwrap_or(false),
        usage: params.stream_options.is_some_and(|options| options.include_usage),
        prompt_ids,
    };
    answer(face, job, sampling, dialect, streams).await
}

fn read(face: &Face, body: &[u8]) -> Result<(ChatParams, Sampling, Arc<[u32]>), Refusal> {
    let params: ChatParams = parse(body)?;
    let sampling: Sampling = parse(body)?;
    check_model(face, params.model.as_deref())?;
    sampling.check()?;
    if params.messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(Refusal::bad_request(None, message));
    }
    let encoded = face.codec.encode(&render(&params.messages, true));
    let prompt_ids: Arc<[u32]> =
        encoded.map_err(|error| Refusal::bad_request(Some("messages"), error.to_string()))?.into();
    check_room(face, &prompt_ids, &sampling)?;
    Ok((params, sampling, prompt_ids))
}

impl ChatDialect {
    fn put_head(&self, buffer: &mut Vec<u8>, face: &Face, object: &str) {
        put!(buffer, "{{\"id\":");
        put_string(buffer, &self.id);
        put!(buffer, ",\"object\":\"{object}\",\"created\":{},\"model\":", face.unix_s());
        put_string(buffer, &face.server.config().model);
    }

    fn put_choice(&self, buffer: &mut Vec<u8>, face: &Face, sampling: &Sampling, choice: &SimChoice) {
        let text = face.codec.decode(&choice.token_ids);
        let by_text = choice.finish_reason == FinishReason::Stop && choice.stop_token_id.is_none();
        let (shown, stop) = if by_text { sampling.cut(text) } else { (text, None) };
        let piece = Piece { stop, ..Piece::whole(choice) };
        put!(buffer, "{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice.index);
        put_string(buffer, &shown);
        put!(
            buffer,
            ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\
             \"reasoning\":null}},\"logprobs\":"
        );
        self.put_logprobs(buffer, face, &piece, true);
        put!(buffer, ",\"finish_reason\":");
        piece.put_finish(buffer);
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
