//! What must be true of an index at rest; checked by tests after every step.

use std::collections::{HashMap, HashSet};

use super::Index;
use crate::block::{SequenceHash, Tier};
use crate::radix::Position;
use crate::worker::WorkerId;

impl Index {
    /// Panics when the index contradicts itself. Returns what each worker holds on each tier.
    #[doc(hidden)]
    pub fn check(&self) -> HashMap<(WorkerId, Tier), HashSet<SequenceHash>> {
        let workers = self.workers();
        let states: Vec<_> = workers.iter().filter_map(|worker| Some((worker, worker.live()?))).collect();
        let topology = self.tree.write();
        let mut in_tree = self.tree.check(&topology);
        let mut result = HashMap::new();
        let (mut runs, mut bytes) = (0, 0);
        for (worker, state) in &states {
            state.names.check();
            runs += state.names.ranges().count();
            bytes += state.bytes();
            for tier in Tier::ALL {
                let ranges = state.names.ranges().filter(|range| range.tier() == tier);
                let blocks: Vec<_> = ranges
                    .flat_map(|range| {
                        let (start, end) = range.depths();
                        (start..end).map(move |depth| (range.anchor(), depth))
                    })
                    .collect();
                let hash = |(anchor, depth): &(_, u32)| {
                    let anchor = topology.resolve(*anchor, *depth);
                    (*depth, self.tree.hash_at(&topology, Position { anchor, depth: *depth }))
                };
                let named: HashSet<_> = blocks.iter().map(hash).collect();
                assert_eq!(named.len(), blocks.len(), "one name per block and tier");
                assert_eq!(state.blocks[tier.index()], blocks.len());
                let held = in_tree.remove(&(worker.slot, tier)).unwrap_or_default();
                assert_eq!(held, named, "the tree and the names agree");
                result.insert((worker.id, tier), held.into_iter().map(|(_, hash)| hash).collect());
            }
        }
        assert!(in_tree.is_empty(), "nobody unknown holds anything");
        let (refs, moved) = topology.total_refs();
        assert!(refs >= runs && refs <= runs + moved, "{refs} references, {runs} runs, {moved} moved");
        assert_eq!(bytes, self.worker_bytes.load(crate::sync::Ordering::Relaxed));
        result
    }
}
