//! One node of the tree: a run of blocks with no branch in it, and who holds how much of it.

use std::cmp::min;

use super::holders::Holders;
use super::topology::AnchorId;
use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::sync::{AtomicU32, Ordering};
use crate::worker::Slot;

/// What lookups see. Where a node hangs in the tree is the writer's business ([`super::topology`]); a reader
/// finds the next node by the next block's sequence hash.
#[derive(Debug)]
pub(crate) struct Node {
    /// The first block and its depth; nodes are found by both. The depth matters only for hashes made up
    /// outside: one that stands at two depths must not be taken for one node.
    pub(crate) key: SequenceHash,
    pub(crate) start: u32,
    /// The last block, kept here so that a whole match is one comparison with nothing fetched.
    pub(crate) last: SequenceHash,
    hashes: Vec<SequenceHash>,
    pub(crate) anchor: AnchorId,
    /// When last stored to or hit. Written by readers too, at most once per tick.
    touched: AtomicU32,
    device: Holders,
    /// Almost always empty: no lower tiers, no memory for them.
    lower: Option<Box<[Holders; 2]>>,
    /// Whether any node hangs below; saves a lookup the search for a child that cannot be.
    pub(crate) fertile: bool,
}

impl Node {
    pub(crate) fn new(
        start: u32,
        hashes: &[SequenceHash],
        anchor: AnchorId,
        (slot, tier, tick): (Slot, Tier, Tick),
    ) -> Self {
        let mut node = Self::unheld(start, hashes.to_vec(), anchor, tick);
        *node.holders_mut(tier) = Holders::only(slot);
        node
    }

    /// A node nobody holds (yet). `hashes` has at least one block.
    pub(crate) fn unheld(start: u32, hashes: Vec<SequenceHash>, anchor: AnchorId, tick: Tick) -> Self {
        Self {
            key: hashes[0],
            start,
            last: hashes[hashes.len() - 1],
            hashes,
            anchor,
            touched: AtomicU32::new(tick.0),
            device: Holders::default(),
            lower: None,
            fertile: false,
        }
    }

    /// The block at this place of the node; the last one, asked for most, is at hand.
    pub(crate) fn hash_at(&self, at: u32) -> SequenceHash {
        if at + 1 == self.len() { self.last } else { self.hashes[at as usize] }
    }

    pub(crate) fn is(&self, key: SequenceHash, start: u32) -> bool {
        self.key == key && self.start == start
    }

    pub(crate) fn hashes(&self) -> &[SequenceHash] {
        &self.hashes
    }

    pub(crate) fn len(&self) -> u32 {
        self.hashes.len() as u32
    }

    pub(crate) fn device(&self) -> &Holders {
        &self.device
    }

    pub(crate) fn holders(&self, tier: Tier) -> Option<&Holders> {
        match tier {
            Tier::Device => Some(&self.device),
            Tier::Host => self.lower.as_deref().map(|lower| &lower[0]),
            Tier::Disk => self.lower.as_deref().map(|lower| &lower[1]),
        }
    }

