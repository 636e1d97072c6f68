//! Engines that keep a block in several physical copies announce and remove each of them.
//!
//! vLLM computes the last block of a prompt it holds whole into a new place and stores it under the same name
//! again; each copy is removed on its own. The block is there until the last copy goes.
//!
//! A request can also make vLLM announce blocks again that it did not store anew (`kv_cache_report_mode`). Real copies
//! come one block at a time, so only those are counted: one copy too few gives a block up early, one too many would
//! claim it for ever.

use hashbrown::HashMap;
use kvlane_indexer::{EngineBlockId, Tier};

/// Blocks with more than one copy that are counted at a time, per worker.
const MAX_COUNTED: usize = 1 << 20;

/// How many copies there are of blocks that have more than one.
#[derive(Debug, Default)]
pub struct Copies {
    more: HashMap<(Tier, EngineBlockId), u32>,
}

impl Copies {
    /// A block that is held already was stored once more. Past the bound it is not counted: then the block
    /// counts as gone with the first removal, which is early and never late.
    pub fn stored_again(&mut self, tier: Tier, block: EngineBlockId) {
        if self.more.len() < MAX_COUNTED || self.more.contains_key(&(tier, block)) {
            let more = self.more.entry((tier, block)).or_insert(0);
            *more = more.saturating_add(1);
        }
    }

    /// Takes a copy of each block away, and leaves those of which it was the last.
    pub fn removed(&mut self, tier: Tier, blocks: &mut Vec<EngineBlockId>) {
        if self.more.is_empty() {
            return;
        }
        blocks.retain(|block| match self.more.get_mut(&(tier, *block)) {
            None => true,
            Some(1) => {
                self.more.remove(&(tier, *block));
                false
            }
            Some(more) => {
                *more -= 1;
                false
            }
        });
    }

    pub fn clear(&mut self) {
        self.more.clear();
    }

    /// Blocks that have more than one copy.
    pub fn len(&self) -> usize {
        self.more.len()
    }

    pub fn is_empty(&self) -> bool {
        self.more.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_with_its_last_copy() {
        let mut copies = Copies::default();
        let block = EngineBlockId::from(7_u64);
        copies.stored_again(Tier::Device, block);
        copies.stored_again(Tier::Device, block);
        let mut gone = |tier| {
            let mut blocks = vec![block];
            copies.removed(tier, &mut blocks);
            !blocks.is_empty()
        };
        assert!(gone(Tier::Host));
        assert_eq!([gone(Tier::Device), gone(Tier::Device), gone(Tier::Device)], [false, false, true]);
        assert!(copies.is_empty());
    }
}
