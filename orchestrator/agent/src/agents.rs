//! Runs agents: one process for each sample, with a trajectory of its own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rolldock_gateway::{End, Hosted, Limits, Opening, Session, Taken};
use rolldock_queue::TransferQueue;
use rolldock_reward::external::{
    PYTHON_LOADING, Place, Program, ProgramEnd, ProgramSandbox, Programs, end_marked, find_program,
};
use rolldock_scope::Scope;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::config::{AgentConfig, RewardBy};
use crate::elsewhere::Tasks;
use crate::error::AgentError;
use crate::failures::Failures;
use crate::job::{AgentJob, Stage};
use crate::variables::{self, OF_AGENT, OF_RUN};

/// The program that calls a Python function.
const PYTHON: &str = include_str!("agent.py");
/// The placeholder for the prompt in a command.
const PROMPT: &str = "{prompt}";
/// Time limit of the check whether an agent can be started.
const CHECK_MAX: Duration = Duration::from_secs(120);
/// Maximum numbers of lines and bytes that an error message shows from the end of an agent's output.
const LINES_MAX: usize = 8;
const REASON_BYTES_MAX: usize = 1024;
/// A time limit that is never reached, because the run itself ends trajectories.
const NEVER_S: f64 = 1e7;

/// The agents of a run. Clones share the places in which agents run.
#[derive(Debug, Clone)]
pub struct Agents {
    pub(crate) config: Arc<AgentConfig>,
    gateway: Hosted,
    /// The limits of trajectories. The limits of time are [`NEVER_S`].
    limits: Limits,
    programs: Programs,
    /// The sandbox of all agents. It is made when the first agent or check needs it.
    sandbox: Arc<OnceCell<ProgramSandbox>>,
    failures: Arc<Failures>,
    /// The tasks of agents that run elsewhere, once the run has a queue.
    pub(crate) tasks: Arc<OnceLock<Tasks>>,
    /// The mark of the run's processes: the absolute path of the run's directory.
    run: Arc<str>,
    scope: Scope,
}

/// The arguments of [`Agents::new`].
#[derive(Debug)]
pub struct AgentsParts {
    /// The table `[agent]` of the recipe.
    pub config: AgentConfig,
    /// The gateway of the run.
    pub gateway: Hosted,
    /// The limits of each trajectory. The limits of time are not used.
    pub limits: Limits,
    /// The directory of the run. No other live run uses it.
    pub out: PathBuf,
    /// The scope of the agents' background tasks.
    pub scope: Scope,
}

/// An agent that has ended with a sample.
#[derive(Debug)]
pub struct Finished {
    /// The turns.
    pub taken: Taken,
    /// The reward, if the agent gives it. If a limit ended the agent before it gave a reward, the reward is 0.
    pub reward: Option<f32>,
    /// Why the agent ended: `done`, `turns` or `tokens`.
    pub end: &'static str,
    /// Whether a limit ended the agent.
    pub is_truncated: bool,
}

impl Agents {
    /// Agents that start when samples need them.
    pub fn new(parts: AgentsParts) -> Self {
        let AgentsParts { config, gateway, limits, out, scope } = parts;
        let limits = Limits { wall: NEVER_S, idle: NEVER_S, reward: NEVER_S, ..limits };
        let whole = std::path::absolute(&out).unwrap_or_else(|_| out.clone());
        Self {
            programs: Programs::new(config.concurrency, scope.tracker().clone()),
            sandbox: Arc::default(),
            failures: Arc::new(Failures::new(out.join("agents"))),
            tasks: Arc::default(),
            run: whole.to_string_lossy().into(),
            config: Arc::new(config),
            gateway,
            limits,
            scope,
        }
    }

    /// The gateway that agents call.
    pub fn gateway(&self) -> &Hosted {
        &self.gateway
    }

    /// The number of agents that could start now.
    pub fn free_places(&self) -> usize {
        self.programs.free_places()
    }

    /// Opens what the agents need besides the gateway: with `remote`, the partition of `queue` for their tasks.
    ///
    /// # Errors
    /// [`AgentError::Queue`]: the partition cannot be made.
    pub async fn begin(&self, queue: &TransferQueue) -> Result<(), AgentError> {
        if self.config.remote {
            let lease = seconds(self.config.lease);
            let tasks = Tasks::open(queue, lease, self.scope.clone()).await?;
            // A run begins once.
            let _ = self.tasks.set(tasks);
        }
        Ok(())
    }

    /// Tells the workers of agents that run elsewhere that there will be no more tasks.
    pub fn end_of_tasks(&self) {
        if let Some(tasks) = self.tasks.get() {
            tasks.end();
        }
    }

    /// Kills the agents that an earlier process of the run left behind. The caller owns the directory of the
    /// run. Cancel-safe, but a cancelled call may leave processes.
    pub async fn end_earlier(&self) {
        let mark = format!("{OF_RUN}={}", self.run);
        if !end_marked(&mark, self.scope.tracker()).await {
            tracing::warn!(
                "processes of agents that an earlier process of the run started could not be killed"
            );
        }
    }

