//! The calls of agents.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use rolldock_listener::Client;
use rolldock_trajectory::{Request, TurnId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::outgoing::{Outgoing, Receipt, Turned};
use super::respond::refused;
use super::{Failure, Served};
use crate::answer::Answer;
use crate::calls::{Form, Model};
use crate::refusal::Refusal;
use crate::surfaces::{Asked, Surface};
use crate::trajectories::{End, Found, InFlight, One};
use crate::turns::{Job, commit};

/// The header by which a request names its trajectory.
const TRAJECTORY: &str = "x-rolldock-trajectory";
/// The header by which the vendors' clients mark a repeated request.
const RETRIES: &str = "x-stainless-retry-count";

/// The capability in a path; absent if a header has it.
#[derive(Debug, Deserialize)]
pub(super) struct OfPath {
    #[serde(default)]
    capability: Option<String>,
}

type Body = Result<Bytes, BytesRejection>;

macro_rules! surface {
    ($name:ident, $surface:expr) => {
        pub(super) async fn $name(
            served: State<Served>,
            path: Path<OfPath>,
            client: Client,
            headers: HeaderMap,
            body: Body,
        ) -> Response {
            call(served, path, client, headers, body, $surface).await
        }
    };
}

surface!(chat, Surface::Chat);
surface!(text, Surface::Text);
surface!(messages, Surface::Messages);
surface!(responses, Surface::Responses);

/// The trajectory that a request names.
fn named(served: &Served, path: &OfPath, headers: &HeaderMap) -> Result<Found, Refusal> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || header(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    let capability =
        path.capability.as_deref().or_else(|| header(TRAJECTORY)).or_else(|| header("x-api-key"));
    let Some(capability) = capability.or_else(bearer) else {
        let reason = "expected a trajectory's capability: in the path (/t/<capability>/v1), as bearer token, or \
                      in the header x-api-key or x-rolldock-trajectory";
        return Err(Refusal::NoTrajectory(reason.to_owned()));
    };
    let found = served.core.book.by_capability(capability.trim());
    found.ok_or_else(|| Refusal::NoTrajectory("no trajectory has this capability".to_owned()))
}

/// The trajectory of a call, if it still takes calls.
fn open(served: &Served, path: &OfPath, headers: &HeaderMap) -> Result<Arc<One>, Refusal> {
    match named(served, path, headers)? {
        Found::Live(one) => {
            let end = one.live.lock().end;
            end.map_or(Ok(Arc::clone(&one)), |end| Err(end.refusal(&one.spec.uid)))
        }
        Found::Buried(tombstone) => Err(tombstone.end.refusal(&tombstone.uid)),
    }
}

async fn call(
    State(served): State<Served>,
    Path(path): Path<OfPath>,
    client: Client,
    headers: HeaderMap,
    body: Body,
    surface: Surface,
) -> Response {
    let began = Instant::now();
    let one = match open(&served, &path, &headers) {
        Ok(one) => one,
        Err(refusal) => return refused(surface, &refusal),
    };
    client.authenticated().await;
    let read = body.map_err(|error| Refusal::bad_request(error.body_text()));
    let asked = read.and_then(|body| Ok((surface.read(&body)?, body)));
    let (asked, body) = match asked {
        Ok(asked) => asked,
        Err(refusal) => return refused(surface, &refusal),
    };
    let retries = headers.get(RETRIES).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    let call = Call {
        served: served.clone(),
        one,
        asked: Arc::new(asked),
        body: [surface.as_str().as_bytes(), b"\n", &body].concat(),
        is_retry: retries.is_some_and(|retries| retries > 0),
    };
    let asked = Arc::clone(&call.asked);
    let response = if asked.is_streamed {
        Outgoing::streamed(surface, asked, call.turn(), served.core.config.heartbeat).await
    } else {
        match call.turn().await {
            Ok(turned) => Outgoing::whole(surface, &asked, turned),
            Err(refusal) => refused(surface, &refusal),
        }
    };
    let labels =
        [("surface", surface.as_str().to_owned()), ("status", response.status().as_u16().to_string())];
    metrics::counter!("rolldock_gateway_calls_total", &labels).increment(1);
    metrics::histogram!("rolldock_gateway_turn_seconds").record(began.elapsed().as_secs_f64());
    response
}

/// A call of an agent.
struct Call {
    served: Served,
    one: Arc<One>,
    asked: Arc<Asked>,
    /// The surface and the body. They identify the request when it is repeated.
    body: Vec<u8>,
    is_retry: bool,
}

impl Call {
    /// Makes the turn, or finds the turn that a marked retry asks for again. Cancel-safe: an incomplete turn
    /// leaves nothing.
    async fn turn(self) -> Result<Turned, Refusal> {
        let (core, one) = (&self.served.core, &self.one);
        let hash = xxh3_128(&self.body);
        if self.is_retry {
            // The first request may still be in flight.
            one.until_quiet(hash).await;
            if let Some((turn, answer)) = self.recorded() {
                metrics::counter!("rolldock_gateway_replays_total").increment(1);
                return Ok(self.turned(turn, answer, true));
            }
        }
        let request = self.request()?;
        let making = async {
            let most = self.asked.max_tokens.unwrap_or(u32::MAX);
            let begun = InFlight::begin(one, &core.book, hash, most).await;
            let in_flight = begun.map_err(|end| {
                core.end(one, end);
                end.refusal(&one.spec.uid)
            })?;
            let job = Job { one, asked: &self.asked, request: &request, admitted: in_flight.admitted };
            let made = self.served.maker.make(job).await?;
            Ok::<_, Refusal>((in_flight, made))
        };
        let Some(made) = one.ended.run_until_cancelled(making).await else {
            let end = one.live.lock().end.unwrap_or(End::Completed);
            return Err(end.refusal(&one.spec.uid));
        };
        let (in_flight, made) = made?;
        let (turn, answer) = commit(core, in_flight, made).await?;
        Ok(self.turned(turn, answer, false))
    }

    /// The turn that was recorded for this request.
    fn recorded(&self) -> Option<(TurnId, Answer)> {
        let live = self.one.live.lock();
        let turn = live.forest.retried(&self.body)?;
        let answer = Answer::again(live.forest.turn(turn)?, live.extra(turn)?);
        Some((turn, answer))
    }

    fn turned(&self, turn: TurnId, answer: Answer, is_replay: bool) -> Turned {
        let (core, one) = (Arc::clone(&self.served.core), Arc::clone(&self.one));
        Turned { answer, receipt: Receipt::new(core, one, turn, is_replay) }
    }

    fn request(&self) -> Result<Request, Refusal> {
        let asked = &self.asked.request;
        let request = match self.asked.form {
            Form::Chat => {
                let messages = asked.get("messages").and_then(Value::as_array).cloned().unwrap_or_default();
                Request::chat(messages, asked.get("tools").cloned())
                    .map_err(|error| Refusal::bad_request(error.to_string()))?
                    .with_arguments(asked.get("chat_template_kwargs").cloned().unwrap_or_default())
            }
            Form::Text => match asked.get("prompt") {
                Some(Value::Array(ids)) => Request::ids(ids.iter().filter_map(id).collect()),
                prompt => Request::text(prompt.and_then(Value::as_str).unwrap_or_default()),
            },
        };
        Ok(request.with_body(&self.body))
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn model_json(name: &str, length_max: Option<u32>) -> Value {
    json!({
        "id": name, "object": "model", "created": 0, "owned_by": "rolldock", "max_model_len": length_max,
        // Anthropic's clients read these.
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
    })
}

/// The model of the fleet, for a client with a capability.
async fn shown_model(
    served: &Served,
    path: &OfPath,
    client: &Client,
    headers: &HeaderMap,
) -> Result<Model, Failure> {
    named(served, path, headers)?;
    client.authenticated().await;
    Ok(served.maker.model().await?)
}

/// The list of models.
pub(super) async fn models(
    State(served): State<Served>,
    Path(path): Path<OfPath>,
    client: Client,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let model = shown_model(&served, &path, &client, &headers).await?;
    let listed = json!({
        "object": "list", "data": [model_json(&model.name, model.length_max)],
        "has_more": false, "first_id": model.name, "last_id": model.name,
    });
    Ok(Json(listed).into_response())
}

/// A model by its name. Every name stands for the fleet's model, as in calls.
pub(super) async fn model(
    State(served): State<Served>,
    Path(path): Path<OfPath>,
    client: Client,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let model = shown_model(&served, &path, &client, &headers).await?;
    Ok(Json(model_json(&model.name, model.length_max)).into_response())
}
