//! How nodes hang together: the writer's map of the tree.
//!
//! Readers never look here. Each live node has an *anchor*: a name that outlives cuts and joins, so that a
//! block's place can be written down once as (anchor, depth) and still be found after any restructuring.
//! Depths never change, so two rules are enough:
//!
//! - a place lies in the anchor's node or in a node above it: walk up until the depth is reached;
//! - an anchor whose node is gone points to one below it (joined) or above it (removed): follow.
//!
//! Therefore a cut gives the *upper* part the new anchor, and a join keeps the *lower* one. An anchor that
//! nothing refers to any more is given back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use crate::block::SequenceHash;

/// Larger events get room of their own, given back afterwards.
const MAX_SCRATCH: usize = 1 << 12;

/// Numbered from one, so that "no anchor" costs no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AnchorId(NonZeroU32);

impl AnchorId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    pub(crate) fn from_u32(raw: u32) -> Option<Self> {
        NonZeroU32::new(raw).map(Self)
    }
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) key: SequenceHash,
    pub(crate) parent: Option<AnchorId>,
    /// Depth of the node's first block.
    pub(crate) start: u32,
    pub(crate) children: u32,
    /// The children's keys, each xored in: with one child left, this is its key.
    pub(crate) children_xor: u64,
    /// Names written down elsewhere that rely on this anchor.
    refs: u32,
}

#[derive(Debug)]
enum Anchor {
    Vacant,
    Live(Place),
    /// Its node is gone. `to` is none when nothing lay above; then every block named by it is gone as well.
    Moved {
        to: Option<AnchorId>,
        refs: u32,
    },
}

/// Anchors are numbered in chunks of this many; a chunk none of which is in use is given back.
const CHUNK: usize = u64::BITS as usize;

#[derive(Debug)]
struct Chunk {
    /// A bit for each anchor that is vacant.
    vacant: u64,
    anchors: [Anchor; CHUNK],
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self { vacant: u64::MAX, anchors: [const { Anchor::Vacant }; CHUNK] })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Topology {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Chunks with a vacant anchor, lowest first, so that few chunks stay in use. May name a chunk twice, or
    /// one that is full or gone by now.
    roomy: BinaryHeap<Reverse<u32>>,
    chunks_in_use: usize,
    live: usize,
    moved: usize,
    /// How many moved anchors there were when they last led straight to their ends.
    moved_when_flat: usize,
    /// Bytes of nodes and of the tables they lie in; kept here because only the writer changes them.
    pub(crate) node_bytes: usize,
    /// Room for one event's sequence hashes, kept between events.
    scratch: Vec<SequenceHash>,
}

impl Topology {
    pub(crate) fn node_count(&self) -> usize {
        self.live
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.node_bytes
            + self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
            + self.chunks_in_use * size_of::<Chunk>()
            + self.roomy.capacity() * size_of::<Reverse<u32>>()
            + self.scratch.capacity() * size_of::<SequenceHash>()
    }

    /// Lends the room for one event's sequence hashes, emptied.
    pub(crate) fn take_scratch(&mut self) -> Vec<SequenceHash> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    pub(crate) fn put_scratch(&mut self, scratch: Vec<SequenceHash>) {
        if scratch.capacity() <= MAX_SCRATCH {
            self.scratch = scratch;
        }
    }

    fn anchor(&self, anchor: AnchorId) -> &Anchor {
        match self.chunks.get(anchor.index() / CHUNK) {
            Some(Some(chunk)) => &chunk.anchors[anchor.index() % CHUNK],
            _ => &Anchor::Vacant,
        }
    }

    fn anchor_mut(&mut self, anchor: AnchorId) -> &mut Anchor {
        match &mut self.chunks[anchor.index() / CHUNK] {
            Some(chunk) => &mut chunk.anchors[anchor.index() % CHUNK],
            None => unreachable!("anchor {anchor:?} is vacant, expected one in use"),
        }
    }

    pub(crate) fn place(&self, anchor: AnchorId) -> &Place {
        match self.anchor(anchor) {
            Anchor::Live(place) => place,
            other => unreachable!("anchor {anchor:?} is {other:?}, expected a live one"),
        }
    }

