//! Adapts the load balancer's weight updater to the driver.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_loadbalancer::update::{self, Reload, UpdateConfig, UpdateError, UpdateOutcome, WeightUpdater};
use rolldock_loadbalancer::{EngineControl, LoadBalancer, PauseMode};
use tokio_util::sync::CancellationToken;

use super::{
    Announcement, Applied, ApplyVersion, Missed, PolicyUpdate, UpdateMethod, UpdatePause, UpdateProgress,
};
use rolldock_scope::Scope;

/// Brings versions to a fleet as the recipe configures. Its work ends with the scope, and leaves no engine
/// paused.
#[derive(Debug)]
pub struct FleetUpdater {
    updater: WeightUpdater,
    balancer: LoadBalancer,
    pauses: bool,
    has_method: bool,
}

impl FleetUpdater {
    /// An updater of `balancer`'s fleet.
    pub fn new(
        balancer: LoadBalancer,
        control: Arc<dyn EngineControl>,
        update: &PolicyUpdate,
        scope: &Scope,
    ) -> Result<Self, UpdateError> {
        let config = update_config(update);
        let pauses = config.pause.is_some();
        let has_method = config.method != update::UpdateMethod::None;
        let (tracker, end) = (scope.tracker().clone(), scope.token().clone());
        let updater = WeightUpdater::new(balancer.clone(), control, config, tracker, end)?;
        Ok(Self { updater, balancer, pauses, has_method })
    }
}

/// Converts a recipe's settings to the configuration of the load balancer's updater.
pub fn update_config(update: &PolicyUpdate) -> UpdateConfig {
    UpdateConfig {
        method: match update.method {
            UpdateMethod::None => update::UpdateMethod::None,
            UpdateMethod::Reload => {
                update::UpdateMethod::Reload(Reload { rpc: update.rpc.clone(), ..Reload::default() })
            }
            UpdateMethod::Transfer => update::UpdateMethod::Transfer,
            UpdateMethod::Command => update::UpdateMethod::Command(update.command.clone()),
            UpdateMethod::Http => update::UpdateMethod::Http(update.url.clone().unwrap_or_default()),
        },
        pause: match update.pause {
            UpdatePause::Keep => Some(PauseMode::Keep),
            UpdatePause::Abort => Some(PauseMode::Abort),
            UpdatePause::Wait => Some(PauseMode::Wait),
            UpdatePause::None => None,
        },
        reset_prefix_cache: update.resets_cache(),
        check_generation: update.check_generation,
        deadlines: update.timeouts,
        ..UpdateConfig::default()
    }
}

impl ApplyVersion for FleetUpdater {
    fn apply<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, Applied> {
        async move {
            let report = self.updater.update(announcement.clone()).await;
            match report.outcome {
                UpdateOutcome::Complete | UpdateOutcome::Partial => {}
                UpdateOutcome::Refused { reason } => return Applied::Refused { reason },
                UpdateOutcome::Superseded { by } => {
                    let reason = format!("version={by} was given to the servers by another caller");
                    return Applied::Refused { reason };
                }
                UpdateOutcome::Ended => return Applied::Ended,
            }
            let asked = report.servers.len();
            let missed = |server: update::ServerUpdate| {
                let update::Failure { phase, reason } = server.failure?;
                let reason = format!("{}: {reason}", phase.as_str());
                Some(Missed { server: server.server.to_string(), reason })
            };
            let missed: Vec<Missed> = report.servers.into_iter().filter_map(missed).collect();
            Applied::Asked { updated: asked - missed.len(), missed }
        }
        .boxed()
    }

    fn require(&self, announcement: &Announcement) {
        let version = announcement.version;
        if self.updater.require(announcement.clone()) {
            tracing::info!(version, "servers get the weights of the run before they generate");
        } else if self.has_method {
            tracing::warn!(
                version,
                "only the trainer can say whether every server has the weights of the run"
            );
        }
    }

    fn recover(&self) -> BoxFuture<'_, ()> {
        async move {
            // A run that pauses no engines must not resume any, because the trainer may have paused them.
            if !self.pauses {
                return;
            }
            for server in self.updater.recover().await {
                tracing::warn!(server = %server.name, "a server that was left paused is resumed");
            }
        }
        .boxed()
    }

    fn keep_up(self: Arc<Self>, end: CancellationToken) -> BoxFuture<'static, ()> {
        self.updater.clone().run(end).boxed()
    }

    fn progress(&self) -> UpdateProgress {
        let servers = self.balancer.snapshot().servers;
        let behind = servers.iter().filter(|server| server.hold.is_some());
        UpdateProgress {
            phase: self.updater.phase().map(|phase| phase.phase.as_str().to_owned()),
            behind: behind.map(|server| server.name.to_string()).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
