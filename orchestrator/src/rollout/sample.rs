//! One request from permit to graded samples, with its attempts.
//!
//! A request is replayed (same id, same seed) only where the engine cannot have admitted it; after that a loss
//! costs an attempt: new id, new seed, at most `sample_attempts_max`, on a server that has not failed it where
//! there is one. The whole is bounded by the sample deadline, so every wait in here has an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use rolldock_loadbalancer::{LoadBalancer, Outcome, Permit, PermitRequest, Priority, ServerId};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{
    Admission, Engine, EngineError, FinishReason, GenerateRequest, Generation, SampleOutput, SamplingParams,
    VersionSpan,
};
use crate::rollout::board::Dispatch;
use crate::rollout::grading::{Grade, Grades};
use crate::rollout::meter::{InPhase, Meter};
use crate::rollout::version::Versions;
use crate::rollout::{RolloutConfig, Sample, Spent};

/// Replays of one attempt that found no server to talk to; a busy server is asked again until the deadline.
const UNREACHABLE_REPLAYS_MAX: u32 = 8;
/// First and longest pause before a busy server is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Seeds stay below 2^48: exact in every JSON reader, with room for the samples of a group.
const SEED_MASK: u64 = (1 << 48) - 1;

/// What all requests of a step share.
pub(crate) struct StepContext {
    pub(crate) config: Arc<RolloutConfig>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) balancer: LoadBalancer,
    pub(crate) grades: Arc<Grades>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) priority_new: Priority,
    pub(crate) policy_version: u64,
    /// Start of the run.
    pub(crate) epoch: Instant,
}

/// The seed of a group's first sample: a pure function of run, prompt, visit and attempt, so that neither server
/// nor time nor the order of arrival changes what is drawn.
pub fn sample_seed(run_seed: u64, prompt_uid: u64, visit: u32, attempt: u32) -> u64 {
    let mut key = [0_u8; 24];
    key[..8].copy_from_slice(&run_seed.to_le_bytes());
    key[8..16].copy_from_slice(&prompt_uid.to_le_bytes());
    key[16..20].copy_from_slice(&visit.to_le_bytes());
    key[20..].copy_from_slice(&attempt.to_le_bytes());
    xxh3_64(&key) & SEED_MASK
}

/// Tells engine and meter when a request is dropped before its answer came.
struct InFlight<'a> {
    context: &'a StepContext,
    server: Arc<str>,
    request_id: Arc<str>,
    samples: u32,
    since: Instant,
    answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.context.engine.cancelled(&self.server, &self.request_id);
        self.context.meter.cancelled(&self.server, self.samples, self.since.elapsed());
    }
}

/// Why a try at a request failed.
enum Trouble {
    Engine(EngineError),
    /// The balancer declared the server dead, stalled or removed.
    ServerLost,
}

