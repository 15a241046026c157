//! Policy versions in a run: where they are announced, how they reach the servers, and which parts of the run
//! are told.

use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_queue::Partition;

use super::{Run, convert};
use crate::policy::{
    Announcement, Announcements, FleetUpdater, FollowVersion, PolicyMode, PolicyState, Updates,
};
use crate::report::say;
use crate::rollout::{InWait, Phase, RolloutControl, Staleness, Subject};
use crate::scope::Scope;
use rolldock_ledger::{LedgerWriter, Record, Resumption};

/// The versions of a run in which they can be announced.
pub(super) struct RunPolicy {
    updates: Updates,
    control: RolloutControl,
    rule: Staleness,
    mode: PolicyMode,
    /// What is heard as long as this lives.
    _sources: Announcements,
}

impl RunPolicy {
    /// Sets servers free that an earlier life left paused, has them brought to what it announced `last`, and
    /// listens; absent where versions cannot be announced.
    pub(super) async fn open(
        run: &Run,
        control: RolloutControl,
        partition: Partition,
        ledger: LedgerWriter,
        last: Option<Announcement>,
        scope: &Scope,
    ) -> anyhow::Result<Option<Self>> {
        let rule = convert::staleness(&run.recipe);
        if !rule.is_announced {
            return Ok(None);
        }
        let policy = &run.recipe.policy;
        let follower = Follower { control: control.clone(), partition, ledger, updating: Mutex::new(None) };
        let terms = convert::policy_terms(policy);
        let served = control.policy_version();
        let state = match last.filter(|last| last.version >= served) {
            Some(last) => {
                // Servers had it, and the crash was before the run knew.
                if last.version > served {
                    follower.publish(&last).await;
                }
                PolicyState::resumed(terms, last)
            }
            None => PolicyState::new(terms, served),
        };
        let updater = FleetUpdater::new(
            run.fleet.balancer.clone(),
            Arc::clone(&run.fleet.control),
            &policy.update,
            scope,
        )?;
        let updates = Updates::start(state, Arc::new(updater), Arc::new(follower), scope).await;
        let sources = Announcements::open(convert::policy_sources(policy), &updates, scope)
            .await
            .context("cannot listen for policy versions")?;
        if let Some(address) = sources.address() {
            say(&format!("policy versions are announced at http://{address}/v1/policy/announce"));
        }
        Ok(Some(Self { updates, control, rule, mode: policy.mode, _sources: sources }))
    }

    /// The versions, for announcements from this process.
    pub(super) fn state(&self) -> &PolicyState {
        self.updates.state()
    }

    /// Between two steps: a pending version reaches the servers, and `step` waits for the one that its mode
    /// asks for.
    pub(super) async fn before_step(&self, step: u64) -> anyhow::Result<()> {
        let behind = match self.mode {
            PolicyMode::Sync => 0,
            PolicyMode::OneStepOff => 1,
            PolicyMode::FullyAsync => return Ok(()),
        };
        let wanted = self.rule.claim_version(step, 0).saturating_sub(behind).max(self.rule.first_version);
        loop {
            let announced = self.state().announced();
            if self.updates.at_boundary().await? >= wanted {
                return Ok(());
            }
            let detail = format!("version={wanted} for step={step}");
            let subject = Subject { detail: Some(detail.into()), ..Subject::default() };
            let _waiting = self.control.waits().enter(Phase::Trainer, subject);
            self.state().until_announced(announced + 1).await;
        }
    }

    /// After the last step whatever is announced reaches the servers at once, for trainers that still train.
    /// Never ends by itself; cancel-safe.
    pub(super) async fn after_steps(&self) {
        loop {
            let announced = self.state().announced();
            if self.updates.at_boundary().await.is_err() {
                return std::future::pending().await;
            }
            self.state().until_announced(announced + 1).await;
        }
    }
}

/// So that a run that goes on can ask for them.
fn weights_record(announcement: &Announcement) -> Record {
    Record::Weights { announcement: serde_json::json!(announcement).to_string().into() }
}

/// What the ledger says of the last weights.
pub(super) fn last_announcement(resumption: &Resumption) -> anyhow::Result<Option<Announcement>> {
    let parsed = resumption.weights.as_deref().map(serde_json::from_str).transpose();
    parsed.context("the run's ledger has weights that are no announcement")
}

/// The parts of the run that are told of a version.
struct Follower {
    control: RolloutControl,
    partition: Partition,
    ledger: LedgerWriter,
    updating: Mutex<Option<InWait>>,
}

impl FollowVersion for Follower {
    fn before_update(&self, version: u64) -> BoxFuture<'_, ()> {
        async move {
            let detail: Arc<str> = format!("version={version} on the servers").into();
            let subject = Subject { detail: Some(detail), ..Subject::default() };
            *self.updating.lock() = Some(self.control.waits().enter(Phase::Update, subject));
            self.control.retire_before(version);
        }
        .boxed()
    }

    fn publish<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, ()> {
        let version = announcement.version;
        async move {
            *self.updating.lock() = None;
            if let Err(error) = self.partition.announce(version).await {
                tracing::error!(version, %error, "the queue does not know of the version: its takes judge by an older one");
            }
            self.ledger.append(weights_record(announcement));
            self.control.set_policy_version(version);
            // The trainer may forget the batch before: a run that continues must know of the version.
            if let Err(error) = self.ledger.sync_all().await {
                tracing::error!(version, %error, "the ledger does not know of the version");
            }
        }
        .boxed()
    }
}
