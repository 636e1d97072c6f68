//! Making a worker hold a path: first how the path lies against the tree, then the change.
//!
//! The two are apart so that names can be written down in between, when it is known which anchors they will be
//! found by and nothing has moved yet.

use smallvec::SmallVec;

use super::node::Node;
use super::{AnchorId, Position, RadixTree, Topology};
use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::worker::Slot;

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
    /// They branch off inside this node.
    Fork(AnchorId),
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
        self.read(place, |node| {
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
                let node_start = place.start;
                let from = start + plan.matched as u32;
                let (matched, len, extent) = self.read(place, |node| {
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
                    plan.attach = Attach::Fork(anchor);
                    return plan;
                }
                // Whatever was matched will be held, so only an unmatched node may lack its own blocks.
                if topology.place(anchor).children == 0 && (matched > 0 || extent == len) {
                    plan.attach = Attach::Append(anchor);
                    return plan;
                }
            }
            match self.anchor_of(path[plan.matched], start + plan.matched as u32) {
                Some(anchor) => at = Some(anchor),
                None => {
                    plan.attach = Attach::Child(at);
                    return plan;
                }
            }
        }
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
            Attach::Child(_) | Attach::Fork(_) => {
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
        let depth = plan.start + plan.matched as u32;
        match (plan.attach, tail) {
            (Attach::Append(anchor), _) => self.update(topology, anchor, |node| {
                node.append(new, tier, slot);
                node.touch(tick);
            }),
            (Attach::Child(parent), Some(anchor)) => {
                self.adopt(topology, parent, anchor, Node::new(depth, new, anchor, (slot, tier, tick)));
            }
            (Attach::Fork(node), Some(anchor)) => {
                let upper = self.cut(topology, node, depth);
                self.adopt(topology, Some(upper), anchor, Node::new(depth, new, anchor, (slot, tier, tick)));
            }
            (Attach::Nothing | Attach::Child(_) | Attach::Fork(_), _) => {}
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
            self.read(topology.place(anchor), |node| node.touch(tick));
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
}
