//! The KV-block budget and the prefix cache.
//!
//! A full block of a prompt is identified by the hash of all tokens up to its end. All sequences that start
//! with these tokens share the block. When the last of these sequences has ended, the block stays in the
//! cache until its space is needed. The least recently used block is evicted first. All other blocks belong
//! to one sequence and are only counted.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::answer::hash_tokens;

/// A hasher that uses a `u64` key as its own hash.
#[derive(Debug, Default)]
pub(crate) struct HashedKey(u64);

impl Hasher for HashedKey {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct SharedBlock {
    references: u32,
    /// The value of the cache's `stamp` when the block last became idle. An entry of `idle` with another
    /// stamp is outdated.
    idle_stamp: u64,
}

/// The KV blocks of one server.
#[derive(Debug)]
pub(crate) struct KvCache {
    total: u64,
    private: u64,
    shared: HashMap<u64, SharedBlock, BuildHasherDefault<HashedKey>>,
    referenced: u64,
    idle: VecDeque<(u64, u64)>,
    idle_count: u64,
    stamp: u64,
}

impl KvCache {
    pub(crate) fn new(total: u32) -> Self {
        Self {
            total: u64::from(total),
            private: 0,
            shared: HashMap::default(),
            referenced: 0,
            idle: VecDeque::new(),
            idle_count: 0,
            stamp: 0,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Number of blocks that sequences hold.
    pub(crate) fn used(&self) -> u64 {
        self.private + self.referenced
    }

    /// Number of blocks that can be allocated, if necessary by eviction.
    pub(crate) fn available(&self) -> u64 {
        self.total.saturating_sub(self.used())
    }

    /// Number of blocks at the head of `chain` that are in the cache.
    pub(crate) fn hits(&self, chain: &[u64]) -> u64 {
        chain.iter().take_while(|hash| self.shared.contains_key(hash)).count() as u64
    }

    /// Number by which [`KvCache::acquire`] of `chain` would lower [`KvCache::available`].
    pub(crate) fn demand(&self, chain: &[u64]) -> u64 {
        let is_taken = |hash: &&u64| self.shared.get(hash).is_some_and(|block| block.references > 0);
        (chain.len() - chain.iter().filter(is_taken).count()) as u64
    }

    /// Takes a reference to every block of `chain`, and allocates `private` blocks.
    pub(crate) fn acquire(&mut self, chain: &[u64], private: u64) {
        for hash in chain {
            let known = self.shared.len();
            let block = self.shared.entry(*hash).or_default();
            block.references += 1;
            if block.references > 1 {
                continue;
            }
            self.referenced += 1;
            if self.shared.len() == known {
                self.idle_count -= 1;
            }
        }
        self.grow(private);
    }

    /// Releases the blocks that [`KvCache::acquire`] and [`KvCache::grow`] took for one sequence.
    pub(crate) fn release(&mut self, chain: &[u64], private: u64) {
        self.private -= private;
        // The last block is released first, so the tail of a chain is evicted before its head. A chain
        // without its head is useless.
        for hash in chain.iter().rev() {
            let Some(block) = self.shared.get_mut(hash) else { continue };
            block.references -= 1;
            if block.references > 0 {
                continue;
            }
            self.stamp += 1;
            block.idle_stamp = self.stamp;
            self.referenced -= 1;
            self.idle_count += 1;
            self.idle.push_back((self.stamp, *hash));
        }
        self.forget_outdated();
    }

    /// Allocates blocks for generated tokens.
    pub(crate) fn grow(&mut self, private: u64) {
        self.private += private;
        while self.used() + self.idle_count > self.total && self.evict_one() {}
    }

    /// Drops every shared block that no sequence holds. Returns false if sequences still hold shared blocks.
    pub(crate) fn reset_prefixes(&mut self) -> bool {
        self.shared.retain(|_, block| block.references > 0);
        self.idle.clear();
        self.idle_count = 0;
        self.referenced == 0
    }

    fn evict_one(&mut self) -> bool {
        while let Some((stamp, hash)) = self.idle.pop_front() {
            if self.is_idle_since(hash, stamp) {
                self.shared.remove(&hash);
                self.idle_count -= 1;
                return true;
            }
        }
        false
    }

    /// Drops outdated entries from the queue of idle blocks if it is longer than twice the size of the cache.
    fn forget_outdated(&mut self) {
        if (self.idle.len() as u64) <= 2 * self.total {
            return;
        }
        let mut idle = std::mem::take(&mut self.idle);
        idle.retain(|(stamp, hash)| self.is_idle_since(*hash, *stamp));
        self.idle = idle;
    }

    fn is_idle_since(&self, hash: u64, stamp: u64) -> bool {
        self.shared.get(&hash).is_some_and(|block| block.references == 0 && block.idle_stamp == stamp)
    }
}

/// The hashes of a prompt's full blocks. Each hash covers all tokens up to the end of its block.
pub(crate) fn block_chain(prompt_ids: &[u32], block_tokens: u32) -> Arc<[u64]> {
    let block_length = block_tokens as usize;
    let mut buffer = vec![0_u8; block_length * 4];
    let mut hash = 0x5EED;
    prompt_ids
        .chunks_exact(block_length)
        .map(|block| {
            hash = hash_tokens(block, hash, &mut buffer);
            hash
        })
        .collect()
}
