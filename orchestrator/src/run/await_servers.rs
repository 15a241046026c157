//! Waits for the servers with which a run starts.
//!
//! Each server is asked until it answers. The run starts when enough servers have answered and every other
//! server has failed once or a grace period is over. The other servers join the run when they answer, so a
//! single busy, broken or lost answer does not prevent the start. A server that answers but cannot serve the
//! recipe ends the start, because either the recipe or the server is wrong.

use std::time::Duration;

use anyhow::bail;
use futures::stream::{FuturesUnordered, StreamExt};
use rolldock_loadbalancer::within;
use tokio::time::Instant;

use crate::engine::{EngineError, ErrorClass};

/// First pause before a server is asked again. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest pause before a server is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of servers whose errors are listed.
const LISTED_MAX: usize = 8;

/// A server of the recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) name: String,
    pub(super) url: String,
}

/// How many servers have to answer, and for how long they are asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// The number of servers with which a run can start: `fleet.servers_min`.
    pub(super) enough: usize,
    /// The maximum time for which a server without an answer delays a start with enough servers.
    pub(super) grace: Duration,
    /// The time for which a server that accepts no connection is asked.
    pub(super) unreachable_max: Duration,
    /// The time for which other servers are asked.
    pub(super) asked_max: Duration,
}

/// The result of asking the servers of a recipe. Both lists are in the recipe's order.
#[derive(Debug)]
pub(super) struct Found<T> {
    /// The servers that can be used, with their answers.
    pub(super) ready: Vec<(Endpoint, T)>,
    /// The servers without a usable answer.
    pub(super) absent: Vec<Endpoint>,
}

/// The last result of asking a server.
enum Seen<T> {
    Unheard,
    Failing(EngineError),
    Ready(T),
}

/// Calls `ask` for each of `endpoints` until the run can start. Time in which this process itself was stalled
/// does not count towards the limits.
///
/// Cancel-safe if `ask` is.
///
/// # Errors
/// Returns the error of a server that cannot serve the recipe. If too few servers answer in time, the error
/// lists the last errors of the other servers.
pub(super) async fn await_servers<T, Ask, Asking>(
    endpoints: Vec<Endpoint>,
    terms: &Terms,
    ask: Ask,
) -> anyhow::Result<Found<T>>
where
    Ask: Fn(Endpoint) -> Asking,
    Asking: Future<Output = Result<T, EngineError>>,
{
    let mut seen: Vec<Seen<T>> = endpoints.iter().map(|_| Seen::Unheard).collect();
    let asking = ask_all(&endpoints, &mut seen, terms, &ask);
    let in_time = within(terms.asked_max, asking).await;
    in_time.unwrap_or(Ok(()))?;
    let ready = seen.iter().filter(|seen| matches!(seen, Seen::Ready(_))).count();
    if ready < terms.enough {
        bail!(
            "{ready} of {} servers answer, expected at least fleet.servers_min={}: {}",
            endpoints.len(),
            terms.enough,
            reasons(&endpoints, &seen, terms.asked_max)
        );
    }
    let mut found = Found { ready: Vec::new(), absent: Vec::new() };
    for (endpoint, seen) in endpoints.into_iter().zip(seen) {
        match seen {
            Seen::Ready(answer) => found.ready.push((endpoint, answer)),
            Seen::Failing(_) | Seen::Unheard => found.absent.push(endpoint),
        }
    }
    Ok(found)
}

/// Asks the servers until the run can start, or until it is clear that too few will answer.
async fn ask_all<T, Ask, Asking>(
    endpoints: &[Endpoint],
    seen: &mut [Seen<T>],
    terms: &Terms,
    ask: &Ask,
) -> Result<(), EngineError>
where
    Ask: Fn(Endpoint) -> Asking,
    Asking: Future<Output = Result<T, EngineError>>,
{
    let began = Instant::now();
    let ask_after = move |server: usize, pause: Duration| async move {
        tokio::time::sleep(pause).await;
        (server, pause, ask(endpoints[server].clone()).await)
    };
    let mut tries: FuturesUnordered<_> =
        (0..endpoints.len()).map(|server| ask_after(server, Duration::ZERO)).collect();
    let mut grace = std::pin::pin!(tokio::time::sleep(terms.grace));
    let mut is_grace_over = false;
    loop {
        let ready = seen.iter().filter(|seen| matches!(seen, Seen::Ready(_))).count();
        let all_heard = seen.iter().all(|seen| !matches!(seen, Seen::Unheard));
        let can_start = ready >= terms.enough && (all_heard || is_grace_over);
        if can_start || ready + tries.len() < terms.enough {
            return Ok(());
        }
        let (server, pause, answer) = tokio::select! {
            biased;
            Some(answered) = tries.next() => answered,
            () = &mut grace, if !is_grace_over => {
                is_grace_over = true;
                continue;
            }
            else => return Ok(()),
        };
        let error = match answer {
            Ok(answer) => {
                seen[server] = Seen::Ready(answer);
                continue;
            }
            Err(error) if error.class() == ErrorClass::Client => return Err(error),
            Err(error) => error,
        };
        let is_unreachable = matches!(error, EngineError::Unreachable { .. });
        let asked_max = if is_unreachable { terms.unreachable_max } else { terms.asked_max };
        if matches!(seen[server], Seen::Unheard) {
            let limit_s = asked_max.as_secs_f64();
            tracing::warn!(%error, limit_s, "a server gives no usable answer yet, and is asked again");
        }
        let next = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        if began.elapsed() + next < asked_max {
            tries.push(ask_after(server, next));
        }
        seen[server] = Seen::Failing(error);
    }
}

/// Why servers are not ready.
fn reasons<T>(endpoints: &[Endpoint], seen: &[Seen<T>], asked_max: Duration) -> String {
    let reason = |(endpoint, seen): (&Endpoint, &Seen<T>)| match seen {
        Seen::Ready(_) => None,
        Seen::Failing(error) => Some(error.to_string()),
        Seen::Unheard => {
            let (Endpoint { name, url }, seconds) = (endpoint, asked_max.as_secs_f64());
            Some(format!(
                "server={name} at {url} gives no answer to the probe within {seconds} s; is it paused?"
            ))
        }
    };
    let all: Vec<String> = endpoints.iter().zip(seen).filter_map(reason).collect();
    let more = all.len().saturating_sub(LISTED_MAX);
    let listed = all[..all.len() - more].join("; ");
    if more > 0 { format!("{listed}; and {more} more") } else { listed }
}

#[cfg(test)]
mod tests;
