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
mod plan;
mod reshape;
mod topology;
pub(crate) mod walk;
mod worker_set;

#[cfg(any(test, debug_assertions))]
mod invariants;

use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;

use self::node::Node;
pub(crate) use self::plan::Plan;
use self::topology::Place;
pub(crate) use self::topology::{AnchorId, Topology};
use crate::Tick;
use crate::block::SequenceHash;
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

    fn shard(&self, spread: u64) -> &Shard {
        &self.shards[self.shard_index(spread)]
    }

    #[inline]
    fn shard_index(&self, spread: u64) -> usize {
        (spread >> 40) as usize & (self.shards.len() - 1)
    }

    fn read<R>(&self, place: &Place, look: impl FnOnce(&Node) -> R) -> R {
        self.read_at(place.key, place.start, look).expect("a live anchor has its node")
    }

    fn read_at<R>(&self, key: SequenceHash, start: u32, look: impl FnOnce(&Node) -> R) -> Option<R> {
        let spread = key.spread();
        let nodes = self.shard(spread).nodes.read();
        nodes.find(spread, |node| node.is(key, start)).map(look)
    }

    /// The one way nodes change: under the shard's lock, seen by readers through its version.
    fn change<R>(&self, spread: u64, change: impl FnOnce(&mut HashTable<Node>) -> R) -> R {
        let shard = self.shard(spread);
        let mut nodes = shard.nodes.write();
        let result = change(&mut nodes);
        shard.version.store(shard.version.load(Ordering::Relaxed) + 1, Ordering::Release);
        result
    }

    fn update<R>(&self, topology: &mut Topology, anchor: AnchorId, update: impl FnOnce(&mut Node) -> R) -> R {
        let place = topology.place(anchor);
        let (key, start, spread) = (place.key, place.start, place.key.spread());
        self.change(spread, |nodes| {
            let node =
                nodes.find_mut(spread, |node| node.is(key, start)).expect("a live anchor has its node");
            let before = node.heap_bytes();
            let result = update(node);
            topology.node_bytes = topology.node_bytes + node.heap_bytes() - before;
            result
        })
    }

    fn insert(&self, topology: &mut Topology, node: Node) {
        let spread = node.key.spread();
        self.change(spread, |nodes| {
            let before = nodes.allocation_size();
            topology.node_bytes += node.heap_bytes();
            nodes.insert_unique(spread, node, |node| node.key.spread());
            topology.node_bytes = topology.node_bytes + nodes.allocation_size() - before;
        });
    }

    fn remove_node(&self, topology: &mut Topology, key: SequenceHash, start: u32) {
        let spread = key.spread();
        self.change(spread, |nodes| {
            let before = nodes.allocation_size();
            if let Ok(entry) = nodes.find_entry(spread, |node| node.is(key, start)) {
                topology.node_bytes -= entry.remove().0.heap_bytes();
            }
            if nodes.capacity() > 4 * nodes.len() + 16 || nodes.is_empty() {
                nodes.shrink_to(nodes.len() + nodes.len() / 2, |node| node.key.spread());
            }
            topology.node_bytes = topology.node_bytes + nodes.allocation_size() - before;
        });
    }

    /// The block's sequence hash.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn hash_at(&self, topology: &Topology, position: Position) -> SequenceHash {
        let place = topology.place(position.anchor);
        self.read(place, |node| node.hash_at(position.depth - place.start))
    }

    fn anchor_of(&self, key: SequenceHash, start: u32) -> Option<AnchorId> {
        self.read_at(key, start, |node| node.anchor)
    }

    /// When the node at this anchor was last stored to or hit.
    pub(crate) fn touched(&self, topology: &Topology, anchor: AnchorId) -> Tick {
        self.read(topology.place(anchor), Node::touched)
    }

    /// Shows the blocks of the node at this anchor.
    pub(crate) fn with_hashes<R>(
        &self,
        topology: &Topology,
        anchor: AnchorId,
        look: impl FnOnce(&[SequenceHash]) -> R,
    ) -> R {
        self.read(topology.place(anchor), |node| look(node.hashes()))
    }

    pub(crate) fn node_len(&self, place: &Place) -> u32 {
        self.read(place, Node::len)
    }

    /// Shows who holds how many first blocks of this node on the device.
    pub(crate) fn with_device_extents<R>(
        &self,
        place: &Place,
        look: impl FnOnce(&mut dyn Iterator<Item = (Slot, u32)>) -> R,
    ) -> R {
        self.read(place, |node| {
            let full = node.device().full.iter().map(|slot| (slot, node.len()));
            let partial = node.device().partial().iter().map(|partial| (partial.slot, partial.extent));
            look(&mut full.chain(partial))
        })
    }

    /// Distinct blocks in the tree, held or kept for what hangs below them.
    pub(crate) fn block_count(&self) -> usize {
        let nodes = |shard: &CachePadded<Shard>| {
            shard.nodes.read().iter().map(|node| node.len() as usize).sum::<usize>()
        };
        self.shards.iter().map(nodes).sum()
    }
}
