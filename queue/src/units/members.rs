//! The storage units of a queue, and the chunks that are stored on each unit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Chosen, Connect, Place, RETURN_MAX, SILENCE_MAX, UnitCard, UnitClient, UnitInspection, UnitStatus, weight,
};
use crate::error::QueueError;
use crate::row::RowHandle;
use crate::store::{ChunkId, Live, Reach};

#[derive(Debug)]
struct Member {
    card: UnitCard,
    client: Option<Arc<dyn UnitClient>>,
    status: UnitStatus,
    /// Whether the unit gets no rows until it answers the controller.
    is_shunned: bool,
    seen: Instant,
    chunks: HashSet<ChunkId>,
    /// Rows that the unit may forget but has not been told about yet.
    freed: Vec<RowHandle>,
}

#[derive(Debug)]
struct Placed {
    place: Arc<Place>,
    /// The indices of the place's rows that the unit may already forget.
    freed: HashSet<u32>,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<String, Member>,
    chunks: HashMap<ChunkId, Placed>,
    /// Units that a client could not reach.
    suspects: HashSet<String>,
}

/// The units of a queue, and the places of its chunks.
#[derive(Default)]
pub(crate) struct Units {
    state: Mutex<State>,
    /// Absent in a queue without a server, where no unit can announce itself.
    connect: Mutex<Option<Connect>>,
}

impl State {
    fn member(&mut self, unit: &str) -> Result<&mut Member, QueueError> {
        self.members.get_mut(unit).ok_or_else(|| QueueError::UnknownUnit { unit: unit.to_owned() })
    }
}

impl Units {
    /// Sets the function that makes clients for units that announce themselves.
    pub(crate) fn set_connect(&self, connect: Connect) {
        *self.connect.lock() = Some(connect);
    }

    /// Makes a client whose calls fail immediately if the unit does not answer. Needs a tokio runtime.
    fn client(&self, url: &str) -> Result<Arc<dyn UnitClient>, QueueError> {
        let connect = self.connect.lock();
        let reason = || "expected a queue with a server: only such a queue has storage units".to_owned();
        let unserved = || QueueError::Unreachable { url: url.to_owned(), reason: reason() };
        connect.as_ref().ok_or_else(unserved)?(url)
    }

    /// The units that had the address of this card before. They no longer exist.
    pub(crate) fn supplanted_by(&self, card: &UnitCard) -> Vec<String> {
        let state = self.state.lock();
        let gone = |member: &&Member| {
            member.status != UnitStatus::Dead && member.card.url == card.url && member.card.unit != card.unit
        };
        state.members.values().filter(gone).map(|member| member.card.unit.clone()).collect()
    }

    /// Registers a new, returning or known unit. Returns whether the unit was dead.
    pub(crate) fn register(&self, card: UnitCard) -> Result<bool, QueueError> {
        let is_known = {
            let state = self.state.lock();
            let member = state.members.get(&card.unit);
            member.is_some_and(|member| member.client.is_some() && member.card.url == card.url)
        };
        // A unit announces itself twice a second and rarely changes its address, so its client is kept.
        let client = if is_known { None } else { Some(self.client(&card.url)?) };
        let mut state = self.state.lock();
        let now = Instant::now();
        let member = state.members.entry(card.unit.clone()).or_insert_with(|| {
            tracing::info!(unit = %card.unit, url = %card.url, "a storage unit joins");
            Member {
                card: card.clone(),
                client: None,
                status: UnitStatus::Live,
                is_shunned: false,
                seen: now,
                chunks: HashSet::new(),
                freed: Vec::new(),
            }
        });
        member.seen = now;
        if client.is_some() {
            member.client = client;
        }
        member.card = card;
        let was_dead = member.status == UnitStatus::Dead;
        if was_dead {
            (member.status, member.is_shunned) = (UnitStatus::Live, false);
        }
        Ok(was_dead)
    }

    /// Whether the queue has a unit, live or dead. A removed unit counts until it has no chunks left.
    pub(crate) fn has_any(&self) -> bool {
        !self.state.lock().members.is_empty()
    }

    /// The unit that gets the rows of a key. `None` if no unit accepts rows.
    pub(crate) fn choose(&self, key: &str) -> Option<Chosen> {
        let state = self.state.lock();
        let live =
            state.members.values().filter(|member| member.status == UnitStatus::Live && !member.is_shunned);
        let chosen = live.max_by_key(|member| weight(&member.card.unit, key))?;
        let UnitCard { unit, is_durable, .. } = chosen.card.clone();
        Some(Chosen { unit, client: chosen.client.clone()?, is_durable })
    }

    /// Notes that a client could not reach a unit.
    pub(crate) fn suspect(&self, unit: &str) {
        self.state.lock().suspects.insert(unit.to_owned());
    }

