//! One attempt at a turn, on one server.

use std::sync::Arc;

use rolldock_dispatch::CarriedSample;
use rolldock_loadbalancer::{Outcome, Permit};
use rolldock_trajectory::{Plan, Prompt, Sampled, Template};
use serde_json::value::RawValue;
use serde_json::{Map, json};
use tokio::time::Instant;

use super::asking::Asking;
use super::draw::{Draw, add, written};
use super::for_engine::for_engine;
use super::known::Kind;
use super::params::{enforce, fallback_request, limit, turn_seed};
use super::reading::answer_of;
use super::{Facts, Failed, Job, Made, Maker};
use crate::calls::{CallError, Conversed, Derender, Drawn, Finish, Rendered};

impl Maker {
    /// Makes a turn on the server of a permit. The permit is returned as soon as the tokens are drawn.
    pub(super) async fn attempt(&self, job: Job<'_>, permit: Permit, attempt: u32) -> Result<Made, Failed> {
        let base = permit.url().unwrap_or_default().to_owned();
        let server = permit.server_name();
        let asking = async { self.facts(&base).await.map_err(Failed::from) };
        let (facts, permit) = under(permit, asking).await?;
        if facts.takes_ids {
            match self.by_ids(job, &facts, &base, Arc::clone(&server), permit, attempt).await {
                // The permit was returned, so a request in the other dialect needs another permit.
                Err(Failed::Call(CallError::Missing { .. })) => {
                    self.takes_no_ids(&base);
                    return Err(Failed::OtherDialect);
                }
                made => {
                    if made.is_err() {
                        self.known.forget(&base);
                    }
                    return made;
                }
            }
        }
        self.by_text(job, &facts, &base, server, permit, attempt).await
    }

    /// Draws a turn from the forest's own ids.
    async fn by_ids(
        &self,
        job: Job<'_>,
        facts: &Facts,
        base: &str,
        server: Arc<str>,
        permit: Permit,
        attempt: u32,
    ) -> Result<Made, Failed> {
        let request = for_engine(job, facts)?;
        let of = (&self.balancer, permit.server());
        let drawing = async {
            let (prompt, rendered) = self.rendered(job, base, &request).await?;
            let Rendered { sampling_params, reasoning_ended, reasoning_parser_kwargs, .. } = rendered;
            let tokens = limit(job, facts, prompt.ids().len())?;
            let prompt_json = written(prompt.ids())?;
            let mut draw = Draw {
                job,
                attempt,
                of,
                base,
                model: &facts.model.name,
                prompt_ids: prompt.ids(),
                prompt_json: &prompt_json,
                sampling: enforce(sampling_params, job),
                reasoning_ended,
                reasoning_parser_kwargs,
                tokens,
            };
            let drawn = self.timed("generate", draw.all(&self.calls)).await;
            drawn.map(|drawn| (prompt, prompt_json, drawn))
        };
        let ((prompt, prompt_json, drawn), permit) = under(permit, drawing).await?;
        permit.finish(Outcome::Success { tokens: drawn.tokens.ids.len() as u64 });
        let derender = Derender {
            form: job.asked.form,
            request_id: &drawn.request_id,
            model: &facts.model.name,
            request: &request,
            prompt_tokens: prompt.ids().len(),
            prompt_ids: &prompt_json,
            drawn: &drawn.tokens,
            ids: shown(&drawn.tokens, &*self.config.template),
            with_logprobs: job.asked.logprobs.is_some(),
        };
        let choice = if derender.ids.is_empty() {
            // The endpoint refuses an answer without tokens.
            json!({ "message": { "role": "assistant", "content": "" }, "text": "" })
        } else {
            self.timed("derender", self.calls.derender(base, &derender)).await?
        };
        let answer = answer_of(job, &choice, &drawn.tokens, prompt.ids().len(), &self.config)?;
        let sampled = Sampled::try_from(drawn.sample)?;
        Ok(Made { prompt, sampled, answer, server, is_fallback: false })
    }

