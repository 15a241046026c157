//! `/inference/v1/generate`: takes and returns token ids, with the weight version of every token.

use std::sync::Arc;

use serde::Deserialize;

use super::Face;
use super::choice::{prepare, put_usage};
use super::dialect::{Dialect, Piece};
use super::handle::answer;
use super::json::{put, put_ids, put_list, put_logprob, put_string};
use super::params::{Sampling, StreamOptions, check_logprobs, check_model, parse};
use super::reply::{Handled, Refusal};
use crate::request::{SimChoice, SimResponse, VersionSpan};

#[derive(Debug, Deserialize)]
struct GenerateParams {
    token_ids: Vec<u32>,
    sampling_params: Sampling,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    return_token_ids: Option<bool>,
    #[serde(default)]
    output_mode: Option<String>,
}

/// The only key of the sampling parameters that differs between the dialects.
#[derive(Debug, Deserialize)]
struct LogprobsParams {
    sampling_params: LogprobsCount,
}

#[derive(Debug, Deserialize)]
struct LogprobsCount {
    #[serde(default)]
    logprobs: Option<i64>,
}

/// The dialect of one request.
struct TokenDialect {
    id: String,
    with_logprobs: bool,
    as_text: bool,
    usage: bool,
    /// The prompt, if the answer has to contain it.
    echo: Option<Arc<[u32]>>,
}

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let (params, logprobs) = match read(face, body) {
        Ok(read) => read,
        Err(refusal) => return Ok(refusal.response()),
    };
    let suffix = header_id.or(params.request_id).unwrap_or_else(|| face.fresh_id());
    let id = format!("generate-tokens-{suffix}");
    let prompt_ids: Arc<[u32]> = params.token_ids.into();
    let mut sampling = params.sampling_params;
    // This endpoint lowers a limit that is too large. The other dialects refuse such a limit.
    let longest = face.server.config().max_model_len;
    sampling.max_tokens = sampling.max_tokens.map(|asked| asked.min(longest));
    let streams = params.stream.unwrap_or(false);
    let prompts = vec![(Arc::from(id.as_str()), Arc::clone(&prompt_ids))];
    let job = prepare(face, prompts, &sampling, streams);
    let dialect = TokenDialect {
        id,
        with_logprobs: logprobs.is_some(),
        as_text: params.output_mode.as_deref() == Some("text"),
        usage: params.stream_options.is_some_and(|options| options.include_usage),
        echo: params.return_token_ids.unwrap_or(false).then_some(prompt_ids),
    };
    answer(face, job, sampling, dialect, streams).await
}

fn read(face: &Face, body: &[u8]) -> Result<(GenerateParams, Option<i64>), Refusal> {
    let params: GenerateParams = parse(body)?;
    let logprobs = parse::<LogprobsParams>(body)?.sampling_params.logprobs;
    check_model(face, params.model.as_deref())?;
    check_logprobs(face, logprobs)?;
    params.sampling_params.check()?;
    let (length, longest) = (params.token_ids.len(), face.server.config().max_model_len as usize);
    if length > longest {
        let message = format!(
            "The decoder prompt (length {length}) is longer than the maximum model length of {longest}. Make \
             sure that `max_model_len` is no smaller than the number of text tokens."
        );
        return Err(Refusal::bad_request(None, message));
    }
    Ok((params, logprobs))
}

impl TokenDialect {
    fn mode(&self) -> &'static str {
        if self.as_text { "text" } else { "tokens" }
    }

    fn put_choice(
        &self,
        buffer: &mut Vec<u8>,
        face: &Face,
        piece: &Piece<'_>,
        spans: Option<&[VersionSpan]>,
    ) {
        put!(buffer, "{{\"index\":{},\"finish_reason\":", piece.index);
        piece.put_finish(buffer);
        put!(buffer, ",\"token_ids\":");
        put_ids(buffer, piece.token_ids);
        put!(buffer, ",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":");
        match spans {
            None => put!(buffer, "null"),
            Some(spans) => put_list(buffer, spans, |list, span| {
                put!(list, "{{\"version\":");
                put_string(list, &span.version);
                put!(list, ",\"start\":{},\"end\":{}}}", span.start, span.end);
            }),
        }
        if self.as_text {
            put!(buffer, ",\"text\":");
            put_string(buffer, &face.codec.decode(piece.token_ids));
        }
        put!(buffer, ",\"logprobs\":");
        if self.with_logprobs {
            put_token_logprobs(buffer, piece);
        } else {
            put!(buffer, "null");
        }
        buffer.push(b'}');
    }
}

