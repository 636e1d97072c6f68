//! The answer to the one question: how many leading blocks of this prompt does each worker hold?

use std::sync::Arc;

use crate::radix::walk::Depths;
use crate::worker::{Directory, WorkerId};

/// Leading blocks held, per worker, at one moment. Made by [`Index::overlap`](crate::Index::overlap); keep one
/// per thread and refill it with [`Index::overlap_into`](crate::Index::overlap_into) to spare allocations.
#[derive(Clone, Debug, Default)]
pub struct Overlap {
    pub(crate) directory: Arc<Directory>,
    pub(crate) confirmed: Depths,
    pub(crate) predicted: Vec<u32>,
    /// Used by the lookup in predicted blocks only.
    pub(crate) scratch: Depths,
}

/// How far one worker comes along a prompt, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Leading blocks in the device's memory.
    pub device: u32,
    /// Leading blocks when, past the device's, host memory may continue. Never less than `device`.
    pub host: u32,
    /// Leading blocks when, past the host's, disk may continue. Never less than `host`.
    pub disk: u32,
    /// Leading blocks expected on the device because of requests placed a short while ago.
    pub predicted: u32,
}

impl Held {
    /// What to count on: confirmed by the engine, or expected because of a placement, whichever is more.
    pub fn expected(self) -> u32 {
        self.device.max(self.predicted)
    }
}

impl Overlap {
    /// Who the workers were when this was made, and which place each has in the dense results.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Leading blocks on the device, one number per place; those of places without a worker mean nothing.
    pub fn device(&self) -> &[u32] {
        let depths = self.confirmed.as_slice();
        &depths[..self.directory.slot_count().min(depths.len())]
    }

    /// Nothing held when the worker was not known.
    pub fn of(&self, worker: WorkerId) -> Held {
        self.directory.slot(worker).map_or_else(Held::default, |slot| self.at(slot as usize))
    }

    /// What the worker at this place of the dense results holds.
    pub fn at(&self, place: usize) -> Held {
        let device = self.confirmed.get(place);
        let predicted = self.predicted.get(place).copied().unwrap_or(0);
        let tiered = self.confirmed.tiered().iter().find(|depth| depth.slot as usize == place);
        let [_, host, disk] = tiered.map_or([device; 3], |depth| depth.reach);
        Held { device, host, disk, predicted }
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkerId, Held)> + '_ {
        self.directory.workers().map(|(place, worker)| (worker, self.at(place)))
    }
}
