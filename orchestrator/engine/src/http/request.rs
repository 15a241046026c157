//! Writes requests directly into a byte buffer.
//!
//! Every sampling parameter that matters to the recipe or the algorithm is written, even if its value is
//! neutral. A server that was started with the model's own generation config would fill in missing
//! parameters.
//!
//! # Deliberately absent
//! The requests of a group do not share the JSON of their prompt. Writing 1,024 ids takes about three
//! microseconds, which is less than a look-up would take, and the bytes are dropped as soon as they are sent.

use bytes::Bytes;
use serde::Serialize;

use super::facts::Dialect;
use super::number::push_u64;
use crate::GenerateRequest;

/// Seeds are sent with 62 bits, because engines accept a signed 64-bit integer and add the sample's index to
/// it.
const SEED_MASK: u64 = (1 << 62) - 1;

/// Number of bytes that are reserved for everything but the prompt.
const FIXED_BYTES: usize = 512;

/// Number of bytes that are reserved for a token id of up to six digits and its comma.
const BYTES_PER_TOKEN: usize = 7;

/// The body of `request` in a server's dialect.
pub(super) fn write_request(dialect: Dialect, model: &str, request: &GenerateRequest) -> Bytes {
    let text_bytes = if dialect == Dialect::TextOnly { request.prompt_text.len() } else { 0 };
    let prompt_bytes = request.prompt_ids.len() * BYTES_PER_TOKEN + text_bytes;
    let mut body = Body { bytes: Vec::with_capacity(FIXED_BYTES + prompt_bytes) };
    body.bytes.push(b'{');
    body.member("model", |body| body.json(model));
    if dialect != Dialect::TextOnly {
        body.reply(request);
    }
    match dialect {
        Dialect::Generate => {
            body.member("request_id", |body| body.json(&*request.request_id));
            body.member("token_ids", |body| body.ids(&request.prompt_ids));
            body.member("return_token_ids", |body| body.json(&true));
            body.member("sampling_params", |body| {
                body.bytes.push(b'{');
                body.sampling(request);
                body.engine_sampling(request);
                body.bytes.push(b'}');
            });
        }
        Dialect::Completions => {
            body.member("request_id", |body| body.json(&*request.request_id));
            body.member("prompt", |body| body.ids(&request.prompt_ids));
            body.member("return_token_ids", |body| body.json(&true));
            body.sampling(request);
            body.engine_sampling(request);
        }
        // A plain server may refuse parameters that are not in OpenAI's API.
        Dialect::TextOnly => {
            body.member("prompt", |body| body.json(&*request.prompt_text));
            body.sampling(request);
        }
    }
    body.bytes.push(b'}');
    body.bytes.into()
}

/// A body that is being written.
struct Body {
    bytes: Vec<u8>,
}

impl Body {
    /// Writes a name and its value. The name must not need escapes.
    fn member(&mut self, name: &str, value: impl FnOnce(&mut Self)) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
        value(self);
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) {
        let written = serde_json::to_writer(&mut self.bytes, value);
        debug_assert!(written.is_ok(), "strings and numbers are always writable to memory");
    }

    fn ids(&mut self, ids: &[u32]) {
        self.bytes.push(b'[');
        for (position, id) in ids.iter().enumerate() {
            if position > 0 {
                self.bytes.push(b',');
            }
            push_u64(&mut self.bytes, u64::from(*id));
        }
        self.bytes.push(b']');
    }

    /// Writes `stream` and `cache_salt`, if the request has them. Without `stream`, the answer arrives in one
    /// piece.
    fn reply(&mut self, request: &GenerateRequest) {
        if request.stream {
            self.member("stream", |body| body.json(&true));
        }
        // Servers refuse an empty salt.
        if let Some(salt) = request.cache_salt.as_ref().filter(|salt| !salt.is_empty()) {
            self.member("cache_salt", |body| body.json(&**salt));
        }
    }

    /// Writes the sampling parameters of OpenAI's API.
    fn sampling(&mut self, request: &GenerateRequest) {
        let sampling = &request.sampling;
        self.member("n", |body| body.json(&request.n));
        self.member("max_tokens", |body| body.json(&request.max_tokens));
        self.member("temperature", |body| body.json(&sampling.temperature));
        self.member("top_p", |body| body.json(&sampling.top_p));
        self.member("presence_penalty", |body| body.json(&0));
        self.member("frequency_penalty", |body| body.json(&0));
        self.member("seed", |body| body.json(&(request.seed & SEED_MASK)));
    }

    /// Writes the sampling parameters that vLLM adds.
    fn engine_sampling(&mut self, request: &GenerateRequest) {
        let sampling = &request.sampling;
        self.member("top_k", |body| body.json(&sampling.top_k));
        self.member("min_p", |body| body.json(&0));
        self.member("repetition_penalty", |body| body.json(&1));
        // This asks for the log-probability of the sampled token only.
        self.member("logprobs", |body| body.json(&0));
        if !sampling.stop_token_ids.is_empty() {
            self.member("stop_token_ids", |body| body.ids(&sampling.stop_token_ids));
        }
    }
}
