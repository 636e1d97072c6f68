//! What one worker holds, and how its events change that and the tree.
//!
//! Invariant: for each tier, the blocks the tree says this worker holds are exactly the blocks named here on
//! that tier, one name each. It holds whenever the worker's lock is free.

use smallvec::SmallVec;

use super::Applied;
use crate::Tick;
use crate::block::{EngineBlockId, SequenceHash, Tier};
use crate::event::{EventError, StoredBlock};
use crate::names::{Gone, MAX_DEPTH, NameRange, Names, Spot};
use crate::radix::{AnchorId, Plan, Position, RadixTree, Topology};
use crate::worker::Slot;

/// Ranges taken from the tree in one hold of its lock.
const RELEASE_AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct WorkerState {
    pub(super) names: Names,
    /// Blocks held, per tier.
    pub(super) blocks: [usize; 3],
    /// Forgotten for good; whoever finds it so looks the worker up again.
    pub(super) retired: bool,
    /// Has held blocks outside the device.
    pub(super) tiered: bool,
    /// What all its events came to.
    pub(super) total: Applied,
}

impl WorkerState {
    pub(super) fn bytes(&self) -> usize {
        size_of::<super::Worker>() + self.names.heap_bytes()
    }

    pub(super) fn stored(
        &mut self,
        tree: &RadixTree,
        (slot, tier, tick): (Slot, Tier, Tick),
        parent: Option<EngineBlockId>,
        blocks: &[StoredBlock],
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        let after = match parent.map(|id| self.names.find_parent(id, tier)) {
            None => None,
            Some(Some(spot)) => Some(spot),
            // Never guessed and never taken for a root: either would credit blocks that are not there.
            Some(None) => return Ok(Applied { orphaned: blocks.len(), ..Applied::default() }),
        };
        let start = after.map_or(0, |after| after.depth + 1);
        let depth = u64::from(start) + blocks.len() as u64 - 1;
        if depth > u64::from(MAX_DEPTH) {
            return Err(EventError::TooDeep { depth, max: MAX_DEPTH });
        }

        let mut topology = tree.write();
        let parent = after.map(|after| Position {
            anchor: topology.resolve(self.names.anchor(after), after.depth),
            depth: after.depth,
        });
        let mut path = topology.take_scratch();
        let end = parent.map(|parent| (parent, tree.end_at(&topology, slot, tier, parent)));
        let hash = end.map(|(_, (hash, _))| hash);
        path.extend(SequenceHash::chain(hash, blocks.iter().map(|block| block.hash)));
        let plan = match end {
            Some((parent, (_, true))) => Plan::append(parent),
            _ => tree.plan(&topology, slot, tier, parent, &path),
        };
        let tail = tree.open(&mut topology, &plan, &path);
        let stored = self.name_new(&mut topology, tier, after, (&plan, tail), blocks, held);
        tree.hold(&mut topology, (slot, tier, tick), &plan, &path, tail);
        topology.put_scratch(path);
        self.blocks[tier.index()] += stored;
        Ok(Applied { stored, ..Applied::default() })
    }

    /// Writes down the names of the blocks the worker does not hold yet, and says how many those are.
    ///
    /// Whether a block is held is asked by its place, not by its name: a second name for a held block is
    /// passed over, and the first one counts. `held` is told those that are passed over.
    fn name_new(
        &mut self,
        topology: &mut Topology,
        tier: Tier,
        after: Option<Spot>,
        (plan, tail): (&Plan, Option<AnchorId>),
        blocks: &[StoredBlock],
        held: &mut dyn FnMut(EngineBlockId),
    ) -> usize {
        let mut ranges: SmallVec<[(u32, u32, AnchorId); 4]> = SmallVec::new();
        let mut add = |from: u32, to: u32, anchor| match ranges.last_mut() {
            _ if from >= to => {}
            Some(last) if last.1 == from => *last = (last.0, to, anchor),
            _ => ranges.push((from, to, anchor)),
        };
        for segment in &plan.segments {
            add(segment.held.max(segment.from), segment.to, segment.anchor);
        }
        if let Some(tail) = tail {
            add(plan.start + plan.matched as u32, plan.start + blocks.len() as u32, tail);
        }
        let mut named = 0;
        let mut next = 0;
        for (from, to, anchor) in ranges {
            let new = (from - plan.start) as usize;
            blocks[next..new].iter().for_each(|block| held(block.id));
            next = (to - plan.start) as usize;
            let part = &blocks[(from - plan.start) as usize..(to - plan.start) as usize];
            self.names.append(topology, after, (anchor, from, tier), part.iter().map(|block| block.id));
            named += part.len();
        }
        blocks[next..].iter().for_each(|block| held(block.id));
        named
    }

    pub(super) fn removed(
        &mut self,
        tree: &RadixTree,
        (slot, tier): (Slot, Tier),
        mut ids: &[EngineBlockId],
    ) -> Applied {
        let mut applied = Applied::default();
        let mut gone: SmallVec<[(Tier, Gone); 8]> = SmallVec::new();
        while !ids.is_empty() {
            let Some((count, range)) = self.names.remove(ids, tier) else {
                applied.unknown += 1;
                ids = &ids[1..];
                continue;
            };
            applied.removed += count;
            gone.push((tier, range));
            ids = &ids[count..];
        }
        self.release(tree, slot, &gone);
        self.names.settle();
        applied
    }

    /// Takes from the tree what is no longer named. Other writers get their turn in between when it is much.
    fn release(&mut self, tree: &RadixTree, slot: Slot, gone: &[(Tier, Gone)]) {
        for ranges in gone.chunks(RELEASE_AT_ONCE) {
            let mut topology = tree.write();
            for (tier, range) in ranges {
                // A run that split holds the anchor twice; one that is gone keeps it until its blocks are.
                if range.refs > 0 {
                    topology.retain(range.anchor, 1);
                }
                tree.release(&mut topology, (slot, *tier), range.anchor, range.from, range.to);
                if range.refs < 0 {
                    topology.release(range.anchor, 1);
                }
                self.blocks[tier.index()] -= (range.to - range.from) as usize;
            }
        }
    }

    /// Drops everything on these tiers; on all of them when none is named.
    pub(super) fn cleared(&mut self, tree: &RadixTree, slot: Slot, tiers: &[Tier]) -> Applied {
        let tiers = if tiers.is_empty() { &Tier::ALL } else { tiers };
        let stays = |range: &NameRange<'_>| if tiers.contains(&range.tier()) { 0 } else { range.depths().1 };
        Applied { removed: self.forget_ends(tree, slot, stays), ..Applied::default() }
    }

    /// Forgets the ends of paths, from the depths that `keep` gives on, and says how many blocks that were.
    pub(super) fn forget_ends(
        &mut self,
        tree: &RadixTree,
        slot: Slot,
        keep: impl FnMut(&NameRange<'_>) -> u32,
    ) -> usize {
        let gone = self.names.truncate_each(keep);
        self.release(tree, slot, &gone);
        self.names.settle();
        gone.iter().map(|(_, range)| (range.to - range.from) as usize).sum()
    }
}
