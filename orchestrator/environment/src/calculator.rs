//! A calculator as a tool: the model may call it before it answers.
//!
//! A call is text of the form `<tool_call>{"name": "calculator", "arguments": {"expression": "2 * (3 +
//! 4)"}}</tool_call>`, as Qwen's templates describe it. A turn without a call is the answer. The reward is 1
//! if the last number of the answer equals the ground truth, and 0 otherwise.
//!
//! Numbers are exact: `+`, `-`, `*`, `/` and parentheses over integers and decimals. Powers and functions are
//! deliberately absent, so the length of an expression bounds the size of its result.

mod expression;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use num_bigint::BigInt;
use num_rational::Ratio;
use serde_json::{Value, json};

use crate::EnvironmentError;
use crate::environment::{Action, Begun, Environment, Observation, Step, Task};
use expression::{evaluate, parse_number, shown};

/// The longest expression that is evaluated, in bytes.
const EXPRESSION_BYTES_MAX: usize = 1_024;
/// Maximum number of calls in one turn. Further calls are refused.
const CALLS_MAX: usize = 8;

/// The environment. Only the answer gets a reward.
#[derive(Debug, Clone, Default)]
pub struct Calculator {
    /// The ground truth; `None` before the first reset and after the end.
    truth: Option<Ratio<BigInt>>,
}

impl Calculator {
    fn begin(&mut self, task: &Task) -> Result<Begun, EnvironmentError> {
        let truth = parse_number(task.answer.trim()).ok_or_else(|| EnvironmentError::Task {
            reason: format!("expected an answer that is a number, found {:?}", task.answer),
        })?;
        self.truth = Some(truth);
        Ok(Begun { messages: task.messages.clone(), tools: Some(tools()) })
    }

    fn act(&mut self, action: Action<'_>) -> Result<Step, EnvironmentError> {
        let truth = self.truth.as_ref().ok_or_else(|| EnvironmentError::Failed {
            reason: "expected a reset before this step: no task has begun, or it has ended".to_owned(),
        })?;
        let calls = calls(action.text);
        if calls.is_empty() {
            let is_right = last_number(action.text).as_ref() == Some(truth);
            self.truth = None;
            return Ok(Step {
                observation: Observation::Messages(Vec::new()),
                reward: Some(f32::from(u8::from(is_right))),
                is_done: true,
                info: json!({ "is_right": is_right }),
            });
        }
        let results: Vec<String> = calls.iter().take(CALLS_MAX).map(|call| result_of(call)).collect();
        let refused = calls.len().saturating_sub(CALLS_MAX);
        let late = (refused > 0).then(|| format!("error: expected at most {CALLS_MAX} calls in a turn"));
        let contents = results.into_iter().chain(late);
        let messages = contents.map(|content| json!({ "role": "tool", "content": content })).collect();
        Ok(Step {
            observation: Observation::Messages(messages),
            reward: None,
            is_done: false,
            info: json!({ "calls": calls.len() }),
        })
    }
}

impl Environment for Calculator {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        future::ready(self.begin(task)).boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        future::ready(self.act(action)).boxed()
    }
}

/// The tool list.
fn tools() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "evaluates an arithmetic expression exactly",
            "parameters": {
                "type": "object",
                "properties": { "expression": { "type": "string" } },
                "required": ["expression"],
            },
        },
    }])
}

/// The texts between the tags of calls. A call without a closing tag extends to the end of the text.
fn calls(text: &str) -> Vec<&str> {
    let begun = text.split("<tool_call>").skip(1);
    begun.map(|rest| rest.split("</tool_call>").next().unwrap_or(rest).trim()).collect()
}

/// The result of a call, or what is wrong with it.
fn result_of(call: &str) -> String {
    let Ok(call @ Value::Object(_)) = serde_json::from_str::<Value>(call) else {
        return "error: expected a call that is a JSON object".to_owned();
    };
    if call["name"] != "calculator" {
        return format!("error: unknown tool={}, expected \"calculator\"", call["name"]);
    }
    match call["arguments"]["expression"].as_str() {
        None => "error: expected arguments with an expression, a string".to_owned(),
        Some(expression) if expression.len() > EXPRESSION_BYTES_MAX => {
            format!("error: expected an expression of at most {EXPRESSION_BYTES_MAX} bytes")
        }
        Some(expression) => match evaluate(expression) {
            Ok(value) => shown(&value),
            Err(reason) => format!("error: {reason}"),
        },
    }
}

/// The last number in a text. Commas between groups of three digits belong to a number. A number that is longer than
/// an expression may be is not read.
fn last_number(text: &str) -> Option<Ratio<BigInt>> {
    let text = text.replace('−', "-");
    let is_part = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ',' | '-' | '/');
    let words = text.split(|letter: char| !is_part(letter)).rev().flat_map(numbers);
    words.filter(|word| word.len() <= EXPRESSION_BYTES_MAX).find_map(|word| {
        let word = word.trim_end_matches(['.', '-', '/']);
        match word.split_once('/') {
            Some((above, below)) => {
                let below = parse_number(below).filter(|below| *below != Ratio::from(BigInt::ZERO))?;
                Some(parse_number(above)? / below)
            }
            None => parse_number(word),
        }
    })
}

/// The number that a word with commas is, such as `1,234.5`, or else its parts between commas, last part first.
fn numbers(word: &str) -> Vec<String> {
    let word = word.trim_matches(',');
    let parts: Vec<&str> = word.split(',').collect();
    let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
    let [first, groups @ ..] = parts.as_slice() else { return Vec::new() };
    let is_lead = |part: &str| (1..=3).contains(&part.len()) && digits(part) == part.len();
    let is_group = |(place, part): (usize, &&str)| {
        // Only the last group may have decimals.
        let rest = &part[digits(part)..];
        digits(part) == 3 && (rest.is_empty() || place + 1 == groups.len() && rest.starts_with('.'))
    };
    let is_one = is_lead(first.trim_start_matches('-')) && groups.iter().enumerate().all(is_group);
    if !groups.is_empty() && is_one {
        return vec![parts.concat()];
    }
    parts.into_iter().rev().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
