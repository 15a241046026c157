//! All trajectories of a gateway, by capability, name and group, and the moments at which they need attention.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::group::Group;
use super::{Live, One, Tombstone};
use crate::config::Spec;
use crate::refusal::Refusal;

mod leave;

/// Maximum number of trajectories that are remembered after their rows were put. Calls for older trajectories
/// get the same answer as calls for unknown trajectories.
const TOMBSTONES_MAX: usize = 65_536;

/// The time after which a client may try again to open a trajectory that was refused because of `live_max`.
const ROOM_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A group whose trajectories are all settled. Its rows can be put.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) group: String,
    pub(crate) members: Vec<Arc<One>>,
}

/// All trajectories.
#[derive(Debug)]
pub(crate) struct Book {
    /// A random number that all trajectories of this process share.
    life: u64,
    /// Maximum number of trajectories that are not buried.
    live_max: usize,
    pages: Mutex<Pages>,
    /// Notified when an earlier alarm was set.
    alarmed: Notify,
    settled: mpsc::UnboundedSender<Settled>,
}

/// What needs attention at a moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    Trajectory(u64),
    Group(String),
}

#[derive(Debug, Default)]
struct Pages {
    next: u64,
    by_capability: HashMap<String, u64>,
    by_uid: HashMap<String, u64>,
    live: BTreeMap<u64, Arc<One>>,
    /// Trajectories that count as settled in their group.
    settled: HashSet<u64>,
    buried: BTreeMap<u64, Tombstone>,
    groups: BTreeMap<String, Group>,
    alarms: BTreeSet<(Instant, Alarm)>,
    /// The alarm of each trajectory. It may be earlier than needed. In that case it is only set again.
    alarm_of: HashMap<u64, Instant>,
}

/// A trajectory that a call names.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Live(Arc<One>),
    Buried(Tombstone),
}

impl Book {
    /// An empty book, and a receiver of the groups that end.
    pub(crate) fn new(life: u64, live_max: usize) -> (Arc<Self>, mpsc::UnboundedReceiver<Settled>) {
        // Each group is sent once and has a trajectory that is not buried, so `live_max` bounds the channel.
        let (settled, receiver) = mpsc::unbounded_channel();
        let book = Self { life, live_max, pages: Mutex::default(), alarmed: Notify::new(), settled };
        (Arc::new(book), receiver)
    }

    /// Adds a trajectory. `number` is the trajectory's number in the log; absent for a new trajectory.
    /// Trajectories of the log are never refused because of `live_max`.
    ///
    /// # Errors
    /// The group already has all its members, the group has another size, or `live_max` refuses a new
    /// trajectory.
    pub(crate) fn add(&self, number: Option<u64>, spec: Spec, live: Live) -> Result<Arc<One>, Refusal> {
        let now = Instant::now();
        let mut pages = self.pages.lock();
        if number.is_none() && pages.live.len() >= self.live_max {
            let reason = format!(
                "the gateway has trajectories_max={} trajectories whose rows are not put yet",
                self.live_max
            );
            return Err(Refusal::Busy { reason, retry_after: Some(ROOM_RETRY_AFTER) });
        }
        let lasting = spec.limits.wall + spec.limits.reward;
        let deadline = now + Duration::try_from_secs_f64(lasting).unwrap_or(Duration::MAX / 4);
        let name = spec.group.clone();
        if let Some(group) = pages.groups.get(&name) {
            if group.size != spec.group_size {
                let reason = format!("group={name} has group_size={}, found {}", group.size, spec.group_size);
                return Err(Refusal::Conflict(reason));
            }
            if group.is_full() {
                let reason = format!("group={name} has all of its {} trajectories", group.size);
                return Err(Refusal::Conflict(reason));
            }
        } else {
            pages.groups.insert(name.clone(), Group::new(spec.group_size, deadline));
            pages.alarms.insert((deadline, Alarm::Group(name.clone())));
        }
        let number = number.unwrap_or(pages.next);
        pages.next = pages.next.max(number + 1);
        let one = Arc::new(One::new(number, self.life, spec, live));
        if let Some(group) = pages.groups.get_mut(&name) {
            group.members.push(number);
        }
        pages.by_capability.insert(one.spec.capability.clone(), number);
        pages.by_uid.insert(one.spec.uid.clone(), number);
        pages.live.insert(number, Arc::clone(&one));
        drop(pages);
        self.changed(&one);
        Ok(one)
    }

