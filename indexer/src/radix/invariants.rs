//! What must be true of a tree at rest; checked by tests after every step.

use std::collections::{HashMap, HashSet};

use super::node::Node;
use super::{RadixTree, Topology};
use crate::block::{SequenceHash, Tier};
use crate::worker::Slot;

impl RadixTree {
    /// Panics when the tree is not in its form. Returns the blocks each (slot, tier) holds, by depth and hash: one made
    /// up outside may stand at two depths.
    pub(crate) fn check(&self, topology: &Topology) -> HashMap<(Slot, Tier), HashSet<(u32, SequenceHash)>> {
        let mut held: HashMap<(Slot, Tier), HashSet<(u32, SequenceHash)>> = HashMap::new();
        let mut children: HashMap<_, Vec<SequenceHash>> = HashMap::new();
        let mut bytes = 0;
        for shard in &self.shards {
            // Copied, so that no lock is held while other nodes are looked at.
            let nodes: Vec<_> = {
                let nodes = shard.nodes.read();
                bytes += nodes.allocation_size() + nodes.iter().map(Node::heap_bytes).sum::<usize>();
                nodes.iter().map(Node::copy).collect()
            };
            for node in &nodes {
                let place = topology.place(node.anchor);
                assert_eq!((place.key, place.start), (node.key, node.start), "an anchor knows its node");
                assert_eq!((node.hashes()[0], node.hashes()[node.hashes().len() - 1]), (node.key, node.last));
                assert_eq!(node.fertile, place.children > 0);
                match place.parent {
                    None => assert_eq!(place.start, 0),
                    Some(parent) => {
                        children.entry(parent).or_default().push(node.key);
                        let above = topology.place(parent);
                        let len = self.read(above, |node| node.len());
                        assert_eq!(place.start, above.start + len, "a node starts where its parent ends");
                        let joinable = self.read(above, |above| above.can_join(node));
                        assert!(above.children > 1 || !joinable, "a border has a reason");
                    }
                }
                assert!(place.children > 0 || node.reach() == node.len(), "no leaf reaches past its holders");
                for tier in Tier::ALL {
                    let Some(holders) = node.holders(tier) else {
                        continue;
                    };
                    for slot in holders.full.iter() {
                        held.entry((slot, tier)).or_default().extend(node.blocks());
                    }
                    for partial in holders.partial() {
                        assert!(partial.extent > 0 && partial.extent < node.len());
                        assert!(!holders.full.contains(partial.slot), "held in part or in full, not both");
                        let mut part = node.blocks().take(partial.extent as usize);
                        let set = held.entry((partial.slot, tier)).or_default();
                        assert!(part.all(|block| set.insert(block)), "one extent per slot");
                    }
                }
            }
        }
        assert_eq!(bytes, topology.node_bytes, "bytes are counted");
        let mut live = 0;
        for (anchor, place) in topology.live_anchors() {
            live += 1;
            let below = children.remove(&anchor).unwrap_or_default();
            assert_eq!(place.children as usize, below.len());
            assert_eq!(place.children_xor, below.iter().fold(0, |xor, key| xor ^ key.0));
            assert_eq!(self.anchor_of(place.key, place.start), Some(anchor), "a live anchor has its node");
        }
        assert_eq!(live, topology.node_count());
        held
    }
}

impl Node {
    fn blocks(&self) -> impl Iterator<Item = (u32, SequenceHash)> + '_ {
        (self.start..).zip(self.hashes().iter().copied())
    }
}