/// Samples `first..first + count` of a dispatch, as one request.
pub(crate) struct SampleRequest<'a> {
    pub(crate) context: &'a StepContext,
    pub(crate) dispatch: &'a Dispatch,
    /// Set once any sample of the group holds a permit: its siblings then go before new groups.
    pub(crate) group_started: &'a AtomicBool,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl SampleRequest<'_> {
    /// Runs the request to graded samples, or says why it cannot be done. Cancel-safe.
    pub(crate) async fn run(&self) -> Result<Vec<Sample>, String> {
        let limit = self.context.config.timeouts.sample;
        match tokio::time::timeout(limit, self.attempts()).await {
            Ok(samples) => samples,
            Err(_) => Err(format!("not finished within sample_s={}", limit.as_secs_f64())),
        }
    }

    async fn attempts(&self) -> Result<Vec<Sample>, String> {
        let config = &self.context.config;
        let mut failed_on: Vec<ServerId> = Vec::new();
        let mut spent = Spent::default();
        let mut attempt = self.dispatch.first_attempt;
        let attempts_end = attempt + config.sample_attempts_max;
        let (mut unreachable, mut busy) = (0_u32, 0_u32);
        loop {
            // Boxed, as grading is below: thousands of requests stand in `ask`, and would hold the others' room too.
            let permit = Box::pin(self.permit(&failed_on, &mut spent)).await?;
            let server = permit.server();
            let server_name = permit.server_name();
            let sent_at = Instant::now();
            let answer = self.ask(permit, &server_name, attempt).await;
            let request_time = sent_at.elapsed();
            spent.engine += request_time;
            let trouble = match answer {
                Ok(generation) => {
                    let grading = self.grade(generation, attempt, &server_name, spent, request_time);
                    return Box::pin(grading).await;
                }
                Err(trouble) => trouble,
            };
            if let Trouble::Engine(error @ (EngineError::Refused { .. } | EngineError::Unfit { .. })) =
                &trouble
            {
                return Err(error.to_string());
            }
            let replay = match &trouble {
                Trouble::Engine(error) if error.admission() == Admission::Never => match error {
                    EngineError::Busy { retry_after, .. } => {
                        tokio::time::sleep(busy_pause(*retry_after, busy)).await;
                        busy += 1;
                        true
                    }
                    _ => {
                        unreachable += 1;
                        unreachable <= UNREACHABLE_REPLAYS_MAX
                    }
                },
                _ => false,
            };
            self.context.meter.request_failed(&server_name, !replay);
            if !failed_on.contains(&server) {
                failed_on.push(server);
            }
            if replay {
                continue;
            }
            attempt += 1;
            let reason = match trouble {
                Trouble::Engine(error) => error.to_string(),
                Trouble::ServerLost => format!("server={server_name} was lost"),
            };
            if attempt == attempts_end {
                return Err(format!(
                    "sample_attempts_max={} used up; last: {reason}",
                    config.sample_attempts_max
                ));
            }
            tracing::debug!(dispatch = %self.dispatch.id, sample = self.first, attempt, %reason, "new attempt");
        }
    }

    async fn permit(&self, exclude: &[ServerId], spent: &mut Spent) -> Result<Permit, String> {
        let _waiting = InPhase::enter(&self.context.meter.phases.permit);
        let asked_at = Instant::now();
        let started = self.group_started.load(Ordering::Relaxed);
        let request = PermitRequest {
            group: Some(self.dispatch.prompt.uid.0),
            priority: if started { Priority::Started } else { self.context.priority_new },
            exclude: exclude.to_vec(),
            deadline: Some(asked_at + self.context.config.timeouts.permit),
            ..PermitRequest::new(self.count)
        };
        let permit = self.context.balancer.acquire(request).await.map_err(|error| error.to_string())?;
        self.group_started.store(true, Ordering::Relaxed);
        spent.permit += asked_at.elapsed();
        Ok(permit)
    }

    /// Sends the request and tells the balancer how it went.
    async fn ask(&self, permit: Permit, server_name: &Arc<str>, attempt: u32) -> Result<Generation, Trouble> {
        let context = self.context;
        let dispatch = self.dispatch;
        let prompt = &dispatch.prompt;
        let request_id: Arc<str> =
            format!("{}-{}-{}-{attempt}", context.config.run_id, dispatch.id, self.first).into();
        let seed =
            sample_seed(context.config.seed, prompt.uid.0, prompt.visit, attempt) + u64::from(self.first);
        let request = GenerateRequest {
            request_id: Arc::clone(&request_id),
            prompt_ids: Arc::clone(&prompt.ids),
            prompt_text: Arc::clone(&prompt.text),
            n: self.count,
            seed,
            max_tokens: context.config.max_response_length,
            sampling: Arc::clone(&context.sampling),
            progress: None,
            stream: false,
            resumed: None,
            cache_salt: None,
        };
        let _on_engine = InPhase::enter(&context.meter.phases.engine);
        let mut in_flight = InFlight {
            context,
            server: Arc::clone(server_name),
            request_id,
            samples: self.count,
            since: Instant::now(),
            answered: false,
        };
        let answer = tokio::select! {
            biased;
            answer = context.engine.generate(server_name, request) => answer,
            () = permit.revoked() => return Err(Trouble::ServerLost),
        };
        in_flight.answered = true;
        permit.finish(outcome(&answer));
        answer.map_err(Trouble::Engine)
    }

    async fn grade(
        &self,
        generation: Generation,
        attempt: u32,
        server: &Arc<str>,
        spent: Spent,
        request_time: Duration,
    ) -> Result<Vec<Sample>, String> {
        let _in_reward = InPhase::enter(&self.context.meter.phases.reward);
        let gradings = (self.first..).zip(generation.samples).map(|(index, output)| async move {
            let asked_at = Instant::now();
            let (output, grade) = self.context.grades.grade(&self.dispatch.prompt, output).await?;
            let spent = Spent { reward: asked_at.elapsed(), ..spent };
            let sample = self.sample(index, attempt, server, output, grade, spent);
            self.context.meter.sample_finished(&sample, request_time);
            Ok(sample)
        });
        try_join_all(gradings).await
    }

    fn sample(
        &self,
        index: u32,
        attempt: u32,
        server: &Arc<str>,
        output: SampleOutput,
        grade: Grade,
        spent: Spent,
    ) -> Sample {
        let versions = Versions::of(&output, self.context.policy_version);
        let SampleOutput { response_ids, logprobs, finish_reason, version_spans } = output;
        let tokens = response_ids.len();
        let config = &self.context.config;
        Sample {
            index,
            attempt,
            version_spans: with_client_version(version_spans, tokens, self.context.policy_version),
            response_ids,
            logprobs,
            finish_reason,
            policy_version_min: versions.min,
            policy_version_max: versions.max,
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
        }
    }
}

/// Where the engine reports no spans, all tokens are the version that the client knew.
fn with_client_version(spans: Vec<VersionSpan>, tokens: usize, policy_version: u64) -> Vec<VersionSpan> {
    if !spans.is_empty() {
        return spans;
    }
    vec![VersionSpan { version: policy_version.to_string().into(), start: 0, end: tokens as u32 }]
}

fn outcome(answer: &Result<Generation, EngineError>) -> Outcome {
    match answer {
        Ok(generation) => Outcome::Success {
            tokens: generation.samples.iter().map(|sample| sample.response_ids.len() as u64).sum(),
        },
        Err(EngineError::Busy { retry_after, .. }) => Outcome::Backpressure { retry_after: *retry_after },
        Err(EngineError::Refused { .. } | EngineError::UnknownServer { .. } | EngineError::Unfit { .. }) => {
            Outcome::ClientError
        }
        Err(EngineError::Aborted { .. }) => Outcome::Cancelled,
        Err(EngineError::Unreachable { .. } | EngineError::Failed { .. } | EngineError::BadAnswer { .. }) => {
            Outcome::Fault
        }
    }
}

fn busy_pause(retry_after: Option<Duration>, times: u32) -> Duration {
    let doubling = BUSY_PAUSE.saturating_mul(1 << times.min(10));
    retry_after.unwrap_or(doubling).min(BUSY_PAUSE_MAX)
}