    /// Checks that the agent can be started and that the servers at `urls` take token ids. Cancel-safe.
    ///
    /// # Errors
    /// [`AgentError`]: there is no such program or function, the sandbox cannot be made, or a server lacks the
    /// endpoints for agents.
    pub async fn check(&self, urls: &[Arc<str>]) -> Result<(), AgentError> {
        match (&self.config.command, &self.config.python) {
            (Some(words), _) => {
                let program = words.first().map_or("", String::as_str);
                self.check_program("agent.command", program)?;
                self.check_sandbox(Some(program)).await?;
            }
            (None, Some(function)) => {
                self.check_program("agent.interpreter", &self.config.interpreter)?;
                self.check_sandbox(None).await?;
                self.check_function(function).await?;
            }
            (None, None) => {}
        }
        for url in urls {
            self.gateway.check(url).await?;
        }
        Ok(())
    }

    fn check_program(&self, key: &'static str, word: &str) -> Result<(), AgentError> {
        let directory = self.config.directory.as_deref();
        find_program(word, directory).map(drop).map_err(|reason| AgentError::Config { key, reason })
    }

    /// Checks that the sandbox, if there is one, can be made, and that `program` is found in it.
    async fn check_sandbox(&self, program: Option<&str>) -> Result<(), AgentError> {
        if !self.config.is_enclosed() {
            return Ok(());
        }
        self.check_program("agent.sandbox", "bwrap")?;
        let within = |script: &str, word: &str| ["sh", "-c", script, word].map(str::to_owned).to_vec();
        self.check_start("agent.sandbox", "the sandbox cannot be made", within(":", "")).await?;
        let Some(program) = program else { return Ok(()) };
        let reason =
            format!("{program:?} is not visible in the sandbox: expected its directory in agent.readable");
        self.check_start("agent.command", &reason, within("command -v \"$0\" >/dev/null", program)).await
    }

    async fn check_function(&self, function: &str) -> Result<(), AgentError> {
        let mut words = self.python_words(function, self.sandbox().await?.as_ref());
        words.push("--check".to_owned());
        self.check_start("agent.python", &format!("cannot load {function:?}"), words).await
    }

    /// Runs a program in the same way as an agent. `reason` begins the error message if the program fails.
    async fn check_start(
        &self,
        key: &'static str,
        reason: &str,
        words: Vec<String>,
    ) -> Result<(), AgentError> {
        let value = format!("{}/check", self.run);
        let program = Program {
            what: "check of the agent".to_owned(),
            words,
            directory: self.config.directory.clone(),
            env: self.config.env.clone().into_iter().chain([(OF_AGENT.to_owned(), value.clone())]).collect(),
            mark: format!("{OF_AGENT}={value}"),
            input: Vec::new(),
            memory_bytes: None,
            sandbox: self.sandbox().await?,
            deadline: Instant::now() + CHECK_MAX,
        };
        let place = self.programs.place().await.map_err(AgentError::Program)?;
        let ran = self.programs.run(place, program).await.map_err(AgentError::Program)?;
        let reason = match (ran.end, last_lines(&ran.output)) {
            (ProgramEnd::Exited, _) => return Ok(()),
            (ProgramEnd::Failed(_), output) if output.is_empty() => reason.to_owned(),
            (ProgramEnd::Failed(_), output) => format!("{reason}: {output}"),
            (ProgramEnd::TimedOut, _) => format!("{reason}: no answer within {} s", CHECK_MAX.as_secs()),
        };
        Err(AgentError::Config { key, reason })
    }

    /// The sandbox in which agents run; `None` if they run without one. Cancel-safe.
    async fn sandbox(&self) -> Result<Option<ProgramSandbox>, AgentError> {
        if !self.config.is_enclosed() {
            return Ok(None);
        }
        let made = self.sandbox.get_or_try_init(|| ProgramSandbox::new(self.config.view())).await;
        made.cloned().map(Some).map_err(AgentError::Program)
    }

    fn python_words(&self, function: &str, sandbox: Option<&ProgramSandbox>) -> Vec<String> {
        let script = format!("{PYTHON_LOADING}\n\n{PYTHON}");
        let interpreter = sandbox.and_then(ProgramSandbox::executable).unwrap_or(&self.config.interpreter);
        vec![interpreter.to_owned(), "-u".to_owned(), "-c".to_owned(), script, function.to_owned()]
    }

    fn words(&self, prompt: &str, sandbox: Option<&ProgramSandbox>) -> Vec<String> {
        match (&self.config.command, &self.config.python) {
            (Some(words), _) => words.iter().map(|word| word.replace(PROMPT, prompt)).collect(),
            (None, Some(function)) => self.python_words(function, sandbox),
            (None, None) => Vec::new(),
        }
    }

    /// Runs an agent to its end. Cancel-safe: dropping the future kills the agent, or takes its task back, and
    /// cancels its calls.
    ///
    /// # Errors
    /// The agent failed, made no call, gave no reward although it should, or reached its deadline.
    pub async fn run(&self, job: AgentJob<'_>) -> Result<Finished, AgentError> {
        job.watch.entered(Stage::Place);
        let place = self.programs.place().await.map_err(AgentError::Program)?;
        match self.tasks.get() {
            Some(tasks) => self.run_elsewhere(tasks, &job, place).await,
            None => self.run_here(&job, place).await,
        }
    }

