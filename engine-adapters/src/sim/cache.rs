//! The simulated engine's prefix cache: full blocks by what they contain, least recently used out first.
//!
//! A block is pinned while a sequence uses it. Unpinned blocks stay until room is needed; of those let go
//! together, the deepest goes first, so that paths are lost from their ends.

use std::collections::VecDeque;

use hashbrown::HashMap;
use kvlane_indexer::{EngineBlockId, SequenceHash};

#[derive(Debug, Default)]
struct Block {
    pins: u32,
    /// Computed, so that others can use it.
    ready: bool,
    /// When it was last let go; older entries of the queue are void.
    let_go: u64,
}

#[derive(Debug)]
pub(crate) struct BlockCache {
    capacity: usize,
    blocks: HashMap<SequenceHash, Block>,
    pinned: usize,
    /// Unpinned blocks in the order they were let go, with void entries in between.
    queue: VecDeque<(SequenceHash, u64)>,
    clock: u64,
}

impl BlockCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, blocks: HashMap::new(), pinned: 0, queue: VecDeque::new(), clock: 0 }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// How many leading blocks of `path` are there to be used.
    pub(crate) fn ready_prefix(&self, path: &[SequenceHash]) -> usize {
        path.iter().take_while(|hash| self.blocks.get(*hash).is_some_and(|block| block.ready)).count()
    }

    /// How many blocks of `path` are not pinned yet.
    pub(crate) fn unpinned(&self, path: &[SequenceHash]) -> usize {
        path.iter().filter(|hash| self.blocks.get(*hash).is_none_or(|block| block.pins == 0)).count()
    }

    /// Evicts until at most `keep` blocks are here, pinned ones aside, and names what went.
    pub(crate) fn evict_to(&mut self, keep: usize, evicted: &mut Vec<EngineBlockId>) {
        while self.blocks.len() > keep.max(self.pinned) {
            let Some((hash, let_go)) = self.queue.pop_front() else { return };
            let void = self.blocks.get(&hash).is_none_or(|block| block.pins > 0 || block.let_go != let_go);
            if void {
                continue;
            }
            if self.blocks.remove(&hash).is_some_and(|block| block.ready) {
                evicted.push(EngineBlockId::from(hash.0));
            }
        }
    }

    /// Pins a block, which comes into being if it is not there.
    pub(crate) fn pin(&mut self, hash: SequenceHash) {
        let block = self.blocks.entry(hash).or_default();
        block.pins += 1;
        self.pinned += usize::from(block.pins == 1);
    }

    /// The block is computed; true when it was not before.
    pub(crate) fn set_ready(&mut self, hash: SequenceHash) -> bool {
        self.blocks.get_mut(&hash).is_some_and(|block| !std::mem::replace(&mut block.ready, true))
    }

    /// Lets go of a path from its end. Blocks nobody computed go at once.
    pub(crate) fn let_go(&mut self, path: &[SequenceHash]) {
        for hash in path.iter().rev() {
            let Some(block) = self.blocks.get_mut(hash) else { continue };
            block.pins -= 1;
            if block.pins > 0 {
                continue;
            }
            self.pinned -= 1;
            if block.ready {
                self.clock += 1;
                block.let_go = self.clock;
                self.queue.push_back((*hash, self.clock));
            } else {
                self.blocks.remove(hash);
            }
        }
        if self.queue.len() > 2 * self.blocks.len() + 64 {
            let blocks = &self.blocks;
            self.queue.retain(|(hash, let_go)| {
                blocks.get(hash).is_some_and(|block| block.pins == 0 && block.let_go == *let_go)
            });
        }
    }

    /// Drops everything that is not pinned.
    pub(crate) fn clear(&mut self, evicted: &mut Vec<EngineBlockId>) {
        self.evict_to(0, evicted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(of: u64, len: u64) -> Vec<SequenceHash> {
        (0..len).map(|at| SequenceHash(of * 100 + at)).collect()
    }

    fn use_path(cache: &mut BlockCache, path: &[SequenceHash]) {
        path.iter().for_each(|hash| cache.pin(*hash));
        for hash in path {
            cache.set_ready(*hash);
        }
    }

    #[test]
    fn the_oldest_path_goes_first_and_from_its_end() {
        let mut cache = BlockCache::new(10);
        let (a, b) = (path(1, 4), path(2, 4));
        use_path(&mut cache, &a);
        use_path(&mut cache, &b);
        cache.let_go(&a);
        cache.let_go(&b);
        let mut evicted = Vec::new();
        cache.evict_to(5, &mut evicted);
        assert_eq!(evicted, [103_u64, 102, 101].map(EngineBlockId::from));
        assert_eq!((cache.ready_prefix(&a), cache.ready_prefix(&b)), (1, 4));
    }

    #[test]
    fn pinned_blocks_stay_and_a_use_makes_young_again() {
        let mut cache = BlockCache::new(10);
        let (a, b) = (path(1, 3), path(2, 3));
        use_path(&mut cache, &a);
        use_path(&mut cache, &b);
        cache.let_go(&a);
        cache.let_go(&b);
        use_path(&mut cache, &a);
        let mut evicted = Vec::new();
        cache.evict_to(0, &mut evicted);
        assert_eq!((evicted.len(), cache.len(), cache.pinned()), (3, 3, 3));
        cache.let_go(&a);
        assert_eq!(cache.pinned(), 0);
    }

    #[test]
    fn blocks_nobody_computed_are_not_kept() {
        let mut cache = BlockCache::new(10);
        let a = path(1, 3);
        a.iter().for_each(|hash| cache.pin(*hash));
        assert!(cache.set_ready(a[0]) && !cache.set_ready(a[0]));
        assert_eq!((cache.ready_prefix(&a), cache.unpinned(&path(1, 5))), (1, 2));
        cache.let_go(&a);
        assert_eq!((cache.len(), cache.ready_prefix(&a)), (1, 1));
    }
}
