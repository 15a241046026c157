//! The work of one request, from its permit to its graded samples, with all attempts and segments.
//!
//! A request is replayed (same id, same seed) only if the engine cannot have admitted it. Any other failure
//! uses up one of `sample_attempts_max` tries. The next try goes to a server that has not failed this
//! request, if there is such a server. If the failed try left tokens (in an aborted answer or a broken
//! stream), the sample continues from them in a new *segment*, with a new id and a new seed. Without tokens,
//! the sample starts again in a new *attempt*, with a new draw.
//!
//! A weight update that pauses a server may abort its requests. Such an abort uses up no try, and the sample
//! continues when it has a permit again. The deadline of the sample bounds the time up to its last token, so
//! every wait for a server ends. The grading holds no permit and has its own limits. The deadline does not
//! include the grading, because a sample loses no value while it waits for a reward.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rolldock_dispatch::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp};
use rolldock_loadbalancer::{LoadBalancer, Permit, PermitRequest, Priority, ServerId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Engine, EngineError, Generation, Progress, SamplingParams};
use crate::rollout::board::Dispatch;
use crate::rollout::grading::Grades;
use crate::rollout::meter::Meter;
use crate::rollout::stragglers::{Movable, Moves};
use crate::rollout::timeline::Timeline;
use crate::rollout::tokens::TokenBook;
use crate::rollout::versions::Versions;
use crate::rollout::waits::{Phase, Subject, Waits};
use crate::rollout::{RolloutConfig, Sample};

/// Seeds stay below 2^48, so that every JSON reader reads a seed plus a sample index exactly.
const SEED_MASK: u64 = (1 << 48) - 1;

mod ask;
mod asked;
mod calls;
mod grade;
mod hedge;
mod runner;
mod sent;
mod trajectory;
mod tries;

use sent::Sent;
use tries::{Tries, Trouble};

pub use calls::{ModelCalls, TrajectoryFailure, TurnAnswer, TurnPrompt};
pub use runner::{EndedTrajectory, TrajectoryJob, TrajectoryRunner};

/// The state that all requests of a step share.
#[derive(Clone)]
pub(crate) struct StepContext {
    pub(crate) config: Arc<RolloutConfig>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) balancer: LoadBalancer,
    pub(crate) grades: Arc<Grades>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) tokens: Arc<TokenBook>,
    pub(crate) timeline: Arc<Timeline>,
    /// The requests that can be moved or copied; `None` if all of them stay.
    pub(crate) movable: Option<Arc<Movable>>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) priority_new: Priority,
    pub(crate) versions: Arc<Versions>,
    /// When this process began the run.
    pub(crate) epoch: Instant,
    /// Whether samples that are cut off keep their tokens.
    pub(crate) carries: bool,
    /// Cancelled when groups are cut off.
    pub(crate) cut: CancellationToken,
    /// Runs the samples as trajectories. `None` if a sample is one answer of an engine.
    pub(crate) trajectories: Option<Arc<dyn TrajectoryRunner>>,
}

impl StepContext {
    /// The cache salt of the present version. A version must not use prefixes that another version computed.
    fn salt(&self) -> Arc<str> {
        format!("v{}", self.versions.served()).into()
    }

    /// Completes when groups are cut off and their tokens are kept. If tokens are not kept, this never
    /// completes, and the group's future is dropped at the cut.
    pub(crate) async fn is_cut(&self) {
        if !self.carries {
            std::future::pending::<()>().await;
        }
        self.cut.cancelled().await;
    }

    /// Counts the tokens that servers generated for health probes.
    pub(crate) fn count_probes(&self) {
        self.tokens.probed(self.engine.probe_tokens() + self.balancer.probe_tokens());
    }
}

/// The seed of a group's first sample: a pure function of run, prompt, visit and attempt, so that neither
/// server nor time nor the order of arrival changes what is drawn.
pub fn sample_seed(run_seed: u64, prompt_uid: u64, visit: u32, attempt: u32) -> u64 {
    let mut key = [0_u8; 24];
    key[..8].copy_from_slice(&run_seed.to_le_bytes());
    key[8..16].copy_from_slice(&prompt_uid.to_le_bytes());
    key[16..20].copy_from_slice(&visit.to_le_bytes());
    key[20..].copy_from_slice(&attempt.to_le_bytes());
    xxh3_64(&key) & SEED_MASK
}

