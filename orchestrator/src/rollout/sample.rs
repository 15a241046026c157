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

use rolldock_dispatch::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp, Waste};
use rolldock_loadbalancer::{Permit, PermitRequest, Priority, ServerId};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Admission, EngineError, Progress};
use crate::rollout::Sample;
use crate::rollout::board::Dispatch;
use crate::rollout::stragglers::{Moves, Order, Reason};
use crate::rollout::waits::{Phase, Subject};

/// The maximum number of replays of a request that could not reach its server. Requests to a busy server are
/// repeated until the deadline.
const UNREACHABLE_REPLAYS_MAX: u32 = 8;
/// The first and the longest pause before a request to a busy server is repeated.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Seeds stay below 2^48, so that every JSON reader reads a seed plus a sample index exactly.
const SEED_MASK: u64 = (1 << 48) - 1;

mod ask;
mod asked;
mod calls;
mod context;
mod grade;
mod runner;
mod trajectory;

use asked::Asked;

pub(crate) use context::StepContext;

pub use calls::{ModelCalls, TrajectoryFailure, TurnAnswer, TurnPrompt};
pub use runner::{EndedTrajectory, TrajectoryJob, TrajectoryRunner};

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

/// Why a try at a request failed.
enum Trouble {
    Engine(EngineError),
    /// The server is dead, stalled or removed, as the balancer reported.
    ServerLost,
    /// The balancer granted no permit.
    NoPermit(String),
    /// The group was cut off.
    Cut,
    /// The sample leaves its server, which is too slow or too full.
    Moved(Order),
}

impl Trouble {
    fn words(&self, server: &str) -> String {
        match self {
            Self::Engine(error) => error.to_string(),
            Self::ServerLost => format!("server={server} was lost"),
            Self::NoPermit(reason) => reason.clone(),
            Self::Cut => "cut off".to_owned(),
            Self::Moved(_) => format!("moved away from server={server}"),
        }
    }
}

/// Why a request has ended without graded samples.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The request cannot be completed, for this reason.
    Failed(String),
    /// The request was cut off. Its sample may have tokens.
    Cut(Option<Box<CarriedSample>>),
}