/// Writes the log-probabilities of tokens. As on the real server, `top_logprobs` repeats the sampled token.
fn put_token_logprobs(buffer: &mut Vec<u8>, piece: &Piece<'_>) {
    put!(buffer, "{{\"content\":[");
    let mut entry = Vec::with_capacity(64);
    for (place, (token, logprob)) in piece.token_ids.iter().zip(piece.logprobs).enumerate() {
        entry.clear();
        put!(entry, "\"token_id\":{token},\"logprob\":");
        put_logprob(&mut entry, *logprob);
        let is_poisoned = !logprob.is_finite() || *logprob <= crate::workload::POISON_LOGPROB;
        entry.extend_from_slice(if is_poisoned { b",\"rank\":null" } else { b",\"rank\":1" });
        if place > 0 {
            buffer.push(b',');
        }
        buffer.push(b'{');
        buffer.extend_from_slice(&entry);
        buffer.extend_from_slice(b",\"top_logprobs\":[{");
        buffer.extend_from_slice(&entry);
        buffer.extend_from_slice(b"}]}");
    }
    put!(buffer, "]}}");
}

impl Dialect for TokenDialect {
    fn whole(&self, face: &Face, _sampling: &Sampling, responses: &[SimResponse]) -> Vec<u8> {
        let tokens: usize = super::choice::completion_tokens(responses) as usize;
        let mut buffer = Vec::with_capacity(1024 + tokens * if self.with_logprobs { 160 } else { 8 });
        put!(buffer, "{{\"request_id\":");
        put_string(&mut buffer, &self.id);
        put!(buffer, ",\"model\":");
        put_string(&mut buffer, &face.server.config().model);
        put!(buffer, ",\"created\":{},\"usage\":", face.unix_s());
        put_usage(&mut buffer, responses, "null");
        put!(buffer, ",\"prompt_logprobs\":null,\"prompt_token_id_logprobs\":null,\"prompt_token_ids\":");
        match &self.echo {
            Some(prompt_ids) => put_ids(&mut buffer, prompt_ids),
            None => put!(buffer, "null"),
        }
        put!(
            buffer,
            ",\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":null,\
             \"ec_transfer_params\":null,\"output_mode\":\"{}\",\"choices\":",
            self.mode()
        );
        let choices: Vec<&SimChoice> = responses.iter().flat_map(|response| &response.choices).collect();
        put_list(&mut buffer, &choices, |list, choice| {
            let piece = Piece::whole(choice);
            self.put_choice(list, face, &piece, Some(&choice.version_spans));
        });
        buffer.push(b'}');
        buffer
    }

    fn refuses_nan(&self) -> bool {
        false
    }

    fn put_piece(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>) {
        put!(buffer, "{{\"request_id\":");
        put_string(buffer, &self.id);
        put!(buffer, ",\"usage\":null,\"output_mode\":\"{}\",\"choices\":[", self.mode());
        let spans = piece.finish.map(|choice| choice.version_spans.as_slice());
        self.put_choice(buffer, face, piece, spans);
        put!(buffer, "]}}");
    }

    fn put_usage(&self, buffer: &mut Vec<u8>, _face: &Face, usage: &str) -> bool {
        if !self.usage {
            return false;
        }
        put!(buffer, "{{\"request_id\":");
        put_string(buffer, &self.id);
        put!(buffer, ",\"usage\":{usage},\"output_mode\":\"{}\",\"choices\":[]}}", self.mode());
        true
    }
}
