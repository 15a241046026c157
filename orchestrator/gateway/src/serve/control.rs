//! The calls of the program that runs the agents: it makes trajectories, and says how they ended.
//!
//! | call | what it does |
//! |---|---|
//! | `POST /trajectories` | makes a trajectory, and returns the base URL for its agent |
//! | `GET /trajectories` | lists the trajectories whose rows are not put yet |
//! | `GET /trajectories/<name>` | shows one |
//! | `POST /trajectories/<name>/complete` | ends it; its reward, a number or a scorer, is given here or in a later call |
//! | `DELETE /trajectories/<name>` | cancels it: it gets no reward |
//!
//! Names are not secret. If the gateway has a token, these calls need it as a bearer token, so that an agent
//! cannot reward itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rolldock_listener::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::scoring::Scoring;
use super::{Failure, Served};
use crate::config::{Creation, Spec};
use crate::core::Core;
use crate::refusal::Refusal;
use crate::trajectories::{End, Found, One, Reward, Tombstone};

/// Maximum number of trajectories of a group.
const GROUP_SIZE_MAX: u32 = 65_536;
/// Maximum number of trajectories that a list shows.
const LISTED_MAX: usize = 1000;

type Answer = Result<Response, Failure>;

/// A caller that has shown the gateway's token, if there is one.
pub(super) struct Controller;

impl FromRequestParts<Served> for Controller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, served: &Served) -> Result<Self, Failure> {
        let sent = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        let token = served.core.config.token.as_deref();
        if !token.is_none_or(|token| same(token.as_bytes(), sent.as_bytes())) {
            return Err(Refusal::Unauthorized.into());
        }
        let Ok(client) = Client::from_request_parts(parts, served).await;
        client.authenticated().await;
        Ok(Self)
    }
}

/// Compares in a time that does not depend on where the first difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    let different = left.iter().zip(right).fold(0, |different, (left, right)| different | (left ^ right));
    left.len() == right.len() && different == 0
}

/// Reads a body; an empty one has all defaults.
fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Refusal> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    // serde would read an array as the fields in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::bad_request(
            "expected a JSON object as the body, found another value".to_owned(),
        ));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(error.to_string()))
}

