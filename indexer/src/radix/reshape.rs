//! Cutting and joining nodes, and taking blocks away: what keeps the tree in its form.

use super::node::Node;
use super::topology::Place;
use super::{AnchorId, RadixTree, Topology};
use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::worker::Slot;

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

impl RadixTree {
    /// Hangs a new node below `parent`, or at the root.
    pub(super) fn adopt(
        &self,
        topology: &mut Topology,
        parent: Option<AnchorId>,
        anchor: AnchorId,
        node: Node,
    ) {
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
    pub(super) fn cut(&self, topology: &mut Topology, anchor: AnchorId, depth: u32) -> AnchorId {
        let place = topology.place(anchor);
        let (key, parent, start) = (place.key, place.parent, place.start);
        let at = depth - start;
        let lower = self.read(place, |node| node.lower_part(at));
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
    pub(super) fn join_with_only_child(&self, topology: &mut Topology, anchor: AnchorId) {
        let place = topology.place(anchor);
        if place.children != 1 {
            return;
        }
        let (key, parent, start) = (place.key, place.parent, place.start);
        let child_key = SequenceHash(place.children_xor);
        // Only this thread writes, so the copy stays true while the locks change hands.
        let child_start = start + self.read(place, Node::len);
        let child = self.read_at(child_key, child_start, Node::copy).expect("an only child has its node");
        if !self.read(place, |node| node.can_join(&child)) {
            return;
        }
        self.update(topology, anchor, |node| node.join(&child));
        self.remove_node(topology, child_key, child_start);
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
            let (key, start, parent) = (place.key, place.start, place.parent);
            self.remove_node(topology, key, start);
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
        let holds =
            |place: &Place| self.read(place, |node| tiers.iter().any(|tier| node.extent(*tier, slot) > 0));
        let held: Vec<_> = topology.live_anchors().filter(|(_, place)| holds(place)).collect();
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
            let (reach, len) = self.read(place, |node| (node.reach(), node.len()));
            if reach == 0 {
                return self.drop_leaf(topology, anchor);
            }
            if reach < len {
                self.update(topology, anchor, |node| node.truncate(reach));
            }
        }
        self.join_above(topology, anchor, true);
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
        if self.anchor_of(hashes[0], start).is_some() {
            return None;
        }
        let anchor = topology.add(hashes[0], parent, start);
        self.adopt(topology, parent, anchor, Node::unheld(start, hashes, anchor, tick));
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
}

fn from_the_root_down(mut places: Vec<(AnchorId, &Place)>) -> Vec<AnchorId> {
    places.sort_unstable_by_key(|(_, place)| place.start);
    places.into_iter().map(|(anchor, _)| anchor).collect()
}
