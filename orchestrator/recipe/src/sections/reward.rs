//! How responses are scored, and how scores become advantages.

use std::time::Duration;

use rolldock_reward::external::{
    CodeConfig, CommandConfig, HttpConfig, JudgeConfig, PythonConfig, short_or_table,
};
use rolldock_reward::{ExternalConfig, OnFailure, RewardError, ScorerConfig, Shaping};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::AdvantageEstimator;

/// `[reward]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    /// The scorer in this process: "math_dapo", "gsm8k", "math", "math_equiv", "choice", "exact_match", "regex",
    /// "json_schema", "format", "length", "repetition", "routed" (chooses a scorer by the row's `data_source`),
    /// or "rubric" (combines several scorers).
    pub scorer: String,
    /// The published variant of `math_dapo`: "2025", or "2026" with the boxed fallback.
    pub variant: String,
    /// For `math_dapo`: whether only the last `\boxed{}` counts.
    pub strict_box: bool,
    /// The published method of `gsm8k`: "strict" or "flexible".
    pub method: String,
    /// Options of other scorers, with the names that the scorers define.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// A Python function that scores in place of the scorer: "module:function", called as `(data_source,
    /// solution_str, ground_truth, extra_info)`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "short_or_table")]
    pub python: Option<PythonConfig>,
    /// A command that scores in place of the scorer. It reads and writes JSON lines.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "short_or_table")]
    pub command: Option<CommandConfig>,
    /// A reward server that scores in place of the scorer.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "short_or_table")]
    pub http: Option<HttpConfig>,
    /// A language model that judges responses in place of the scorer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeConfig>,
    /// Runs responses as programs against the row's tests in a sandbox, in place of the scorer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeConfig>,
    /// Limits that protect a step from a scorer outside of this process.
    pub guard: RewardGuard,
    /// A soft penalty for long responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongShaping>,
    /// Whether samples that end at `rollout.max_response_length` are masked: their `response_mask` is 0.
    pub mask_truncated: bool,
    /// How rewards change before the advantages are computed.
    pub shaping: Shaping,
    /// Maximum number of gradings at a time.
    pub places: usize,
    /// How rewards become advantages.
    pub advantage: AdvantageEstimator,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            scorer: "math_dapo".to_owned(),
            variant: "2025".to_owned(),
            strict_box: false,
            method: "strict".to_owned(),
            options: Map::new(),
            python: None,
            command: None,
            http: None,
            judge: None,
            code: None,
            guard: RewardGuard::default(),
            overlong: None,
            mask_truncated: false,
            shaping: Shaping::default(),
            places: 4,
            advantage: AdvantageEstimator::Grpo,
        }
    }
}

impl Reward {
    /// The scorer with its options. A routed reward has the options of all scorers that it can choose.
    pub fn scorer_config(&self) -> Result<ScorerConfig, serde_json::Error> {
        let mut options = self.options.clone();
        let known: &[(&str, Value)] = match self.scorer.as_str() {
            "math_dapo" => {
                &[("variant", self.variant.clone().into()), ("strict_box", self.strict_box.into())]
            }
            "gsm8k" => &[("method", self.method.clone().into())],
            "routed" => &[
                ("variant", self.variant.clone().into()),
                ("strict_box", self.strict_box.into()),
                ("method", self.method.clone().into()),
            ],
            _ => &[],
        };
        for (name, value) in known {
            options.entry(*name).or_insert_with(|| value.clone());
        }
        options.insert("scorer".to_owned(), self.scorer.clone().into());
        serde_json::from_value(options.into())
    }

    /// The runner that scores in place of the scorer, if there is one. `deadline` limits a job with all of
    /// its attempts.
    pub fn external(&self, deadline: Duration) -> Option<ExternalConfig> {
        let external = ExternalConfig {
            python: self.python.clone(),
            command: self.command.clone(),
            http: self.http.clone(),
            judge: self.judge.clone(),
            code: self.code.clone(),
            concurrency: self.guard.concurrency,
            per_second: self.guard.per_second,
            retries: self.guard.retries,
            attempt_s: self.guard.attempt_s,
            deadline_s: deadline.as_secs_f64(),
            cache_entries: self.guard.cache_entries,
            on_failure: self.guard.on_failure,
            consecutive_failures_max: self.guard.consecutive_failures_max,
            backoff_initial_s: self.guard.backoff_initial_s,
            backoff_max_s: self.guard.backoff_max_s,
            outage_deadline_s: self.guard.outage_deadline_s,
        };
        external.has_runner().then_some(external)
    }

