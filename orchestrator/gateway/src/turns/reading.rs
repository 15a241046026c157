//! Makes an answer from the result of the engine's parsers.

use serde_json::Value;

use super::{Failed, Job};
use crate::answer::{Answer, AnswerFinish, ToolCall};
use crate::calls::{CallError, Drawn, Finish, Form};
use crate::config::GatewayConfig;

/// The answer of a choice.
pub(super) fn answer_of(
    job: Job<'_>,
    choice: &Value,
    drawn: &Drawn,
    prompt_tokens: usize,
    config: &GatewayConfig,
) -> Result<Answer, Failed> {
    let id = config.entropy.hex();
    let mut read = match job.asked.form {
        Form::Chat => of_message(job, &choice["message"], &id)?,
        Form::Text => Read { text: choice["text"].as_str().map(str::to_owned), ..Read::default() },
    };
    let stop = match &drawn.finish {
        // The parsers also get the tokens of the stop string. The last of these tokens may have text after
        // the stop string.
        Finish::Stop(Some(stop)) if job.asked.stop.contains(stop) => {
            read.cut_at(stop);
            Some(stop.clone())
        }
        Finish::Stop(stop) => stop.clone(),
        Finish::Length | Finish::Abort => None,
    };
    let finish = match (&drawn.finish, stop) {
        (Finish::Length | Finish::Abort, _) => AnswerFinish::Length,
        // The parsers report the engine's reason, even when they have found calls.
        (Finish::Stop(_), _) if !read.tool_calls.is_empty() => AnswerFinish::ToolCalls,
        (Finish::Stop(_), Some(stop)) => AnswerFinish::StopString(stop),
        (Finish::Stop(_), None) => AnswerFinish::Stop,
    };
    Ok(Answer {
        id,
        created: (config.unix_seconds)(),
        model: job.asked.model.clone(),
        text: read.text,
        reasoning: read.reasoning,
        tool_calls: read.tool_calls,
        finish,
        prompt_tokens: prompt_tokens as u32,
        completion_tokens: drawn.ids.len() as u32,
        logprobs: if job.asked.logprobs.is_some() { choice["logprobs"].clone() } else { Value::Null },
    })
}

#[derive(Debug, Default)]
struct Read {
    text: Option<String>,
    reasoning: Option<String>,
    tool_calls: Vec<ToolCall>,
}

impl Read {
    /// Cuts the text before the first appearance of `stop`. The engine stopped there.
    fn cut_at(&mut self, stop: &str) {
        if let Some(reasoning) = &mut self.reasoning
            && let Some(at) = reasoning.find(stop)
        {
            reasoning.truncate(at);
            self.text = None;
            return;
        }
        if let Some(text) = &mut self.text
            && let Some(at) = text.find(stop)
        {
            text.truncate(at);
        }
    }
}

fn of_message(job: Job<'_>, message: &Value, id: &str) -> Result<Read, Failed> {
    if !message.is_object() {
        return Err(Failed::Call(CallError::bad("derender", "the answer has no message")));
    }
    let text = message["content"].as_str().map(str::to_owned);
    let reasoning = message["reasoning"].as_str().or(message["reasoning_content"].as_str());
    let mut tool_calls = Vec::new();
    for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let function = &call["function"];
        tool_calls.push(ToolCall {
            id: call_id(job, &call["id"], id, index),
            name: function["name"].as_str().unwrap_or_default().to_owned(),
            arguments: match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        });
    }
    // A server writes an empty text beside calls.
    let text = text.filter(|text| !text.is_empty() || tool_calls.is_empty());
    let reasoning = reasoning.filter(|reasoning| !reasoning.is_empty()).map(str::to_owned);
    Ok(Read { text, reasoning, tool_calls })
}

/// The id of a tool call. The server's id is kept, because the templates of some model families show it in a
/// certain form. If an earlier turn has the same id, a new id is minted, so that each id names one turn.
fn call_id(job: Job<'_>, theirs: &Value, id: &str, index: usize) -> String {
    let theirs = theirs.as_str().filter(|theirs| !theirs.is_empty());
    let is_new = |theirs: &&str| job.one.live.lock().forest.turn_of_minted(theirs).is_none();
    theirs.filter(is_new).map_or_else(|| format!("call_{}{index}", &id[..24]), str::to_owned)
}
