//! A language model as a judge, behind the chat completions of the OpenAI protocol.
//!
//! Templates make the messages from a job; the judge's text is read by a regular expression with one group, whose last
//! match counts, because judges think aloud before they decide. The group's text is a word with a score of its own, or
//! a number in a range that is scaled to 0..1.
//!
//! A verdict that cannot be read is [`RewardError::Nonsense`], of class `Fault`: neither the job nor the settings are
//! proven wrong, and a judge that is asked the same again says much the same again, so it is not worth a retry. The
//! rule for failures decides what becomes of the sample.
//!
//! # Deliberately absent
//! Several judges, votes, and pairs of responses: one answer, one score.

mod verdict;

use futures::future::BoxFuture;
use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::{Value, json};

use super::answer::{nonsense, read_json};
use super::config::JudgeConfig;
use super::http::Endpoint;
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};

pub use verdict::Verdict;

/// What templates may speak of.
const VARIABLES: [&str; 5] = ["prompt", "response", "ground_truth", "data_source", "extra"];
const VARIABLES_EXPECTED: &str =
    "a template of the variables prompt, response, ground_truth, data_source, extra";
/// Where the protocol puts it.
const PATH: &str = "/chat/completions";
/// The messages in their order: the template's name and key, and the message's role.
const MESSAGES: [(&str, &str, &str); 2] =
    [("system", "judge.system", "system"), ("template", "judge.template", "user")];

/// See the module's documentation.
pub struct Judge {
    endpoint: Endpoint,
    templates: Environment<'static>,
    config: JudgeConfig,
    verdict: Verdict,
}

impl Judge {
    /// A judge; an error names the key that is wrong. `api_key` is sent as a bearer token.
    pub fn new(config: &JudgeConfig, api_key: Option<String>) -> Result<Self, RewardError> {
        let base = config.url.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
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
                expected: "a template that suits the row",
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
