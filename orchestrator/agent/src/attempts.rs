//! Samples of agents that run elsewhere. The run offers the task of a sample to workers until a worker acks the
//! task.

use rolldock_reward::external::{Place, ProgramEnd};
use serde_json::json;

use crate::agents::{Agents, Finished, count_end, counted, seconds};
use crate::elsewhere::{OfferEnd, Tasks};
use crate::error::AgentError;
use crate::job::{AgentJob, Stage};
use crate::variables;

/// The lowest bit of a seed to which the number of the attempt is added.
const SEED_SHIFT: u32 = 48;

impl Agents {
    /// Offers the task of a job to workers, until a worker acks the task. Cancel-safe: a dropped call takes the
    /// task back.
    pub(crate) async fn run_elsewhere(
        &self,
        tasks: &Tasks,
        job: &AgentJob<'_>,
        _place: Place,
    ) -> Result<Finished, AgentError> {
        let attempts_max = self.config.attempts_max;
        for attempt in 1..=attempts_max {
            // Each attempt has its own name, because request ids begin with the name. It has its own seed,
            // because an equal seed would draw the lost turns again.
            let uid = if attempt == 1 { job.uid.to_owned() } else { format!("{}-a{attempt}", job.uid) };
            let seed = job.seed.wrapping_add(u64::from(attempt - 1) << SEED_SHIFT);
            let job = AgentJob { uid: &uid, seed, ..job.clone() };
            if let Some(finished) = self.attempt(tasks, &job, attempt).await? {
                return Ok(finished);
            }
            tracing::info!(trajectory = uid, attempt, "a worker gave a task back, or lost it");
        }
        Err(AgentError::Failed(format!(
            "no worker ended the task: agent.attempts_max={attempts_max} of them gave it back, or let its lease expire"
        )))
    }

    /// Makes one attempt. Returns `None` if the worker gave the task back or lost it.
    async fn attempt(
        &self,
        tasks: &Tasks,
        job: &AgentJob<'_>,
        attempt: u32,
    ) -> Result<Option<Finished>, AgentError> {
        job.watch.entered(Stage::Worker);
        let session = self.session(job)?;
        let mut task = variables::task(job, &session, self.gives_reward());
        task["attempt"] = json!(attempt);
        task["deadline_s"] = json!(self.config.deadline);
        let offer = tasks.offer(job.uid, task.to_string()).await?;
        let taken = || job.watch.entered(Stage::Agent);
        let end = offer.until_ended(seconds(self.config.deadline), taken).await?;
        let as_program = match end {
            OfferEnd::Acked => ProgramEnd::Exited,
            OfferEnd::Late => ProgramEnd::TimedOut,
            OfferEnd::Returned => ProgramEnd::Failed("a task that came back".to_owned()),
        };
        let finished = self.judge(session, &as_program).await;
        if finished.is_err() && end == OfferEnd::Returned {
            count_end("returned");
            return Ok(None);
        }
        counted(&finished);
        finished.map(Some).map_err(|(_, reason)| AgentError::Failed(reason))
    }
}
