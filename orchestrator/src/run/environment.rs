//! Runs the samples of a run as trajectories in the environment that its recipe names.

use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_dispatch::Spent;
use rolldock_environment::{
    Action, Begun, Driver, Environment, EnvironmentConfig, EnvironmentError, EnvironmentSource, Finished,
    Model, ModelError, ScoredBy, Step, Task, TurnRequest,
};
use rolldock_trajectory::{Sampled, Template};
use serde_json::{Value, json};

use crate::data::{Prompt, TextCodec};
use crate::recipe::Recipe;
use crate::rollout::{
    EndedTrajectory, ModelCalls, Phase, TrajectoryFailure, TrajectoryJob, TrajectoryRunner, TurnPrompt,
};
use crate::scope::Scope;

/// The environments of a run, with the driver of its trajectories.
pub(super) struct Environments {
    source: EnvironmentSource,
    driver: Driver,
    scored_by: ScoredBy,
}

impl Environments {
    /// Opens the environment of a recipe; `None` if the recipe has none. Nothing is started or asked yet.
    pub(super) fn open(
        recipe: &Recipe,
        codec: &Arc<TextCodec>,
        scope: &Scope,
    ) -> anyhow::Result<Option<Self>> {
        let Some(config) = &recipe.environment else { return Ok(None) };
        let source = EnvironmentSource::open(config, scope.tracker().clone(), scope.token());
        let driver = Driver {
            template: Arc::clone(codec) as Arc<dyn Template>,
            history: config.history,
            limits: config.limits(recipe.rollout.max_response_length),
        };
        Ok(Some(Self { source: source.context("[environment]")?, driver, scored_by: config.scored_by }))
    }

    /// Checks that an environment can be created, so that a failure is found before the first step.
    /// Cancel-safe.
    pub(super) async fn check(&self) -> Result<(), EnvironmentError> {
        self.source.check().await
    }

    async fn trajectory(&self, job: &TrajectoryJob) -> Result<EndedTrajectory, TrajectoryFailure> {
        let failed = |error: EnvironmentError| TrajectoryFailure::new(error.to_string());
        let made = {
            let _in_line = job.calls.enter(Phase::Start, None, "a place in the pool of environments");
            self.source.make(&job.uid).await.map_err(failed)?
        };
        let mut environment = Watched { environment: made, calls: &job.calls };
        let model = Turns { calls: &job.calls, spent: Mutex::default(), server: Mutex::new("".into()) };
        let task = task_of(job).map_err(|error| TrajectoryFailure::new(error.to_string()))?;
        let finished = self.driver.run(&mut environment, &model, &task, &job.uid).await;
        let finished = finished.map_err(|error| TrajectoryFailure::new(error.to_string()))?;
        Ok(self.ended(finished, &model))
    }

    fn ended(&self, finished: Finished, model: &Turns<'_>) -> EndedTrajectory {
        let own = matches!(self.scored_by, ScoredBy::Environment);
        EndedTrajectory {
            reward: finished.reward().filter(|_| own),
            end: finished.end.as_str(),
            is_truncated: finished.is_truncated(),
            reencoded: Vec::new(),
            metadata: json!({ "infos": finished.infos }).to_string(),
            spent: *model.spent.lock(),
            server: Arc::clone(&model.server.lock()),
            trajectory: finished.trajectory,
        }
    }
}

impl TrajectoryRunner for Environments {
    fn run(&self, job: TrajectoryJob) -> BoxFuture<'_, Result<EndedTrajectory, TrajectoryFailure>> {
        async move { self.trajectory(&job).await }.boxed()
    }
}

/// The row of a job, as the environment gets it.
fn task_of(job: &TrajectoryJob) -> Result<Task, serde_json::Error> {
    let Prompt { messages, answer, fields, .. } = &*job.prompt;
    let messages: Vec<Value> = messages.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    Ok(Task {
        messages,
        answer: answer.to_string(),
        fields: serde_json::from_str(fields.as_json())?,
        // The samples of a group share this seed, so their environments begin in the same state.
        seed: job.group_seed,
    })
}

/// The turns of one trajectory, as the rollout samples them.
struct Turns<'a> {
    calls: &'a ModelCalls,
    spent: Mutex<Spent>,
    server: Mutex<Arc<str>>,
}

impl Model for Turns<'_> {
    fn sample(&self, turn: TurnRequest) -> BoxFuture<'_, Result<Sampled, ModelError>> {
        async move {
            let TurnRequest { number, ids, tokens_max } = turn;
            let answer = self.calls.turn(&TurnPrompt { number, ids, tokens_max }).await;
            let answer = answer.map_err(|failure| ModelError { reason: failure.reason })?;
            {
                let mut spent = self.spent.lock();
                spent.permit += answer.spent.permit;
                spent.engine += answer.spent.engine;
            }
            *self.server.lock() = answer.server;
            Sampled::try_from(answer.sampled).map_err(|error| ModelError { reason: error.to_string() })
        }
        .boxed()
    }
}

/// An environment whose calls are recorded as waits of its trajectory.
struct Watched<'a> {
    environment: Box<dyn Environment>,
    calls: &'a ModelCalls,
}

impl Environment for Watched<'_> {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        async move {
            let _in_reset = self.calls.enter(Phase::Environment, None, "a reset");
            self.environment.reset(task).await
        }
        .boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        async move {
            let _in_step = self.calls.enter(Phase::Environment, None, "a step");
            self.environment.step(action).await
        }
        .boxed()
    }
}

/// A description of the environment, for people.
pub(super) fn described(config: &EnvironmentConfig) -> String {
    let what = match (config.name, &config.python, &config.url) {
        (Some(name), _, _) => name.as_str().to_owned(),
        (None, Some(python), _) => {
            format!("python {:?} in at most {} processes", python.class, python.workers)
        }
        (None, None, Some(url)) => url.url.clone(),
        (None, None, None) => "none".to_owned(),
    };
    format!("{what}, at most {} turns and {} tokens of context", config.turns, config.context_tokens)
}
