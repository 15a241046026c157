//! `/v1/completions`. A prompt is a text or a list of token ids, and a request may have a list of prompts.

use std::sync::Arc;

use serde::Deserialize;

use super::Face;
use super::choice::{prepare, put_usage};
use super::dialect::{Dialect, Piece};
use super::handle::answer;
use super::json::{put, put_ids, put_list, put_logprob, put_string};
use super::params::{Sampling, StreamOptions, check_logprobs, check_model, parse};
use super::reply::{Handled, Refusal};
use crate::request::{FinishReason, SimChoice, SimResponse};

/// The fingerprint in every answer. It names the simulation. The fingerprint of a real server names its
/// build.
pub(crate) const FINGERPRINT: &str = "rolldock-simengine";

/// The token limit of a request that has no key `max_tokens` (the default of vLLM and OpenAI). With `null` there is
/// no limit.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Maximum number of prompts in one request.
const PROMPTS_MAX: usize = 1_024;

/// The token ids of every prompt of a request.
pub(crate) type Prompts = Vec<Arc<[u32]>>;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionParams {
    model: Option<String>,
    prompt: Option<Prompt>,
    #[serde(default = "default_max_tokens")]
    max_tokens: Option<u32>,
    request_id: Option<String>,
    logprobs: Option<i64>,
    return_token_ids: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

fn default_max_tokens() -> Option<u32> {
    Some(DEFAULT_MAX_TOKENS)
}

struct TextDialect {
    id: String,
    with_logprobs: bool,
    with_ids: bool,
    tokens_as_ids: bool,
    usage: bool,
    usage_everywhere: bool,
    samples: u32,
    prompts: Vec<Arc<[u32]>>,
}

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let (params, sampling, prompts) = match read(face, body) {
        Ok(read) => read,
        Err(refusal) => return Ok(refusal.response()),
    };
    let suffix = header_id.or(params.request_id).unwrap_or_else(|| face.fresh_id());
    let id = format!("cmpl-{suffix}");
    let streams = params.stream.unwrap_or(false);
    let engine_ids = (0..prompts.len()).map(|place| Arc::from(format!("{id}-{place}")));
    let job = prepare(face, engine_ids.zip(prompts.iter().cloned()).collect(), &sampling, streams);
    let options = params.stream_options.unwrap_or_default();
    let dialect = TextDialect {
        id,
        with_logprobs: params.logprobs.is_some(),
        with_ids: params.return_token_ids.unwrap_or(false),
        tokens_as_ids: params.return_tokens_as_token_ids.unwrap_or(false),
        usage: options.include_usage,
        usage_everywhere: options.continuous_usage_stats,
        samples: sampling.samples(),
        prompts,
    };
    answer(face, job, sampling, dialect, streams).await
}

/// Refuses a request whose prompt and token limit together exceed the model's length, as vLLM does in the
/// OpenAI dialects.
pub(crate) fn check_room(face: &Face, prompt_ids: &[u32], sampling: &Sampling) -> Result<(), Refusal> {
    let longest = u64::from(face.server.config().max_model_len);
    let prompt = prompt_ids.len() as u64;
    let asked = sampling.max_tokens.or(sampling.max_completion_tokens).map_or(0, u64::from);
    // The engine's rules refuse a prompt that leaves no room, or a limit above the model's length. Their messages
    // are different.
    if prompt >= longest || asked > longest || prompt + asked <= longest {
        return Ok(());
    }
    let message = format!(
        "This model's maximum context length is {longest} tokens. However, you requested {asked} output tokens \
         and your prompt contains {prompt} input tokens, for a total of {} tokens. Please reduce the length of \
         the input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt})",
        prompt + asked
    );
    Err(Refusal::bad_request(Some("input_tokens"), message))
}

