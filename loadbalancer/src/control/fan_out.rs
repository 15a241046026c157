//! Makes one call to many servers.

use std::future::Future;

use futures::stream::{self, StreamExt};

use super::{ControlError, ServerRef};

/// Makes `call` for every server, `limit` at a time, and returns the results in the order of `servers`. A
/// failure on one server does not affect the others. Cancel-safe: running calls are dropped, and further ones
/// are not made.
pub async fn fan_out<'a, T, Call: Future<Output = Result<T, ControlError>> + 'a>(
    servers: &'a [ServerRef],
    limit: usize,
    call: impl Fn(&'a ServerRef) -> Call,
) -> Vec<(&'a ServerRef, Result<T, ControlError>)> {
    // The calls are collected first, because a future that holds a closure across an await cannot be sent to
    // another thread.
    let calls: Vec<_> = servers
        .iter()
        .map(|server| {
            let called = call(server);
            async move { (server, called.await) }
        })
        .collect();
    stream::iter(calls).buffered(limit.max(1)).collect().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_limited_and_one_failure_does_not_affect_the_others() {
        let servers: Vec<ServerRef> =
            (0..7).map(|number| ServerRef { name: format!("s{number}").into(), url: None }).collect();
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = fan_out(&servers, 3, async |server: &ServerRef| {
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            running.fetch_sub(1, Ordering::Relaxed);
            match &*server.name {
                "s4" => Err(ControlError::Unsupported { server: Arc::clone(&server.name), what: "anything" }),
                _ => Ok(()),
            }
        })
        .await;
        assert_eq!(most.load(Ordering::Relaxed), 3);
        let failed: Vec<&str> = outcomes
            .iter()
            .filter(|(_, outcome)| outcome.is_err())
            .map(|(server, _)| &*server.name)
            .collect();
        assert_eq!((outcomes.len(), failed), (7, vec!["s4"]));
    }
}
