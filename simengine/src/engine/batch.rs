//! The batch: the sequences that decode together, and the times at which they end or need a block.
//!
//! Time is counted in steps of the engine. Every member gets one token per step, so the number of its tokens
//! is the difference of two step counts. No work is done for a single token.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy)]
struct Member {
    joined_at: u64,
    kv_tokens_joined: u64,
    finishes_at: u64,
}

/// The tokens of a sequence that has left the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    /// Number of tokens decoded since the sequence joined the batch.
    pub(crate) decoded: u64,
    /// Number of the sequence's tokens in the cache.
    pub(crate) kv_tokens: u64,
}

/// The running sequences by number. The numbers are in order of arrival.
#[derive(Debug)]
pub(crate) struct Batch {
    step: u64,
    members: BTreeMap<u64, Member>,
    finishes: BTreeSet<(u64, u64)>,
    /// For each residue modulo the block size, the number of members that need a block at steps of this
    /// residue.
    block_phases: Vec<u64>,
    kv_tokens: u64,
}

impl Batch {
    pub(crate) fn new(block_tokens: u32) -> Self {
        Self {
            step: 0,
            members: BTreeMap::new(),
            finishes: BTreeSet::new(),
            block_phases: vec![0; block_tokens as usize],
            kv_tokens: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.members.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Number of tokens that all members together have in the cache.
    pub(crate) fn kv_tokens(&self) -> u64 {
        self.kv_tokens
    }

    /// Adds a sequence that has `kv_tokens` tokens in the cache and ends after `remaining` more steps.
    pub(crate) fn join(&mut self, number: u64, kv_tokens: u64, remaining: u64) {
        let member =
            Member { joined_at: self.step, kv_tokens_joined: kv_tokens, finishes_at: self.step + remaining };
        let phase = self.phase_of(&member);
        self.block_phases[phase] += 1;
        self.finishes.insert((member.finishes_at, number));
        self.members.insert(number, member);
        self.kv_tokens += kv_tokens;
    }

    /// Takes a sequence out of the batch. `None` if it is not a member.
    pub(crate) fn leave(&mut self, number: u64) -> Option<Departure> {
        let member = self.members.remove(&number)?;
        let phase = self.phase_of(&member);
        self.block_phases[phase] -= 1;
        self.finishes.remove(&(member.finishes_at, number));
        let decoded = self.step - member.joined_at;
        let departure = Departure { decoded, kv_tokens: member.kv_tokens_joined + decoded };
        self.kv_tokens -= departure.kv_tokens;
        Some(departure)
    }

    /// Number of tokens that a member has decoded since it joined. `None` if the sequence is not a member.
    pub(crate) fn decoded(&self, number: u64) -> Option<u64> {
        self.members.get(&number).map(|member| self.step - member.joined_at)
    }

    /// Makes every member decode `steps` tokens. The caller must have allocated the blocks.
    pub(crate) fn advance(&mut self, steps: u64) {
        self.step += steps;
        self.kv_tokens += steps * self.len();
    }

    /// Number of blocks that the next `steps` steps need.
    pub(crate) fn blocks_needed(&self, steps: u64) -> u64 {
        let period = self.block_phases.len() as u64;
        let partial: u64 = (0..steps % period).map(|ahead| self.phase_count(ahead)).sum();
        (steps / period) * self.len() + partial
    }

    /// The largest number of steps, at most `limit`, for which `blocks` blocks are enough.
    pub(crate) fn steps_within(&self, blocks: u64, limit: u64) -> u64 {
        if self.is_empty() {
            return limit;
        }
        let period = self.block_phases.len() as u64;
        let rounds = blocks / self.len();
        if rounds > limit / period {
            return limit;
        }
        let mut left = blocks - rounds * self.len();
        let mut steps = rounds * period;
        for ahead in 0..period {
            let need = self.phase_count(ahead);
            if need > left {
                break;
            }
            left -= need;
            steps += 1;
        }
        steps.min(limit)
    }

    /// Number of steps until the next member ends. `None` if the batch is empty.
    pub(crate) fn steps_to_finish(&self) -> Option<u64> {
        self.finishes.first().map(|(finishes_at, _)| finishes_at - self.step)
    }

    /// A member that has generated all its tokens.
    pub(crate) fn finished(&self) -> Option<u64> {
        self.finishes.first().filter(|(finishes_at, _)| *finishes_at <= self.step).map(|(_, number)| *number)
    }

    /// The member that arrived last, which is preempted first.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.members.last_key_value().map(|(number, _)| *number)
    }

    /// All members, in order of arrival.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.members.keys().copied().collect()
    }

    fn phase_count(&self, ahead: u64) -> u64 {
        let period = self.block_phases.len() as u64;
        self.block_phases[((self.step + ahead) % period) as usize]
    }

    /// The residue of the steps at which the member needs a block, because its last block is full.
    fn phase_of(&self, member: &Member) -> usize {
        let period = self.block_phases.len() as u64;
        let behind = member.kv_tokens_joined % period;
        ((member.joined_at + period - behind) % period) as usize
    }
}
