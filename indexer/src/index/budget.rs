//! Holding the byte budget: which blocks to forget when there are too many.
//!
//! Forgetting is safe, it can only make an answer too low. It is done in batches, because finding the coldest
//! takes one pass over a worker's paths: the worker that holds most gives up its coldest paths, from their
//! ends, until a small reserve is free.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Index, Worker};
use crate::Tick;
use crate::radix::AnchorId;
use crate::sync::Ordering;

/// The share of the budget that is free after a batch, and of the largest worker's blocks that one batch
/// takes: small enough that little is lost, large enough that the pass over the table is paid for.
const RESERVE: usize = 32;
const BATCH: usize = 16;

/// One node of the worker's, as far as it is a candidate.
#[derive(Clone, Copy, Debug)]
struct Path {
    anchor: AnchorId,
    parent: Option<AnchorId>,
    start: u32,
    /// How many leading blocks of this node the worker holds, on its best tier.
    blocks: u32,
    /// When this node or one below it was last used: a path is as warm as its warmest end.
    touched: Tick,
}

impl Index {
    /// Forgets until the budget is held with a reserve.
    #[cold]
    pub(super) fn hold_budget(&self) {
        let max = self.config.max_bytes;
        while self.bytes() > max - max / RESERVE {
            let Some(largest) = self.largest_holder() else {
                return;
            };
            let forgotten = self.forget_coldest(&largest);
            if forgotten == 0 {
                return;
            }
            self.forgotten.fetch_add(forgotten as u64, Ordering::Relaxed);
        }
    }

    fn largest_holder(&self) -> Option<Arc<Worker>> {
        let names = |worker: &Arc<Worker>| worker.live().map_or(0, |state| state.names.len());
        self.workers().into_iter().max_by_key(names)
    }

    /// Gives up a batch of the worker's coldest blocks and says how many that were.
    fn forget_coldest(&self, worker: &Worker) -> usize {
        let Some(mut state) = worker.live() else { return 0 };
        let bytes = state.bytes();
        // Each run's blocks, node by node from its end up.
        let mut parts: HashMap<(AnchorId, u32), Vec<(AnchorId, u32)>> = HashMap::new();
        let mut paths: HashMap<AnchorId, Path> = HashMap::new();
        {
            let topology = self.tree.write();
            for range in state.names.ranges() {
                let (start, mut end) = range.depths();
                let of_run = parts.entry((range.anchor(), start)).or_default();
                while start < end {
                    let anchor = topology.resolve(range.anchor(), end - 1);
                    let place = topology.place(anchor);
                    let path = paths.entry(anchor).or_insert_with(|| {
                        let touched = self.tree.touched(&topology, anchor);
                        Path { anchor, parent: place.parent, start: place.start, blocks: 0, touched }
                    });
                    let from = start.max(place.start);
                    path.blocks = path.blocks.max(end - place.start);
                    of_run.push((anchor, from));
                    end = from;
                }
            }
        }
        let batch = (state.names.len() / BATCH).max(16) as u32;
        let cuts = coldest_ends(paths, batch);
        let forgotten = state.forget_ends(&self.tree, worker.slot, |range| {
            let (start, end) = range.depths();
            let of_run = parts.get(&(range.anchor(), start)).map_or(&[][..], Vec::as_slice);
            let doomed = of_run.iter().filter_map(|(anchor, from)| Some((*cuts.get(anchor)?).max(*from)));
            doomed.min().unwrap_or(end)
        });
        self.account(&state, bytes);
        forgotten
    }
}

/// From which depth on to give up which nodes, so that about `batch` blocks go, coldest path ends first.
fn coldest_ends(mut paths: HashMap<AnchorId, Path>, batch: u32) -> HashMap<AnchorId, u32> {
    let mut order: Vec<_> = paths.values().copied().collect();
    order.sort_unstable_by_key(|path| Reverse(path.start));
    for path in &order {
        let touched = paths[&path.anchor].touched;
        if let Some(parent) = path.parent.and_then(|parent| paths.get_mut(&parent)) {
            parent.touched = parent.touched.max(touched);
        }
    }
    // No node is colder than one below it, and of equals the deeper goes first: ends before beginnings.
    order.sort_unstable_by_key(|path| (paths[&path.anchor].touched, Reverse(path.start)));
    let mut left = batch;
    let mut cuts = HashMap::new();
    for path in order {
        if left == 0 {
            break;
        }
        let taken = path.blocks.min(left);
        left -= taken;
        cuts.insert(path.anchor, path.start + path.blocks - taken);
    }
    cuts
}
