//! What others may look at of a listener that runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;
use kvlane_indexer::WorkerId;
use parking_lot::Mutex;
use serde::Serialize;

use super::announcements::{Announcement, Announcements};
use crate::feed::{FeedHealth, FeedReport};

/// How listening goes, for people and for metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NatsReport {
    pub messages: u64,
    /// Messages that could not be read.
    pub undecodable: u64,
    pub last_error: Option<String>,
    /// Publishers heard of, and those beyond the bound.
    pub publishers: usize,
    pub too_many_publishers: u64,
    /// Workers that say something and were announced by nobody.
    pub unbound_workers: Vec<u64>,
    pub snapshots: u64,
    pub failed_snapshots: u64,
    /// Messages that waited for a snapshot in vain, there being too many.
    pub dropped_waiting: u64,
    pub workers: BTreeMap<String, FeedReport>,
}

/// What others may look at.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) report: NatsReport,
    pub(super) health: BTreeMap<WorkerId, Arc<FeedHealth>>,
    pub(super) announcements: Announcements,
    /// Instances whose events come another way.
    pub(super) left_alone: HashSet<u64>,
    /// Instances whose blocks are to be asked for anew.
    pub(super) distrusted: HashSet<u64>,
}

/// A view on a feed that runs.
#[derive(Clone, Debug)]
pub struct NatsView(pub(super) Arc<Mutex<Shared>>);

impl NatsView {
    pub fn report(&self) -> NatsReport {
        let shared = self.0.lock();
        let mut report = shared.report.clone();
        let name = |worker: &WorkerId| format!("{}/{}", worker.instance, worker.dp_rank);
        report.workers =
            shared.health.iter().map(|(worker, health)| (name(worker), health.report())).collect();
        let bound: HashSet<u64> =
            shared.announcements.all().map(|announcement| announcement.worker_id).collect();
        let mut unbound: Vec<u64> = shared.health.keys().map(|worker| worker.instance).collect();
        unbound.retain(|worker| !bound.contains(worker));
        unbound.dedup();
        report.unbound_workers = unbound;
        report
    }

    pub fn health(&self, worker: WorkerId) -> Option<Arc<FeedHealth>> {
        self.0.lock().health.get(&worker).cloned()
    }

    /// The health of every rank of a worker.
    pub fn health_of(&self, instance: u64) -> Vec<Arc<FeedHealth>> {
        let (first, last) = (WorkerId::new(instance, 0), WorkerId::new(instance, u32::MAX));
        self.0.lock().health.range(first..=last).map(|(_, health)| health.clone()).collect()
    }

    /// The worker's events come another way, and two feeds must not write what one worker holds. Or they do not any more.
    pub fn leave_alone(&self, instance: u64, alone: bool) {
        let left_alone = &mut self.0.lock().left_alone;
        if alone {
            left_alone.insert(instance);
        } else {
            left_alone.remove(&instance);
        }
    }

    /// What is known of the worker is not to be believed: it is forgotten and asked for anew, soon.
    pub fn resync(&self, instance: u64) {
        self.0.lock().distrusted.insert(instance);
    }

    /// Workers announced by their bridges.
    pub fn announced(&self) -> Vec<Announcement> {
        self.0.lock().announcements.all().cloned().collect()
    }
}
