//! The index: what each worker holds, fed by events, asked by requests.
//!
//! [`Index::apply`] takes one event of one worker, [`Index::overlap`] answers for one prompt, and any number
//! of threads may do either. An answer may be too low (an event lost, a block forgotten to hold the byte
//! budget), never too high: what it says a worker holds, the worker's events said it held, all of it at one
//! moment during the lookup.
//!
//! Locks are taken in this order, and none is held while waiting for an earlier one: a worker's own state,
//! the tree's writer lock, one shard, the registry, and last the locks of the predictions' own trees. Lookups
//! take none but single shards' and the registry's.

mod budget;
pub(crate) mod restore;
mod stats;
mod worker_state;

#[cfg(any(test, debug_assertions))]
mod invariants;

use std::ops::AddAssign;
use std::sync::Arc;

use hashbrown::HashMap;

pub use self::stats::{IndexStats, WorkerStats};
use self::worker_state::WorkerState;
use crate::Tick;
use crate::block::{EngineBlockId, SequenceHash, Tier};
use crate::event::{EventError, KvEvent};
use crate::overlap::Overlap;
use crate::predicted::{Predicted, PredictedConfig};
use crate::radix::RadixTree;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock};
use crate::worker::{Directory, Slot, WorkerId};

/// The index's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Bytes the index may take; past it the coldest paths of the largest holder are forgotten. Predictions
    /// have a bound of their own. An empty index takes 128 bytes a shard; with no more than that, nothing is
    /// ever held.
    pub max_bytes: usize,
    /// Workers there may be at a time.
    pub max_workers: usize,
    /// Locks that lookups and events spread over; rounded up to a power of two.
    pub shards: usize,
    pub predicted: PredictedConfig,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self { max_bytes: 1 << 30, max_workers: 4096, shards: 256, predicted: PredictedConfig::default() }
    }
}

/// What one event changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Applied {
    /// Blocks held now and not before.
    pub stored: usize,
    /// Blocks no longer held.
    pub removed: usize,
    /// Blocks dropped because the event's parent is not known here.
    pub orphaned: usize,
    /// Removed blocks that were not held: never seen, or forgotten.
    pub unknown: usize,
}

impl AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.orphaned += other.orphaned;
        self.unknown += other.unknown;
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    tree: RadixTree,
    predicted: Predicted,
    registry: RwLock<Registry>,
    /// The registry's directory's version, to be compared without a lock.
    directory_version: AtomicU64,
    /// Bytes of all workers' states.
    worker_bytes: AtomicUsize,
    /// What the events of workers now forgotten came to.
    departed: Mutex<Applied>,
    /// Blocks given up to hold the byte budget.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Registry {
    directory: Arc<Directory>,
    workers: HashMap<WorkerId, Arc<Worker>>,
}

#[derive(Debug)]
struct Worker {
    id: WorkerId,
    slot: Slot,
    state: Mutex<WorkerState>,
}

