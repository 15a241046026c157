//! Runs one trajectory: it repeats prompt, answer of the model, and step of the environment.

use std::sync::Arc;

use rolldock_dispatch::FinishReason;
use rolldock_trajectory::{Emitted, HistoryPolicy, Prompt, Request, Sampled, Template, Trajectory, TurnId};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::environment::{Action, Environment, Observation, Step, Task};
use crate::error::RunError;
use crate::limits::{End, Limits};
use crate::model::{Model, TurnRequest};

/// What all trajectories of a run share.
pub struct Driver {
    /// The model's chat template and tokenizer.
    pub template: Arc<dyn Template>,
    /// What becomes of sampled text that the chat template drops.
    pub history: HistoryPolicy,
    /// The limits of each trajectory.
    pub limits: Limits,
}

/// A trajectory that ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The turns, with the rewards that the environment gave them.
    pub trajectory: Trajectory,
    /// Why it ended.
    pub end: End,
    /// The environment's `info` about each step.
    pub infos: Vec<Value>,
}

impl Finished {
    /// The sum of the rewards of all turns; `None` if no turn has a reward.
    pub fn reward(&self) -> Option<f32> {
        let rewards = self.trajectory.turns().filter_map(|turn| turn.reward());
        rewards.reduce(|sum, reward| sum + reward)
    }

    /// The number of tokens that were sampled.
    pub fn sampled_tokens(&self) -> u64 {
        self.trajectory.turns().map(|turn| turn.sampled_ids().len() as u64).sum()
    }

    /// Whether a limit ended the trajectory or its last answer.
    pub fn is_truncated(&self) -> bool {
        let last = self.trajectory.turns().last();
        self.end != End::Done || last.is_some_and(|last| last.finish_reason() == FinishReason::Length)
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
    model: &'a dyn Model,
    trajectory: Trajectory,
    messages: Vec<Value>,
    tools: Option<Value>,
    sampled_tokens: u32,
}

impl Driver {
    /// Runs the trajectory `uid` from the reset of the environment to its end. Tokens that were sampled
    /// before a limit ended the trajectory are part of it.
    ///
    /// # Errors
    /// The environment failed, the model did not answer, or a prompt could not be made.
    ///
    /// Cancel-safe: dropping the future drops the call of the model or of the environment.
    pub async fn run(
        &self,
        environment: &mut dyn Environment,
        model: &dyn Model,
        task: &Task,
        uid: &Arc<str>,
    ) -> Result<Finished, RunError> {
        let deadline = Instant::now() + self.limits.turn_time_max;
        let Ok(begun) = timeout_at(deadline, environment.reset(task)).await else {
            return Err(RunError::Reset { seconds: self.limits.turn_time_max.as_secs_f64() });
        };
        let begun = begun?;
        let mut running = Running {
            driver: self,
            model,
            trajectory: Trajectory::new(Arc::clone(uid), self.history),
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
            let Ok(turn) = timeout_at(deadline, running.turn(environment, number, &prompt, room)).await
            else {
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

    /// Makes one call to the model and one step of the environment.
    async fn turn(
        &mut self,
        environment: &mut dyn Environment,
        number: u32,
        prompt: &Prompt,
        room: u32,
    ) -> Result<(TurnId, Step), RunError> {
        let request = TurnRequest { number, ids: prompt.ids().into(), tokens_max: room };
        let sampled = self.model.sample(request).await;
        let sampled: Sampled = sampled.map_err(|source| RunError::Model { turn: number, source })?;
        let (template, tokens) = (&self.driver.template, sampled.ids.len());
        let ended = sampled.ids.last().is_some_and(|id| template.is_end(*id));
        let text = template.decode(&sampled.ids[..tokens - usize::from(ended)]);
        let ids = sampled.ids.clone();
        // The next request finds this turn by the id, whatever the text of the turn is.
        let id = format!("{}/{number}", self.trajectory.uid());
        let message = json!({ "role": "assistant", "content": text, "id": id });
        let emitted = Emitted { message: message.clone(), ids: Vec::new() };
        let turn = self.trajectory.add(prompt, sampled, &emitted)?;
        self.sampled_tokens += tokens as u32;
        self.messages.push(message);
        let step = environment.step(Action { text: &text, ids: &ids }).await?;
        if let Some(reward) = step.reward {
            if !reward.is_finite() {
                let reason = format!("it gave turn={number} the reward {reward}, expected a finite number");
                return Err(crate::EnvironmentError::Failed { reason }.into());
            }
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
}

#[cfg(test)]
mod tests;
