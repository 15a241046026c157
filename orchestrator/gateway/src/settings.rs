//! The table `[gateway]` of a recipe.

use std::net::SocketAddr;

use rolldock_trajectory::HistoryPolicy;
use serde::{Deserialize, Serialize};

use crate::config::Limits;

/// Longest time that a key can have, in seconds.
const SECONDS_MAX: f64 = 10_000_000.0;

/// The gateway of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewaySettings {
    /// The address at which agents call; port 0 takes a free port.
    pub listen: SocketAddr,
    /// The URL at which agents reach the gateway, if it differs from `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// What becomes of sampled text that the chat template would show differently.
    pub history: HistoryPolicy,
    /// Maximum number of turns of a trajectory. The next call ends the trajectory.
    pub turns_max: u32,
    /// Maximum number of sampled tokens of all turns; by default `rollout.max_response_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u64>,
    /// Maximum number of sampled tokens of one turn; by default `rollout.max_response_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_tokens_max: Option<u32>,
    /// The time without a byte after which a stream gets a heartbeat, in seconds.
    pub heartbeat: f64,
    /// Maximum time of an engine's answer, in seconds.
    pub call_timeout: f64,
    /// Maximum number of times that a turn is sent to an engine.
    pub attempts_max: u32,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            history: HistoryPolicy::default(),
            turns_max: Limits::default().turns,
            tokens_max: None,
            turn_tokens_max: None,
            heartbeat: 10.0,
            call_timeout: 3600.0,
            attempts_max: 3,
        }
    }
}

impl GatewaySettings {
    /// The values that cannot be used: the key within the table, and what was expected.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let counts = [
            ("turns_max", u64::from(self.turns_max)),
            ("tokens_max", self.tokens_max.unwrap_or(1)),
            ("turn_tokens_max", u64::from(self.turn_tokens_max.unwrap_or(1))),
            ("attempts_max", u64::from(self.attempts_max)),
        ];
        let is_zero = |(key, count): &(&'static str, u64)| (*count == 0).then_some(*key);
        faults.extend(counts.iter().filter_map(is_zero).map(|key| (key, "expected at least 1".to_owned())));
        for (key, seconds) in [("heartbeat", self.heartbeat), ("call_timeout", self.call_timeout)] {
            if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
                let expected =
                    format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {seconds}");
                faults.push((key, expected));
            }
        }
        if self
            .advertise
            .as_ref()
            .is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://"))
        {
            faults.push(("advertise", "expected a URL like http://host:port".to_owned()));
        }
        faults
    }

    /// The limits of a trajectory whose responses have at most `tokens_max` tokens.
    pub fn limits(&self, tokens_max: u32) -> Limits {
        let turn_tokens = self.turn_tokens_max.unwrap_or(tokens_max);
        let tokens = self.tokens_max.unwrap_or(u64::from(tokens_max));
        Limits { turns: self.turns_max, tokens, turn_tokens, ..Limits::default() }
    }
}