pub(super) async fn open(
    State(served): State<Served>,
    _: Controller,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let spec = spec_of(&served.core, read(&body)?)?;
    let one = served.core.open_trajectory(spec).await?;
    let spec = &one.spec;
    let base = format!("{}/t/{}", root(&served.core, &headers), spec.capability);
    let made = json!({
        "trajectory": spec.uid,
        "capability": spec.capability,
        "base_url": format!("{base}/v1"),
        "anthropic_base_url": base,
        "group": spec.group,
        "group_size": spec.group_size,
        "limits": spec.limits,
        "sampling": spec.sampling,
    });
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

/// The URL at which agents reach the gateway.
fn root(core: &Core, headers: &HeaderMap) -> String {
    if let Some(advertised) = &core.config.advertise {
        return advertised.trim_end_matches('/').to_owned();
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1");
    format!("http://{host}")
}

fn spec_of(core: &Core, creation: Creation) -> Result<Spec, Refusal> {
    let config = &core.config;
    let limits = creation.limits.applied_to(&config.limits);
    let sampling = creation.sampling.unwrap_or_else(|| config.sampling.clone());
    if let Some(fault) = limits.fault().or_else(|| sampling.fault()) {
        return Err(Refusal::bad_request(fault));
    }
    let group_size = creation.group_size.unwrap_or(1);
    if !(1..=GROUP_SIZE_MAX).contains(&group_size) {
        let reason = format!("expected group_size of 1 to {GROUP_SIZE_MAX}, found {group_size}");
        return Err(Refusal::bad_request(reason));
    }
    if group_size > 1 && creation.group.is_none() {
        return Err(Refusal::bad_request("expected group, since group_size is above 1".to_owned()));
    }
    let uid = format!("t-{}", &config.entropy.hex()[..16]);
    let group = creation.group.unwrap_or_else(|| uid.clone());
    let seed = sampling.seed.unwrap_or_else(|| xxh3_64(format!("{}/{uid}", config.seed).as_bytes()));
    Ok(Spec {
        capability: config.entropy.hex(),
        opened_s: (config.unix_seconds)(),
        group,
        group_size,
        limits,
        sampling,
        seed,
        cache_salt: creation.cache_salt,
        prompt: creation.prompt,
        metadata: creation.metadata,
        uid,
    })
}

pub(super) async fn list(State(served): State<Served>, _: Controller) -> Answer {
    let live = served.core.book.live();
    let shown: Vec<Value> = live.iter().take(LISTED_MAX).map(|one| described(one)).collect();
    Ok(Json(json!({ "trajectories": shown, "total": live.len() })).into_response())
}

fn found(served: &Served, uid: &str) -> Result<Found, Refusal> {
    let found = served.core.book.by_uid(uid);
    found.ok_or_else(|| Refusal::NotFound(format!("no trajectory={uid}")))
}

pub(super) async fn show(State(served): State<Served>, Path(uid): Path<String>, _: Controller) -> Answer {
    Ok(match found(&served, &uid)? {
        Found::Live(one) => Json(described(&one)).into_response(),
        Found::Buried(tombstone) => Json(buried(&tombstone)).into_response(),
    })
}

fn described(one: &One) -> Value {
    let live = one.live.lock();
    let origins: BTreeMap<&str, usize> = rolldock_trajectory::Origin::ALL
        .into_iter()
        .map(|origin| (origin.as_str(), live.forest.count(origin)))
        .filter(|(_, count)| *count > 0)
        .collect();
    json!({
        "trajectory": one.spec.uid,
        "state": if live.is_settled() { "settled" } else if live.end.is_some() { "ended" } else { "open" },
        "end": live.end,
        "reward": live.reward.as_ref().map(|reward| reward.reward),
        "turns": live.turns(),
        "turns_by_origin": origins,
        "sampled_tokens": live.sampled(),
        "group": one.spec.group,
        "group_size": one.spec.group_size,
        "metadata": one.spec.metadata,
    })
}

fn buried(tombstone: &Tombstone) -> Value {
    let state = match (&tombstone.refused, tombstone.rows) {
        (Some(_), _) => "refused",
        (None, 0) => "left_out",
        (None, _) => "put",
    };
    json!({
        "trajectory": tombstone.uid,
        "state": state,
        "refused": tombstone.refused,
        "end": tombstone.end,
        "reward": tombstone.reward.as_ref().map(|reward| reward.reward),
        "turns": tombstone.turns,
        "group": tombstone.group,
        "rows": tombstone.rows,
    })
}

/// The rewards in the body of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Completion {
    /// The reward. If it is absent, the reward is the sum of `turn_rewards`. Without these, it follows in a later
    /// call.
    reward: Option<f32>,
    /// The scorer that computes the reward, in place of `reward`.
    score: Option<Scoring>,
    turn_rewards: Option<TurnRewards>,
}

/// The rewards of turns: of all turns in their order, or by the number of the turn.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TurnRewards {
    All(Vec<f32>),
    Some(BTreeMap<String, f32>),
}

impl Completion {
    fn into_reward(self) -> Result<Option<Reward>, Refusal> {
        let turns: Vec<(u32, f32)> = match self.turn_rewards {
            None => Vec::new(),
            Some(TurnRewards::All(rewards)) => (0..).zip(rewards).collect(),
            Some(TurnRewards::Some(rewards)) => {
                let number = |(turn, reward): (String, f32)| Some((turn.parse().ok()?, reward));
                let numbered: Option<_> = rewards.into_iter().map(number).collect();
                let reason = "expected the numbers of turns as the keys of turn_rewards".to_owned();
                numbered.ok_or(Refusal::bad_request(reason))?
            }
        };
        let total = self.reward.or((!turns.is_empty()).then(|| turns.iter().map(|(_, reward)| reward).sum()));
        let is_finite = turns.iter().map(|(_, reward)| *reward).chain(total).all(f32::is_finite);
        if !is_finite {
            return Err(Refusal::bad_request("expected finite rewards".to_owned()));
        }
        Ok(total.map(|reward| Reward { reward, turns }))
    }
}