fn read(face: &Face, body: &[u8]) -> Result<(CompletionParams, Sampling, Prompts), Refusal> {
    let params: CompletionParams = parse(body)?;
    let mut sampling: Sampling = parse(body)?;
    sampling.max_tokens = params.max_tokens;
    // These requests have no such key, and vLLM ignores keys that it does not know.
    sampling.max_completion_tokens = None;
    check_model(face, params.model.as_deref())?;
    check_logprobs(face, params.logprobs)?;
    sampling.check()?;
    let Some(prompt) = &params.prompt else {
        let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
        return Err(Refusal::bad_request(Some("prompt"), message));
    };
    let prompts = tokenize(face, prompt)?;
    if prompts.is_empty() || prompts.iter().any(|prompt_ids| prompt_ids.is_empty()) {
        return Err(Refusal::bad_request(None, "You must pass at least one prompt"));
    }
    if prompts.len() > PROMPTS_MAX {
        let message = format!("prompt must have at most {PROMPTS_MAX} entries.");
        return Err(Refusal::bad_request(Some("prompt"), message));
    }
    for prompt_ids in &prompts {
        check_room(face, prompt_ids, &sampling)?;
    }
    Ok((params, sampling, prompts))
}

/// Reads the sampling parameters and the prompts of a request.
pub(crate) fn read_prompts(face: &Face, body: &[u8]) -> Result<(Sampling, Prompts), Refusal> {
    read(face, body).map(|(_, sampling, prompts)| (sampling, prompts))
}

fn tokenize(face: &Face, prompt: &Prompt) -> Result<Prompts, Refusal> {
    let encode = |text: &String| {
        let ids = face.codec.encode(text);
        ids.map(Arc::from).map_err(|error| Refusal::bad_request(Some("prompt"), error.to_string()))
    };
    match prompt {
        Prompt::Text(text) => Ok(vec![encode(text)?]),
        Prompt::Texts(texts) => texts.iter().map(encode).collect(),
        Prompt::Ids(ids) => Ok(vec![Arc::from(ids.as_slice())]),
        Prompt::IdLists(lists) => Ok(lists.iter().map(|ids| Arc::from(ids.as_slice())).collect()),
    }
}

impl TextDialect {
    fn put_head(&self, buffer: &mut Vec<u8>, face: &Face) {
        put!(buffer, "{{\"id\":");
        put_string(buffer, &self.id);
        put!(buffer, ",\"object\":\"text_completion\",\"created\":{},\"model\":", face.unix_s());
        put_string(buffer, &face.server.config().model);
    }

    fn put_choice(
        &self,
        buffer: &mut Vec<u8>,
        face: &Face,
        sampling: &Sampling,
        choice: &SimChoice,
        place: usize,
    ) {
        let text = face.codec.decode(&choice.token_ids);
        let by_text = choice.finish_reason == FinishReason::Stop && choice.stop_token_id.is_none();
        let (shown, stop) = if by_text { sampling.cut(text) } else { (text, None) };
        let piece = Piece { stop, ..Piece::whole(choice) };
        put!(buffer, "{{\"index\":{place},\"text\":");
        put_string(buffer, &shown);
        put!(buffer, ",\"logprobs\":");
        self.put_logprobs(buffer, face, &piece);
        put!(buffer, ",\"finish_reason\":");
        piece.put_finish(buffer);
        put!(buffer, ",\"token_ids\":");
        self.put_optional_ids(buffer, Some(piece.token_ids));
        put!(buffer, ",\"prompt_logprobs\":null,\"prompt_token_ids\":");
        self.put_optional_ids(buffer, self.prompt_of(place));
        put!(buffer, ",\"routed_experts\":null}}");
    }

    fn prompt_of(&self, place: usize) -> Option<&[u32]> {
        self.prompts.get(place / self.samples.max(1) as usize).map(AsRef::as_ref)
    }

    fn put_optional_ids(&self, buffer: &mut Vec<u8>, ids: Option<&[u32]>) {
        match ids.filter(|_| self.with_ids) {
            Some(known) => put_ids(buffer, known),
            None => put!(buffer, "null"),
        }
    }

