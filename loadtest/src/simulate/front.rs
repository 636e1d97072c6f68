//! One router of the deployment: its index, its scheduler, what it knows of the others.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::sim::SimTime;
use kvlane_indexer::{Index, IndexConfig, KvEvent, Overlap, Tick, WorkerId};
use kvlane_router::scheduling::{
    Demand, FairQueue, Load, Placement, Scheduler, SlotSense, Slots, Standing, Strangers,
};

use super::mode::Mode;
use super::settings::{RouterSettings, Settings};

pub(super) struct Front {
    pub(super) scheduler: Arc<Scheduler>,
    /// Requests that found every worker full.
    pub(super) queue: FairQueue<u64>,
    index: Index,
    overlap: Overlap,
    /// By worker: what others have there, as far as this one knows, and how many slots it shows.
    others: Vec<Load>,
    strangers: Vec<Strangers>,
    senses: Vec<SlotSense>,
    events: bool,
    predicts: bool,
    unconfirmed_life: u32,
}

/// An engine, as it looks to whoever asks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) held_blocks: usize,
    pub(super) slots: usize,
}

impl Front {
    pub(super) fn new(settings: &Settings, mode: Mode) -> Self {
        let router = &settings.router;
        let mut config = IndexConfig { shards: 16, ..IndexConfig::default() };
        config.predicted.life = router.predicted_ttl_s;
        config.predicted.resolution = (router.predicted_ttl_s / 2).max(1);
        let index = Index::new(config);
        for n in 0..settings.workers {
            // There is room for as many as settings allow.
            let _ = index.register(worker_id(n));
        }
        let policy = mode.policy(router);
        Self {
            scheduler: Scheduler::new(policy, 65_536, router.holdout),
            queue: FairQueue::new([1.0; 3]),
            index,
            overlap: Overlap::default(),
            others: vec![Load::default(); settings.workers],
            strangers: vec![Strangers::default(); settings.workers],
            senses: vec![SlotSense::default(); settings.workers],
            events: router.events,
            predicts: policy.sees_caches() && (router.predicted_ttl_s > 0 || !router.events),
            unconfirmed_life: router.approximate_ttl_s,
        }
    }

    /// What the request's path does in the router: overlap, placement, expectation.
    pub(super) fn place(
        &mut self,
        settings: &RouterSettings,
        demand: &Demand,
        shown: &[Shown],
        draw: u64,
        now: SimTime,
    ) -> Option<Placement> {
        let tick = tick(now);
        self.index.overlap_into(&demand.blocks, tick, &mut self.overlap);
        let standing = |(n, shown): (usize, &Shown)| {
            let said = settings.slots_told.then(|| settings.slots.unwrap_or(shown.slots));
            let slots = self.senses[n].slots(said, since_start(now));
            let wait = |run: usize| {
                let all = run.max(said.unwrap_or(0)) as f64;
                (all * (1.0 + settings.overflow)).ceil() as usize - run
            };
            Standing {
                slots: slots.map(|run| Slots { run, wait: wait(run) }),
                held_blocks: shown.held_blocks,
                others: Load {
                    requests: self.others[n].requests + self.strangers[n].requests(),
                    ..self.others[n]
                },
                ..Standing::of(worker_id(n))
            }
        };
        let standings: Vec<Standing> = shown.iter().enumerate().map(standing).collect();
        let placement =
            self.scheduler.place(demand, &self.overlap, &standings, draw, since_start(now)).ok()?;
        if self.predicts {
            let life = (!self.events).then_some(self.unconfirmed_life);
            self.index.predict_for(placement.reservation.worker(), &demand.blocks, tick, life);
        }
        Some(placement)
    }

    /// An engine told of its cache.
    pub(super) fn told(&self, n: usize, events: &[KvEvent], now: SimTime) {
        for event in events {
            // The engine's events are well formed, and its own blocks' parents are known.
            let applied = self.index.apply(worker_id(n), event, tick(now));
            debug_assert!(applied.is_ok_and(|applied| applied.orphaned + applied.unknown == 0));
        }
    }

    /// The engines' own counts were read. What no router is known to have placed is a stranger's.
    pub(super) fn asked(&mut self, shown: &[Shown], sees_strangers: bool, now: SimTime) {
        for (n, shown) in shown.iter().enumerate() {
            self.senses[n].observe(shown.running, shown.waiting, since_start(now));
            if sees_strangers {
                let known = self.scheduler.load(worker_id(n)).requests + self.others[n].requests;
                self.strangers[n].observe(shown.running + shown.waiting, known);
            }
        }
    }

    /// The other routers told of theirs.
    pub(super) fn heard(&mut self, others: Vec<Load>) {
        self.others = others;
    }
}

pub(super) fn since_start(now: SimTime) -> Duration {
    Duration::from_nanos(now.0)
}

fn tick(now: SimTime) -> Tick {
    Tick(now.seconds() as u32)
}

pub(super) fn worker_id(n: usize) -> WorkerId {
    WorkerId::new(n as u64, 0)
}
