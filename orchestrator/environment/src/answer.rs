//! Reads the JSON answers of an environment outside of this process.

use serde_json::{Map, Value};

use crate::EnvironmentError;
use crate::environment::{Begun, Observation, Step};

/// Maximum number of characters of an answer that an error shows.
const SHOWN_MAX: usize = 200;

/// The answer to a reset: a list of messages, or `{"messages": [...], "tools": [...]}`.
pub(crate) fn begun(answer: Value) -> Result<Begun, EnvironmentError> {
    let mut fields = match answer {
        Value::Object(fields) => fields,
        Value::Array(messages) => Map::from_iter([("messages".to_owned(), Value::Array(messages))]),
        other => return Err(nonsense("a reset", "a list of messages or an object with messages", &other)),
    };
    let messages = fields.remove("messages").unwrap_or_default();
    let messages = messages_of("a reset", messages)?;
    if messages.is_empty() {
        return Err(nonsense("a reset", "at least one message", &Value::Array(Vec::new())));
    }
    let tools = fields.remove("tools").filter(|tools| !tools.is_null());
    match tools {
        Some(tools) if !tools.is_array() => Err(nonsense("a reset", "tools that are a list", &tools)),
        tools => Ok(Begun { messages, tools }),
    }
}

/// The answer to a step: `{"messages": [...], "reward": 0.5, "done": false, "info": ...}`, with `ids` in
/// place of `messages` for token ids.
pub(crate) fn step(answer: Value) -> Result<Step, EnvironmentError> {
    let Value::Object(mut fields) = answer else {
        return Err(nonsense("a step", "an object", &answer));
    };
    let is_done = match fields.remove("done") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_done)) => is_done,
        Some(other) => return Err(nonsense("a step", "done that is true or false", &other)),
    };
    let reward = match fields.remove("reward") {
        None | Some(Value::Null) => None,
        Some(reward) => match reward.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
        {
            Some(number) => Some(number),
            None => return Err(nonsense("a step", "a reward that is a finite number", &reward)),
        },
    };
    let given = |value: Option<Value>| value.filter(|value| !value.is_null());
    let observation = match (given(fields.remove("messages")), given(fields.remove("ids"))) {
        (Some(messages), None) => Observation::Messages(messages_of("a step", messages)?),
        (None, Some(ids)) => Observation::Ids(ids_of(&ids)?),
        (None, None) if is_done => Observation::Messages(Vec::new()),
        (messages, _) => {
            let found = if messages.is_some() { "both" } else { "neither" };
            let reason = format!("a step needs either messages or ids unless it is done, found {found}");
            return Err(EnvironmentError::Failed { reason });
        }
    };
    let is_empty = match &observation {
        Observation::Messages(messages) => messages.is_empty(),
        Observation::Ids(ids) => ids.is_empty(),
    };
    if is_empty && !is_done {
        return Err(nonsense("a step", "at least one message or id", &Value::Array(Vec::new())));
    }
    Ok(Step { observation, reward, is_done, info: fields.remove("info").unwrap_or_default() })
}

fn messages_of(call: &str, messages: Value) -> Result<Vec<Value>, EnvironmentError> {
    let Value::Array(messages) = messages else {
        return Err(nonsense(call, "messages that are a list", &messages));
    };
    let is_message = |message: &&Value| !message.get("role").is_some_and(Value::is_string);
    match messages.iter().find(is_message) {
        Some(wrong) => Err(nonsense(call, "messages with a role", wrong)),
        None => Ok(messages),
    }
}

fn ids_of(ids: &Value) -> Result<Vec<u32>, EnvironmentError> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let read: Option<Vec<u32>> = ids.as_array().and_then(|ids| ids.iter().map(id).collect());
    read.ok_or_else(|| nonsense("a step", "ids that are a list of token ids", ids))
}

fn nonsense(call: &str, expected: &str, found: &Value) -> EnvironmentError {
    let shown: String = found.to_string().chars().take(SHOWN_MAX).collect();
    EnvironmentError::Failed { reason: format!("it answered {call} with {shown}, expected {expected}") }
}

#[cfg(test)]
mod tests;
