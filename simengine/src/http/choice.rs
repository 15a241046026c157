//! The parts that the three dialects of the API (text completions, chat completions, and token ids) share: running
//! the prompts of an HTTP request, and writing the usage object of the answer.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, try_join_all};
use tokio::sync::mpsc;

use super::Face;
use super::json::put;
use super::params::Sampling;
use crate::request::{SimChunk, SimResponse};
use crate::{SimError, SimServer};

/// Maximum number of chunks that wait between the engine and one socket.
const CHUNKS_MAX: usize = 256;

/// The engine's part of one HTTP request.
pub(crate) struct Job {
    pub(crate) future: BoxFuture<'static, Result<Vec<SimResponse>, SimError>>,
    pub(crate) chunks: mpsc::Receiver<SimChunk>,
    pub(crate) request_ids: Vec<Arc<str>>,
    pub(crate) samples: u32,
}

/// Prepares a job that runs every prompt as a request with an id of its own. Dropping the job cancels all of
/// these requests.
pub(crate) fn prepare(
    face: &Face,
    prompts: Vec<(Arc<str>, Arc<[u32]>)>,
    sampling: &Sampling,
    streams: bool,
) -> Job {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let request_ids = prompts.iter().map(|(request_id, _)| Arc::clone(request_id)).collect();
    let requests: Vec<_> = prompts
        .into_iter()
        .map(|(request_id, prompt_ids)| {
            let stream = streams.then(|| sender.clone());
            sampling.request(face, request_id, prompt_ids, stream)
        })
        .collect();
    let server: SimServer = face.server.clone();
    let future = async move {
        let runs = requests.into_iter().map(|request| server.generate(request));
        try_join_all(runs).await
    };
    Job { future: future.boxed(), chunks, request_ids, samples: sampling.samples() }
}

/// Writes the usage object of an answer that is not streamed.
pub(crate) fn put_usage(buffer: &mut Vec<u8>, responses: &[SimResponse], created_cache_tokens: &str) {
    let prompt: u64 = responses.iter().map(|response| u64::from(response.prompt_tokens)).sum();
    let cached: u64 = responses.iter().map(|response| u64::from(response.cached_tokens)).sum();
    let completion = completion_tokens(responses);
    let total = prompt + completion;
    put!(
        buffer,
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"created_cache_tokens\":\
         {created_cache_tokens},\"multimodal_tokens\":null}},\"completion_tokens_details\":null}}"
    );
}

/// Number of tokens of all choices.
pub(crate) fn completion_tokens(responses: &[SimResponse]) -> u64 {
    responses.iter().flat_map(|response| &response.choices).map(|choice| choice.token_ids.len() as u64).sum()
}

/// Whether a log-probability of this answer is NaN. vLLM's JSON encoder refuses NaN.
pub(crate) fn has_nan(responses: &[SimResponse]) -> bool {
    let mut choices = responses.iter().flat_map(|response| &response.choices);
    choices.any(|choice| choice.logprobs.iter().any(|logprob| logprob.is_nan()))
}
