//! Records a whole turn. From this moment on the turn is part of the trajectory, whether or not its agent is
//! still there.

use std::sync::Arc;

use rolldock_trajectory::{Delivery, Emitted, TurnId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Made;
use crate::answer::{Answer, TurnExtra};
use crate::core::Core;
use crate::refusal::Refusal;
use crate::trajectories::{Event, InFlight};

/// Records a turn, and returns when it is durable. Cancel-safe: a task finishes the record, and the call
/// counts as in flight until then.
///
/// # Errors
/// The trajectory has ended, or the log has failed.
pub(crate) async fn commit(
    core: &Arc<Core>,
    in_flight: InFlight,
    made: Made,
) -> Result<(TurnId, Answer), Refusal> {
    let (committed, commitment) = oneshot::channel();
    let of_task = Arc::clone(core);
    core.scope.spawn_detached("turn commit", async move {
        // If the receiver is gone, the agent has disconnected. The recorded turn then answers the agent's
        // retry.
        let _ = committed.send(record(&of_task, in_flight, made).await);
    });
    commitment.await.unwrap_or_else(|_died| Err(Refusal::Store("the record of a turn was lost".to_owned())))
}

async fn record(core: &Core, in_flight: InFlight, made: Made) -> Result<(TurnId, Answer), Refusal> {
    let began = Instant::now();
    let one = &in_flight.one;
    let Made { prompt, sampled, answer, server, is_fallback } = made;
    let tokens = sampled.ids.len() as u64;
    let origin = prompt.origin().as_str();
    let (turn, event, sequence) = {
        let mut live = one.live.lock();
        if let Some(end) = live.end {
            return Err(end.refusal(&one.spec.uid));
        }
        let recorded = live.forest.record(&prompt, sampled, &emitted(&answer), Delivery::Pending);
        let record = recorded.map_err(|error| Refusal::Engine(error.to_string()))?;
        let turn = record.turn();
        let event = Event::Turn(extra(&answer, server, is_fallback), record);
        let sequence = core.append(one.number, &event);
        (turn, event, sequence)
    };
    core.kept(sequence).await?;
    one.live.lock().apply(event).map_err(Refusal::Store)?;
    metrics::histogram!("rolldock_gateway_record_seconds").record(began.elapsed().as_secs_f64());
    metrics::counter!("rolldock_gateway_turns_total", "origin" => origin).increment(1);
    metrics::counter!("rolldock_gateway_turn_tokens_total").increment(tokens);
    Ok((turn, answer))
}

/// The answer with which the forest compares later requests.
fn emitted(answer: &Answer) -> Emitted {
    // Anthropic's clients return the signature of the reasoning, and OpenAI's responses the item's id.
    Emitted { message: answer.said(), ids: vec![answer.id.clone(), format!("msg_{}", answer.id)] }
}

fn extra(answer: &Answer, server: Arc<str>, is_fallback: bool) -> TurnExtra {
    TurnExtra {
        id: answer.id.clone(),
        created: answer.created,
        model: answer.model.clone(),
        finish: answer.finish.clone(),
        server,
        is_fallback,
        logprobs: answer.logprobs.clone(),
    }
}