    fn put_logprobs(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>) {
        if !self.with_logprobs {
            return put!(buffer, "null");
        }
        put!(buffer, "{{\"text_offset\":");
        let mut offset = piece.text_offset;
        put_list(buffer, piece.token_ids, |list, token| {
            put!(list, "{offset}");
            offset += face.codec.piece(*token).chars().count();
        });
        put!(buffer, ",\"token_logprobs\":");
        put_list(buffer, piece.logprobs, |list, logprob| put_logprob(list, *logprob));
        put!(buffer, ",\"tokens\":");
        put_list(buffer, piece.token_ids, |list, token| self.put_token(list, face, *token));
        put!(buffer, ",\"top_logprobs\":[");
        for (place, (token, logprob)) in piece.token_ids.iter().zip(piece.logprobs).enumerate() {
            buffer.extend_from_slice(if place > 0 { b",{" } else { b"{" });
            self.put_token(buffer, face, *token);
            buffer.push(b':');
            put_logprob(buffer, *logprob);
            buffer.push(b'}');
        }
        put!(buffer, "]}}");
    }

    fn put_token(&self, buffer: &mut Vec<u8>, face: &Face, token: u32) {
        if self.tokens_as_ids {
            put!(buffer, "\"token_id:{token}\"");
        } else {
            put_string(buffer, face.codec.piece(token));
        }
    }
}

impl Dialect for TextDialect {
    fn whole(&self, face: &Face, sampling: &Sampling, responses: &[SimResponse]) -> Vec<u8> {
        let tokens = super::choice::completion_tokens(responses) as usize;
        let mut buffer = Vec::with_capacity(1024 + tokens * if self.with_logprobs { 96 } else { 16 });
        self.put_head(&mut buffer, face);
        let choices: Vec<&SimChoice> = responses.iter().flat_map(|response| &response.choices).collect();
        put!(buffer, ",\"choices\":[");
        for (place, choice) in choices.iter().enumerate() {
            if place > 0 {
                buffer.push(b',');
            }
            self.put_choice(&mut buffer, face, sampling, choice, place);
        }
        put!(buffer, "],\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":");
        put_usage(&mut buffer, responses, "null");
        put!(buffer, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}");
        buffer
    }

    fn refuses_nan(&self) -> bool {
        self.with_logprobs
    }

    fn put_piece(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>) {
        self.put_head(buffer, face);
        put!(buffer, ",\"choices\":[{{\"index\":{},\"text\":", piece.index);
        put_string(buffer, &face.codec.decode(piece.token_ids));
        put!(buffer, ",\"logprobs\":");
        self.put_logprobs(buffer, face, piece);
        put!(buffer, ",\"finish_reason\":");
        piece.put_finish(buffer);
        let prompt_ids = self.prompt_of(piece.index as usize);
        put!(buffer, ",\"prompt_token_ids\":");
        self.put_optional_ids(buffer, prompt_ids.filter(|_| piece.is_first));
        put!(buffer, ",\"token_ids\":");
        self.put_optional_ids(buffer, Some(piece.token_ids));
        put!(buffer, "}}]");
        if self.usage_everywhere {
            let prompt = prompt_ids.map_or(0, <[u32]>::len);
            let completion = piece.tokens_so_far;
            put!(
                buffer,
                ",\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{completion}}}",
                prompt + completion
            );
        }
        if piece.finish.is_some() && !self.usage {
            put!(buffer, ",\"system_fingerprint\":\"{FINGERPRINT}\"");
        }
        buffer.push(b'}');
    }

    fn put_usage(&self, buffer: &mut Vec<u8>, face: &Face, usage: &str) -> bool {
        if !self.usage {
            return false;
        }
        self.put_head(buffer, face);
        put!(buffer, ",\"choices\":[],\"usage\":{usage},\"system_fingerprint\":\"{FINGERPRINT}\"}}");
        true
    }
}
