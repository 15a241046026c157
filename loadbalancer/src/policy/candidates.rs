//! The servers as policies see them.
//!
//! For each permit, `group_affinity` compares a server's load with the mean load of the others, and must not add
//! up the loads of a thousand servers each time. The sum of the loads is therefore kept here, and each change of a
//! candidate updates it.

use std::ops::Deref;

use crate::server::ServerId;

/// A server as policies see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The server.
    pub server: ServerId,
    /// Number of samples for which the server has room. It is 0 while the balancer grants no permits on the
    /// server, for example because the server is dead, draining or paused.
    pub free: u32,
    /// Number of expected tokens for which the server has room.
    pub free_tokens: u32,
    /// Number of samples that run on the server by permits of this balancer. Samples of other clients do not
    /// count.
    pub in_use: u32,
    /// Share of the server's places that are taken, plus its load penalty. Each 503 or 429 raises the
    /// penalty, and the penalty halves every
    /// [`penalty_half_life_ms`](crate::BalancerConfig::penalty_half_life_ms).
    pub load: f32,
    /// Expected tokens outstanding, including those of other clients. The load penalty raises this number.
    pub work: f32,
    /// Measured tokens a second of a running sample; the fleet's mean before the first measurement. The load
    /// penalty lowers this number.
    pub speed: f32,
    /// Whether the server is neither dead nor draining. The load of a dead or draining server is left out of
    /// mean loads.
    pub is_live: bool,
}

/// The candidates of a fleet, in the order of their servers' ids. It is read as a slice, and also gives the
/// mean load of all live servers but one.
#[derive(Debug, Default)]
pub struct Candidates {
    servers: Vec<Candidate>,
    loads: Loads,
}

/// The sum of the loads of the live servers, and their number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Loads {
    /// In units of 1 / [`LOAD_UNITS`]. An integer is exact, whatever the order of the changes.
    sum: u64,
    living: u32,
}

/// The number of units of [`Loads::sum`] in a load of 1.
const LOAD_UNITS: f32 = (1 << 20) as f32;
/// A larger load counts as this one in a sum. A server with a million samples per place has this load.
const LOAD_MAX: f32 = 1e6;

impl Loads {
    fn of(candidate: &Candidate) -> Self {
        if !candidate.is_live {
            return Self::default();
        }
        Self { sum: (candidate.load.clamp(0.0, LOAD_MAX) * LOAD_UNITS) as u64, living: 1 }
    }

    fn add(&mut self, candidate: &Candidate) {
        let Self { sum, living } = Self::of(candidate);
        (self.sum, self.living) = (self.sum + sum, self.living + living);
    }

    fn subtract(&mut self, candidate: &Candidate) {
        let Self { sum, living } = Self::of(candidate);
        (self.sum, self.living) = (self.sum - sum, self.living - living);
    }
}

impl Candidates {
    /// The mean load of the live servers other than `server`, which is one of these candidates. It is 0 if no
    /// other server is live.
    pub fn mean_load_of_others(&self, server: &Candidate) -> f32 {
        let mut others = self.loads;
        others.subtract(server);
        others.sum as f32 / LOAD_UNITS / others.living.max(1) as f32
    }

    /// Adds a server, whose id is greater than all others.
    pub(crate) fn push(&mut self, candidate: Candidate) {
        self.loads.add(&candidate);
        self.servers.push(candidate);
    }

    /// Removes the server at `index`.
    pub(crate) fn remove(&mut self, index: usize) {
        let removed = self.servers.remove(index);
        self.loads.subtract(&removed);
    }

    /// Replaces the candidate at `index` by the server's present one.
    pub(crate) fn update(&mut self, index: usize, candidate: Candidate) {
        let before = std::mem::replace(&mut self.servers[index], candidate);
        self.loads.subtract(&before);
        self.loads.add(&candidate);
    }

    /// Hides the room of the server at `index` until its next update.
    pub(crate) fn hide_room(&mut self, index: usize) {
        self.servers[index].free = 0;
    }
}

impl Deref for Candidates {
    type Target = [Candidate];

    fn deref(&self) -> &[Candidate] {
        &self.servers
    }
}

impl FromIterator<Candidate> for Candidates {
    fn from_iter<T: IntoIterator<Item = Candidate>>(servers: T) -> Self {
        let mut candidates = Self::default();
        servers.into_iter().for_each(|candidate| candidates.push(candidate));
        candidates
    }
}
