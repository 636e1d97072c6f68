//! What other routers have placed where, as far as they told us.
//!
//! Each tells what changed, and everything once in a while; one that falls silent is forgotten. Best effort: what is
//! lost is corrected by the next whole report. Bounded in routers and in workers.

use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use kvlane_indexer::WorkerId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::scheduler::Load;

/// One router's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    pub router: u64,
    /// Everything it has, or what changed.
    pub whole: bool,
    pub loads: Vec<Share>,
}

/// What a router has on one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub instance: u64,
    pub rank: u32,
    pub requests: usize,
    pub prefill_tokens: usize,
    pub blocks: usize,
}

/// Who has said nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Peers {
    most_routers: usize,
    most_workers: usize,
    routers: Mutex<Routers>,
    /// Of all of them together.
    sums: ArcSwap<HashMap<WorkerId, Load>>,
}

#[derive(Debug, Default)]
struct Routers {
    by_id: HashMap<u64, Peer>,
    /// Somebody spoke since it was summed up.
    changed: bool,
}

/// More of anything than a router has on one worker.
const MOST: usize = 1 << 32;

#[derive(Debug)]
struct Peer {
    heard: Instant,
    loads: HashMap<WorkerId, Load>,
}

impl Peers {
    pub fn new(most_routers: usize, most_workers: usize) -> Self {
        Self { most_routers, most_workers, routers: Mutex::default(), sums: ArcSwap::default() }
    }

    /// A router told of its load. It counts from the next [`settle`](Self::settle) on.
    pub fn heard(&self, report: &LoadReport, now: Instant) {
        let mut routers = self.routers.lock();
        if !routers.by_id.contains_key(&report.router) && routers.by_id.len() >= self.most_routers {
            return;
        }
        routers.changed = true;
        let peer =
            routers.by_id.entry(report.router).or_insert_with(|| Peer { heard: now, loads: HashMap::new() });
        peer.heard = now;
        if report.whole {
            peer.loads.clear();
        }
        for share in &report.loads {
            let worker = WorkerId::new(share.instance, share.rank);
            if share.requests == 0 {
                peer.loads.remove(&worker);
            } else if peer.loads.contains_key(&worker) || peer.loads.len() < self.most_workers {
                // They are strangers' numbers.
                let [requests, prefill_tokens, blocks] =
                    [share.requests, share.prefill_tokens, share.blocks].map(|number| number.min(MOST));
                peer.loads.insert(worker, Load { requests, prefill_tokens, blocks, total_blocks: blocks });
            }
        }
    }

    /// Sums up what was heard, and forgets who has fallen silent.
    pub fn settle(&self, now: Instant) {
        let mut routers = self.routers.lock();
        let before = routers.by_id.len();
        routers.by_id.retain(|_, peer| now.saturating_duration_since(peer.heard) < SILENCE);
        if !std::mem::take(&mut routers.changed) && routers.by_id.len() == before {
            return;
        }
        let mut sums: HashMap<WorkerId, Load> = HashMap::new();
        for (worker, load) in routers.by_id.values().flat_map(|peer| &peer.loads) {
            let sum = sums.entry(*worker).or_default();
            *sum = sum.and(*load);
        }
        self.sums.store(std::sync::Arc::new(sums));
    }

    /// Nobody can be heard.
    pub fn forget(&self) {
        *self.routers.lock() = Routers { changed: true, ..Routers::default() };
        self.settle(Instant::now());
    }

    /// What the others have on a worker.
    pub fn load(&self, worker: WorkerId) -> Load {
        self.sums.load().get(&worker).copied().unwrap_or_default()
    }

    pub fn count(&self) -> usize {
        self.routers.lock().by_id.len()
    }
}

impl Share {
    pub fn of(worker: WorkerId, load: Load) -> Self {
        let Load { requests, prefill_tokens, blocks, .. } = load;
        Self { instance: worker.instance, rank: worker.dp_rank, requests, prefill_tokens, blocks }
    }
}

/// What has to be told, given what was told last.
#[derive(Debug, Default)]
pub struct Told {
    loads: HashMap<WorkerId, Load>,
}

impl Told {
    /// What changed since; everything when `whole`. None when there is nothing to say.
    pub fn report(&mut self, router: u64, now: Vec<(WorkerId, Load)>, whole: bool) -> Option<LoadReport> {
        let now: HashMap<WorkerId, Load> = now.into_iter().collect();
        let same = |worker: &WorkerId, load: &Load| {
            self.loads.get(worker).is_some_and(|told| Share::of(*worker, *told) == Share::of(*worker, *load))
        };
        let changed = now.iter().filter(|(worker, load)| whole || !same(worker, load));
        let mut loads: Vec<Share> = changed.map(|(worker, load)| Share::of(*worker, *load)).collect();
        let idle = self.loads.keys().filter(|worker| !whole && !now.contains_key(*worker));
        loads.extend(idle.map(|worker| Share::of(*worker, Load::default())));
        self.loads = now;
        (whole || !loads.is_empty()).then_some(LoadReport { router, whole, loads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(requests: usize) -> Load {
        Load { requests, prefill_tokens: 10 * requests, blocks: requests, total_blocks: requests }
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_tell_adds_up_and_goes_with_them() {
        let peers = Peers::new(2, 2);
        let [one, two, three] = [1, 2, 3].map(|n| WorkerId::new(n, 0));
        let mut told = [Told::default(), Told::default()];
        let tell = |told: &mut Told, router, now: Vec<(WorkerId, Load)>, whole| {
            let report = told.report(router, now, whole);
            report.iter().for_each(|report| peers.heard(report, Instant::now()));
            peers.settle(Instant::now());
            report.map(|report| report.loads.len())
        };
        assert_eq!(tell(&mut told[0], 7, vec![(one, load(3)), (two, load(1))], true), Some(2));
        assert_eq!(tell(&mut told[1], 8, vec![(one, load(2))], false), Some(1));
        assert_eq!((peers.load(one).requests, peers.load(two).requests, peers.count()), (5, 1, 2));
        // Only what changed is told, and that somebody is idle is a change.
        assert_eq!(tell(&mut told[0], 7, vec![(one, load(3)), (two, load(1))], false), None);
        assert_eq!(tell(&mut told[0], 7, vec![(one, load(4))], false), Some(2));
        assert_eq!((peers.load(one).requests, peers.load(two).requests), (6, 0));
        assert_eq!(peers.load(one).prefill_tokens, 60);
        // No more routers and no more workers than that.
        tell(&mut Told::default(), 9, vec![(two, load(50))], true);
        assert_eq!(peers.load(two).requests, 0);
        tell(&mut told[0], 7, vec![(one, load(1)), (two, load(1)), (three, load(1))], true);
        assert_eq!([one, two, three].iter().map(|id| peers.load(*id).requests).sum::<usize>(), 2 + 2);
        // A router that is gone takes its load along.
        tokio::time::advance(SILENCE - Duration::from_secs(1)).await;
        tell(&mut told[1], 8, vec![(one, load(2))], true);
        tokio::time::advance(Duration::from_secs(2)).await;
        peers.settle(Instant::now());
        assert_eq!((peers.load(one).requests, peers.count()), (2, 1));
        peers.forget();
        assert_eq!((peers.load(one).requests, peers.count()), (0, 0));
    }
}
