//! `rolldock ledger`: shows the history of a run's dispatches.

mod json;
mod queue;
mod text;

use anyhow::Context;
use rolldock_dispatch::PromptUid;
use rolldock_ledger::{DispatchRecord, History};
use rolldock_process::say;
use rolldock_scope::blocking;

use crate::args::LedgerArgs;
use crate::usage::UsageError;
use queue::QueueSide;

/// The part of the ledger that the user asks for.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// The whole run: totals, steps and conservation.
    Whole,
    Prompt(PromptUid),
    Row(u64),
    Step(u64),
}

impl Question {
    fn of(args: &LedgerArgs) -> anyhow::Result<Self> {
        if let Some(uid) = &args.prompt {
            let parsed = u64::from_str_radix(uid, 16).ok().filter(|_| uid.len() == 16);
            let wrong = || UsageError(format!("found --prompt {uid}; expected 16 hexadecimal digits"));
            return Ok(Self::Prompt(PromptUid(parsed.ok_or_else(wrong)?)));
        }
        let row_or_step = args.row.map(Self::Row).or(args.step.map(Self::Step));
        Ok(row_or_step.unwrap_or(Self::Whole))
    }

    /// Whether the answer includes `dispatch`. The dispatch ended in the step `ended_in`; it is in flight if
    /// `ended_in` is `None`.
    fn asks_for(self, dispatch: &DispatchRecord, ended_in: Option<u64>) -> bool {
        match self {
            Self::Whole => false,
            Self::Prompt(uid) => dispatch.prompt_uid == uid,
            Self::Row(row) => dispatch.row == row,
            Self::Step(step) => ended_in.unwrap_or(dispatch.step) == step,
        }
    }
}

/// `rolldock ledger`: shows what became of a run's prompts.
pub async fn run(args: LedgerArgs) -> anyhow::Result<()> {
    let question = Question::of(&args)?;
    let dir = args.dir.clone();
    let reading = move || {
        let history = History::read(&dir, |dispatch, ended_in| question.asks_for(dispatch, ended_in))?;
        anyhow::Ok((history, QueueSide::read(&dir)))
    };
    let read = blocking("ledger history", reading).await.context("cannot read the ledger")?;
    let (history, queue) = read?;
    if let Question::Step(step) = question
        && !history.state.steps().contains_key(&step)
    {
        let last = history.state.steps().keys().next_back().copied().unwrap_or(0);
        return Err(
            UsageError(format!("step {step} has not begun; the last step of the ledger is {last}")).into()
        );
    }
    let checked = history.state.check();
    let answer = if args.json {
        serde_json::to_string_pretty(&json::answer(question, &history, &queue, &checked))?
    } else {
        text::answer(question, &history, &queue, &checked)
    };
    say(&answer);
    checked.context("the ledger does not add up")
}
