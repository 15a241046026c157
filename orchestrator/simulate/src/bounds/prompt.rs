//! The KV blocks of prompts. Prompts with the same beginning share the full blocks of this beginning.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The prompt of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptBlocks {
    /// Length of the prompt in tokens.
    pub(super) tokens: u32,
    /// The full blocks that no earlier prompt has.
    pub(super) own: u32,
}

/// The full blocks of all prompts so far. Each is known by the hash of all tokens up to its end. If two hashes collide,
/// a block counts as seen, which only lowers the bound.
#[derive(Debug, Default)]
pub(super) struct SeenBlocks(HashSet<u64>);

impl SeenBlocks {
    /// Adds the blocks of a prompt.
    pub(super) fn add(&mut self, prompt_ids: &[u32], block_tokens: u32) -> PromptBlocks {
        let mut hasher = DefaultHasher::new();
        let mut own = 0;
        for block in prompt_ids.chunks_exact(block_tokens as usize) {
            block.hash(&mut hasher);
            own += u32::from(self.0.insert(hasher.finish()));
        }
        PromptBlocks { tokens: u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX), own }
    }
}
