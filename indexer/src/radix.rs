//! A lock-sharded radix tree over sequence hashes, and who holds how much of each path.
//!
//! A node is a run of blocks without a branch. Because a sequence hash names a block *and* everything before
//! it, a node needs no list of children: the child that continues a prompt is the node whose first block is
//! the prompt's next hash. So nodes lie in tables spread over shards by that hash, and neighbours on a path
//! land in different shards. A system prompt everybody shares is one node in one shard, not one hot shard.
//!
//! **Form.** A border between two nodes stands exactly where the path branches, or where some worker holds a
//! block without holding the one before it. The tree is therefore a function of what is held, whatever the
//! order of events: every cut is undone by a join once its reason is gone, and memory returns.
//!
//! **Writers** take the [`Topology`] lock, so there is one at a time, and touch shards one by one: a cut adds
//! the lower part before it shortens the upper one, a join lengthens the upper part before it drops the lower
//! one. **Readers** ([`walk`]) take one shard's lock at a time, for one node; a version per shard tells them
//! at the end whether what they saw stood together at one moment.

mod holders;
mod node;
mod topology;
pub(crate) mod walk;
mod worker_set;

#[cfg(any(test, debug_assertions))]
mod invariants;

use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use smallvec::SmallVec;

use self::node::Node;
use self::topology::Place;
pub(crate) use self::topology::{AnchorId, Topology};
use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock};
use crate::worker::Slot;

#[derive(Debug)]
pub(crate) struct RadixTree {
    shards: Box<[CachePadded<Shard>]>,
    /// Writers hold this for as long as they change anything; see the module's note on who waits for whom.
    topology: Mutex<Topology>,
    /// What the tree takes beyond its shards, as the last writer left it.
    heap_bytes: AtomicUsize,
}

/// A writer's hold on the tree. Letting go publishes the tree's size.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    topology: MutexGuard<'a, Topology>,
    heap_bytes: &'a AtomicUsize,
}

impl Deref for Writer<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.heap_bytes.store(self.topology.heap_bytes(), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Shard {
    /// Changes with every write to the table; written under the table's write lock only.
    version: AtomicU64,
    nodes: RwLock<HashTable<Node>>,
}

/// A block's place in the tree: the live anchor of its node, and its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) anchor: AnchorId,
    pub(crate) depth: u32,
}

/// The part of a path that lies in one node that is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) anchor: AnchorId,
    /// Depths of the part's first block and of the block after its last.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Before this depth the worker holds the node's blocks already.
    pub(crate) held: u32,
}

/// How a path to be held lies against the tree.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Depth of the path's first block.
    pub(crate) start: u32,
    pub(crate) segments: SmallVec<[Segment; 4]>,
    /// How many blocks of the path the segments cover; the rest is new.
    pub(crate) matched: usize,
    attach: Attach,
}

/// What to do with the blocks that are not in the tree yet.
#[derive(Clone, Copy, Debug)]
enum Attach {
    Nothing,
    /// They continue the last node: nothing branches off there, and the worker holds all of it.
    Append(AnchorId),
    /// They start a node of their own below this one, or at the root.
    Child(Option<AnchorId>),
    /// They branch off inside this node, before the block at this depth.
    Fork(AnchorId, u32),
}

/// What taking blocks from a worker came to in one node.
enum Released {
    Nothing,
    /// It holds the blocks from this one on as well.
    Hole {
        to: u32,
    },
    /// The node is shorter or has a smaller holder, and is in its form.
    Shortened,
    /// Nobody holds anything of it and nothing hangs below.
    Emptied,
}

impl Plan {
    /// For blocks that continue the node that ends with `parent`; see [`RadixTree::end_at`].
    pub(crate) fn append(parent: Position) -> Self {
        let attach = Attach::Append(parent.anchor);
        Self { start: parent.depth + 1, segments: SmallVec::new(), matched: 0, attach }
    }

    /// How many of the path's blocks the worker does not hold yet.
    pub(crate) fn new_blocks(&self, path: usize) -> usize {
        let held = |segment: &Segment| segment.held.clamp(segment.from, segment.to) - segment.from;
        path - self.segments.iter().map(|segment| held(segment) as usize).sum::<usize>()
    }
}

impl RadixTree {
    /// `shards` is rounded up to a power of two.
    pub(crate) fn new(shards: usize) -> Self {
        let shards = (0..shards.next_power_of_two()).map(|_| CachePadded::default()).collect();
        Self { shards, topology: Mutex::new(Topology::default()), heap_bytes: AtomicUsize::new(0) }
    }

