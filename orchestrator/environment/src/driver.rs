//! Runs one trajectory: prompt, permit, answer, step of the environment, and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rolldock_engine::{
    Engine, EngineError, ErrorClass as EngineClass, GenerateRequest, Generation, SampleOutput,
    SamplingParams, VersionSpan,
};
use rolldock_loadbalancer::{LoadBalancer, Outcome, PermitRequest, Priority, ServerId};
use rolldock_trajectory::{Emitted, HistoryPolicy, Prompt, Request, Sampled, Template, Trajectory, TurnId};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use xxhash_rust::xxh3::xxh3_64;

use crate::environment::{Action, Environment, Observation, Step, Task};
use crate::error::RunError;
use crate::limits::{End, Limits};

/// Engines take seeds of 63 bits.
const SEED_MASK: u64 = (1 << 63) - 1;

/// What all trajectories of a run share.
pub struct Driver {
    /// Generates.
    pub engine: Arc<dyn Engine>,
    /// Gives permits.
    pub balancer: LoadBalancer,
    /// The model's chat template and tokenizer.
    pub template: Arc<dyn Template>,
    /// The sampling parameters of all turns.
    pub sampling: Arc<SamplingParams>,
    /// What becomes of sampled text that the chat template drops.
    pub history: HistoryPolicy,
    /// The limits of each trajectory.
    pub limits: Limits,
    /// The policy version of the tokens of servers that report none.
    pub policy_version: Arc<AtomicU64>,
}

/// The names of one trajectory.
#[derive(Debug, Clone)]
pub struct TrajectorySeed {
    /// The identity, unique over the run. Request ids begin with it.
    pub uid: Arc<str>,
    /// The group for the affinity of permits.
    pub group: u64,
    /// The seed from which the seeds of all turns follow.
    pub seed: u64,
}

/// A trajectory that ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The turns, with the rewards that the environment gave them.
    pub trajectory: Trajectory,
    /// Why it ended.
    pub end: End,
    /// What the environment said of each step.
    pub infos: Vec<Value>,
}

impl Finished {
    /// The sum of the rewards of all turns: the reward of the trajectory, where nothing else scores it.
    pub fn reward(&self) -> f32 {
        self.trajectory.turns().filter_map(|turn| turn.reward()).sum()
    }

    /// The number of tokens that were sampled.
    pub fn sampled_tokens(&self) -> u64 {
        self.trajectory.turns().map(|turn| turn.sampled_ids().len() as u64).sum()
    }
}

/// What the next prompt is made of.
enum Next {
    /// A conversation.
    Chat,
    /// Ids behind the last turn.
    Ids(TurnId, Vec<u32>),
}

/// A trajectory while it runs.
struct Running<'a> {
    driver: &'a Driver,
    names: &'a TrajectorySeed,
    trajectory: Trajectory,
    messages: Vec<Value>,
    tools: Option<Value>,
    sampled_tokens: u32,
}

impl Driver {
    /// Runs a trajectory from the reset of the environment to its end. Tokens that were sampled before a limit
    /// ended the trajectory are part of it.
    ///
    /// # Errors
    /// The environment failed, there was no permit, or all attempts of a turn failed.
    ///
    /// Cancel-safe: dropping the future cancels the request on the engine and returns the permit.
    pub async fn run(
        &self,
        environment: &mut dyn Environment,
        task: &Task,
        names: &TrajectorySeed,
    ) -> Result<Finished, RunError> {
        let begun = environment.reset(task).await?;
        let mut running = Running {
            driver: self,
            names,
            trajectory: Trajectory::new(Arc::clone(&names.uid), self.history),
            messages: begun.messages,
            tools: begun.tools,
            sampled_tokens: 0,
        };
        let mut infos = Vec::new();
        let mut next = Next::Chat;
        let mut end = End::Turns;
        for number in 0..self.limits.turns_max {
            let prompt = running.prompt(&next)?;
            let Some(room) = self.limits.room(prompt.ids().len(), running.sampled_tokens) else {
                end = End::Tokens;
                break;
            };
            let deadline = Instant::now() + self.limits.turn_time_max;
            let turn = timeout_at(deadline, running.turn(environment, number, &prompt, room, deadline)).await;
            let Ok(turn) = turn else {
                end = End::Time;
                break;
            };
            let (id, step) = turn?;
            infos.push(step.info);
            if step.is_done {
                end = End::Done;
                break;
            }
            next = running.observe(id, step.observation);
        }
        Ok(Finished { trajectory: running.trajectory, end, infos })
    }
}