pub(super) async fn complete(
    State(served): State<Served>,
    Path(uid): Path<String>,
    _: Controller,
    body: Bytes,
) -> Answer {
    let mut completion: Completion = read(&body)?;
    if completion.reward.is_some() && completion.score.is_some() {
        return Err(Refusal::bad_request("expected reward or score, found both".to_owned()).into());
    }
    let score = completion.score.take();
    let is_scored = score.is_some();
    let named = found(&served, &uid)?;
    if let (Found::Live(one), Some(score)) = (&named, score) {
        completion.reward = Some(score.of(one).await?);
    }
    let reward = completion.into_reward()?;
    let one = match named {
        Found::Live(one) => one,
        // The scored text was dropped when the rows were put, so a repeated call is answered with the
        // recorded result.
        Found::Buried(tombstone) if is_scored && tombstone.reward.is_some() => {
            return Ok(Json(buried(&tombstone)).into_response());
        }
        Found::Buried(tombstone) if !is_scored && (reward.is_none() || reward == tombstone.reward) => {
            return Ok(Json(buried(&tombstone)).into_response());
        }
        Found::Buried(_) => {
            return Err(Refusal::other_reward(&uid).into());
        }
    };
    finish(&served.core, &one, reward, End::Completed).await?;
    Ok(Json(described(&one)).into_response())
}

/// Records the reward that an agent gives to its own trajectory, if the run allows this. The trajectory
/// stays open.
pub(super) async fn reward(
    State(served): State<Served>,
    Path(capability): Path<String>,
    client: Client,
    body: Bytes,
) -> Answer {
    let one = match served.core.book.by_capability(&capability) {
        Some(Found::Live(one)) => one,
        Some(Found::Buried(tombstone)) => {
            return Err(tombstone.end.refusal(&tombstone.uid).into());
        }
        None => {
            let reason = "no trajectory has this capability".to_owned();
            return Err(Refusal::NoTrajectory(reason).into());
        }
    };
    client.authenticated().await;
    if !served.core.config.agents_reward {
        let reason = "agents give no rewards here (expected agent.reward = \"agent\" in the recipe of a run)";
        return Err(Refusal::bad_request(reason.to_owned()).into());
    }
    let reward = read::<Completion>(&body)?.into_reward()?;
    let reward = reward.ok_or_else(|| Refusal::bad_request("expected a reward".to_owned()))?;
    if let Some(last) = served.core.reward(&one, reward)? {
        served.core.kept(last).await?;
    }
    Ok(Json(described(&one)).into_response())
}

/// Gives the reward, then ends the trajectory. Both are durable when this returns.
async fn finish(core: &Arc<Core>, one: &Arc<One>, reward: Option<Reward>, end: End) -> Result<(), Refusal> {
    let rewarded = reward.map(|reward| core.reward(one, reward)).transpose()?.flatten();
    let ended = core.end(one, end);
    if let Some(last) = rewarded.max(ended) {
        core.kept(last).await?;
    }
    Ok(())
}

pub(super) async fn cancel(State(served): State<Served>, Path(uid): Path<String>, _: Controller) -> Answer {
    let one = match found(&served, &uid)? {
        Found::Live(one) => one,
        Found::Buried(tombstone) => return Ok(Json(buried(&tombstone)).into_response()),
    };
    finish(&served.core, &one, None, End::Cancelled).await?;
    if one.live.lock().end == Some(End::Cancelled) {
        served.core.give_up_reward(&one);
    }
    Ok(Json(described(&one)).into_response())
}
