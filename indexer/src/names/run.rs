//! Names of neighbouring blocks, in the order of their path.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::block::{EngineBlockId, Tier};
use crate::radix::AnchorId;

/// Names of blocks that follow each other on one path and one tier.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ids: VecDeque<EngineBlockId>,
    /// Depths of hashed names other than the last, ascending. Not kept when all are hashed.
    pub(super) forks: SmallVec<[u32; 2]>,
    /// All blocks lie in or above this anchor's node; the run holds one reference to it.
    pub(super) anchor: AnchorId,
    /// Depth of the first block.
    pub(super) start: u32,
    pub(super) tier: Tier,
    /// Its place in the list of runs whose names are not all hashed.
    pub(super) open_at: Option<u32>,
}

impl Run {
    pub(super) fn end(&self) -> u32 {
        self.start + self.ids.len() as u32
    }

    pub(super) fn get(&self, depth: u32) -> Option<EngineBlockId> {
        self.ids.get(depth.checked_sub(self.start)? as usize).copied()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let forks = if self.forks.spilled() { self.forks.capacity() * size_of::<u32>() } else { 0 };
        self.ids.capacity() * size_of::<EngineBlockId>() + forks
    }

    pub(super) fn position(&self, id: EngineBlockId) -> Option<u32> {
        let (front, back) = self.ids.as_slices();
        let find = |part: &[EngineBlockId]| part.iter().position(|known| *known == id);
        let at = find(front).or_else(|| find(back).map(|at| front.len() + at))?;
        Some(self.start + at as u32)
    }
}

/// One run, to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRange<'a> {
    pub(super) run: &'a Run,
}

impl<'a> NameRange<'a> {
    pub(crate) fn anchor(&self) -> AnchorId {
        self.run.anchor
    }

    pub(crate) fn tier(&self) -> Tier {
        self.run.tier
    }

    /// Depths of the first block and of the one after the last.
    pub(crate) fn depths(&self) -> (u32, u32) {
        (self.run.start, self.run.end())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = EngineBlockId> + use<'a> {
        self.run.ids.iter().copied()
    }
}
