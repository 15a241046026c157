//! The summary of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rolldock_dispatch::{TokenTotals, Totals};
use rolldock_reward::GateCounts;

use crate::data::DrawCounts;
use crate::process::{Ending, plural, token_words};

/// The summary of a run. Its `Display` text is for people.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The number of steps that ended, including an interrupted step.
    pub steps: u64,
    /// Whether a signal cut the last step off.
    pub interrupted: bool,
    /// The signal that ended the run, if there was one. The signal may have arrived after the last step,
    /// while the queue was served.
    pub ended_by: Option<Ending>,
    /// The command that resumes the run, if a signal ended it.
    pub resume_command: Option<String>,
    /// Dispatches of the run by fate.
    pub totals: Totals,
    /// Response tokens of the run by bucket.
    pub tokens: TokenTotals,
    /// The counts of each gate of the filter.
    pub gates: Vec<GateCounts>,
    /// Outages of the reward and of gates outside of this process.
    pub reward_outages: u64,
    /// The total duration of these outages.
    pub reward_out: Duration,
    /// The counts of the training data's rows that were read.
    pub drawn: DrawCounts,
    /// Groups that the run's own consumer has acked in this process; `None` if the run has no consumer.
    pub consumed_groups: Option<u64>,
    /// The number of rows in the queue at the end.
    pub rows_left: u64,
    /// The rows of accepted groups that the queue has dropped, because they were too old for a take.
    pub rows_stale: u64,
    /// The rows of a group; `None` if groups differ.
    pub group_rows: Option<u64>,
    /// The directory of the run.
    pub out: PathBuf,
    /// The task for which the rows are in the queue.
    pub task: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        let word = if self.interrupted { "interrupted after" } else { "done:" };
        writeln!(
            f,
            "{word} {}; {} accepted of {} dispatched ({} filtered, {} requeued, {} carried, {} held, {} cancelled, {} stale, {} failed)",
            plural(self.steps, "step"),
            plural(totals.accepted, "group"),
            totals.dispatched,
            totals.filtered,
            totals.requeued,
            totals.carried,
            totals.held,
            totals.cancelled,
            totals.stale,
            totals.failed
        )?;
        if self.rows_stale > 0 {
            writeln!(f, "{}", self.stale_in_queue())?;
        }
        writeln!(f, "tokens: {}", token_words(&self.tokens))?;
        for gate in &self.gates {
            let GateCounts { name, seen, rejected, kept, .. } = gate;
            writeln!(
                f,
                "gate {name}: {} seen, {rejected} rejected, {kept} of them kept for a short step",
                plural(*seen, "group")
            )?;
        }
        if self.reward_outages > 0 {
            let seconds = self.reward_out.as_secs_f64();
            writeln!(f, "reward outages: {}, {seconds:.0} s in all", self.reward_outages)?;
        }
        if self.drawn.overlong_dropped + self.drawn.overlong_truncated > 0 {
            writeln!(
                f,
                "{} prompts were longer than data.max_prompt_length: {} dropped, {} truncated",
                self.drawn.overlong_dropped + self.drawn.overlong_truncated,
                self.drawn.overlong_dropped,
                self.drawn.overlong_truncated
            )?;
        }
        if let Some(groups) = self.consumed_groups {
            write!(f, "the run's own consumer took {}; ", plural(groups, "group"))?;
        }
        write!(f, "{} rows are left in {}", self.rows_left, self.out.display())?;
        if self.rows_left > 0 {
            write!(f, "\ntake them with: rolldock consume {} --task {}", self.out.display(), self.task)?;
        }
        if let Some(command) = &self.resume_command {
            write!(f, "\ngo on with: {command}")?;
        }
        Ok(())
    }
}

impl Summary {
    /// Describes accepted groups that no consumer got, because they became too old in the queue.
    fn stale_in_queue(&self) -> String {
        let rows = plural(self.rows_stale, "row");
        let dropped = match self.group_rows {
            Some(per_group) => {
                format!("{} ({rows})", plural(self.rows_stale.div_ceil(per_group.max(1)), "accepted group"))
            }
            None => format!("{rows} of accepted groups"),
        };
        format!(
            "the queue dropped {dropped} as stale: the policy version rose too far before a consumer took them"
        )
    }
}

#[cfg(test)]
mod tests;