    /// Gives a unit no more rows until it answers the controller.
    pub(crate) fn shun(&self, unit: &str) {
        let mut state = self.state.lock();
        state.suspects.insert(unit.to_owned());
        if let Ok(member) = state.member(unit) {
            member.is_shunned = true;
        }
    }

    /// Notes that a unit answers again, after it was silent or a client could not reach it.
    pub(crate) fn heard(&self, unit: &str) {
        if let Ok(member) = self.state.lock().member(unit) {
            (member.is_shunned, member.seen) = (false, Instant::now());
        }
    }

    /// Returns the units that are silent or that a client could not reach, with their clients.
    pub(crate) fn take_doubtful(&self, now: Instant) -> Vec<(String, Option<Arc<dyn UnitClient>>)> {
        let mut state = self.state.lock();
        let suspects = std::mem::take(&mut state.suspects);
        let is_doubtful = |member: &&Member| {
            member.status != UnitStatus::Dead
                && (now.duration_since(member.seen) > SILENCE_MAX || suspects.contains(&member.card.unit))
        };
        let doubtful = state.members.values().filter(is_doubtful);
        doubtful.map(|member| (member.card.unit.clone(), member.client.clone())).collect()
    }

    /// Returns the dead units that kept their rows in memory and did not return in time, with their remaining
    /// chunks. The rows of these chunks are lost.
    pub(crate) fn take_gone(&self, now: Instant) -> Vec<(String, Vec<ChunkId>)> {
        let state = self.state.lock();
        let is_gone = |member: &&Member| {
            member.status == UnitStatus::Dead
                && !member.card.is_durable
                && now.duration_since(member.seen) > RETURN_MAX
        };
        let gone = state.members.values().filter(is_gone);
        gone.map(|member| (member.card.unit.clone(), member.chunks.iter().copied().collect())).collect()
    }

    /// Returns an error if the unit accepts no rows, and otherwise whether the unit keeps its rows on disk.
    pub(super) fn check_takes_rows(&self, unit: &str) -> Result<bool, QueueError> {
        let mut state = self.state.lock();
        let member = state.member(unit)?;
        if member.status == UnitStatus::Live {
            Ok(member.card.is_durable)
        } else {
            Err(QueueError::UnitAway { unit: unit.to_owned() })
        }
    }

    /// Stores the place of a chunk. Returns whether the chunk can be read.
    pub(super) fn insert(&self, chunk: ChunkId, place: Arc<Place>) -> Reach {
        let mut state = self.state.lock();
        let (unit, is_durable) = (place.unit.clone(), place.is_durable);
        // An unknown unit counts as dead. Either the journal is being read and no unit has registered yet,
        // or the unit has died and was removed while the rows were written to the journal.
        let member = state.members.entry(unit.clone()).or_insert_with(|| Member {
            card: UnitCard { unit, url: String::new(), is_durable },
            client: None,
            status: UnitStatus::Dead,
            is_shunned: false,
            seen: Instant::now(),
            chunks: HashSet::new(),
            freed: Vec::new(),
        });
        member.chunks.insert(chunk);
        let reach = if member.status == UnitStatus::Dead { Reach::Away } else { Reach::Within };
        state.chunks.insert(chunk, Placed { place, freed: HashSet::new() });
        reach
    }

    /// Whether a chunk is stored on a unit.
    pub(crate) fn has(&self, chunk: ChunkId) -> bool {
        self.state.lock().chunks.contains_key(&chunk)
    }

    /// The place of a chunk. `None` if the chunk is not on a unit.
    pub(crate) fn place(&self, chunk: ChunkId) -> Option<Arc<Place>> {
        self.state.lock().chunks.get(&chunk).map(|placed| Arc::clone(&placed.place))
    }

    /// Returns the client of a unit, or an error if the unit does not answer.
    pub(crate) fn client_of(&self, unit: &str) -> Result<Arc<dyn UnitClient>, QueueError> {
        let mut state = self.state.lock();
        let member = state.member(unit)?;
        let away = || QueueError::UnitAway { unit: unit.to_owned() };
        member.client.clone().filter(|_| member.status != UnitStatus::Dead).ok_or_else(away)
    }

    /// The address of a unit, unless it is dead.
    pub(crate) fn url_of(&self, unit: &str) -> Option<String> {
        let state = self.state.lock();
        let member = state.members.get(unit).filter(|member| member.status != UnitStatus::Dead)?;
        Some(member.card.url.clone())
    }

    /// Forgets a freed chunk, so that the unit may forget the chunk's rows.
    pub(super) fn forget(&self, chunk: ChunkId) {
        let mut state = self.state.lock();
        let Some(placed) = state.chunks.remove(&chunk) else { return };
        let rows = placed.place.rows.iter().enumerate();
        let left: Vec<RowHandle> =
            rows.filter(|(at, _)| !placed.freed.contains(&(*at as u32))).map(|(_, row)| *row).collect();
        if let Some(member) = state.members.get_mut(&placed.place.unit) {
            member.chunks.remove(&chunk);
            member.freed.extend(left);
        }
    }

