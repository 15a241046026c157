//! A request in the form from which turns are made.

use serde_json::{Map, Value};

use crate::calls::Form;
use crate::refusal::Refusal;

/// Maximum number of alternatives of a token whose log-probabilities a request may ask for.
const ALTERNATIVES_MAX: u64 = 20;

/// Keys that would change the distribution from which tokens are drawn, or the form of the engine's answer. The
/// trajectory decides the distribution, and the gateway decides the form.
const OURS: [&str; 32] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "use_beam_search",
    "best_of",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "request_id",
    "priority",
    "cache_salt",
    "echo",
    "user",
    "store",
];

/// A request of an agent.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) form: Form,
    /// The request for the engine: messages or prompt, tools, stop strings, grammars. It has none of the keys
    /// that the trajectory or the gateway decides about.
    pub(crate) request: Map<String, Value>,
    /// The model's name, as the agent wrote it.
    pub(crate) model: String,
    pub(crate) is_streamed: bool,
    /// Whether a stream of a chat or a text ends with its usage.
    pub(crate) with_usage: bool,
    /// The number of alternatives of each token, if the answer shall have log-probabilities.
    pub(crate) logprobs: Option<u32>,
    /// The stop strings that do not appear in the text.
    pub(crate) stop: Vec<String>,
    pub(crate) max_tokens: Option<u32>,
    /// Further data that the surface needs to write the answer.
    pub(crate) extra: Value,
}

impl Asked {
    /// Reads what the surfaces of OpenAI's older protocols have in common, and moves the rest to `request`.
    pub(super) fn of(form: Form, mut body: Map<String, Value>) -> Result<Self, Refusal> {
        let max_tokens = match number(&body, "max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => number(&body, "max_tokens")?,
        };
        let logprobs = logprobs(form, &body)?;
        let stop = match body.get("stop") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(other) => {
                return Err(Refusal::bad_request(format!("expected stop to be strings, found {other}")));
            }
        };
        let keeps_stop = body.get("include_stop_str_in_output") == Some(&Value::Bool(true));
        let is_true = |value: Option<&Value>| value == Some(&Value::Bool(true));
        let with_usage = is_true(body.get("stream_options").and_then(|options| options.get("include_usage")));
        let asked = Self {
            form,
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            is_streamed: is_true(body.get("stream")),
            with_usage,
            logprobs,
            stop: if keeps_stop { Vec::new() } else { stop },
            max_tokens: max_tokens.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            request: Map::new(),
            extra: Value::Null,
        };
        OURS.iter().for_each(|key| {
            body.shift_remove(*key);
        });
        Ok(Self { request: body, ..asked })
    }
}

/// Refuses a request for several answers. Each answer is a turn, and a turn has one request, which may be repeated.
pub(super) fn check_single(body: &Map<String, Value>) -> Result<(), Refusal> {
    for key in ["n", "best_of"] {
        if let Some(found) = number(body, key)?.filter(|number| *number > 1) {
            let reason = format!(
                "expected {key}=1, found {found}; send the request several times for several answers"
            );
            return Err(Refusal::bad_request(reason));
        }
    }
    Ok(())
}

/// Reads a whole number above 0.
pub(super) fn number(body: &Map<String, Value>, key: &str) -> Result<Option<u64>, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().filter(|number| *number > 0).map(Some).ok_or_else(|| {
            Refusal::bad_request(format!("expected {key} to be a number above 0, found {value}"))
        }),
    }
}

/// Reads for how many alternatives of each token a request wants log-probabilities. A chat request has a switch and
/// a number; a text request has only a number.
fn logprobs(form: Form, body: &Map<String, Value>) -> Result<Option<u32>, Refusal> {
    let key = match form {
        Form::Chat if body.get("logprobs") != Some(&Value::Bool(true)) => return Ok(None),
        Form::Chat => "top_logprobs",
        Form::Text => "logprobs",
    };
    let alternatives = match body.get(key) {
        None | Some(Value::Null) => return Ok((form == Form::Chat).then_some(0)),
        Some(value) => value.as_u64().filter(|number| *number <= ALTERNATIVES_MAX),
    };
    alternatives.map(|number| Some(number as u32)).ok_or_else(|| {
        Refusal::bad_request(format!("expected {key} to be a number up to {ALTERNATIVES_MAX}"))
    })
}