    pub(crate) fn place_mut(&mut self, anchor: AnchorId) -> &mut Place {
        match self.anchor_mut(anchor) {
            Anchor::Live(place) => place,
            other => unreachable!("anchor {anchor:?} is {other:?}, expected a live one"),
        }
    }

    pub(crate) fn add(&mut self, key: SequenceHash, parent: Option<AnchorId>, start: u32) -> AnchorId {
        self.live += 1;
        let place = Place { key, parent, start, children: 0, children_xor: 0, refs: 0 };
        let number = self.roomy_chunk();
        let Some(chunk) = &mut self.chunks[number] else {
            unreachable!("chunk {number} has just been found")
        };
        let at = chunk.vacant.trailing_zeros() as usize;
        chunk.vacant &= chunk.vacant - 1;
        chunk.anchors[at] = Anchor::Live(place);
        if chunk.vacant == 0 {
            self.roomy.pop();
        }
        anchor_id(number * CHUNK + at)
    }

    /// A chunk with room, made when there is none.
    fn roomy_chunk(&mut self) -> usize {
        while let Some(Reverse(number)) = self.roomy.peek() {
            match self.chunks.get(*number as usize) {
                Some(Some(chunk)) if chunk.vacant != 0 => return *number as usize,
                _ => drop(self.roomy.pop()),
            }
        }
        let number = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        if number == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[number] = Some(Chunk::new());
        self.chunks_in_use += 1;
        self.roomy.push(Reverse(number as u32));
        number
    }

    /// The live anchor whose node holds the block at `depth`, for a place written down as (anchor, depth).
    pub(crate) fn resolve(&self, mut anchor: AnchorId, depth: u32) -> AnchorId {
        loop {
            match self.anchor(anchor) {
                Anchor::Moved { to: Some(to), .. } => anchor = *to,
                Anchor::Live(place) if place.start <= depth => return anchor,
                Anchor::Live(Place { parent: Some(parent), .. }) => anchor = *parent,
                other => unreachable!("depth {depth} is not above anchor {anchor:?}: {other:?}"),
            }
        }
    }

    pub(crate) fn retain(&mut self, anchor: AnchorId, count: u32) {
        *self.refs(anchor) += count;
    }

    fn refs(&mut self, anchor: AnchorId) -> &mut u32 {
        match self.anchor_mut(anchor) {
            Anchor::Live(Place { refs, .. }) | Anchor::Moved { refs, .. } => refs,
            Anchor::Vacant => unreachable!("anchor {anchor:?} is vacant, expected one that is referred to"),
        }
    }

    pub(crate) fn release(&mut self, mut anchor: AnchorId, mut count: u32) {
        loop {
            let refs = self.refs(anchor);
            debug_assert!(*refs >= count, "anchor {anchor:?} has {refs} references, {count} released");
            *refs -= count;
            match *self.anchor(anchor) {
                Anchor::Moved { to, refs: 0 } => {
                    self.moved -= 1;
                    self.vacate(anchor);
                    let Some(to) = to else { return };
                    (anchor, count) = (to, 1);
                }
                _ => return,
            }
        }
    }

    /// The node of `anchor` is gone; what still refers to it is found through `to`.
    pub(crate) fn retire(&mut self, anchor: AnchorId, to: Option<AnchorId>) {
        self.live -= 1;
        match self.place(anchor).refs {
            0 => self.vacate(anchor),
            refs => {
                if let Some(to) = to {
                    self.retain(to, 1);
                }
                self.moved += 1;
                *self.anchor_mut(anchor) = Anchor::Moved { to, refs };
                if self.moved > 2 * self.moved_when_flat + 64 {
                    self.flatten();
                }
            }
        }
    }