    /// The name of the scorer or runner, for people.
    pub fn scored_by(&self) -> String {
        let named = [
            self.python.as_ref().map(|python| format!("Python {}", python.function)),
            self.command.as_ref().map(|command| format!("command {}", command.words.join(" "))),
            self.http.as_ref().map(|http| format!("server {}", http.url)),
            self.judge.as_ref().map(|judge| format!("judge {} at {}", judge.model, judge.url)),
            self.code.as_ref().map(|code| format!("the row's tests, by {}", code.interpreter)),
        ];
        named.into_iter().flatten().next().unwrap_or_else(|| format!("scorer {}", self.scorer))
    }
}

/// `[reward.guard]`. `timeouts.reward` limits the time of a job, with all of its attempts and the pauses between
/// them. It counts from the first attempt, so waits for `concurrency`, for `per_second` and for the end of an outage
/// before that attempt do not count.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardGuard {
    /// Maximum number of jobs at a time. If absent, it is the runner's number of workers, or 64 for a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// Maximum number of attempts per second; unbounded if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// Maximum number of attempts after the first one. Only temporary errors lead to another attempt.
    pub retries: u32,
    /// Maximum time of one attempt, in seconds. 0 means an equal share of `timeouts.reward`, or with `code` all of
    /// `timeouts.reward`.
    pub attempt_s: f64,
    /// Number of scores that are cached by the content of the job. With 0, equal jobs are scored again.
    pub cache_entries: usize,
    /// What happens to a sample without a score: "fail_sample", `{ score = 0.0 }`, or "stop", which ends the
    /// run.
    pub on_failure: OnFailure,
    /// Number of consecutive failures after which the reward is probed. Only failures whose reason may lie
    /// outside of the sample count. If the probe fails too, nothing is sent out until the reward answers
    /// again. With 0, the run does not wait for outages to end, and the reward is not probed at the start.
    pub consecutive_failures_max: u32,
    /// Seconds from the first probe of an outage to the second. The pause doubles after each probe.
    pub backoff_initial_s: f64,
    /// Maximum seconds between two probes.
    pub backoff_max_s: f64,
    /// The run ends when an outage of the reward has lasted for this time, in seconds.
    pub outage_deadline_s: f64,
}

impl Default for RewardGuard {
    fn default() -> Self {
        let external = ExternalConfig::default();
        Self {
            concurrency: external.concurrency,
            per_second: external.per_second,
            retries: external.retries,
            attempt_s: external.attempt_s,
            cache_entries: external.cache_entries,
            on_failure: external.on_failure,
            consecutive_failures_max: external.consecutive_failures_max,
            backoff_initial_s: external.backoff_initial_s,
            backoff_max_s: external.backoff_max_s,
            outage_deadline_s: external.outage_deadline_s,
        }
    }
}

/// `reward.overlong`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverlongShaping {
    /// The penalty grows over this number of tokens before the limit.
    pub buffer_length: u32,
    /// The amount by which the score is reduced at the limit; 0 or more.
    pub penalty_factor: f64,
}

/// The recipe key that `error` is about. `error` names the keys of `ExternalConfig`.
pub(crate) fn key_of(error: &RewardError) -> String {
    match error {
        RewardError::Misconfigured { key: "reward", .. } => "reward".to_owned(),
        RewardError::Misconfigured { key: "deadline_s", .. } => "timeouts.reward".to_owned(),
        RewardError::Misconfigured { key, .. } if key.contains('.') && !key.starts_with("on_failure") => {
            format!("reward.{key}")
        }
        RewardError::Misconfigured { key, .. } => format!("reward.guard.{key}"),
        _ => "reward".to_owned(),
    }
}
