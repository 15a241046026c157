//! Computes the reward of a trajectory with one of Rolldock's scorers. The call that completes the trajectory names
//! the scorer.
//!
//! A scorer is a pure function of the last text and the ground truth. The scorer runs on a thread for blocking work,
//! not on the threads that serve connections. Every error is a mistake in the call (an unknown scorer, a wrong option,
//! a ground truth that the scorer cannot read), except a panic of the scorer. An error changes nothing, so a later call
//! can complete the trajectory.
//!
//! # Deliberately absent
//! Rewards of other processes (judges, servers, commands). A call must not choose addresses and commands for the
//! gateway. Callers compute such rewards themselves and send the number.

use std::sync::Arc;

use rolldock_reward::{RewardError, ScoreInput, Scorer, ScorerConfig};
use rolldock_scope::blocking;
use serde::Deserialize;
use serde_json::Value;

use crate::refusal::Refusal;
use crate::trajectories::One;

/// How a trajectory is scored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scoring {
    /// A name, or an object with the key `scorer` and the options of the scorer.
    scorer: Value,
    ground_truth: String,
    #[serde(default)]
    data_source: String,
    /// Further data that some scorers read.
    #[serde(default)]
    extra: Option<Value>,
}

impl Scoring {
    /// The score of the text of the trajectory's last turn. A turn without a text, such as a turn of tool
    /// calls only, is scored as an empty text.
    pub(super) async fn of(self, one: &One) -> Result<f32, Refusal> {
        let last = one.live.lock().forest.turns().last().map(|turn| turn.emitted());
        let Some(last) = last else {
            let reason = format!("trajectory={} has no turn to score", one.spec.uid);
            return Err(Refusal::bad_request(reason));
        };
        let scorer = scorer(&self.scorer)?;
        let scoring = blocking("trajectory score", move || {
            scorer.score(&ScoreInput {
                response: last["content"].as_str().unwrap_or_default(),
                ground_truth: &self.ground_truth,
                data_source: &self.data_source,
                extra: self.extra.as_ref(),
            })
        });
        let scored = scoring.await.map_err(|died| Refusal::Engine(format!("the scorer failed: {died}")))?;
        scored.map(|score| score.score as f32).map_err(|error| refused(&error))
    }
}

fn scorer(named: &Value) -> Result<Arc<dyn Scorer>, Refusal> {
    let config = match named {
        Value::String(name) => ScorerConfig::from_name(name).map_err(|error| refused(&error))?,
        Value::Object(_) => serde_json::from_value(named.clone())
            .map_err(|error| Refusal::bad_request(format!("score.scorer: {error}")))?,
        other => {
            let reason = format!("expected score.scorer to be a name or an object, found {other}");
            return Err(Refusal::bad_request(reason));
        }
    };
    config.build().map_err(|error| refused(&error))
}

fn refused(error: &RewardError) -> Refusal {
    Refusal::bad_request(format!("the trajectory was not scored: {error}"))
}