    /// Makes every moved anchor point to where it leads in the end. Otherwise one name that stays while others
    /// come and go would keep a chain alive that grows for ever.
    fn flatten(&mut self) {
        let moved: Vec<_> = self
            .numbered()
            .filter_map(|(id, anchor)| match anchor {
                Anchor::Moved { to: Some(to), .. } => Some((id, *to)),
                _ => None,
            })
            .collect();
        for (anchor, to) in moved {
            let mut end = to;
            while let Anchor::Moved { to: Some(further), .. } = self.anchor(end) {
                end = *further;
            }
            // It may be gone by now: given back with the last one that led to it.
            if let Anchor::Moved { to, .. } = self.anchor(anchor)
                && *to != Some(end)
            {
                let Some(old) = *to else { continue };
                self.retain(end, 1);
                if let Anchor::Moved { to, .. } = self.anchor_mut(anchor) {
                    *to = Some(end);
                }
                self.release(old, 1);
            }
        }
        self.moved_when_flat = self.moved;
    }

    fn vacate(&mut self, anchor: AnchorId) {
        *self.anchor_mut(anchor) = Anchor::Vacant;
        let number = anchor.index() / CHUNK;
        let Some(chunk) = &mut self.chunks[number] else { return };
        if chunk.vacant == 0 {
            self.roomy.push(Reverse(number as u32));
        }
        chunk.vacant |= 1 << (anchor.index() % CHUNK);
        if chunk.vacant == u64::MAX {
            self.drop_chunk(number);
        }
    }

    fn drop_chunk(&mut self, number: usize) {
        self.chunks[number] = None;
        self.chunks_in_use -= 1;
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
        }
        if self.chunks.capacity() > 2 * self.chunks.len() + 8 || self.chunks.is_empty() {
            self.chunks.shrink_to_fit();
        }
        if self.roomy.len() > 2 * self.chunks_in_use || self.chunks.is_empty() {
            let chunks = &self.chunks;
            self.roomy.retain(|Reverse(number)| matches!(chunks.get(*number as usize), Some(Some(_))));
            self.roomy.shrink_to_fit();
        }
        if self.chunks.is_empty() {
            self.scratch = Vec::new();
        }
    }

    fn numbered(&self) -> impl Iterator<Item = (AnchorId, &Anchor)> {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter_map(|(number, chunk)| Some((number, chunk.as_deref()?)));
        chunks.flat_map(|(number, chunk)| {
            (0..CHUNK).map(move |at| (anchor_id(number * CHUNK + at), &chunk.anchors[at]))
        })
    }

    pub(crate) fn is_live(&self, anchor: AnchorId) -> bool {
        matches!(self.anchor(anchor), Anchor::Live(_))
    }

    pub(crate) fn live_anchors(&self) -> impl Iterator<Item = (AnchorId, &Place)> {
        self.numbered().filter_map(|(id, anchor)| match anchor {
            Anchor::Live(place) => Some((id, place)),
            _ => None,
        })
    }

    /// How many names the anchor's own and moved anchors carry; for tests.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn total_refs(&self) -> (usize, usize) {
        let refs = self.numbered().map(|(_, anchor)| match anchor {
            Anchor::Vacant => 0,
            Anchor::Live(Place { refs, .. }) | Anchor::Moved { refs, .. } => *refs as usize,
        });
        (refs.sum(), self.moved)
    }
}

fn anchor_id(index: usize) -> AnchorId {
    AnchorId::from_u32(index as u32 + 1).expect("one more than an index is not zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_after_cuts_joins_and_removals() {
        let mut topology = Topology::default();
        let upper = topology.add(SequenceHash(1), None, 0);
        let lower = topology.add(SequenceHash(2), Some(upper), 10);
        topology.retain(lower, 3);
        topology.retain(upper, 1);
        // Written down at the lower anchor, the block lies above it.
        assert_eq!(topology.resolve(lower, 4), upper);
        assert_eq!(topology.resolve(lower, 10), lower);
        // Joined: the lower anchor takes over.
        topology.place_mut(lower).start = 0;
        topology.place_mut(lower).parent = None;
        topology.retire(upper, Some(lower));
        assert_eq!(topology.resolve(upper, 4), lower);
        // The last name gone, the moved anchor is gone too.
        topology.release(upper, 1);
        assert_eq!(topology.total_refs(), (3, 0));
        topology.release(lower, 3);
        topology.retire(lower, None);
        assert_eq!((topology.node_count(), topology.heap_bytes()), (0, 0));
    }
}
