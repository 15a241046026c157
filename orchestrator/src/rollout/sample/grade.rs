//! Turns finished responses into graded samples.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rolldock_dispatch::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp, Waste};
use tokio::time::Instant;

use super::{Generated, SampleRequest, Tries, Unfinished};
use crate::engine::{Generation, SampleOutput};
use crate::rollout::Sample;
use crate::rollout::grading::{Grade, Ungraded};
use crate::rollout::waits::Phase;

impl Generated {
    /// A sample whose earlier segments are complete, so that nothing is left to generate.
    pub(super) fn before(sample: CarriedSample, spent: Spent) -> Self {
        Self { samples: vec![sample], spent, server: "".into(), request_time: Duration::ZERO }
    }
}

impl SampleRequest<'_> {
    /// Joins the answer of the engine to the earlier segments.
    pub(super) fn finish(
        &self,
        generation: Generation,
        tries: Tries,
        stamp: Stamp,
        server: Arc<str>,
        request_time: Duration,
    ) -> Result<Generated, Unfinished> {
        let Tries { attempt, spent, mut so_far, .. } = tries;
        let mut samples = Vec::with_capacity(generation.samples.len());
        for (index, output) in (self.first..).zip(generation.samples) {
            let segment = if so_far.segments > 0 && self.count == 1 {
                std::mem::replace(&mut so_far, CarriedSample::new(index, attempt))
            } else {
                CarriedSample::new(index, attempt)
            };
            samples.push(joined(segment, output, stamp).map_err(Unfinished::Failed)?);
        }
        Ok(Generated { samples, spent, server, request_time })
    }

    /// Grades complete samples. Cancel-safe: a grading in this process that has begun runs to its end, and
    /// its result is dropped.
    pub(super) async fn grade(&self, generated: Generated) -> Result<Vec<Sample>, Unfinished> {
        let Generated { samples, spent, server, request_time } = generated;
        let server = &server;
        let _in_reward = self.context.waits.enter(Phase::Reward, self.subject());
        let gradings = samples.into_iter().map(|mut sample| async move {
            let asked_at = Instant::now();
            let (book, id, tokens) = (&self.context.tokens, self.dispatch.id, u64::from(sample.tokens()));
            // If this future is dropped, the tokens stay counted as ungraded.
            book.awaits_grade(id, tokens);
            let output = SampleOutput {
                response_ids: std::mem::take(&mut sample.response_ids),
                logprobs: std::mem::take(&mut sample.logprobs),
                finish_reason: sample.finish_reason.unwrap_or(FinishReason::Length),
                version_spans: std::mem::take(&mut sample.version_spans),
            };
            let grades = &self.context.grades;
            let graded = grades.grade(&self.dispatch.prompt, output, self.context.is_cut()).await;
            book.grade_is_decided(id, tokens);
            let (output, grade) = match graded {
                Ok(graded) => graded,
                Err(Ungraded::Failed(reason)) => {
                    book.lost(id, tokens, Waste::Ungraded);
                    return Err(Unfinished::Failed(reason));
                }
                // The sample is complete. When it is resumed, only its grading is repeated.
                Err(Ungraded::Cut(output)) => {
                    return Err(Unfinished::Cut(Some(Box::new(ungraded(sample, output)))));
                }
            };
            let spent = Spent { reward: asked_at.elapsed(), ..spent };
            let graded = self.sample(sample, output, grade, server, spent);
            // A sample that was complete before this dispatch had no request, and was counted before.
            if !server.is_empty() {
                self.context.meter.sample_finished(&graded, request_time);
            }
            Ok(graded)
        });
        try_join_all(gradings).await
    }

    pub(super) fn sample(
        &self,
        carried: CarriedSample,
        output: SampleOutput,
        grade: Grade,
        server: &Arc<str>,
        spent: Spent,
    ) -> Sample {
        let SampleOutput { response_ids, logprobs, finish_reason, version_spans } = output;
        let config = &self.context.config;
        Sample {
            index: carried.index,
            attempt: carried.attempt,
            segments: carried.segments,
            version_spans,
            versions_reported: carried.versions_reported,
            policy_version_min: carried.policy_version_min,
            policy_version_max: carried.policy_version_max,
            response_ids,
            logprobs,
            finish_reason,
            server: Arc::clone(server),
            score: grade.score,
            acc: grade.acc,
            parts: grade.parts,
            overlong_penalty: grade.overlong_penalty,
            reward: config.shaping.clipped(grade.score + grade.overlong_penalty),
            is_masked: config.mask_truncated && finish_reason == FinishReason::Length,
            prediction: grade.prediction,
            advantage: 0.0,
            spent,
            turn_advantages: None,
            trajectory: None,
        }
    }
}

/// A complete sample, as it was before its grading.
fn ungraded(sample: CarriedSample, output: SampleOutput) -> CarriedSample {
    let SampleOutput { response_ids, logprobs, finish_reason, version_spans } = output;
    CarriedSample { response_ids, logprobs, finish_reason: Some(finish_reason), version_spans, ..sample }
}

/// Appends a sample's last segment to the earlier segments.
fn joined(mut so_far: CarriedSample, output: SampleOutput, stamp: Stamp) -> Result<CarriedSample, String> {
    let SampleOutput { response_ids, logprobs, finish_reason, version_spans } = output;
    let (before, tokens) = (so_far.segments, response_ids.len());
    let part = PartialOutput { response_ids, logprobs, version_spans, finish_reason: Some(finish_reason) };
    if so_far.extend(part, stamp) {
        return Ok(so_far);
    }
    if tokens > 0 {
        return Err(format!("segment={before} has no log-probabilities, but the earlier segments have them"));
    }
    so_far.end_without_tokens(finish_reason, stamp);
    Ok(so_far)
}