/// The tries of a request so far.
struct Tries {
    /// The number of the attempt, which determines the draw.
    attempt: u32,
    /// The number of earlier tries that an engine may have seen. It is part of the next request's id.
    sent: u32,
    lost: u32,
    aborted: u32,
    unreachable: u32,
    busy: u32,
    failed_on: Vec<ServerId>,
    moves: Moves,
    /// Servers that are too slow for a sample that moves.
    avoid: Vec<ServerId>,
    spent: Spent,
    /// The tokens so far, for a request with one sample.
    so_far: CarriedSample,
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
            let server = permit.server();
            let server_name = permit.server_name();
            let (sent_at, sent) = (Instant::now(), self.context.policy_version.load(Ordering::Relaxed));
            let progress = Progress::new();
            let asked = Asked::new(self.context, self.dispatch.id, self.count, &progress);
            let answer = self.ask(permit, &server_name, &tries, &progress).await;
            let request_time = sent_at.elapsed();
            tries.spent.engine += request_time;
            let trouble = match answer {
                Ok(generation) => {
                    asked.answered(&generation);
                    let stamp = self.context.stamp(sent);
                    return self.finish(generation, tries, stamp, server_name, request_time);
                }
                Err(trouble) => trouble,
            };
            let tokens_kept = self.keep(&mut tries, &progress, self.context.stamp(sent));
            asked.failed(tokens_kept, &trouble);
            if matches!(trouble, Trouble::Cut) {
                return Err(Unfinished::Cut(kept(tries.so_far)));
            }
            self.after(&trouble, server, &server_name, &mut tries).await.map_err(Unfinished::Failed)?;
        }
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

    /// Decides whether a request is tried again after a failed try. If the request is not tried again, the
    /// error has the reason.
    async fn after(
        &self,
        trouble: &Trouble,
        server: ServerId,
        server_name: &Arc<str>,
        tries: &mut Tries,
    ) -> Result<(), String> {
        let config = &self.context.config;
        if let Trouble::Moved(order) = trouble {
            self.moved(order, tries);
            return Ok(());
        }
        let reason = trouble.words(server_name);
        let is_replay = match trouble {
            Trouble::Engine(EngineError::Refused { .. } | EngineError::Unfit { .. }) => return Err(reason),
            // An update paused the server and aborted the request. The server has not failed, and no token is
            // lost.
            Trouble::Engine(EngineError::Aborted { .. }) if self.outlives_abort(tries) => return Ok(()),
            Trouble::Engine(EngineError::Busy { retry_after, .. }) => {
                tries.busy += 1;
                self.wait_for_busy(server_name, busy_pause(*retry_after, tries.busy - 1), tries.busy).await;
                true
            }
            Trouble::Engine(error) if error.admission() == Admission::Never => {
                tries.unreachable += 1;
                tries.unreachable <= UNREACHABLE_REPLAYS_MAX
            }
            _ => false,
        };
        self.context.meter.request_failed(server_name, !is_replay);
        if !tries.failed_on.contains(&server) {
            tries.failed_on.push(server);
        }
        if is_replay {
            return Ok(());
        }
        tries.lost += 1;
        if tries.lost >= config.sample_attempts_max {
            let attempts = config.sample_attempts_max;
            return Err(format!("sample_attempts_max={attempts} used up; last: {reason}"));
        }
        tries.sent += 1;
        if tries.so_far.segments == 0 || tries.so_far.segments >= config.carry.segments_max {
            tries.attempt += 1;
            let lost = u64::from(tries.so_far.tokens());
            self.context.tokens.lost(self.dispatch.id, lost, Waste::FailedAttempt);
            tries.so_far = CarriedSample::new(self.first, tries.attempt);
        }
        let (attempt, segments) = (tries.attempt, tries.so_far.segments);
        tracing::debug!(dispatch = %self.dispatch.id, sample = self.first, attempt, segments, %reason, "new try");
        Ok(())
    }

    /// Whether a request of these tries may be moved to another server.
    fn can_move(&self, tries: &Tries) -> bool {
        let segments_max = self.context.config.carry.segments_max;
        self.count == 1 && tries.so_far.segments + 1 < segments_max
    }

    /// Notes that a request was aborted, so that its sample continues elsewhere.
    fn moved(&self, order: &Order, tries: &mut Tries) {
        tries.moves.add(order.reason);
        tries.sent += 1;
        tries.avoid.clone_from(&order.avoid);
        let prefill = match order.reason {
            Reason::Faster => self.prompt_ids().len() as u64 + u64::from(tries.so_far.tokens()),
            // The server would have computed these tokens again too.
            Reason::Full => 0,
        };
        self.context.meter.moved(prefill);
    }

    /// Whether the sample continues after an abort that this run did not request.
    fn outlives_abort(&self, tries: &mut Tries) -> bool {
        let segments_max = self.context.config.carry.segments_max;
        if tries.aborted >= segments_max || tries.so_far.segments >= segments_max {
            return false;
        }
        tries.aborted += 1;
        tries.sent += 1;
        true
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

    /// Waits before a request to a busy server is repeated.
    async fn wait_for_busy(&self, server: &Arc<str>, pause: Duration, times: u32) {
        let detail = Some(format!("it was busy times={times}").into());
        let subject = Subject { server: Some(Arc::clone(server)), detail, ..self.subject() };
        let _refused = self.context.waits.enter(Phase::Engine, subject);
        tokio::time::sleep(pause).await;
    }

    async fn permit(&self, tries: &mut Tries) -> Result<Permit, Trouble> {
        let _waiting = self.context.waits.enter(Phase::Permit, self.subject());
        let asked_at = Instant::now();
        let started = self.group_started.load(Ordering::Relaxed);
        let request = PermitRequest {
            group: Some(self.dispatch.prompt.uid.0),
            shared_tokens: Some(self.prompt_ids().len() as u32),
            priority: if started { Priority::Started } else { self.context.priority_new },
            exclude: tries.failed_on.iter().chain(&tries.avoid).copied().collect(),
            deadline: Some(asked_at + self.context.config.timeouts.permit),
            expected_tokens: self.expected_tokens(&tries.so_far),
            ..PermitRequest::new(self.count)
        };
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

fn busy_pause(retry_after: Option<Duration>, times: u32) -> Duration {
    let doubling = BUSY_PAUSE.saturating_mul(1 << times.min(10));
    retry_after.unwrap_or(doubling).min(BUSY_PAUSE_MAX)
}