    /// Looks at a trajectory after a change: sets its alarm, and ends its group if this was the last
    /// trajectory to be settled.
    pub(crate) fn changed(&self, one: &Arc<One>) {
        let (is_settled, deadline) = {
            let live = one.live.lock();
            (live.is_settled(), live.deadline(&one.spec.limits))
        };
        let mut pages = self.pages.lock();
        if !pages.live.contains_key(&one.number) {
            return;
        }
        if let Some((at, _)) = deadline {
            self.set_alarm(&mut pages, one.number, at);
        }
        if is_settled && pages.settled.insert(one.number) {
            if let Some(group) = pages.groups.get_mut(&one.spec.group) {
                group.settled += 1;
            }
            self.end_group(&mut pages, &one.spec.group);
        }
    }

    fn set_alarm(&self, pages: &mut Pages, number: u64, at: Instant) {
        match pages.alarm_of.get(&number).copied() {
            Some(earlier) if earlier <= at => return,
            Some(later) => drop(pages.alarms.remove(&(later, Alarm::Trajectory(number)))),
            None => {}
        }
        pages.alarm_of.insert(number, at);
        let is_first = pages.alarms.first().is_none_or(|(first, _)| at < *first);
        pages.alarms.insert((at, Alarm::Trajectory(number)));
        if is_first {
            self.alarmed.notify_one();
        }
    }

    /// Sends a group to the receiver if the group has ended.
    fn end_group(&self, pages: &mut Pages, name: &str) {
        if !pages.groups.get(name).is_some_and(|group| group.has_ended(Instant::now())) {
            return;
        }
        let Some(group) = pages.groups.remove(name) else { return };
        pages.alarms.remove(&(group.deadline, Alarm::Group(name.to_owned())));
        let members = group.members.iter().filter_map(|number| pages.live.get(number).cloned()).collect();
        // If the receiver is gone, the gateway is ending. The group ends again after the next start.
        let _ = self.settled.send(Settled { group: name.to_owned(), members });
    }

    /// Waits for the next alarm whose time has come. Alarms of groups are handled here. Cancel-safe.
    pub(crate) async fn alarm(&self) -> Arc<One> {
        loop {
            let alarmed = self.alarmed.notified();
            let next = self.pages.lock().alarms.first().map(|(at, _)| *at);
            match next {
                Some(at) if at <= Instant::now() => {}
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = alarmed => continue,
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => {
                    alarmed.await;
                    continue;
                }
            }
            let mut pages = self.pages.lock();
            let Some((_, alarm)) = pages.alarms.pop_first() else { continue };
            match alarm {
                Alarm::Trajectory(number) => {
                    pages.alarm_of.remove(&number);
                    if let Some(one) = pages.live.get(&number) {
                        return Arc::clone(one);
                    }
                }
                Alarm::Group(name) => self.end_group(&mut pages, &name),
            }
        }
    }

    /// The trajectory with this capability.
    pub(crate) fn by_capability(&self, capability: &str) -> Option<Found> {
        let pages = self.pages.lock();
        pages.found(*pages.by_capability.get(capability)?)
    }

    /// The trajectory of this name.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<Found> {
        let pages = self.pages.lock();
        pages.found(*pages.by_uid.get(uid)?)
    }

    /// Replaces a trajectory with its tombstone. Returns the numbers of old trajectories that are forgotten,
    /// because there are more than `TOMBSTONES_MAX`.
    pub(crate) fn bury(&self, number: u64, tombstone: Tombstone) -> Vec<u64> {
        let mut pages = self.pages.lock();
        pages.next = pages.next.max(number + 1);
        pages.by_capability.insert(tombstone.capability.clone(), number);
        pages.by_uid.insert(tombstone.uid.clone(), number);
        pages.live.remove(&number);
        pages.settled.remove(&number);
        if let Some(at) = pages.alarm_of.remove(&number) {
            pages.alarms.remove(&(at, Alarm::Trajectory(number)));
        }
        pages.buried.insert(number, tombstone);
        let mut forgotten = Vec::new();
        while pages.buried.len() > TOMBSTONES_MAX {
            let Some((oldest, tombstone)) = pages.buried.pop_first() else { break };
            pages.by_capability.remove(&tombstone.capability);
            pages.by_uid.remove(&tombstone.uid);
            forgotten.push(oldest);
        }
        forgotten
    }

    /// The trajectories that are not buried, by number.
    pub(crate) fn live(&self) -> Vec<Arc<One>> {
        self.pages.lock().live.values().cloned().collect()
    }

    /// The number of trajectories that are not buried, and of groups that have not ended.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let pages = self.pages.lock();
        (pages.live.len(), pages.groups.len())
    }
}

impl Pages {
    fn found(&self, number: u64) -> Option<Found> {
        let live = self.live.get(&number).cloned().map(Found::Live);
        live.or_else(|| self.buried.get(&number).cloned().map(Found::Buried))
    }
}