    /// Notes which rows of a chunk are still needed, so that the unit may forget the other rows.
    pub(super) fn forget_others(&self, chunk: ChunkId, live: &Live<'_>) {
        let live: HashSet<u32> = live.places().into_iter().collect();
        let mut state = self.state.lock();
        let Some(placed) = state.chunks.get_mut(&chunk) else { return };
        let mut freed = Vec::new();
        for (at, row) in placed.place.rows.iter().enumerate() {
            if !live.contains(&(at as u32)) && placed.freed.insert(at as u32) {
                freed.push(*row);
            }
        }
        let unit = placed.place.unit.clone();
        if let Some(member) = state.members.get_mut(&unit) {
            member.freed.extend(freed);
        }
    }

    /// Returns the blobs among these that contain no chunk of the unit.
    pub(crate) fn unknown(&self, unit: &str, blobs: Vec<String>) -> Vec<String> {
        let mut unknown: HashSet<String> = blobs.into_iter().collect();
        let state = self.state.lock();
        let chunks = state.members.get(unit).into_iter().flat_map(|member| &member.chunks);
        for placed in chunks.filter_map(|chunk| state.chunks.get(chunk)) {
            unknown.remove(&placed.place.blob);
        }
        unknown.into_iter().collect()
    }

    /// Drains a unit: from now on, the unit accepts no rows.
    pub(crate) fn drain(&self, unit: &str) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        let member = state.member(unit)?;
        if member.status == UnitStatus::Live {
            member.status = UnitStatus::Draining;
        }
        Ok(())
    }

    /// Removes a dead unit that will not return, if it has no chunks left. A unit with chunks left counts
    /// from now on as a unit that kept its rows in memory.
    pub(crate) fn remove(&self, unit: &str) {
        let mut state = self.state.lock();
        match state.members.get_mut(unit) {
            Some(member) if !member.chunks.is_empty() => member.card.is_durable = false,
            _ => drop(state.members.remove(unit)),
        }
    }

    /// Declares a unit dead. Returns its chunks, and whether it keeps them on disk. Returns `None` if the
    /// unit was already dead or is unknown.
    pub(crate) fn bury(&self, unit: &str) -> Option<(Vec<ChunkId>, bool)> {
        let mut state = self.state.lock();
        let member = state.members.get_mut(unit).filter(|member| member.status != UnitStatus::Dead)?;
        member.status = UnitStatus::Dead;
        let (chunks, is_durable) = (member.chunks.iter().copied().collect(), member.card.is_durable);
        tracing::error!(unit, is_durable, "a storage unit is dead");
        Some((chunks, is_durable))
    }

    /// The chunks of a unit.
    pub(crate) fn chunks_of(&self, unit: &str) -> Vec<ChunkId> {
        let state = self.state.lock();
        state.members.get(unit).map_or_else(Vec::new, |member| member.chunks.iter().copied().collect())
    }

    pub(crate) fn inspect(&self) -> Vec<UnitInspection> {
        let state = self.state.lock();
        let inspect = |member: &Member| UnitInspection {
            card: member.card.clone(),
            status: member.status,
            chunks: member.chunks.len(),
        };
        state.members.values().map(inspect).collect()
    }

    /// Returns up to `count` chunks of each unit that is being drained and has chunks left.
    pub(crate) fn draining(&self, count: usize) -> Vec<(String, Vec<ChunkId>)> {
        let state = self.state.lock();
        let draining = state.members.values().filter(|member| member.status == UnitStatus::Draining);
        let chunks = |member: &Member| {
            (member.card.unit.clone(), member.chunks.iter().copied().take(count).collect::<Vec<_>>())
        };
        draining.map(chunks).filter(|(_, chunks)| !chunks.is_empty()).collect()
    }

    /// Takes the rows that units may forget, for all units that are not dead.
    pub(crate) fn take_freed(&self) -> Vec<(String, Arc<dyn UnitClient>, Vec<RowHandle>)> {
        let mut state = self.state.lock();
        let mut freed = Vec::new();
        for member in state.members.values_mut().filter(|member| member.status != UnitStatus::Dead) {
            if let Some(client) = member.client.clone().filter(|_| !member.freed.is_empty()) {
                freed.push((member.card.unit.clone(), client, std::mem::take(&mut member.freed)));
            }
        }
        freed
    }

    pub(crate) fn give_back_freed(&self, unit: &str, rows: Vec<RowHandle>) {
        if let Ok(member) = self.state.lock().member(unit) {
            member.freed.extend(rows);
        }
    }
}