impl Index {
    pub fn new(config: IndexConfig) -> Self {
        let directory = Directory::empty();
        Self {
            config,
            tree: RadixTree::new(config.shards.clamp(1, 1 << 12)),
            predicted: Predicted::new(config.predicted),
            directory_version: AtomicU64::new(directory.version),
            registry: RwLock::new(Registry { directory, workers: HashMap::new() }),
            worker_bytes: AtomicUsize::new(0),
            departed: Mutex::default(),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Applies one event of one worker, which becomes known with its first. `tick` is the caller's coarse
    /// clock; blocks not stored or hit since an older tick are the first to be forgotten.
    pub fn apply(&self, worker: WorkerId, event: &KvEvent, tick: Tick) -> Result<Applied, EventError> {
        self.apply_noting(worker, event, tick, |_| ())
    }

    /// Like [`apply`](Self::apply), and tells `held` the names of stored blocks that the worker held already.
    /// Engines that keep a block in several copies announce each of them.
    pub fn apply_noting(
        &self,
        worker: WorkerId,
        event: &KvEvent,
        tick: Tick,
        mut held: impl FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        self.apply_to(worker, event, tick, &mut held)
    }

    fn apply_to(
        &self,
        worker: WorkerId,
        event: &KvEvent,
        tick: Tick,
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        event.check()?;
        let worker = self.worker(worker)?;
        // Forgotten between finding and locking it: the next one found is another.
        let mut state = worker.state.lock();
        if state.retired {
            drop(state);
            return self.apply_to(worker.id, event, tick, held);
        }
        let bytes = state.bytes();
        let applied = match event {
            KvEvent::Stored { tier, parent, blocks } => {
                if *tier != Tier::Device && !state.tiered {
                    state.tiered = true;
                    self.change_directory(|registry| registry.directory.with_tiered(worker.slot));
                }
                state.stored(&self.tree, (worker.slot, *tier, tick), *parent, blocks, held)
            }
            KvEvent::Removed { tier, ids } => Ok(state.removed(&self.tree, (worker.slot, *tier), ids)),
            KvEvent::Cleared { tier } => Ok(state.cleared(&self.tree, worker.slot, tier.as_slice())),
        };
        self.account(&state, bytes);
        if let Ok(applied) = &applied {
            state.total += *applied;
        }
        drop(state);
        if self.bytes() > self.config.max_bytes {
            self.hold_budget();
        }
        applied
    }

    /// Counts a change of a worker's size. Even a look can be one: names asked for are hashed.
    fn account(&self, state: &WorkerState, before: usize) {
        let now = state.bytes();
        if now != before && !state.retired {
            // Wraps like the difference does: the sum is right whatever the order of threads.
            self.worker_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    fn worker(&self, id: WorkerId) -> Result<Arc<Worker>, EventError> {
        if let Some(worker) = self.registry.read().workers.get(&id) {
            return Ok(Arc::clone(worker));
        }
        let mut registry = self.registry.write();
        if let Some(worker) = registry.workers.get(&id) {
            return Ok(Arc::clone(worker));
        }
        let (workers, max) = (registry.workers.len() + 1, self.config.max_workers);
        if workers > max {
            return Err(EventError::TooManyWorkers { workers, max });
        }
        let (directory, slot) = registry.directory.with(id);
        self.publish(&mut registry, directory);
        let state = WorkerState::default();
        self.worker_bytes.fetch_add(state.bytes(), Ordering::Relaxed);
        let worker = Arc::new(Worker { id, slot, state: Mutex::new(state) });
        registry.workers.insert(id, Arc::clone(&worker));
        Ok(worker)
    }

    fn change_directory(&self, change: impl FnOnce(&mut Registry) -> Arc<Directory>) {
        let mut registry = self.registry.write();
        let directory = change(&mut registry);
        self.publish(&mut registry, directory);
    }

    fn publish(&self, registry: &mut Registry, directory: Arc<Directory>) {
        self.directory_version.store(directory.version, Ordering::Release);
        registry.directory = directory;
    }

    /// Forgets a worker and everything it held; false when it was not known. Should it speak again, it starts
    /// from nothing.
    pub fn forget(&self, worker: WorkerId) -> bool {
        let worker = {
            let mut registry = self.registry.write();
            let Some(gone) = registry.workers.remove(&worker) else { return false };
            let directory = registry.directory.without(worker);
            self.publish(&mut registry, directory);
            gone
        };
        {
            let mut state = worker.state.lock();
            let bytes = state.bytes();
            // The slot is freed below, so the tiers it had need no mention any more.
            let _ = state.cleared(&self.tree, worker.slot, &[]);
            state.retired = true;
            *self.departed.lock() += state.total;
            self.worker_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.predicted.forget(worker.slot);
        self.change_directory(|registry| registry.directory.freed(worker.slot));
        true
    }

    /// How many leading blocks of `prompt` each worker holds, and how many a recent placement makes expected.
    pub fn overlap(&self, prompt: &[SequenceHash], now: Tick) -> Overlap {
        let mut overlap = Overlap::default();
        self.overlap_into(prompt, now, &mut overlap);
        overlap
    }

    /// Like [`overlap`](Self::overlap), into an answer that is used again.
    pub fn overlap_into(&self, prompt: &[SequenceHash], now: Tick, overlap: &mut Overlap) {
        loop {
            if overlap.directory.version != self.directory_version.load(Ordering::Acquire) {
                overlap.directory = Arc::clone(&self.registry.read().directory);
            }
            let (slots, tiered) = (overlap.directory.slot_count(), overlap.directory.tiered());
            self.tree.overlap(prompt, now, slots, tiered, &mut overlap.confirmed);
            self.predicted.overlap_into(prompt, now, overlap);
            // Otherwise a worker came or went meanwhile, and a slot may have changed hands.
            if overlap.directory.version == self.directory_version.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Expects `worker` to hold all of `prompt` soon, because a request was placed there. Says false, and
    /// expects nothing, when the worker is not known.
    pub fn predict(&self, worker: WorkerId, prompt: &[SequenceHash], now: Tick) -> bool {
        self.predict_for(worker, prompt, now, None)
    }

    /// Like [`predict`](Self::predict), for `life` ticks: longer where no events will ever confirm it.
    pub fn predict_for(
        &self,
        worker: WorkerId,
        prompt: &[SequenceHash],
        now: Tick,
        life: Option<u32>,
    ) -> bool {
        // Held throughout, so that the slot cannot change hands before the prediction is made.
        let registry = self.registry.read();
        let Some(slot) = registry.directory.slot(worker) else {
            return false;
        };
        self.predicted.predict(slot, prompt, now, life);
        true
    }

    /// Makes a worker known before its first event, so that predictions can be made for it.
    pub fn register(&self, worker: WorkerId) -> Result<(), EventError> {
        self.worker(worker).map(|_| ())
    }

    /// Blocks the worker is known to hold on its device.
    pub fn held_blocks(&self, worker: WorkerId) -> usize {
        let worker = self.registry.read().workers.get(&worker).cloned();
        worker.and_then(|worker| Some(worker.live()?.blocks[Tier::Device.index()])).unwrap_or(0)
    }

    /// Whether the worker is known to hold the block of this name on any tier; for audits.
    pub fn holds(&self, worker: WorkerId, id: EngineBlockId) -> bool {
        let worker = self.registry.read().workers.get(&worker).cloned();
        worker.is_some_and(|worker| {
            let mut state = worker.state.lock();
            let bytes = state.bytes();
            let found = state.names.find(id, None).is_some();
            self.account(&state, bytes);
            found
        })
    }

    /// Bytes the index takes, predictions not included: they have a bound of their own.
    pub fn bytes(&self) -> usize {
        self.tree.bytes() + self.worker_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn tree(&self) -> &RadixTree {
        &self.tree
    }

    pub(crate) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.registry.read().directory)
    }

    /// All workers, by slot. What they hold may change until they are locked.
    fn workers(&self) -> Vec<Arc<Worker>> {
        let mut workers: Vec<_> = self.registry.read().workers.values().cloned().collect();
        workers.sort_by_key(|worker| worker.slot);
        workers
    }
}

impl Worker {
    fn live(&self) -> Option<MutexGuard<'_, WorkerState>> {
        let state = self.state.lock();
        (!state.retired).then_some(state)
    }
}

#[cfg(test)]
mod tests;