    /// Locks out other writers.
    pub(crate) fn write(&self) -> Writer<'_> {
        Writer { topology: self.topology.lock(), heap_bytes: &self.heap_bytes }
    }

    /// Bytes this tree takes, the empty shards included.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[CachePadded<Shard>]>(&self.shards) + self.heap_bytes.load(Ordering::Relaxed)
    }

    fn shard(&self, key: SequenceHash) -> &Shard {
        &self.shards[self.shard_index(key)]
    }

    #[inline]
    fn shard_index(&self, key: SequenceHash) -> usize {
        (spread(key) >> 40) as usize & (self.shards.len() - 1)
    }

    fn read<R>(&self, key: SequenceHash, look: impl FnOnce(&Node) -> R) -> R {
        let nodes = self.shard(key).nodes.read();
        look(nodes.find(spread(key), |node| node.key == key).expect("a live anchor has its node"))
    }

    /// The one way nodes change: under the shard's lock, seen by readers through its version.
    fn change<R>(&self, key: SequenceHash, change: impl FnOnce(&mut HashTable<Node>) -> R) -> R {
        let shard = self.shard(key);
        let mut nodes = shard.nodes.write();
        let result = change(&mut nodes);
        shard.version.store(shard.version.load(Ordering::Relaxed) + 1, Ordering::Release);
        result
    }

    fn update<R>(&self, topology: &mut Topology, anchor: AnchorId, update: impl FnOnce(&mut Node) -> R) -> R {
        let key = topology.place(anchor).key;
        self.change(key, |nodes| {
            let node =
                nodes.find_mut(spread(key), |node| node.key == key).expect("a live anchor has its node");
            let before = node.heap_bytes();
            let result = update(node);
            topology.node_bytes = topology.node_bytes + node.heap_bytes() - before;
            result
        })
    }

    fn insert(&self, topology: &mut Topology, node: Node) {
        self.change(node.key, |nodes| {
            let before = nodes.allocation_size();
            topology.node_bytes += node.heap_bytes();
            nodes.insert_unique(spread(node.key), node, |node| spread(node.key));
            topology.node_bytes = topology.node_bytes + nodes.allocation_size() - before;
        });
    }

    fn remove_node(&self, topology: &mut Topology, key: SequenceHash) {
        self.change(key, |nodes| {
            let before = nodes.allocation_size();
            if let Ok(entry) = nodes.find_entry(spread(key), |node| node.key == key) {
                topology.node_bytes -= entry.remove().0.heap_bytes();
            }
            if nodes.capacity() > 4 * nodes.len() + 16 || nodes.is_empty() {
                nodes.shrink_to(nodes.len() + nodes.len() / 2, |node| spread(node.key));
            }
            topology.node_bytes = topology.node_bytes + nodes.allocation_size() - before;
        });
    }

    /// The block's sequence hash.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn hash_at(&self, topology: &Topology, position: Position) -> SequenceHash {
        let place = topology.place(position.anchor);
        self.read(place.key, |node| node.hash_at(position.depth - place.start))
    }

    /// The block's sequence hash, and whether whatever follows it can only continue its node: nothing hangs
    /// below, and the worker holds all of it.
    pub(crate) fn end_at(
        &self,
        topology: &Topology,
        slot: Slot,
        tier: Tier,
        position: Position,
    ) -> (SequenceHash, bool) {
        let place = topology.place(position.anchor);
        let at = position.depth - place.start;
        self.read(place.key, |node| {
            let whole = at + 1 == node.len() && place.children == 0 && node.extent(tier, slot) == node.len();
            (node.hash_at(at), whole)
        })
    }

    /// How `path`, the blocks that follow `parent` or open a prompt, lies against the tree for one worker.
    pub(crate) fn plan(
        &self,
        topology: &Topology,
        slot: Slot,
        tier: Tier,
        parent: Option<Position>,
        path: &[SequenceHash],
    ) -> Plan {
        let start = parent.map_or(0, |parent| parent.depth + 1);
        let mut plan = Plan { start, segments: SmallVec::new(), matched: 0, attach: Attach::Nothing };
        // Inside the parent's own node first, then from node to node by the next hash.
        let mut at = parent.map(|parent| parent.anchor);
        loop {
            if let Some(anchor) = at {
                let place = topology.place(anchor);
                let (key, node_start) = (place.key, place.start);
                let from = start + plan.matched as u32;
                let (matched, len, extent) = self.read(key, |node| {
                    let matched = node.matched(from - node_start, &path[plan.matched..]);
                    (matched, node.len(), node.extent(tier, slot))
                });
                if matched > 0 {
                    let to = from + matched;
                    plan.segments.push(Segment { anchor, from, to, held: node_start + extent });
                    plan.matched += matched as usize;
                }
                if plan.matched == path.len() {
                    return plan;
                }
                let (to, end) = (from + matched, node_start + len);
                if to < end {
                    plan.attach = Attach::Fork(anchor, to);
                    return plan;
                }
                // Whatever was matched will be held, so only an unmatched node may lack its own blocks.
                if topology.place(anchor).children == 0 && (matched > 0 || extent == len) {
                    plan.attach = Attach::Append(anchor);
                    return plan;
                }
            }
            match self.anchor_of(path[plan.matched]) {
                Some(anchor) => at = Some(anchor),
                None => {
                    plan.attach = Attach::Child(at);
                    return plan;
                }
            }
        }
    }

    fn anchor_of(&self, key: SequenceHash) -> Option<AnchorId> {
        let nodes = self.shard(key).nodes.read();
        nodes.find(spread(key), |node| node.key == key).map(|node| node.anchor)
    }

    /// The anchor that new blocks of this plan will be found by. Nothing else is changed yet.
    pub(crate) fn open(
        &self,
        topology: &mut Topology,
        plan: &Plan,
        path: &[SequenceHash],
    ) -> Option<AnchorId> {
        match plan.attach {
            Attach::Nothing => None,
            Attach::Append(anchor) => Some(anchor),
            // The parent is set when the node is made: a fork's does not exist yet.
            Attach::Child(_) | Attach::Fork(..) => {
                Some(topology.add(path[plan.matched], None, plan.start + plan.matched as u32))
            }
        }
    }

    /// Makes the worker hold the whole path. `tail` is what [`open`](Self::open) gave.
    pub(crate) fn hold(
        &self,
        topology: &mut Topology,
        (slot, tier, tick): (Slot, Tier, Tick),
        plan: &Plan,
        path: &[SequenceHash],
        tail: Option<AnchorId>,
    ) {
        let mut filled: SmallVec<[AnchorId; 4]> = SmallVec::new();
        for segment in &plan.segments {
            if self.hold_segment(topology, slot, tier, tick, segment) {
                filled.push(segment.anchor);
            }
        }
        let new = &path[plan.matched..];
        match (plan.attach, tail) {
            (Attach::Append(anchor), _) => self.update(topology, anchor, |node| {
                node.append(new, tier, slot);
                node.touch(tick);
            }),
            (Attach::Child(parent), Some(anchor)) => {
                self.adopt(topology, parent, anchor, Node::new(new, anchor, slot, tier, tick));
            }
            (Attach::Fork(node, depth), Some(anchor)) => {
                let upper = self.cut(topology, node, depth);
                self.adopt(topology, Some(upper), anchor, Node::new(new, anchor, slot, tier, tick));
            }
            (Attach::Nothing | Attach::Child(_) | Attach::Fork(..), _) => {}
        }
        // From the deepest up: a join retires the upper anchor, which is then not looked at again.
        for anchor in filled.into_iter().rev() {
            self.join_with_only_child(topology, anchor);
        }
    }

    /// Extends the worker's part of one node; true when it now holds the whole of it and did not before.
    fn hold_segment(
        &self,
        topology: &mut Topology,
        slot: Slot,
        tier: Tier,
        tick: Tick,
        segment: &Segment,
    ) -> bool {
        let Segment { anchor, from, to, held } = *segment;
        if to <= held {
            self.read(topology.place(anchor).key, |node| node.touch(tick));
            return false;
        }
        if from > held.max(topology.place(anchor).start) {
            // A hole before it: what it holds would not be a leading part of the node.
            self.cut(topology, anchor, from);
        }
        let start = topology.place(anchor).start;
        self.update(topology, anchor, |node| {
            node.set_extent(tier, slot, to - start);
            node.touch(tick);
            to - start == node.len()
        })
    }

    /// Hangs a new node below `parent`, or at the root.
    fn adopt(&self, topology: &mut Topology, parent: Option<AnchorId>, anchor: AnchorId, node: Node) {
        let key = node.key;
        topology.place_mut(anchor).parent = parent;
        self.insert(topology, node);
        if let Some(parent) = parent {
            let place = topology.place_mut(parent);
            place.children += 1;
            place.children_xor ^= key.0;
            if place.children == 1 {
                self.update(topology, parent, |node| node.fertile = true);
            }
        }
    }

    /// Cuts a node before the block at `depth`; the lower part keeps the anchor, the upper one's is returned.
    fn cut(&self, topology: &mut Topology, anchor: AnchorId, depth: u32) -> AnchorId {
        let place = topology.place(anchor);
        let (key, parent, start) = (place.key, place.parent, place.start);
        let at = depth - start;
        let lower = self.read(key, |node| node.lower_part(at));
        let lower_key = lower.key;
        let upper = topology.add(key, parent, start);
        // Readers find the lower part before the upper one stops covering it.
        self.insert(topology, lower);
        self.update(topology, upper, |node| {
            node.truncate(at);
            node.anchor = upper;
            node.fertile = true;
        });
        let place = topology.place_mut(upper);
        place.children = 1;
        place.children_xor = lower_key.0;
        let place = topology.place_mut(anchor);
        place.key = lower_key;
        place.parent = Some(upper);
        place.start = depth;
        upper
    }

    /// Undoes a cut whose reason is gone; leaves everything else alone.
    fn join_with_only_child(&self, topology: &mut Topology, anchor: AnchorId) {
        let place = topology.place(anchor);
        if place.children != 1 {
            return;
        }
        let (key, parent, start) = (place.key, place.parent, place.start);
        let child_key = SequenceHash(place.children_xor);
        // Only this thread writes, so the copy stays true while the locks change hands.
        let child = self.read(child_key, Node::copy);
        if !self.read(key, |node| node.can_join(&child)) {
            return;
        }
        self.update(topology, anchor, |node| node.join(&child));
        self.remove_node(topology, child_key);
        topology.retire(anchor, Some(child.anchor));
        let place = topology.place_mut(child.anchor);
        place.key = key;
        place.parent = parent;
        place.start = start;
    }

    /// The worker no longer holds the blocks at depths `from..to`, all of them at or above `anchor`. What it
    /// does not hold there is passed over.
    pub(crate) fn release(
        &self,
        topology: &mut Topology,
        (slot, tier): (Slot, Tier),
        anchor: AnchorId,
        from: u32,
        mut to: u32,
    ) {
        while from < to {
            // The caller's reference keeps `anchor` findable whatever happens to its node meanwhile.
            let node = topology.resolve(anchor, to - 1);
            let start = topology.place(node).start;
            self.release_in_node(topology, slot, tier, node, from.max(start) - start, to - start);
            to = start;
        }
    }

    fn release_in_node(
        &self,
        topology: &mut Topology,
        slot: Slot,
        tier: Tier,
        anchor: AnchorId,
        from: u32,
        to: u32,
    ) {
        let place = topology.place(anchor);
        let (start, leaf) = (place.start, place.children == 0);
        let outcome = self.update(topology, anchor, |node| {
            let extent = node.extent(tier, slot);
            let to = to.min(extent);
            if from >= to {
                return Released::Nothing;
            }
            if to < extent {
                return Released::Hole { to };
            }
            if !leaf {
                node.set_extent(tier, slot, from);
                Released::Shortened
            } else if node.shorten(tier, slot, from) {
                Released::Shortened
            } else {
                Released::Emptied
            }
        });
        match outcome {
            Released::Nothing => {}
            Released::Hole { to } => {
                // Held on both sides of what goes: the lower side becomes a node of its own.
                let upper = self.cut(topology, anchor, start + to);
                self.update(topology, upper, |node| node.set_extent(tier, slot, from));
                self.join_above(topology, upper, from == 0);
            }
            Released::Shortened => self.join_above(topology, anchor, from == 0),
            Released::Emptied => self.drop_leaf(topology, anchor),
        }
    }

    /// Whoever held this node's first block without the one before it may have been the border's reason.
    fn join_above(&self, topology: &mut Topology, anchor: AnchorId, lost_first: bool) {
        if let (true, Some(parent)) = (lost_first, topology.place(anchor).parent) {
            self.join_with_only_child(topology, parent);
        }
    }

    /// Removes a node that nobody holds and nothing hangs below, and what it leaves in the same state.
    fn drop_leaf(&self, topology: &mut Topology, mut anchor: AnchorId) {
        loop {
            let place = topology.place(anchor);
            let (key, parent) = (place.key, place.parent);
            self.remove_node(topology, key);
            topology.retire(anchor, parent);
            let Some(parent) = parent else { return };
            let place = topology.place_mut(parent);
            place.children -= 1;
            place.children_xor ^= key.0;
            match place.children {
                0 => {}
                1 => return self.join_with_only_child(topology, parent),
                _ => return,
            }
            let empty = self.update(topology, parent, |node| {
                node.fertile = false;
                let reach = node.reach();
                if reach > 0 && reach < node.len() {
                    node.truncate(reach);
                }
                reach == 0
            });
            if !empty {
                return;
            }
            anchor = parent;
        }
    }

    /// The worker no longer holds anything on these tiers. Says how many blocks that were.
    pub(crate) fn forget(&self, topology: &mut Topology, slot: Slot, tiers: &[Tier]) -> usize {
        let holds = |key| self.read(key, |node| tiers.iter().any(|tier| node.extent(*tier, slot) > 0));
        let held: Vec<_> = topology.live_anchors().filter(|(_, place)| holds(place.key)).collect();
        let held = from_the_root_down(held);
        let mut gone = 0;
        for anchor in &held {
            gone += self.update(topology, *anchor, |node| {
                tiers.iter().map(|tier| node.take_extent(*tier, slot) as usize).sum::<usize>()
            });
        }
        // Only now, so that a join cannot carry blocks still to be forgotten to where nobody looks again.
        self.tidy_each(topology, held);
        gone
    }

    /// Tidies several nodes that lost blocks; they come from the root down. A join retires the anchor of the
    /// upper node, whose turn is over by then.
    fn tidy_each(&self, topology: &mut Topology, anchors: Vec<AnchorId>) {
        for anchor in anchors {
            if topology.is_live(anchor) {
                self.tidy(topology, anchor);
            }
        }
    }

    /// Restores the tree's form after any number of workers lost blocks of this node.
    fn tidy(&self, topology: &mut Topology, anchor: AnchorId) {
        let place = topology.place(anchor);
        if place.children == 0 {
            let (reach, len) = self.read(place.key, |node| (node.reach(), node.len()));
            if reach == 0 {
                return self.drop_leaf(topology, anchor);
            }
            if reach < len {
                self.update(topology, anchor, |node| node.truncate(reach));
            }
        }
        self.join_above(topology, anchor, true);
    }

    /// When the node at this anchor was last stored to or hit.
    pub(crate) fn touched(&self, topology: &Topology, anchor: AnchorId) -> Tick {
        self.read(topology.place(anchor).key, Node::touched)
    }

    /// Adds a node that nobody holds yet; only for building a whole tree at once.
    pub(crate) fn graft(
        &self,
        topology: &mut Topology,
        parent: Option<AnchorId>,
        start: u32,
        hashes: Vec<SequenceHash>,
        tick: Tick,
    ) -> Option<AnchorId> {
        if self.anchor_of(hashes[0]).is_some() {
            return None;
        }
        let anchor = topology.add(hashes[0], parent, start);
        self.adopt(topology, parent, anchor, Node::unheld(hashes, anchor, tick));
        Some(anchor)
    }

    /// Restores the form of a tree that was grafted together.
    pub(crate) fn tidy_all(&self, topology: &mut Topology) {
        let anchors = from_the_root_down(topology.live_anchors().collect());
        self.tidy_each(topology, anchors);
    }

    /// Sets how many leading blocks of a grafted node the worker holds.
    pub(crate) fn set_extent(
        &self,
        topology: &mut Topology,
        anchor: AnchorId,
        slot: Slot,
        tier: Tier,
        extent: u32,
    ) {
        self.update(topology, anchor, |node| node.set_extent(tier, slot, extent));
    }

    /// Shows the blocks of the node at this anchor.
    pub(crate) fn with_hashes<R>(
        &self,
        topology: &Topology,
        anchor: AnchorId,
        look: impl FnOnce(&[SequenceHash]) -> R,
    ) -> R {
        self.read(topology.place(anchor).key, |node| look(node.hashes()))
    }

    /// Distinct blocks in the tree, held or kept for what hangs below them.
    pub(crate) fn block_count(&self) -> usize {
        let nodes = |shard: &CachePadded<Shard>| {
            shard.nodes.read().iter().map(|node| node.len() as usize).sum::<usize>()
        };
        self.shards.iter().map(nodes).sum()
    }
}

fn from_the_root_down(mut places: Vec<(AnchorId, &Place)>) -> Vec<AnchorId> {
    places.sort_unstable_by_key(|(_, place)| place.start);
    places.into_iter().map(|(anchor, _)| anchor).collect()
}

/// Sequence hashes are spread evenly when they are hashes; events from outside may carry anything.
#[inline]
fn spread(key: SequenceHash) -> u64 {
    let product = key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 32
}