/// Why a request has ended without graded samples.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The request cannot be completed, for this reason.
    Failed(String),
    /// The request was cut off. Its sample may have tokens.
    Cut(Option<Box<CarriedSample>>),
}

/// Complete samples that wait for their grades.
struct Generated {
    samples: Vec<CarriedSample>,
    spent: Spent,
    /// The server of the last request; empty if none was sent.
    server: Arc<str>,
    /// The time of the last request.
    request_time: Duration,
}

/// Samples `first..first + count` of a dispatch, as one request.
pub(crate) struct SampleRequest<'a> {
    pub(crate) context: &'a StepContext,
    pub(crate) dispatch: &'a Dispatch,
    /// Set when the first sample of the group gets a permit. The other samples then have priority over new
    /// groups.
    pub(crate) group_started: &'a Arc<AtomicBool>,
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// The tokens that an earlier dispatch left. Only a request for one sample has them.
    pub(crate) carried: Option<CarriedSample>,
    /// Set if the request is one turn of a trajectory. The turn has its own prompt, which replaces the data
    /// set's.
    pub(crate) turn: Option<&'a TurnPrompt>,
}

impl SampleRequest<'_> {
    /// Runs the request to its graded samples, or returns why there are none. Cancel-safe.
    pub(crate) async fn run(&self) -> Result<Vec<Sample>, Unfinished> {
        let limit = self.context.config.timeouts.sample;
        // The future is boxed before it first runs, because each `async` function around it would move it once.
        let generating = Box::pin(self.generate());
        let Ok(generated) = tokio::time::timeout(limit, generating).await else {
            return Err(Unfinished::Failed(format!("not finished within sample_s={}", limit.as_secs_f64())));
        };
        // The grading is boxed, like the wait for a permit below. Thousands of requests wait in `ask`, and
        // without the boxes each of their futures would reserve memory for the permit and the grading too.
        Box::pin(self.grade(generated?)).await
    }

    /// Generates the samples. Failed tries are repeated as often as the recipe allows.
    async fn generate(&self) -> Result<Generated, Unfinished> {
        let first_attempt = self.dispatch.first_attempt;
        let so_far = self.carried.clone().unwrap_or_else(|| CarriedSample::new(self.first, first_attempt));
        let mut tries = Tries {
            attempt: so_far.attempt,
            sent: 0,
            lost: 0,
            aborted: 0,
            unreachable: 0,
            busy: 0,
            failed_on: Vec::new(),
            moves: Moves::default(),
            avoid: Vec::new(),
            spent: so_far.spent,
            so_far,
        };
        loop {
            if self.is_complete(&mut tries.so_far) {
                return Ok(Generated::before(tries.so_far, tries.spent));
            }
            let permit = match Box::pin(self.permit(&mut tries)).await {
                Ok(permit) => permit,
                Err(Trouble::Cut) => return Err(Unfinished::Cut(kept(tries.so_far))),
                Err(trouble) => return Err(Unfinished::Failed(trouble.words(""))),
            };
            let sent = Sent::new(self, permit);
            let asked_at = sent.at;
            let (sent, answer) = match self.copied(&tries) {
                Some(movable) => Box::pin(self.ask_twice(sent, &tries, movable)).await,
                None => {
                    let answer = self.ask(&sent, self.request_id(&tries), &tries).await;
                    (sent, answer)
                }
            };
            tries.spent.engine += asked_at.elapsed();
            let stamp = self.context.versions.stamp(sent.version);
            let answer = answer.and_then(|generation| self.of_known_weights(generation, &sent));
            let trouble = match answer {
                Ok(generation) => {
                    let (server_name, at) = sent.answered(&generation);
                    return self.finish(generation, tries, stamp, server_name, at.elapsed());
                }
                Err(trouble) => trouble,
            };
            let tokens_kept = self.keep(&mut tries, &sent.progress, stamp);
            let (server, server_name) = sent.failed(tokens_kept, &trouble);
            if matches!(trouble, Trouble::Cut) {
                return Err(Unfinished::Cut(kept(tries.so_far)));
            }
            self.after(&trouble, server, &server_name, &mut tries).await.map_err(Unfinished::Failed)?;
        }
    }

    /// Returns the answer, unless the weights that have generated it cannot be those of the run.
    fn of_known_weights(&self, generation: Generation, sent: &Sent<'_>) -> Result<Generation, Trouble> {
        let versions = &self.context.versions;
        for sample in &generation.samples {
            if let Some(label) = versions.foreign(sent.version, &sample.version_spans) {
                let reason = format!(
                    "expected weights of version={} or older, found label={label}",
                    versions.served()
                );
                let server = sent.server_name.to_string();
                return Err(Trouble::Engine(EngineError::BadAnswer { server, reason }));
            }
            versions.check(&sent.server_name, &sample.version_spans);
        }
        Ok(generation)
    }

    /// Whether nothing is left to generate.
    fn is_complete(&self, so_far: &mut CarriedSample) -> bool {
        if so_far.segments > 0 && so_far.tokens() >= self.tokens_max() {
            so_far.finish_reason.get_or_insert(FinishReason::Length);
        }
        so_far.finish_reason.is_some()
    }

    /// Keeps the tokens of a failed request. Returns the number of kept tokens.
    fn keep(&self, tries: &mut Tries, progress: &Progress, stamp: Stamp) -> u64 {
        // Partial outputs of a request for several samples are not kept, because each would need a request of
        // its own.
        let [part] = <[PartialOutput; 1]>::try_from(progress.take()).unwrap_or_default();
        let tokens = part.response_ids.len() as u64;
        if self.count == 1 && tries.so_far.extend(part, stamp) { tokens } else { 0 }
    }

    fn subject(&self) -> Subject {
        Subject {
            dispatch: Some(self.dispatch.id),
            prompt_uid: Some(self.dispatch.prompt.uid),
            sample: Some(self.first),
            detail: self.turn.map(|turn| format!("turn={}", turn.number).into()),
            ..Subject::default()
        }
    }

    /// The ids that the samples continue.
    fn prompt_ids(&self) -> &Arc<[u32]> {
        self.turn.map_or(&self.dispatch.prompt.ids, |turn| &turn.ids)
    }

    /// Maximum number of tokens of a sample.
    fn tokens_max(&self) -> u32 {
        self.turn.map_or(self.context.config.max_response_length, |turn| turn.tokens_max)
    }

    async fn permit(&self, tries: &mut Tries) -> Result<Permit, Trouble> {
        let _waiting = self.context.waits.enter(Phase::Permit, self.subject());
        let asked_at = Instant::now();
        let started = self.group_started.load(Ordering::Relaxed);
        let priority = if started { Priority::Started } else { self.context.priority_new };
        let avoid = tries.failed_on.iter().chain(&tries.avoid).copied().collect();
        let request = PermitRequest { priority, ..self.permit_request(tries, avoid) };
        let permit = tokio::select! {
            biased;
            permit = self.context.balancer.acquire(request) => permit,
            () = self.context.is_cut() => return Err(Trouble::Cut),
        };
        let permit = permit.map_err(|error| Trouble::NoPermit(error.to_string()))?;
        self.group_started.store(true, Ordering::Relaxed);
        tries.avoid.clear();
        tries.spent.permit += asked_at.elapsed();
        Ok(permit)
    }

    fn permit_request(&self, tries: &Tries, exclude: Vec<ServerId>) -> PermitRequest {
        PermitRequest {
            group: Some(self.dispatch.prompt.uid.0),
            shared_tokens: Some(self.prompt_ids().len() as u32),
            priority: Priority::Started,
            exclude,
            deadline: Some(Instant::now() + self.context.config.timeouts.permit),
            expected_tokens: self.expected_tokens(&tries.so_far),
            ..PermitRequest::new(self.count)
        }
    }

    /// The number of tokens that a sample is still expected to need. Lengths have heavy tails, so the
    /// estimate is the number of tokens that the sample has, within the limit. For a sample without tokens
    /// the estimate is 0, and the balancer uses the fleet's mean.
    fn expected_tokens(&self, so_far: &CarriedSample) -> u32 {
        let tokens = so_far.tokens();
        tokens.min(self.tokens_max().saturating_sub(tokens))
    }
}

/// The sample with its tokens; `None` if it has no tokens.
fn kept(so_far: CarriedSample) -> Option<Box<CarriedSample>> {
    (so_far.segments > 0).then(|| Box::new(so_far))
}