    fn holders_mut(&mut self, tier: Tier) -> &mut Holders {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.lower.get_or_insert_default()[0],
            Tier::Disk => &mut self.lower.get_or_insert_default()[1],
        }
    }

    pub(crate) fn extent(&self, tier: Tier, slot: Slot) -> u32 {
        self.holders(tier).map_or(0, |holders| holders.extent(slot, self.len()))
    }

    pub(crate) fn set_extent(&mut self, tier: Tier, slot: Slot, extent: u32) {
        let len = self.len();
        self.holders_mut(tier).set_extent(slot, extent, len);
        self.settle_lower();
    }

    /// Takes the slot off a tier and says how many blocks it held there.
    pub(crate) fn take_extent(&mut self, tier: Tier, slot: Slot) -> u32 {
        let extent = self.extent(tier, slot);
        if extent > 0 {
            self.set_extent(tier, slot, 0);
        }
        extent
    }

    fn settle_lower(&mut self) {
        if self.lower.as_deref().is_some_and(|lower| lower.iter().all(Holders::is_empty)) {
            self.lower = None;
        }
    }

    fn each_holders_mut(&mut self) -> impl Iterator<Item = &mut Holders> {
        std::iter::once(&mut self.device).chain(self.lower.as_deref_mut().into_iter().flatten())
    }

    /// How far into this node anyone reaches, on any tier.
    pub(crate) fn reach(&self) -> u32 {
        let tiers = Tier::ALL.iter().filter_map(|tier| self.holders(*tier));
        tiers.map(|holders| holders.reach(self.len(), None)).max().unwrap_or(0)
    }

    /// Leaves the slot the first `extent` blocks on a tier, of a node that nothing hangs below: what nobody
    /// reaches any more is cut off. False when that is all of it.
    pub(crate) fn shorten(&mut self, tier: Tier, slot: Slot, extent: u32) -> bool {
        let reach = |at: Tier| {
            let without = (at == tier).then_some(slot);
            self.holders(at).map_or(0, |holders| holders.reach(self.len(), without))
        };
        let reach = Tier::ALL.into_iter().map(reach).max().unwrap_or(0).max(extent);
        if reach == 0 {
            return false;
        }
        // Cut first: a lone holder then holds the whole of what is left, and no list is made to say so.
        if reach < self.len() {
            self.truncate(reach);
        }
        self.set_extent(tier, slot, extent);
        true
    }

    /// How many leading blocks of `prompt` follow from block `at` of this node on.
    ///
    /// Sequence hashes name everything before them, so a match at one place is a match up to there and the
    /// border can be searched by halves.
    #[inline]
    pub(crate) fn matched(&self, at: u32, prompt: &[SequenceHash]) -> u32 {
        let rest = self.len() - at;
        let most = min(rest as usize, prompt.len());
        if most == 0 {
            return 0;
        }
        if most == rest as usize && prompt[most - 1] == self.last {
            return rest;
        }
        let run = &self.hashes[at as usize..at as usize + most];
        if run[most - 1] == prompt[most - 1] {
            return most as u32;
        }
        let (mut low, mut high) = (0, most - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if run[middle] == prompt[middle] {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low as u32
    }

    #[inline]
    pub(crate) fn touch(&self, tick: Tick) {
        // Looked at before written, so that hits between two ticks leave the line shared between cores.
        if self.touched.load(Ordering::Relaxed) != tick.0 {
            self.touched.store(tick.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn touched(&self) -> Tick {
        Tick(self.touched.load(Ordering::Relaxed))
    }

    /// Adds blocks that only `slot` holds, which holds all there is so far.
    pub(crate) fn append(&mut self, tail: &[SequenceHash], tier: Tier, slot: Slot) {
        let len = self.len();
        debug_assert_eq!(self.extent(tier, slot), len);
        self.device.grow(len, (tier == Tier::Device).then_some(slot));
        if let Some([host, disk]) = self.lower.as_deref_mut() {
            host.grow(len, (tier == Tier::Host).then_some(slot));
            disk.grow(len, (tier == Tier::Disk).then_some(slot));
        }
        let needed = self.hashes.len() + tail.len();
        if needed > self.hashes.capacity() {
            // Many conversations grow side by side, most of them by a turn or two.
            self.hashes.reserve_exact(tail.len() + 12 + needed / 8);
        }
        self.hashes.extend_from_slice(tail);
        self.last = self.hashes[self.hashes.len() - 1];
    }

    /// The node of what lies from block `at` on, under the same anchor; this one is left as it is.
    pub(crate) fn lower_part(&self, at: u32) -> Self {
        let mut part =
            Self::unheld(self.start + at, self.hashes[at as usize..].to_vec(), self.anchor, self.touched());
        part.device = self.device.below(at);
        part.lower = self.lower.as_deref().map(|lower| Box::new([lower[0].below(at), lower[1].below(at)]));
        part.settle_lower();
        part.fertile = self.fertile;
        part
    }

    /// Keeps the first `len` blocks.
    pub(crate) fn truncate(&mut self, len: u32) {
        debug_assert!(len > 0 && len < self.len());
        self.hashes.truncate(len as usize);
        self.last = self.hashes[len as usize - 1];
        if self.hashes.capacity() > 2 * self.hashes.len() + 8 {
            self.hashes.shrink_to(self.hashes.len() + self.hashes.len() / 8);
        }
        self.each_holders_mut().for_each(|holders| holders.truncate(len));
        self.settle_lower();
    }

    pub(crate) fn can_join(&self, child: &Self) -> bool {
        let none = Holders::default();
        Tier::ALL.iter().all(|tier| {
            let (own, below) = (self.holders(*tier), child.holders(*tier));
            own.unwrap_or(&none).can_join(below.unwrap_or(&none))
        })
    }

    /// Takes the only child's blocks, its anchor and what hangs below it.
    pub(crate) fn join(&mut self, child: &Self) {
        let len = self.len();
        let none = Holders::default();
        for tier in Tier::ALL {
            let below = child.holders(tier);
            if self.holders(tier).is_some() || below.is_some() {
                self.holders_mut(tier).join(below.unwrap_or(&none), len);
            }
        }
        self.settle_lower();
        self.hashes.reserve_exact(child.hashes.len());
        self.hashes.extend_from_slice(&child.hashes);
        self.last = child.last;
        self.anchor = child.anchor;
        self.fertile = child.fertile;
        if child.touched() > self.touched() {
            self.touch(child.touched());
        }
    }

    /// A copy of everything, for joining; nodes are not copied otherwise.
    pub(crate) fn copy(&self) -> Self {
        self.lower_part(0)
    }

    /// Memory behind pointers, as the allocator was asked for it.
    pub(crate) fn heap_bytes(&self) -> usize {
        let lower = self.lower.as_deref();
        self.hashes.capacity() * size_of::<SequenceHash>()
            + self.device.heap_bytes()
            + lower
                .map_or(0, |lower| size_of_val(lower) + lower.iter().map(Holders::heap_bytes).sum::<usize>())
    }
}
