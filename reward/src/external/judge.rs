//! A reward from a language model that judges responses (LLM as a judge), by chat completions of the OpenAI
//! protocol.
//!
//! Templates turn a job into messages. A regular expression with one group reads the judge's answer; its last
//! match counts, because judges reason before they decide. The text of the group is a word with a configured
//! score, or a number in a range that is scaled to 0..1.
//!
//! A verdict that cannot be read is [`RewardError::Nonsense`], of class `Fault`. It is not tried again,
//! because a judge tends to repeat its answer; `on_failure` decides what happens to the sample.
//!
//! # Deliberately absent
//! There are no panels of judges, no votes and no comparison of two responses: one answer gives one score.

mod verdict;

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use minijinja::{Environment, UndefinedBehavior, context};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::{nonsense, read_json};
use super::http::Endpoint;
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};

use verdict::Verdict;

/// The variables of templates.
const VARIABLES: [&str; 5] = ["prompt", "response", "ground_truth", "data_source", "extra"];
const VARIABLES_EXPECTED: &str =
    "a template with no variables but prompt, response, ground_truth, data_source, extra";
/// The path of chat completions below the base address.
const PATH: &str = "/chat/completions";
/// The messages in order: the name and the key of the template, and the role of the message.
const MESSAGES: [(&str, &str, &str); 2] =
    [("system", "judge.system", "system"), ("template", "judge.template", "user")];

/// A language model that judges responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// The base address of the server, `http://host:port/v1`, or the whole address of its chat completions.
    pub url: String,
    /// The name of the model on the server.
    pub model: String,
    /// A Jinja template of the user message, with `prompt`, `response`, `ground_truth`, `data_source` and
    /// `extra`.
    pub template: String,
    /// A Jinja template of the system message, which comes first.
    #[serde(default)]
    pub system: Option<String>,
    /// Maximum number of tokens of the judge's answer; the server's limit when absent.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The sampling temperature; the server's default when absent.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// The environment variable whose value is sent as a bearer token.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// A regular expression with one group; the last match counts.
    pub pattern: String,
    /// The scores of the words that the group may match, in any case. Either this or `range` is set.
    #[serde(default)]
    pub words: Option<BTreeMap<String, f64>>,
    /// The smallest and the largest number that the group may match; scores are scaled to 0..1.
    #[serde(default)]
    pub range: Option<[f64; 2]>,
}

/// Asks a language model to judge responses.
pub(crate) struct Judge {
    endpoint: Endpoint,
    templates: Environment<'static>,
    config: JudgeConfig,
    verdict: Verdict,
}

impl Judge {
    /// Checks the configuration; an error names the wrong key. `api_key` is sent as a bearer token.
    pub(crate) fn new(config: &JudgeConfig, api_key: Option<String>) -> Result<Self, RewardError> {
        let base = config.url.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        // JSON has no NaN, so a request would have no temperature instead.
        if let Some(temperature) = config.temperature.filter(|it| !(it.is_finite() && *it >= 0.0)) {
            return Err(RewardError::Misconfigured {
                key: "judge.temperature",
                expected: "a finite number, 0 or more",
                found: temperature.to_string(),
            });
        }
        let mut templates = Environment::new();
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        for (name, key, _) in MESSAGES {
            let source = if name == "system" { config.system.as_ref() } else { Some(&config.template) };
            if let Some(source) = source {
                add_template(&mut templates, name, key, source)?;
            }
        }
        Ok(Self {
            endpoint: Endpoint::new("judge", "judge.url", &url, api_key)?,
            templates,
            verdict: Verdict::new(config)?,
            config: config.clone(),
        })
    }

    fn request(&self, job: &RewardJob) -> Result<Value, RewardError> {
        let variables = context! {
            prompt => &*job.prompt,
            response => &*job.response,
            ground_truth => &*job.ground_truth,
            data_source => &*job.data_source,
            extra => minijinja::value::Serde(&*job.extra),
        };
        let mut messages = Vec::with_capacity(MESSAGES.len());
        for (name, key, role) in MESSAGES {
            let Ok(template) = self.templates.get_template(name) else { continue };
            let content = template.render(&variables).map_err(|error| RewardError::Misconfigured {
                key,
                expected: "a template that renders for every row",
                found: error.to_string(),
            })?;
            messages.push(json!({ "role": role, "content": content }));
        }
        let mut body = json!({ "model": self.config.model, "messages": messages });
        if let Some(most) = self.config.max_tokens {
            body["max_tokens"] = most.into();
        }
        if let Some(temperature) = self.config.temperature {
            body["temperature"] = temperature.into();
        }
        Ok(body)
    }

    fn read(&self, bytes: &[u8]) -> Result<Score, RewardError> {
        let what = self.endpoint.what();
        let answer = read_json(what, bytes)?;
        let text = answer["choices"][0]["message"]["content"]
            .as_str()
            .ok_or_else(|| nonsense(what, "expected a text at choices[0].message.content".into(), bytes))?;
        self.verdict.read(what, text)
    }
}

fn add_template(
    templates: &mut Environment<'static>,
    name: &'static str,
    key: &'static str,
    source: &str,
) -> Result<(), RewardError> {
    let wrong = |found: String| RewardError::Misconfigured { key, expected: VARIABLES_EXPECTED, found };
    templates.add_template_owned(name, source.to_owned()).map_err(|error| wrong(error.to_string()))?;
    let template = templates.get_template(name).map_err(|error| wrong(error.to_string()))?;
    let mut unknown: Vec<String> = template
        .undeclared_variables(false)
        .into_iter()
        .filter(|variable| {
            !VARIABLES.contains(&variable.as_str())
                && templates.globals().all(|(global, _)| global != variable)
        })
        .collect();
    unknown.sort_unstable();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(wrong(unknown.join(", "))),
    }
}

impl RewardRunner for Judge {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let bytes = self.endpoint.post(&self.request(job)?).await?;
            self.read(&bytes)
        })
    }
}

#[cfg(test)]
mod tests;
