//! Server-sent events. There is one event per token, as on a real server that keeps up with its engine.
//!
//! The latest token of each choice is kept back until further tokens arrive or the choice ends, because only
//! the last event of a choice contains the finish reason.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, header};

use super::choice::{Job, completion_tokens};
use super::dialect::{Dialect, Piece};
use super::params::Sampling;
use super::reply::{Handled, Reset, engine_error};
use super::{Body, Face};
use crate::request::{SimChoice, SimChunk, SimResponse};

/// The part of one choice that a stream has sent.
#[derive(Debug, Clone, Default)]
struct SentSoFar {
    sent: usize,
    text_chars: usize,
    kept_back: Option<(u32, f32)>,
}

struct Streaming {
    face: Arc<Face>,
    job: Option<Job>,
    sampling: Sampling,
    dialect: Box<dyn Dialect>,
    progress: Vec<SentSoFar>,
    opened: bool,
    ready: VecDeque<Bytes>,
}

/// Starts the job and answers with a stream. If the job fails immediately, answers with an ordinary error.
///
/// Cancel-safe: when the future or the returned body is dropped, the engine drops the request.
pub(crate) async fn stream_response(
    face: Arc<Face>,
    mut job: Job,
    sampling: Sampling,
    dialect: Box<dyn Dialect>,
) -> Handled {
    if let std::task::Poll::Ready(Err(error)) = futures::poll!(&mut job.future) {
        return engine_error(&error);
    }
    let choices = job.request_ids.len() * job.samples as usize;
    let streaming = Streaming {
        face,
        job: Some(job),
        sampling,
        dialect,
        progress: vec![SentSoFar::default(); choices],
        opened: false,
        ready: VecDeque::new(),
    };
    let frames = stream::unfold(streaming, |mut state| async move {
        let item = state.next().await?;
        Some((item.map(Frame::data), state))
    });
    let body: Body = StreamBody::new(frames.boxed()).boxed_unsync();
    let mut response = Response::new(body);
    let event_stream = header::HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream);
    Ok(response)
}

impl Streaming {
    /// The next bytes; `None` at the end. Not cancel-safe: if the future is dropped, events may be lost.
    async fn next(&mut self) -> Option<Result<Bytes, Reset>> {
        if !self.opened {
            self.opened = true;
            let opening = self.opening();
            if !opening.is_empty() {
                return Some(Ok(opening.into()));
            }
        }
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            let job = self.job.as_mut()?;
            let ended = tokio::select! {
                biased;
                Some(chunk) = job.chunks.recv() => {
                    self.take_chunk(&chunk);
                    continue;
                }
                ended = &mut job.future => ended,
            };
            self.job = None;
            match ended {
                Ok(responses) => {
                    let events = self.ending(&responses);
                    self.ready.push_back(events.into());
                }
                // The status of a stream has already been sent, so the connection is reset.
                Err(_) => return Some(Err(Reset)),
            }
        }
    }

    fn opening(&self) -> Vec<u8> {
        let mut buffer = Vec::new();
        for index in (0_u32..).take(self.progress.len()) {
            let mut event = Vec::new();
            if self.dialect.put_opening(&mut event, &self.face, index) {
                put_event(&mut buffer, &event);
            }
        }
        buffer
    }

    fn take_chunk(&mut self, chunk: &SimChunk) {
        let Some(job) = &self.job else { return };
        let Some(prompt) = job.request_ids.iter().position(|known| *known == chunk.request_id) else {
            return;
        };
        let choice_number = prompt * job.samples as usize + chunk.index as usize;
        let Some(progress) = self.progress.get_mut(choice_number) else { return };
        let arrived = chunk.token_ids.iter().copied().zip(chunk.logprobs.iter().copied());
        let mut tokens: Vec<(u32, f32)> = progress.kept_back.take().into_iter().chain(arrived).collect();
        progress.kept_back = tokens.pop();
        let mut buffer = Vec::new();
        for (token, logprob) in tokens {
            self.put_token(&mut buffer, choice_number, &[token], &[logprob], None);
        }
        if !buffer.is_empty() {
            self.ready.push_back(buffer.into());
        }
    }

    fn ending(&mut self, responses: &[SimResponse]) -> Vec<u8> {
        let mut buffer = Vec::new();
        let choices = responses.iter().flat_map(|response| &response.choices);
        for (choice_number, choice) in choices.enumerate() {
            let sent = self.progress.get(choice_number).map_or(0, |progress| progress.sent);
            let last = choice.token_ids.len().saturating_sub(1);
            for position in sent..last {
                let range = position..=position;
                self.put_token(
                    &mut buffer,
                    choice_number,
                    &choice.token_ids[range.clone()],
                    &choice.logprobs[range],
                    None,
                );
            }
            let (token_ids, logprobs) = (&choice.token_ids[last..], &choice.logprobs[last..]);
            self.put_token(&mut buffer, choice_number, token_ids, logprobs, Some(choice));
        }
        let mut event = Vec::new();
        if self.dialect.put_usage(&mut event, &self.face, &usage(responses)) {
            put_event(&mut buffer, &event);
        }
        put_event(&mut buffer, b"[DONE]");
        buffer
    }

    fn put_token(
        &mut self,
        buffer: &mut Vec<u8>,
        choice_number: usize,
        token_ids: &[u32],
        logprobs: &[f32],
        finish: Option<&SimChoice>,
    ) {
        let Some(progress) = self.progress.get_mut(choice_number) else { return };
        let is_first = progress.sent == 0;
        let text_offset = progress.text_chars;
        progress.sent += token_ids.len();
        progress.text_chars +=
            token_ids.iter().map(|id| self.face.codec.piece(*id).chars().count()).sum::<usize>();
        let stops = self.sampling.stops();
        let by_text = finish.is_some_and(|choice| {
            choice.stop_token_id.is_none() && choice.finish_reason == crate::request::FinishReason::Stop
        });
        let stop = match finish {
            Some(choice) if by_text && !stops.is_empty() => {
                self.sampling.cut(self.face.codec.decode(&choice.token_ids)).1
            }
            _ => None,
        };
        let piece = Piece {
            index: u32::try_from(choice_number).unwrap_or(u32::MAX),
            token_ids,
            logprobs,
            finish,
            stop,
            is_first,
            text_offset,
            tokens_so_far: progress.sent,
        };
        let mut event = Vec::with_capacity(256);
        self.dialect.put_piece(&mut event, &self.face, &piece);
        put_event(buffer, &event);
    }
}

fn put_event(buffer: &mut Vec<u8>, event: &[u8]) {
    buffer.extend_from_slice(b"data: ");
    buffer.extend_from_slice(event);
    buffer.extend_from_slice(b"\n\n");
}

/// The usage object of a stream. It has fewer keys than the usage object of an answer in one piece.
fn usage(responses: &[SimResponse]) -> String {
    let prompt: u64 = responses.iter().map(|response| u64::from(response.prompt_tokens)).sum();
    let cached: u64 = responses.iter().map(|response| u64::from(response.cached_tokens)).sum();
    let completion = completion_tokens(responses);
    format!(
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}",
        prompt + completion
    )
}