    /// The prompt of a turn, and the parameters of its request. If one of them is not known, the engine
    /// renders the request.
    async fn rendered(
        &self,
        job: Job<'_>,
        base: &str,
        request: &RawValue,
    ) -> Result<(Prompt, Rendered), Failed> {
        let planned = self.plan(job)?;
        let kind = Kind::of(job, base);
        let known = kind.as_ref().and_then(|kind| self.known.get(kind));
        let planned = match (planned, known) {
            (Plan::Ready(prompt), Some(params)) => {
                return Ok((prompt, Rendered::of_params(Map::clone(&params))));
            }
            (planned, _) => planned,
        };
        let mut rendered = self.timed("render", self.calls.render(base, job.asked.form, request)).await?;
        if let Some(kind) = kind {
            self.known.keep(kind, &rendered);
        }
        let prompt = match planned {
            Plan::Ready(prompt) => prompt,
            Plan::Whole(whole) => whole.with_ids(std::mem::take(&mut rendered.token_ids)),
        };
        Ok((prompt, rendered))
    }

    /// Makes a turn on a server that encodes and parses by itself.
    async fn by_text(
        &self,
        job: Job<'_>,
        facts: &Facts,
        base: &str,
        server: Arc<str>,
        permit: Permit,
        attempt: u32,
    ) -> Result<Made, Failed> {
        let sent = job.one.policy_version();
        let request = fallback_request(job, facts, turn_seed(job, attempt, 0));
        let of = (&self.balancer, permit.server());
        let calling = async {
            let asking = Asking::begin(job.one, of);
            let conversing = self.calls.converse(base, job.asked.form, &request);
            let conversed = self.timed("converse", conversing).await;
            let conversed = asking.settle(conversed, |conversed| conversed.drawn.ids.len())?;
            if conversed.drawn.finish == Finish::Abort { Err(Failed::Aborted) } else { Ok(conversed) }
        };
        let (Conversed { prompt_ids, drawn, choice }, permit) = under(permit, calling).await?;
        permit.finish(Outcome::Success { tokens: drawn.ids.len() as u64 });
        let planned = self.plan(job)?;
        let answer = answer_of(job, &choice, &drawn, prompt_ids.len(), &self.config)?;
        let prompt = match planned {
            Plan::Ready(prompt) => prompt.with_ids(prompt_ids),
            Plan::Whole(whole) => whole.with_ids(prompt_ids),
        };
        let mut sample = CarriedSample::new(0, attempt);
        add(&mut sample, &drawn, job.one.stamp(sent, base, &drawn.spans))?;
        let sampled = Sampled::try_from(sample)?;
        Ok(Made { prompt, sampled, answer, server, is_fallback: true })
    }

    fn plan(&self, job: Job<'_>) -> Result<Plan, Failed> {
        Ok(job.one.live.lock().forest.plan(job.request, &*self.config.template)?)
    }

    async fn timed<T>(&self, call: &'static str, calling: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = calling.await;
        metrics::histogram!("rolldock_gateway_call_seconds", "call" => call)
            .record(began.elapsed().as_secs_f64());
        result
    }
}

/// Waits for the engine's work under a permit, or until the server is lost. A failure returns the permit
/// together with its outcome for the server.
async fn under<T>(
    permit: Permit,
    working: impl Future<Output = Result<T, Failed>>,
) -> Result<(T, Permit), Failed> {
    let done = tokio::select! {
        biased;
        done = working => done,
        () = permit.revoked() => Err(Failed::Revoked),
    };
    match done {
        Ok(done) => Ok((done, permit)),
        Err(failed) => {
            permit.finish(failed.outcome());
            Err(failed)
        }
    }
}

/// The drawn ids without the end of the turn. Where a parser is configured, the engine's derender keeps
/// special tokens in the text, including this one.
fn shown<'a>(drawn: &'a Drawn, template: &dyn Template) -> &'a [u32] {
    match (&drawn.finish, drawn.ids.split_last()) {
        (Finish::Stop(None), Some((last, before))) if template.is_end(*last) => before,
        _ => &drawn.ids,
    }
}
