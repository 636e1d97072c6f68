//! What a snapshot needs of the index: to hold still, and to be built up again piece by piece.

use super::Index;
use crate::Tick;
use crate::block::{EngineBlockId, SequenceHash, Tier};
use crate::names::Names;
use crate::radix::{AnchorId, RadixTree, Topology};
use crate::snapshot::SnapshotError;
use crate::worker::WorkerId;

/// A leading part of a grafted node that a worker held, and its names for those blocks.
#[derive(Debug)]
pub(crate) struct HeldRun {
    pub(crate) anchor: AnchorId,
    pub(crate) tier: Tier,
    /// Depth of the node's first block.
    pub(crate) depth: u32,
    pub(crate) ids: Vec<EngineBlockId>,
}

impl Index {
    /// Shows the tree and every worker's names, all of one moment.
    pub(crate) fn freeze<R>(
        &self,
        look: impl FnOnce(&RadixTree, &Topology, &[(WorkerId, &Names)]) -> R,
    ) -> R {
        let workers = self.workers();
        // In the order of slots, as every thread that locks several does.
        let states: Vec<_> = workers.iter().filter_map(|worker| Some((worker.id, worker.live()?))).collect();
        let topology = self.tree.write();
        let names: Vec<_> = states.iter().map(|(id, state)| (*id, &state.names)).collect();
        look(&self.tree, &topology, &names)
    }

    pub(crate) fn graft(
        &self,
        parent: Option<AnchorId>,
        start: u32,
        hashes: Vec<SequenceHash>,
        touched: Tick,
    ) -> Option<AnchorId> {
        self.tree.graft(&mut self.tree.write(), parent, start, hashes, touched)
    }

    /// Gives a worker what it held.
    pub(crate) fn restore_worker(&self, worker: WorkerId, held: Vec<HeldRun>) -> Result<(), SnapshotError> {
        let worker = self.worker(worker).map_err(|_| SnapshotError::TooManyWorkers {
            workers: self.config.max_workers as u32 + 1,
            max: self.config.max_workers,
        })?;
        let mut state = worker.state.lock();
        if state.names.len() > 0 {
            let value = worker.id.instance;
            return Err(SnapshotError::Invalid {
                field: "worker.instance",
                value,
                expected: "each worker once",
            });
        }
        let bytes = state.bytes();
        let mut topology = self.tree.write();
        for HeldRun { anchor, tier, depth, ids } in held {
            let extent = ids.len() as u32;
            self.tree.set_extent(&mut topology, anchor, worker.slot, tier, extent);
            state.blocks[tier.index()] += ids.len();
            state.names.append(&mut topology, None, (anchor, depth, tier), ids.into_iter());
        }
        drop(topology);
        if state.blocks[1] + state.blocks[2] > 0 {
            state.tiered = true;
            self.change_directory(|registry| registry.directory.with_tiered(worker.slot));
        }
        self.account(&state, bytes);
        Ok(())
    }

    /// Drops what a snapshot had that nobody holds, and holds the byte budget.
    pub(crate) fn finish_restore(&self) {
        self.tree.tidy_all(&mut self.tree.write());
        if self.bytes() > self.config.max_bytes {
            self.hold_budget();
        }
    }
}
