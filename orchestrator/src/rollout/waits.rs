//! Records the open waits of a rollout, with the phase and the start of each wait. The record shows which
//! wait does not end.
//!
//! Every wait that may take long is entered here, and is removed when its `InWait` is dropped. The display
//! reads the counts without a lock. The watchdog reads the oldest wait of each phase.
//!
//! Each sample enters several waits, so the begin and the end of a wait cost the same however many waits are open. A
//! question about waits reads all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{DispatchId, PromptUid};
use serde::{Deserialize, Serialize};
use slab::Slab;
use tokio::time::Instant;

use crate::engine::Progress;

/// The kind of a wait, named after what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A permit on a server.
    Permit,
    /// A response.
    Engine,
    /// An environment or an agent, between two turns of a trajectory.
    Environment,
    /// The start of an environment or an agent: a place in a pool, or a worker that takes an agent's task.
    Start,
    /// A score, or the decision of a gate.
    Reward,
    /// Free capacity in the queue.
    Queue,
    /// The servers' new weights.
    Update,
    /// The trainer's next version.
    Trainer,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Permit,
        Self::Engine,
        Self::Environment,
        Self::Start,
        Self::Reward,
        Self::Queue,
        Self::Update,
        Self::Trainer,
    ];

    /// Whether a sample in this phase waits in line for a resource that other samples hold.
    pub fn is_in_line(self) -> bool {
        matches!(self, Self::Permit | Self::Start)
    }

    /// The name of the phase in logs and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Engine => "engine",
            Self::Environment => "environment",
            Self::Start => "start",
            Self::Reward => "reward",
            Self::Queue => "queue",
            Self::Update => "update",
            Self::Trainer => "trainer",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The subject of a wait. Fields that do not apply are `None`.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// The group's dispatch.
    pub dispatch: Option<DispatchId>,
    /// The group's prompt.
    pub prompt_uid: Option<PromptUid>,
    /// The index of the request's first sample in its group.
    pub sample: Option<u32>,
    /// The server that has the request.
    pub server: Option<Arc<str>>,
    /// The tokens so far, if the engine streams tokens.
    pub progress: Option<Progress>,
    /// A further description, such as a version.
    pub detail: Option<Arc<str>>,
}

#[derive(Debug)]
struct Wait {
    /// The place of the wait in the order in which all waits began.
    number: u64,
    phase: Phase,
    since: Instant,
    subject: Subject,
}

/// A snapshot of a wait.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The phase of the wait.
    pub phase: Phase,
    /// The age of the wait.
    pub age: Duration,
    /// The subject of the wait.
    pub subject: Subject,
    /// The number of tokens so far, if known.
    pub tokens: Option<u64>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "phase={} age_s={:.1}", self.phase, self.age.as_secs_f64())?;
        let Subject { dispatch, prompt_uid, sample, server, detail, .. } = &self.subject;
        if let Some(dispatch) = dispatch {
            write!(f, " dispatch={dispatch}")?;
        }
        if let Some(uid) = prompt_uid {
            write!(f, " prompt_uid={uid}")?;
        }
        if let Some(sample) = sample {
            write!(f, " sample={sample}")?;
        }
        if let Some(server) = server {
            write!(f, " server={server}")?;
        }
        if let Some(tokens) = self.tokens {
            write!(f, " tokens={tokens}")?;
        }
        if let Some(detail) = detail {
            write!(f, " {detail}")?;
        }
        Ok(())
    }
}

/// The waits that are open, and their counts by phase.
#[derive(Debug, Default)]
pub struct Waits {
    next: AtomicU64,
    open: Mutex<Slab<Wait>>,
    /// When each running group was sent to a worker.
    groups: Mutex<BTreeMap<DispatchId, Instant>>,
    counts: [AtomicUsize; Phase::ALL.len()],
    progress: AtomicU64,
    /// Dispatches that run on after their cut. The run does not wait for them.
    audited: Mutex<BTreeSet<DispatchId>>,
}

impl Waits {
    /// Enters a wait, which lasts until the returned value is dropped.
    pub fn enter(self: &Arc<Self>, phase: Phase, subject: Subject) -> InWait {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.counts[phase as usize].fetch_add(1, Ordering::Relaxed);
        let key = self.open.lock().insert(Wait { number, phase, since: Instant::now(), subject });
        InWait { waits: Arc::clone(self), key, phase }
    }

    /// Notes that a dispatch runs on after its cut. The run does not wait for it any more.
    pub(crate) fn audit_began(&self, id: DispatchId) {
        self.audited.lock().insert(id);
    }

    /// Notes that a dispatch that ran on after its cut has ended.
    pub(crate) fn audit_ended(&self, id: DispatchId) {
        self.audited.lock().remove(&id);
    }