impl Running<'_> {
    fn prompt(&self, next: &Next) -> Result<Prompt, RunError> {
        let prompt = match next {
            Next::Ids(turn, ids) => self.trajectory.extend(*turn, ids)?,
            Next::Chat => {
                let request = Request::chat(self.messages.clone(), self.tools.clone())?;
                self.trajectory.prompt(&request, &*self.driver.template)?
            }
        };
        Ok(prompt)
    }

    /// One call of the model and one step of the environment.
    async fn turn(
        &mut self,
        environment: &mut dyn Environment,
        number: u32,
        prompt: &Prompt,
        room: u32,
        deadline: Instant,
    ) -> Result<(TurnId, Step), RunError> {
        let version = self.driver.policy_version.load(Ordering::Acquire);
        let sampled = sampled(self.sample(number, prompt, room, deadline).await?, version);
        let (template, tokens) = (&self.driver.template, sampled.ids.len());
        let ended = sampled.ids.last().is_some_and(|id| template.is_end(*id));
        let text = template.decode(&sampled.ids[..tokens - usize::from(ended)]);
        let ids = sampled.ids.clone();
        // The id lets the next request find this turn, whatever its text is.
        let message =
            json!({ "role": "assistant", "content": text, "id": format!("{}/{number}", self.names.uid) });
        let emitted = Emitted { message: message.clone(), ids: Vec::new() };
        let turn = self.trajectory.add(prompt, sampled, &emitted)?;
        self.sampled_tokens += tokens as u32;
        self.messages.push(message);
        let step = environment.step(Action { text: &text, ids: &ids }).await?;
        if let Some(reward) = step.reward {
            self.trajectory.apply(Trajectory::record_reward(turn, reward))?;
        }
        Ok((turn, step))
    }

    fn observe(&mut self, turn: TurnId, observation: Observation) -> Next {
        match observation {
            Observation::Messages(messages) => {
                self.messages.extend(messages);
                Next::Chat
            }
            Observation::Ids(ids) => Next::Ids(turn, ids),
        }
    }

    /// One sample, from as many attempts as the limits allow. The permit is returned before this returns.
    async fn sample(
        &self,
        number: u32,
        prompt: &Prompt,
        room: u32,
        deadline: Instant,
    ) -> Result<SampleOutput, RunError> {
        let ids: Arc<[u32]> = prompt.ids().into();
        let mut failed: Vec<ServerId> = Vec::new();
        let mut attempt = 0;
        loop {
            let permit = PermitRequest {
                expected_tokens: room,
                group: Some(self.names.group),
                priority: if number == 0 { Priority::New } else { Priority::Started },
                exclude: failed.clone(),
                deadline: Some(deadline),
                ..PermitRequest::new(1)
            };
            let permit = self.driver.balancer.acquire(permit).await;
            let permit = permit.map_err(|source| RunError::Permit { turn: number, source })?;
            let (server, server_id) = (permit.server_name(), permit.server());
            let request = self.request(number, attempt, &ids, room);
            let engine = &*self.driver.engine;
            let id = Arc::clone(&request.request_id);
            let mut asked = Asked { engine, server: &server, id, is_answered: false };
            let answer = tokio::select! {
                biased;
                answer = engine.generate(&server, request) => Some(answer),
                () = permit.revoked() => None,
            };
            asked.is_answered = answer.is_some();
            attempt += 1;
            let is_last = attempt >= self.driver.limits.attempts_max;
            match answer {
                None if is_last => return Err(RunError::ServerLost { turn: number, attempts: attempt }),
                None => {}
                Some(answer) => {
                    permit.finish(outcome(&answer));
                    match answer.and_then(|generation| only_sample(generation, &server)) {
                        Ok(sample) => return Ok(sample),
                        Err(source) if is_last || !may_repeat(&source) => {
                            return Err(RunError::Engine { turn: number, attempts: attempt, source });
                        }
                        Err(_) => {}
                    }
                }
            }
            failed.push(server_id);
        }
    }

    fn request(&self, number: u32, attempt: u32, ids: &Arc<[u32]>, room: u32) -> GenerateRequest {
        let key =
            [self.names.seed.to_le_bytes(), (u64::from(number) << 32 | u64::from(attempt)).to_le_bytes()];
        GenerateRequest {
            request_id: format!("{}-{number}-{attempt}", self.names.uid).into(),
            prompt_ids: Arc::clone(ids),
            prompt_text: "".into(),
            n: 1,
            seed: xxh3_64(key.as_flattened()) & SEED_MASK,
            max_tokens: room,
            sampling: Arc::clone(&self.driver.sampling),
            progress: None,
            stream: false,
            resumed: None,
            cache_salt: None,
        }
    }
}

/// A request that the engine has. If it is dropped before its answer, the engine is told.
struct Asked<'a> {
    engine: &'a dyn Engine,
    server: &'a str,
    id: Arc<str>,
    is_answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.engine.cancelled(self.server, &self.id);
        }
    }
}

/// What an answer of the engine says of its server.
fn outcome(answer: &Result<Generation, EngineError>) -> Outcome {
    match answer {
        Ok(generation) => Outcome::Success {
            tokens: generation.samples.iter().map(|sample| sample.response_ids.len() as u64).sum(),
        },
        Err(EngineError::Busy { retry_after, .. }) => Outcome::Backpressure { retry_after: *retry_after },
        Err(error) => match error.class() {
            EngineClass::Client => Outcome::ClientError,
            EngineClass::Cancelled => Outcome::Cancelled,
            EngineClass::Retryable | EngineClass::Backpressure | EngineClass::Fault => Outcome::Fault,
        },
    }
}

/// Whether another attempt may succeed. It has a new request id and a new seed, so it repeats nothing.
fn may_repeat(error: &EngineError) -> bool {
    error.class() != EngineClass::Client
}

fn only_sample(generation: Generation, server: &str) -> Result<SampleOutput, EngineError> {
    let mut samples = generation.samples.into_iter();
    match (samples.next(), samples.next()) {
        (Some(sample), None) => Ok(sample),
        _ => Err(EngineError::BadAnswer {
            server: server.to_owned(),
            reason: "expected one sample".to_owned(),
        }),
    }
}

/// The tokens of an answer. If the engine reported no versions, all of them have the given one.
fn sampled(answer: SampleOutput, version: u64) -> Sampled {
    let SampleOutput { response_ids, logprobs, finish_reason, version_spans } = answer;
    let versions_reported = !version_spans.is_empty();
    let whole =
        || VersionSpan { version: version.to_string().into(), start: 0, end: response_ids.len() as u32 };
    Sampled {
        version_spans: if versions_reported { version_spans } else { vec![whole()] },
        ids: response_ids,
        logprobs,
        versions_reported,
        finish_reason,
    }
}

#[cfg(test)]
mod tests;