    /// Whether the agent gives the reward.
    pub(crate) fn gives_reward(&self) -> bool {
        self.config.reward == RewardBy::Agent
    }

    /// Opens the trajectory of a job.
    pub(crate) fn session(&self, job: &AgentJob<'_>) -> Result<Session, AgentError> {
        let session = self.gateway.begin(Opening {
            uid: job.uid.to_owned(),
            seed: job.seed,
            sampling: job.sampling.clone(),
            limits: self.limits.clone(),
            meter: Some(Arc::clone(&job.meter)),
        })?;
        Ok(session)
    }

    async fn run_here(&self, job: &AgentJob<'_>, place: Place) -> Result<Finished, AgentError> {
        job.watch.entered(Stage::Agent);
        let gives_reward = self.gives_reward();
        let session = self.session(job)?;
        let mut env = self.config.env.clone();
        env.extend(variables::variables(job, &session, &self.run, gives_reward));
        let own = seconds(self.config.deadline);
        let task = variables::task(job, &session, gives_reward);
        let sandbox = self.sandbox().await?;
        let program = Program {
            what: "agent".to_owned(),
            words: self.words(job.prompt, sandbox.as_ref()),
            directory: self.config.directory.clone(),
            mark: format!("{OF_AGENT}={}/{}", self.run, job.uid),
            env,
            input: format!("{task}\n").into_bytes(),
            memory_bytes: self.config.memory_mb.map(|memory| memory.saturating_mul(1 << 20)),
            sandbox,
            deadline: job.deadline.min(Instant::now() + own),
        };
        let ran = self.programs.run(place, program).await.map_err(AgentError::Program)?;
        let finished = self.judge(session, &ran.end).await;
        counted(&finished);
        match finished {
            Ok(finished) => Ok(finished),
            Err((_, reason)) => Err(AgentError::Failed(self.explain(job.uid, reason, ran.output).await)),
        }
    }

    /// Takes the trajectory of an agent that has ended out of the gateway, and decides whether the agent gives
    /// a sample.
    pub(crate) async fn judge(&self, session: Session, end: &ProgramEnd) -> Result<Finished, BadEnd> {
        let limit = session.ended_by().filter(|end| matches!(end, End::Turns | End::Tokens));
        let taken = session.take().await;
        judged(end, taken, limit, self.gives_reward(), self.config.deadline)
    }

    /// Returns the reason, followed by the end of the agent's output.
    async fn explain(&self, uid: &str, mut reason: String, output: String) -> String {
        let last = last_lines(&output);
        if last.is_empty() {
            return reason;
        }
        reason = format!("{reason}; its output ends with: {last}");
        match self.failures.keep(uid, output).await {
            Some(file) => format!("{reason} (see {})", file.display()),
            None => reason,
        }
    }
}

/// Converts a time in seconds from the recipe, which has been checked.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)
}

/// The kind of a bad end for the metric, and the reason for the error message.
type BadEnd = (&'static str, String);

/// Counts how an agent ended.
pub(crate) fn counted(finished: &Result<Finished, BadEnd>) {
    count_end(finished.as_ref().map_or_else(|(kind, _)| *kind, |finished| finished.end));
}

/// Counts an end of this kind.
pub(crate) fn count_end(kind: &'static str) {
    metrics::counter!("rolldock_agents_total", "end" => kind).increment(1);
}

/// Decides whether an agent that has ended gives a sample.
fn judged(
    end: &ProgramEnd,
    taken: Taken,
    limit: Option<End>,
    gives_reward: bool,
    deadline: f64,
) -> Result<Finished, BadEnd> {
    let has_turns = taken.trajectory.turns().next().is_some();
    if let (Some(limit), true) = (limit, has_turns) {
        // The agent's calls were refused, so an error of the agent is expected.
        let reward = gives_reward.then(|| taken.reward.unwrap_or(0.0));
        return Ok(Finished { taken, reward, end: limit.as_str(), is_truncated: true });
    }
    match end {
        ProgramEnd::TimedOut => {
            return Err(("deadline", format!("the agent did not end within agent.deadline={deadline} s")));
        }
        ProgramEnd::Failed(how) => return Err(("failed", format!("the agent ended with {how}"))),
        ProgramEnd::Exited => {}
    }
    if !has_turns {
        return Err(("no_turn", "the agent ended without a whole answer of the model".to_owned()));
    }
    if gives_reward && taken.reward.is_none() {
        return Err(("no_reward", "the agent ended without a reward (agent.reward = \"agent\")".to_owned()));
    }
    let reward = taken.reward.filter(|_| gives_reward);
    Ok(Finished { taken, reward, end: "done", is_truncated: false })
}

/// Joins the last non-empty lines of an output into one line for an error message.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = lines[lines.len().saturating_sub(LINES_MAX)..].join(" | ");
    let mut from = text.len().saturating_sub(REASON_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}
