//! What there is in the index, in numbers.

use super::Index;
use crate::block::Tier;
use crate::sync::Ordering;
use crate::worker::WorkerId;

/// The index in numbers. Counts of blocks and bytes are of now, the others since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    pub workers: Vec<WorkerStats>,
    /// Runs of blocks without a branch.
    pub nodes: usize,
    /// Distinct blocks, however many workers hold them.
    pub distinct_blocks: usize,
    pub bytes: usize,
    pub max_bytes: usize,
    /// (worker, block) pairs expected because of recent placements, and the bytes they take.
    pub predicted_blocks: usize,
    pub predicted_bytes: usize,
    pub stored_blocks_total: u64,
    pub removed_blocks_total: u64,
    pub orphaned_blocks_total: u64,
    pub unknown_blocks_total: u64,
    /// Blocks given up to hold the byte budget.
    pub forgotten_blocks_total: u64,
    /// Predictions given up early because there were too many.
    pub dropped_predictions_total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    pub worker: WorkerId,
    pub device_blocks: usize,
    pub host_blocks: usize,
    pub disk_blocks: usize,
    /// Bytes of the worker's own names; the tree is shared.
    pub bytes: usize,
}

impl WorkerStats {
    pub fn blocks(&self) -> usize {
        self.device_blocks + self.host_blocks + self.disk_blocks
    }
}

impl Index {
    pub fn stats(&self) -> IndexStats {
        let mut total = *self.departed.lock();
        let workers = self.workers().into_iter().filter_map(|worker| {
            let state = worker.live()?;
            total += state.total;
            Some(WorkerStats {
                worker: worker.id,
                device_blocks: state.blocks[Tier::Device.index()],
                host_blocks: state.blocks[Tier::Host.index()],
                disk_blocks: state.blocks[Tier::Disk.index()],
                bytes: state.bytes(),
            })
        });
        let workers = workers.collect();
        // A statement of its own: the lock must be free again before the bytes are asked for.
        let nodes = self.tree.write().node_count();
        IndexStats {
            workers,
            nodes,
            distinct_blocks: self.tree.block_count(),
            bytes: self.bytes(),
            max_bytes: self.config.max_bytes,
            predicted_blocks: self.predicted.block_count(),
            predicted_bytes: self.predicted.heap_bytes(),
            stored_blocks_total: total.stored as u64,
            removed_blocks_total: total.removed as u64,
            orphaned_blocks_total: total.orphaned as u64,
            unknown_blocks_total: total.unknown as u64,
            forgotten_blocks_total: self.forgotten.load(Ordering::Relaxed),
            dropped_predictions_total: self.predicted.dropped() as u64,
        }
    }
}
