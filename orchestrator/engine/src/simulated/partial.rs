//! Checks the simulation's tokens and turns them into parts of samples: complete samples, and the tokens so
//! far of samples that were cut off.

use std::future::Future;
use std::pin::pin;

use rolldock_simengine as sim;
use rolldock_simengine::{SimChunk, SimError, SimResponse};
use tokio::sync::mpsc;

use crate::soundness::{is_poisoned, spans_cover};
use crate::{FinishReason, PartialOutput, Progress, VersionSpan};

/// Runs a streamed request to its end, and adds its chunks to `progress` as they arrive. `progress` has a
/// part for each sample.
///
/// Cancel-safe: chunks that have been taken are in `progress`.
pub(super) async fn follow(
    generating: impl Future<Output = Result<SimResponse, SimError>>,
    mut chunks: mpsc::Receiver<SimChunk>,
    progress: &Progress,
) -> Result<SimResponse, SimError> {
    let mut generating = pin!(generating);
    let answer = loop {
        tokio::select! {
            biased;
            Some(chunk) = chunks.recv() => append(progress, &chunk),
            answer = &mut generating => break answer,
        }
    };
    // Chunks that were sent before the answer still count.
    while let Ok(chunk) = chunks.try_recv() {
        append(progress, &chunk);
    }
    answer
}

fn append(progress: &Progress, chunk: &SimChunk) {
    progress.with(|parts| {
        let Some(part) = parts.get_mut(chunk.index as usize) else { return };
        let follows = chunk.start as usize == part.response_ids.len();
        let is_sound = chunk.logprobs.len() == chunk.token_ids.len();
        if !follows || !is_sound || chunk.logprobs.iter().any(|logprob| is_poisoned(*logprob)) {
            // No token of the request can be trusted any more. Without parts, later chunks are ignored.
            parts.clear();
            return;
        }
        part.response_ids.extend_from_slice(&chunk.token_ids);
        part.logprobs.extend_from_slice(&chunk.logprobs);
    });
}

/// The choices of an answer as checked parts, in order, or the check that failed.
pub(super) fn checked(answer: SimResponse, n: u32) -> Result<Vec<PartialOutput>, String> {
    if answer.choices.len() != n as usize {
        return Err(format!("expected choices={n}, found={}", answer.choices.len()));
    }
    answer.choices.into_iter().map(part).collect()
}

fn part(choice: sim::SimChoice) -> Result<PartialOutput, String> {
    let finish_reason = match choice.finish_reason {
        sim::FinishReason::Stop => Some(FinishReason::Stop),
        sim::FinishReason::Length => Some(FinishReason::Length),
        sim::FinishReason::Abort => None,
    };
    let tokens = choice.token_ids.len();
    if choice.logprobs.len() != tokens {
        return Err(format!("logprobs={} for tokens={tokens}", choice.logprobs.len()));
    }
    if let Some(token) = choice.logprobs.iter().position(|logprob| is_poisoned(*logprob)) {
        return Err(format!("poisoned logprob at token={token}"));
    }
    let span =
        |span: sim::VersionSpan| VersionSpan { version: span.version, start: span.start, end: span.end };
    let version_spans: Vec<VersionSpan> = choice.version_spans.into_iter().map(span).collect();
    if !spans_cover(&version_spans, tokens) {
        return Err(format!("weight versions do not cover tokens={tokens}"));
    }
    Ok(PartialOutput {
        response_ids: choice.token_ids,
        logprobs: choice.logprobs,
        version_spans,
        finish_reason,
    })
}
