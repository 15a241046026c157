//! The agents of a run: programs that work on one sample each, and call the model through the run's gateway.
//!
//! [`Agents::run`] opens a trajectory, starts the agent with the base URL of the trajectory and the task, and takes
//! the turns out when the agent has ended. The agent's output is not part of the sample: the sample consists of the
//! agent's calls. With [`remote`](AgentConfig::remote) nothing is started: a worker on any machine takes the task
//! from the run's queue.
//!
//! # Invariants
//! - At most `concurrency` agents run at a time. Each of them holds a place until all of its processes are gone.
//! - Dropping the future of an agent ends everything that belongs to the agent: the processes are killed, its
//!   calls on the engines are cancelled, their permits return, and later calls are refused.
//! - The error of a failed agent says how the agent ended, and shows the end of its output. The output is
//!   also kept in a file. The number and the size of these files are bounded.
//! - If a worker gives a task back or loses it, a new attempt with a new trajectory begins. The capability of the
//!   earlier attempt is refused, and the rows contain nothing of the earlier attempt.
//!
//! # Deliberately absent
//! - A separate network for agents in a [sandbox](AgentSandbox). These agents call the gateway, and often other
//!   servers.
//! - Another attempt for an agent that failed. An agent has side effects, so only its author knows whether the
//!   agent may run twice. A group with a failed agent fails, like a group with a failed sample.

mod agents;
mod attempts;
mod config;
mod elsewhere;
mod error;
mod failures;
mod job;
mod variables;

#[cfg(test)]
mod tests;

pub use agents::{Agents, AgentsParts, Finished};
pub use config::{AgentConfig, AgentSandbox, RewardBy, TASKS_PARTITION};
pub use error::{AgentError, ErrorClass};
pub use job::{AgentJob, Stage, Watch};
