//! The calls that an update makes to one server, each with a time limit.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::target::Target;
use super::{Announcement, Reload};
use crate::control::{ControlError, EngineControl, check};
use crate::{LoadBalancer, PauseMode};

/// The outcome of a call.
#[derive(Clone)]
pub(super) enum Attempt {
    /// The call was not made, for this reason.
    NotMade(String),
    /// The call was not answered in time, or it was given up. Its effect is unknown.
    Unanswered(String),
    /// The server answered.
    Answered(Result<(), ControlError>),
}

/// A call to one server.
pub(super) type Call = BoxFuture<'static, Result<(), ControlError>>;

/// The time limits of a phase.
#[derive(Clone, Copy)]
pub(super) struct Until {
    pub(super) began: Instant,
    pub(super) ends: Instant,
}

/// Makes a call, unless the phase is over or the round is given up. Cancel-safe if `call` is cancel-safe.
pub(super) async fn attempt(
    token: &CancellationToken,
    until: Until,
    limit: Duration,
    call: impl Future<Output = Result<(), ControlError>>,
) -> Attempt {
    let given_up = "given up for a newer announcement, or at the end".to_owned();
    if token.is_cancelled() {
        return Attempt::NotMade(given_up);
    }
    let seconds = limit.as_secs_f64();
    if Instant::now() >= until.ends {
        return Attempt::NotMade(format!("it was not called within {seconds} s"));
    }
    match token.run_until_cancelled(tokio::time::timeout_at(until.ends, call)).await {
        Some(Ok(answer)) => Attempt::Answered(answer),
        Some(Err(_)) => Attempt::Unanswered(format!("no answer within {seconds} s")),
        None => Attempt::Unanswered(given_up),
    }
}

/// Pauses the server's engine.
pub(super) fn pause(control: Arc<dyn EngineControl>, target: Target, mode: PauseMode) -> Call {
    async move { control.pause(&target.server, mode).await }.boxed()
}

/// Asks the server to load the announced weights.
pub(super) fn load(
    control: Arc<dyn EngineControl>,
    target: Target,
    reload: Reload,
    announcement: Arc<Announcement>,
) -> Call {
    let Reload { rpc, path_argument, mut kwargs } = reload;
    if let Some(path) = &announcement.path {
        kwargs.insert(path_argument, path.as_str().into());
    }
    async move { control.collective_rpc(&target.server, &rpc, &kwargs).await }.boxed()
}

/// Asks the server to receive weights from the trainer.
pub(super) fn transfer(
    control: Arc<dyn EngineControl>,
    target: Target,
    announcement: Arc<Announcement>,
) -> Call {
    async move {
        let Target { server, .. } = &target;
        control.start_weight_update(server).await?;
        let received = async {
            let nothing = serde_json::Value::Null;
            let payload = announcement.payload.as_ref().unwrap_or(&nothing);
            if let Err(error) = control.update_weights(server, payload).await {
                // An update that stays open would block the next one.
                let _ = control.finish_weight_update(server, None).await;
                return Err(error);
            }
            control.finish_weight_update(server, Some(&*announcement.label)).await
        };
        // The transfer has begun. If the server does not offer this call, the transfer has failed half-way.
        received.await.map_err(|error| match error {
            ControlError::Unsupported { server, what } => ControlError::Failed {
                server,
                what,
                reason: "the server does not offer this call".to_owned(),
            },
            other => other,
        })
    }
    .boxed()
}

/// Empties the server's prefix cache. If `is_running`, the cache blocks of running requests are computed
/// again.
pub(super) fn reset(control: Arc<dyn EngineControl>, target: Target, is_running: bool) -> Call {
    async move {
        match is_running {
            true => control.recompute_running(&target.server).await,
            false => control.reset_prefix_cache(&target.server).await,
        }
    }
    .boxed()
}

/// Makes the server generate a few tokens, and looks at their log-probabilities. An engine that another
/// client has paused would not answer, so such an engine is not asked.
pub(super) fn check(control: Arc<dyn EngineControl>, balancer: LoadBalancer, target: Target) -> Call {
    async move {
        let server = &target.server;
        if control.is_paused(server).await == Ok(true) {
            let what = "a generation while it is paused";
            return Err(ControlError::Unsupported { server: Arc::clone(&server.name), what });
        }
        control.check_generation(server).await?;
        balancer.count_probe(check::TOKENS);
        Ok(())
    }
    .boxed()
}

/// The failed call, if a process is not the one that has loaded the weights.
pub(super) const SAME_PROCESS: &str = "the label of the loaded weights";

/// How the process that has loaded the weights is told from one that has replaced it since.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    /// The name that the old weights had before the new ones were loaded; `None` if it is not known.
    pub(super) former_label: Option<Arc<str>>,
    /// Whether this round has paused the engine.
    pub(super) is_paused: bool,
}

/// Tells the server the name of its weights. Fails if the process is not the one that has loaded them, because such a
/// process would have the name without the weights, and if the server does not report the name afterwards.
pub(super) fn set_label(
    control: Arc<dyn EngineControl>,
    target: Target,
    label: Arc<str>,
    process: Process,
) -> Call {
    async move {
        let server = &target.server;
        let failed = |reason| {
            Err(ControlError::Failed { server: Arc::clone(&server.name), what: SAME_PROCESS, reason })
        };
        if let Some(former) = process.former_label
            && let Ok(found) = control.weight_version(server).await
            && found != former
            && found != label
        {
            return failed(format!("expected the former weights={former}, found={found}"));
        }
        control.set_weight_version(server, &label).await?;
        if process.is_paused && control.is_paused(server).await == Ok(false) {
            return failed("expected a paused engine, found a running one".to_owned());
        }
        match control.weight_version(server).await {
            Ok(found) if found != label => failed(format!("expected weights={label}, found={found}")),
            _ => Ok(()),
        }
    }
    .boxed()
}
