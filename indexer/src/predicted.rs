//! Blocks that placements are expected to leave in a cache, before any engine has said so.
//!
//! Between a routing decision and the engine's first event the index is blind; siblings of a burst would
//! scatter. A prediction fills that gap: it lives apart from what engines confirmed, is reported apart, and
//! dies after a short life whether or not it came true.
//!
//! Predictions of a similar age share one tree, which is dropped whole: dying costs nothing per block. A
//! prediction therefore lives for its full life less at most one [`PredictedConfig::resolution`], never more.

use std::collections::VecDeque;

use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::overlap::Overlap;
use crate::radix::RadixTree;
use crate::sync::{AtomicUsize, Ordering, RwLock};
use crate::worker::Slot;

/// How long predictions live and how many there may be. Times are in the caller's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedConfig {
    /// Ticks until a prediction dies. Zero turns predictions off.
    pub life: u32,
    /// Ticks by which a prediction may die early. A lookup costs one walk per `life / resolution`.
    pub resolution: u32,
    /// Most (worker, block) pairs predicted at a time; past it the oldest are dropped and counted.
    pub max_blocks: usize,
}

impl Default for PredictedConfig {
    fn default() -> Self {
        Self { life: 50, resolution: 25, max_blocks: 1 << 20 }
    }
}

/// Predictions need few shards: they are read through one lock anyway.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Predicted {
    config: PredictedConfig,
    /// Oldest first, no two of one generation.
    generations: RwLock<VecDeque<Generation>>,
    /// Sum over the generations; lets lookups pass by when there is nothing.
    blocks: AtomicUsize,
    dropped: AtomicUsize,
}

#[derive(Debug)]
struct Generation {
    /// Every prediction in here dies at or after this tick and is not used from this tick on.
    dies: u32,
    tree: RadixTree,
    blocks: AtomicUsize,
}

impl Predicted {
    pub(crate) fn new(config: PredictedConfig) -> Self {
        Self {
            config,
            generations: RwLock::default(),
            blocks: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Predictions given up early because there were too many.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let generations = self.generations.read();
        let trees = generations.iter().map(|generation| generation.tree.bytes());
        trees.sum::<usize>() + generations.capacity() * size_of::<Generation>()
    }

    /// Expects `slot` to hold all of `prompt` for `life` ticks, or for as long as configured.
    pub(crate) fn predict(&self, slot: Slot, prompt: &[SequenceHash], now: Tick, life: Option<u32>) {
        // Other lives are told apart less finely, so that generations stay few.
        let finest = life.map_or(1, |life| life / 4);
        let life = life.unwrap_or(self.config.life);
        if prompt.is_empty() || life == 0 {
            return;
        }
        self.expire(now);
        let resolution = self.config.resolution.max(finest).max(1);
        let dies = now.0.saturating_add(life) / resolution * resolution;
        if dies <= now.0 {
            return;
        }
        let there = |generations: &VecDeque<Generation>| {
            generations.binary_search_by_key(&dies, |generation| generation.dies)
        };
        if there(&self.generations.read()).is_err() {
            let mut generations = self.generations.write();
            if let Err(place) = there(&generations) {
                let (tree, blocks) = (RadixTree::new(SHARDS), AtomicUsize::new(0));
                generations.insert(place, Generation { dies, tree, blocks });
            }
        }
        let generations = self.generations.read();
        // Time may have gone on while no lock was held; a prediction that missed its generation is not made.
        let Some(generation) = generations.iter().find(|generation| generation.dies == dies) else {
            return;
        };
        let new = generation.add(slot, prompt, now);
        let total = self.blocks.fetch_add(new, Ordering::Relaxed) + new;
        drop(generations);
        if total > self.config.max_blocks {
            self.drop_oldest();
        }
    }

    /// Adds what is predicted for `prompt` to an answer about what is confirmed.
    pub(crate) fn overlap_into(&self, prompt: &[SequenceHash], now: Tick, overlap: &mut Overlap) {
        overlap.predicted.clear();
        if self.block_count() == 0 {
            return;
        }
        let slots = overlap.directory.slot_count();
        overlap.predicted.resize(slots, 0);
        for generation in self.generations.read().iter().filter(|generation| generation.dies > now.0) {
            generation.tree.overlap(prompt, now, slots, &[], &mut overlap.scratch);
            for (most, depth) in overlap.predicted.iter_mut().zip(overlap.scratch.as_slice()) {
                *most = (*most).max(*depth);
            }
        }
    }

    pub(crate) fn forget(&self, slot: Slot) {
        for generation in self.generations.read().iter() {
            let gone = generation.forget(slot);
            self.blocks.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Drops what has died.
    pub(crate) fn expire(&self, now: Tick) {
        if self.generations.read().front().is_some_and(|oldest| oldest.dies <= now.0) {
            let mut dead = Vec::new();
            let mut generations = self.generations.write();
            while let Some(oldest) = generations.pop_front_if(|oldest| oldest.dies <= now.0) {
                self.blocks.fetch_sub(oldest.blocks.load(Ordering::Relaxed), Ordering::Relaxed);
                dead.push(oldest);
            }
            // Freed only when nobody waits for it.
            drop(generations);
        }
    }

    fn drop_oldest(&self) {
        // The lock is free again before the tree is.
        let oldest = self.generations.write().pop_front();
        if let Some(oldest) = oldest {
            let blocks = oldest.blocks.load(Ordering::Relaxed);
            self.blocks.fetch_sub(blocks, Ordering::Relaxed);
            self.dropped.fetch_add(blocks, Ordering::Relaxed);
        }
    }
}

impl Generation {
    /// How many of the blocks were not predicted here yet.
    fn add(&self, slot: Slot, prompt: &[SequenceHash], now: Tick) -> usize {
        let mut topology = self.tree.write();
        let plan = self.tree.plan(&topology, slot, Tier::Device, None, prompt);
        let tail = self.tree.open(&mut topology, &plan, prompt);
        self.tree.hold(&mut topology, (slot, Tier::Device, now), &plan, prompt, tail);
        let new = plan.new_blocks(prompt.len());
        self.blocks.fetch_add(new, Ordering::Relaxed);
        new
    }

    fn forget(&self, slot: Slot) -> usize {
        let gone = self.tree.forget(&mut self.tree.write(), slot, &[Tier::Device]);
        self.blocks.fetch_sub(gone, Ordering::Relaxed);
        gone
    }
}
