//! Policy versions in a run: where they are announced, how they reach the servers, and which components are
//! told about them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_queue::Partition;

use super::{Run, convert};
use crate::policy::{
    Announcement, Announcements, FleetUpdater, FollowVersion, PolicyMode, PolicyState, UpdateMethod, Updates,
};
use crate::process::say;
use crate::rollout::{InWait, Phase, RolloutControl, Staleness, Subject};
use crate::scope::Scope;
use rolldock_ledger::{LedgerWriter, Record, Resumption};

/// The first pause before an update that has reached no server is tried again between two steps. The pause
/// doubles up to the maximum.
const UPDATE_PAUSE_MIN: Duration = Duration::from_secs(1);
const UPDATE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The policy versions of a run whose recipe has a source of announcements.
pub(super) struct RunPolicy {
    updates: Updates,
    control: RolloutControl,
    rule: Staleness,
    mode: PolicyMode,
    /// The version of the last step, with the first step that began with it.
    begun: Mutex<Option<Begun>>,
    /// The sources of announcements. They are open as long as this value lives.
    _sources: Announcements,
}

/// A version, and the first step that began with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begun {
    version: u64,
    first_step: u64,
}

/// The versions that an earlier process of the run has left.
#[derive(Debug, Default)]
pub(super) struct EarlierVersions {
    /// The last announcement.
    last: Option<Announcement>,
    begun: Option<Begun>,
}

impl EarlierVersions {
    /// Reads the versions from the state that the ledger recorded.
    ///
    /// # Errors
    /// Returns an error if the ledger's announcement cannot be parsed.
    pub(super) fn of(resumption: &Resumption) -> anyhow::Result<Self> {
        let parsed = resumption.weights.as_deref().map(serde_json::from_str).transpose();
        let last = parsed.context("the run's ledger has weights that are no announcement")?;
        let version = resumption.policy_version;
        let begun = resumption.version_since_step.map(|first_step| Begun { version, first_step });
        Ok(Self { last, begun })
    }
}

impl RunPolicy {
    /// Resumes servers that an earlier process of the run left paused, updates them to the last version that
    /// the earlier process announced, and listens for announcements. Returns `None` if the recipe has no
    /// source of announcements.
    pub(super) async fn open(
        run: &Run,
        control: RolloutControl,
        partition: Partition,
        ledger: LedgerWriter,
        earlier: EarlierVersions,
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
        let state = match earlier.last.filter(|last| last.version >= served) {
            Some(last) => {
                // If the ledger has the announcement but not yet the run's new version, the earlier process
                // ended between the two records. The servers got the version before both records.
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
        control.believe_only_announced(state.announced());
        // A user's program may update servers that offer no labels.
        if matches!(policy.update.method, UpdateMethod::Reload | UpdateMethod::Transfer) {
            control.sets_labels_after(state.announced());
        }
        let updates = Updates::start(state, Arc::new(updater), Arc::new(follower), scope).await;
        let sources = Announcements::open(convert::policy_sources(&run.recipe), &updates, scope).await?;
        if let Some(address) = sources.address() {
            say(&format!("policy versions are announced at http://{address}/v1/policy/announce"));
        }
        let begun = Mutex::new(earlier.begun);
        Ok(Some(Self { updates, control, rule, mode: policy.mode, begun, _sources: sources }))
    }

    /// The state of the versions, for announcements from this process.
    pub(super) fn state(&self) -> &PolicyState {
        self.updates.state()
    }

    /// Updates the servers to a pending version between two steps, and waits until they have the version that
    /// `step` needs in the run's mode.
    pub(super) async fn before_step(&self, step: u64) -> anyhow::Result<()> {
        let by_number = self.rule.claim_version(step, 0);
        let wanted = match self.mode {
            PolicyMode::Off | PolicyMode::FullyAsync => return Ok(()),
            PolicyMode::Sync => by_number.max(self.after_last_version(step)),
            PolicyMode::OneStepOff => by_number.saturating_sub(1),
        };
        let wanted = wanted.max(self.rule.first_version);
        let mut pause = UPDATE_PAUSE_MIN;
        loop {
            let announced = self.state().announced();
            let served = self.updates.at_boundary().await?;
            if served >= wanted {
                self.begin(step, served);
                return Ok(());
            }
            // If no server has the announced version, its update has failed and is tried again.
            let has_failed = self.state().announced() > served;
            let phase = if has_failed { Phase::Update } else { Phase::Trainer };
            let detail = format!("version={wanted} for step={step}");
            let subject = Subject { detail: Some(detail.into()), ..Subject::default() };
            let _waiting = self.control.waits().enter(phase, subject);
            if has_failed {
                let retry = self.state().until_retry(announced);
                let is_asked_for = tokio::time::timeout(pause, retry).await.is_ok();
                pause = if is_asked_for { UPDATE_PAUSE_MIN } else { (pause * 2).min(UPDATE_PAUSE_MAX) };
            } else {
                self.state().until_announced(announced + 1).await;
            }
        }
    }

    /// Returns the version that `step` needs after the version of the previous steps. If the trainer already
    /// has all steps that it trains on for one version, the result is the next version. Otherwise it is zero.
    /// A trainer may skip version numbers, so a number alone does not tell how many steps the trainer has
    /// trained on.
    fn after_last_version(&self, step: u64) -> u64 {
        let is_complete = |begun: &Begun| step >= begun.first_step + self.rule.steps_per_version.max(1);
        self.begun.lock().filter(is_complete).map_or(0, |begun| begun.version + 1)
    }

    fn begin(&self, step: u64, version: u64) {
        let mut begun = self.begun.lock();
        if begun.is_none_or(|begun| begun.version != version) {
            *begun = Some(Begun { version, first_step: step });
        }
    }

    /// Updates the servers immediately to every version that is announced after the last step, for trainers
    /// that still train. This never ends by itself.
    ///
    /// Cancel-safe.
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

/// The ledger's record of announced weights. A resumed run updates its servers from this record.
fn weights_record(announcement: &Announcement) -> Record {
    Record::Weights { announcement: serde_json::json!(announcement).to_string().into() }
}

/// Tells the components of the run about a version.
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
                tracing::error!(version, %error, "the queue did not get the version, so its takes use an older version");
            }
            self.ledger.append(weights_record(announcement));
            self.control.set_policy_version(version);
            // From now on the trainer may forget the batch that produced the version. So the version must be
            // in the ledger, where a resumed run finds it.
            if let Err(error) = self.ledger.sync_all().await {
                tracing::error!(version, %error, "the ledger did not record the version");
            }
        }
        .boxed()
    }
}
