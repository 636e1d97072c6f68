//! Workers, and the small dense numbers the tree knows them by.
//!
//! A [`WorkerId`] is what the outside calls a worker. Inside, each one has a *slot*: a small number that
//! indexes bitsets and dense results. Slots are recycled, so a result carries the [`Directory`] it was made
//! under and speaks of workers by their ids; a lookup that saw the directory change under it starts again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One data-parallel rank of one serving instance: the smallest thing with a KV cache of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId {
    pub instance: u64,
    pub dp_rank: u32,
}

impl WorkerId {
    pub const fn new(instance: u64, dp_rank: u32) -> Self {
        Self { instance, dp_rank }
    }
}

/// A worker's place in bitsets and dense results. Means nothing without the directory that gave it.
pub(crate) type Slot = u32;

/// Who sits in which slot: an immutable picture, replaced whole when a worker comes or goes.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Another one with each change and in every index; lookups compare it to notice that slots moved under
    /// them, or that their answer was last used with another index.
    pub(crate) version: u64,
    slots: Vec<Option<WorkerId>>,
    by_id: HashMap<WorkerId, Slot>,
    /// Slots that have held blocks outside the device; all others skip the walk through lower tiers.
    tiered: Vec<Slot>,
}

/// Never the same twice in a process, and never zero, which is an empty answer's.
fn fresh_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Directory {
    /// One without workers, told apart from every other.
    pub(crate) fn empty() -> Arc<Self> {
        Arc::new(Self { version: fresh_version(), ..Self::default() })
    }

    /// Gives `worker` the lowest free slot. The caller has checked that it has none.
    pub(crate) fn with(&self, worker: WorkerId) -> (Arc<Self>, Slot) {
        let mut next = self.next();
        let slot = match next.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                next.slots.push(None);
                next.slots.len() - 1
            }
        };
        next.slots[slot] = Some(worker);
        next.by_id.insert(worker, slot as Slot);
        (Arc::new(next), slot as Slot)
    }

    /// Nobody finds `worker` any more. Its slot stays taken until it is [freed](Self::freed), so that what it
    /// held can be cleared away before anyone else sits there.
    pub(crate) fn without(&self, worker: WorkerId) -> Arc<Self> {
        let mut next = self.next();
        next.by_id.remove(&worker);
        Arc::new(next)
    }

    pub(crate) fn freed(&self, slot: Slot) -> Arc<Self> {
        let mut next = self.next();
        next.slots[slot as usize] = None;
        next.tiered.retain(|tiered| *tiered != slot);
        let used = next.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        next.slots.truncate(used);
        Arc::new(next)
    }

    pub(crate) fn with_tiered(&self, slot: Slot) -> Arc<Self> {
        let mut next = self.next();
        next.tiered.push(slot);
        Arc::new(next)
    }

    fn next(&self) -> Self {
        Self { version: fresh_version(), ..self.clone() }
    }

    pub(crate) fn slot(&self, worker: WorkerId) -> Option<Slot> {
        self.by_id.get(&worker).copied()
    }

    pub(crate) fn tiered(&self) -> &[Slot] {
        &self.tiered
    }

    /// How many slots are in use or lie between used ones.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub fn worker_count(&self) -> usize {
        self.by_id.len()
    }

    /// The workers with their places in dense results, in slot order.
    pub fn workers(&self) -> impl Iterator<Item = (usize, WorkerId)> + '_ {
        let seated = |(slot, worker): (usize, &Option<WorkerId>)| worker.map(|worker| (slot, worker));
        // One that is being forgotten has its slot still, and may even have another already.
        let known = |(slot, worker): &(usize, WorkerId)| self.slot(*worker) == Some(*slot as Slot);
        self.slots.iter().enumerate().filter_map(seated).filter(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_is_given_again() {
        let worker = |n| WorkerId::new(n, 0);
        let directory = Directory::default();
        let (directory, a) = directory.with(worker(1));
        let (directory, b) = directory.with(worker(2));
        let (directory, c) = directory.with(worker(3));
        assert_eq!((a, b, c), (0, 1, 2));
        let directory = directory.without(worker(2)).with_tiered(2);
        assert_eq!(directory.workers().map(|(slot, _)| slot).collect::<Vec<_>>(), [0, 2]);
        let (directory, d) = directory.with(worker(4));
        assert_eq!((d, directory.slot(worker(2))), (3, None));
        let (directory, e) = directory.freed(1).with(worker(5));
        assert_eq!((e, directory.slot_count()), (1, 4));
        let directory = [3, 4, 5].iter().fold(directory, |directory, n| {
            let slot = directory.slot(worker(*n)).unwrap();
            directory.without(worker(*n)).freed(slot)
        });
        assert_eq!((directory.slot_count(), directory.worker_count(), directory.tiered().len()), (1, 1, 0));
    }

    #[test]
    fn a_worker_that_comes_back_while_it_is_forgotten_is_listed_once() {
        let worker = WorkerId::new(1, 0);
        let (directory, old) = Directory::default().with(worker);
        let (directory, new) = directory.without(worker).with(worker);
        assert_eq!((old, new, directory.slot(worker)), (0, 1, Some(1)));
        assert_eq!(directory.workers().collect::<Vec<_>>(), [(1, worker)]);
    }

    #[test]
    fn every_change_moves_the_version() {
        let directory = Directory::default();
        let (with, _) = directory.with(WorkerId::new(1, 0));
        let without = with.without(WorkerId::new(1, 0));
        assert!(directory.version < with.version && with.version < without.version);
    }
}
