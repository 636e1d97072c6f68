//! The tree's largest branches, to be looked at.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::block::SequenceHash;
use crate::index::Index;
use crate::radix::AnchorId;
use crate::worker::WorkerId;

/// A part of the tree at one moment: no node is there without those above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Largest first, and a node after the one it hangs from.
    pub nodes: Vec<OutlineNode>,
    /// Nodes there are besides.
    pub left_out: usize,
}

/// A run of blocks without a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlineNode {
    /// Its parent's place in the list; none where a prompt begins.
    pub parent: Option<usize>,
    /// Its first block, which is the prompt's block number `start`.
    pub first: SequenceHash,
    pub start: u32,
    pub blocks: u32,
    /// Blocks that workers hold on their devices in it and below it, each worker's counted.
    pub held_below: u64,
    /// Who holds how many of its first blocks on the device.
    pub holders: Vec<(WorkerId, u32)>,
}

impl Index {
    /// The `most` largest nodes. Events wait meanwhile, lookups do not; none where the tree has more than
    /// `most_nodes`, so that they never wait for long.
    pub fn outline(&self, most: usize, most_nodes: usize) -> Option<Outline> {
        let tree = self.tree();
        let topology = tree.write();
        if topology.node_count() > most_nodes {
            return None;
        }
        let mut nodes: Vec<_> = topology.live_anchors().collect();
        // Deepest first: what hangs below a node has been summed up when its turn comes.
        nodes.sort_unstable_by_key(|(_, place)| Reverse(place.start));
        let mut held: HashMap<AnchorId, u64> = HashMap::with_capacity(nodes.len());
        for (anchor, place) in &nodes {
            let own: u64 =
                tree.with_device_extents(place, |held| held.map(|(_, extent)| u64::from(extent)).sum());
            let sum = held.entry(*anchor).or_default();
            *sum += own;
            let sum = *sum;
            if let Some(parent) = place.parent {
                *held.entry(parent).or_default() += sum;
            }
        }
        // Nothing is larger than what it hangs from, so no parent is left out before its child.
        nodes.sort_unstable_by_key(|(anchor, place)| (Reverse(held[anchor]), place.start, *anchor));
        let left_out = nodes.len().saturating_sub(most);
        nodes.truncate(most);
        let at: HashMap<AnchorId, usize> =
            nodes.iter().enumerate().map(|(at, (anchor, _))| (*anchor, at)).collect();
        // Asked for under the tree's lock: what it holds is cleared before a slot changes hands.
        let workers: HashMap<usize, WorkerId> = self.directory().workers().collect();
        let shown = nodes.iter().map(|(anchor, place)| {
            let known = |(slot, extent): (u32, u32)| Some((*workers.get(&(slot as usize))?, extent));
            OutlineNode {
                parent: place.parent.and_then(|parent| at.get(&parent).copied()),
                first: place.key,
                start: place.start,
                blocks: tree.node_len(place),
                held_below: held[anchor],
                holders: tree.with_device_extents(place, |held| held.filter_map(known).collect()),
            }
        });
        Some(Outline { nodes: shown.collect(), left_out })
    }
}