    /// Notes that the run has made progress.
    pub fn progressed(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes whenever the run makes progress.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// The number of open waits of this phase.
    pub fn count(&self, phase: Phase) -> usize {
        self.counts[phase as usize].load(Ordering::Relaxed)
    }

    /// The oldest wait of each phase. Waits that name their group are preferred to waits that do not. Waits
    /// of groups that run on after their cut are left out.
    pub fn oldest(&self) -> Vec<Waiting> {
        let (audited, open) = (self.audited.lock(), self.open.lock());
        let is_awaited = |wait: &&Wait| wait.subject.dispatch.is_none_or(|id| !audited.contains(&id));
        let rank = |wait: &Wait| (wait.subject.dispatch.is_none(), wait.number);
        let mut oldest: [Option<&Wait>; Phase::ALL.len()] = [None; Phase::ALL.len()];
        for wait in open.iter().map(|(_, wait)| wait).filter(is_awaited) {
            let of_phase = &mut oldest[wait.phase as usize];
            if of_phase.is_none_or(|other| rank(wait) < rank(other)) {
                *of_phase = Some(wait);
            }
        }
        oldest.into_iter().flatten().map(Wait::look).collect()
    }

    /// Notes that the group of a dispatch runs, until the returned value is dropped.
    pub fn begin_group(self: &Arc<Self>, id: DispatchId) -> InGroup {
        self.groups.lock().insert(id, Instant::now());
        InGroup { waits: Arc::clone(self), id }
    }

    /// How long the group of this dispatch has run; `None` if it does not run.
    pub fn group_age(&self, id: DispatchId) -> Option<Duration> {
        self.groups.lock().get(&id).map(Instant::elapsed)
    }

    /// The open waits of this dispatch, in the order of its samples. A wait for a whole group comes first.
    pub fn all_of_dispatch(&self, id: DispatchId) -> Vec<Waiting> {
        let open = self.open.lock();
        let mut waits: Vec<&Wait> = of_dispatch(&open, id).collect();
        waits.sort_by_key(|wait| (wait.subject.sample, wait.number));
        waits.into_iter().map(Wait::look).collect()
    }

    /// The oldest wait of this dispatch. A wait in line is returned only if the dispatch has no other wait.
    pub fn of_dispatch(&self, id: DispatchId) -> Option<Waiting> {
        let open = self.open.lock();
        let first = of_dispatch(&open, id).min_by_key(|wait| (wait.phase.is_in_line(), wait.number));
        first.map(Wait::look)
    }
}

fn of_dispatch(open: &Slab<Wait>, id: DispatchId) -> impl Iterator<Item = &Wait> {
    open.iter().map(|(_, wait)| wait).filter(move |wait| wait.subject.dispatch == Some(id))
}

impl Wait {
    fn look(&self) -> Waiting {
        Waiting {
            phase: self.phase,
            age: self.since.elapsed(),
            subject: self.subject.clone(),
            tokens: self.subject.progress.as_ref().map(Progress::tokens),
        }
    }
}

/// The guard of an open wait. The wait ends when the guard is dropped.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct InWait {
    waits: Arc<Waits>,
    key: usize,
    phase: Phase,
}

impl Drop for InWait {
    fn drop(&mut self) {
        drop(self.waits.open.lock().try_remove(self.key));
        self.waits.counts[self.phase as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The guard of a running group. The group counts as ended when the guard is dropped.
#[derive(Debug)]
#[must_use = "the group counts as ended when this is dropped"]
pub struct InGroup {
    waits: Arc<Waits>,
    id: DispatchId,
}

impl Drop for InGroup {
    fn drop(&mut self) {
        self.waits.groups.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_waits_of_a_group_are_those_of_its_samples() {
        let waits = Arc::new(Waits::default());
        let subject = |sample: u32| Subject {
            dispatch: Some(DispatchId(1)),
            sample: Some(sample),
            ..Subject::default()
        };
        let group = waits.begin_group(DispatchId(1));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(waits.group_age(DispatchId(1)), Some(Duration::from_secs(3)));
        let place = waits.enter(Phase::Permit, subject(0));
        assert_eq!(waits.of_dispatch(DispatchId(1)).unwrap().phase, Phase::Permit);
        let answer = waits.enter(Phase::Engine, subject(1));
        assert_eq!(waits.of_dispatch(DispatchId(1)).unwrap().subject.sample, Some(1));
        let phases = |waits: &Waits| -> Vec<Phase> {
            waits.all_of_dispatch(DispatchId(1)).iter().map(|wait| wait.phase).collect()
        };
        assert_eq!(phases(&waits), [Phase::Permit, Phase::Engine]);
        drop((place, answer, group));
        assert!(waits.of_dispatch(DispatchId(1)).is_none() && phases(&waits).is_empty());
        assert_eq!(waits.group_age(DispatchId(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_wait_of_each_phase_is_reported_until_it_ends() {
        let waits = Arc::new(Waits::default());
        let subject = |id: u64| Subject { dispatch: Some(DispatchId(id)), ..Subject::default() };
        let first = waits.enter(Phase::Engine, subject(1));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let second = waits.enter(Phase::Engine, subject(2));
        let queue = waits.enter(Phase::Queue, Subject::default());
        let oldest = waits.oldest();
        let told: Vec<String> = oldest.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["phase=engine age_s=2.0 dispatch=1", "phase=queue age_s=0.0"]);
        assert_eq!(waits.count(Phase::Engine), 2);
        let of_group = waits.enter(Phase::Queue, subject(7));
        assert_eq!(
            waits.oldest()[1].subject.dispatch,
            Some(DispatchId(7)),
            "a wait that names its group is preferred"
        );
        drop((first, of_group));
        assert_eq!(waits.oldest()[0].subject.dispatch, Some(DispatchId(2)));
        assert_eq!(waits.of_dispatch(DispatchId(2)).unwrap().age, Duration::ZERO);
        drop((second, queue));
        assert!(waits.oldest().is_empty());
        assert!(Phase::ALL.into_iter().all(|phase| waits.count(phase) == 0));
    }
}
