//! The load every worker carries, and placements made by it.
//!
//! Invariant: what live reservations took adds up to the counters. Written by [`Scheduler::place`],
//! [`Scheduler::reserve`] and [`Reservation`] alone, under one lock that is held for microseconds and never across an
//! await; read by whoever shows it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use kvlane_indexer::{Overlap, SequenceHash, WorkerId};
use parking_lot::Mutex;

use super::active_load::ActiveLoad;
use super::selector::{Barred, Candidate, Decision, Policy, select};

/// What a request asks of a worker.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The prompt's whole blocks.
    pub blocks: Arc<[SequenceHash]>,
    pub prompt_tokens: usize,
    pub block_tokens: usize,
    /// What the client calls its conversation, hashed.
    pub session: Option<u64>,
}

/// A worker that could be chosen, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub worker: WorkerId,
    pub barred: Option<Barred>,
}

/// What a worker is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub requests: usize,
    pub prefill_tokens: usize,
    pub blocks: usize,
}

#[derive(Debug)]
pub struct Scheduler {
    policy: ArcSwap<Policy>,
    loads: Mutex<HashMap<WorkerId, ActiveLoad>>,
}

/// A decision with the load of its chosen worker reserved.
#[derive(Debug)]
pub struct Placement {
    pub decision: Decision,
    pub reservation: Reservation,
}

impl Scheduler {
    pub fn new(policy: Policy) -> Arc<Self> {
        Arc::new(Self { policy: ArcSwap::from_pointee(policy), loads: Mutex::default() })
    }

    pub fn policy(&self) -> Policy {
        **self.policy.load()
    }

    /// Requests placed from now on are placed so.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
    }

    /// What would be decided now. Nothing is reserved.
    pub fn explain(&self, demand: &Demand, overlap: &Overlap, standings: &[Standing], draw: u64) -> Decision {
        self.decide(&self.loads.lock(), &self.policy(), demand, overlap, standings, draw)
    }

    /// Chooses a worker and reserves its load. None when there is nobody to choose.
    pub fn place(
        self: &Arc<Self>,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        draw: u64,
    ) -> Result<Placement, Decision> {
        let policy = self.policy();
        let mut loads = self.loads.lock();
        let decision = self.decide(&loads, &policy, demand, overlap, standings, draw);
        let Some(worker) = decision.chosen() else { return Err(decision) };
        let prefill_tokens = uncached(demand, overlap, worker);
        loads.entry(worker).or_default().add(&demand.blocks, prefill_tokens);
        drop(loads);
        let reservation = Reservation {
            scheduler: self.clone(),
            worker,
            blocks: demand.blocks.clone(),
            prefill_tokens,
            prefilled: false,
        };
        Ok(Placement { decision, reservation })
    }

    /// Reserves a given worker: the next one of a decision whose first choice failed.
    pub fn reserve(self: &Arc<Self>, demand: &Demand, overlap: &Overlap, worker: WorkerId) -> Reservation {
        let prefill_tokens = uncached(demand, overlap, worker);
        self.loads.lock().entry(worker).or_default().add(&demand.blocks, prefill_tokens);
        let (scheduler, blocks) = (self.clone(), demand.blocks.clone());
        Reservation { scheduler, worker, blocks, prefill_tokens, prefilled: false }
    }

    fn decide(
        &self,
        loads: &HashMap<WorkerId, ActiveLoad>,
        policy: &Policy,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        draw: u64,
    ) -> Decision {
        let block_tokens = demand.block_tokens.max(1) as f64;
        let idle = ActiveLoad::default();
        let candidate = |standing: &Standing| {
            let load = loads.get(&standing.worker).unwrap_or(&idle);
            let prefill_tokens = uncached(demand, overlap, standing.worker) + load.prefill_tokens();
            Candidate {
                worker: standing.worker,
                prefill_blocks: prefill_tokens as f64 / block_tokens,
                decode_blocks: load.blocks_with(&demand.blocks) as f64,
                active_requests: load.requests(),
                tie_break: load.requests() as u64,
                barred: standing.barred,
            }
        };
        let candidates: Vec<Candidate> = standings.iter().map(candidate).collect();
        select(policy, demand.session, &candidates, draw)
    }

    pub fn load(&self, worker: WorkerId) -> Load {
        self.loads.lock().get(&worker).map_or_else(Load::default, Load::of)
    }
}

impl Load {
    fn of(load: &ActiveLoad) -> Self {
        Self { requests: load.requests(), prefill_tokens: load.prefill_tokens(), blocks: load.blocks() }
    }
}

/// Prompt tokens the worker would have to compute.
fn uncached(demand: &Demand, overlap: &Overlap, worker: WorkerId) -> usize {
    let cached = overlap.of(worker).expected() as usize * demand.block_tokens;
    demand.prompt_tokens.saturating_sub(cached)
}

/// Load that one request puts on one worker, for as long as this lives.
#[derive(Debug)]
pub struct Reservation {
    scheduler: Arc<Scheduler>,
    worker: WorkerId,
    blocks: Arc<[SequenceHash]>,
    prefill_tokens: usize,
    prefilled: bool,
}

impl Reservation {
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The first token came: nothing is left to compute before it.
    pub fn first_token(&mut self) {
        if !std::mem::replace(&mut self.prefilled, true)
            && let Some(load) = self.scheduler.loads.lock().get_mut(&self.worker)
        {
            load.prefilled(self.prefill_tokens);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut loads = self.scheduler.loads.lock();
        let Some(load) = loads.get_mut(&self.worker) else { return };
        if !self.prefilled {
            load.prefilled(self.prefill_tokens);
        }
        load.remove(&self.blocks);
        // Workers come and go; an idle one needs no entry.
        if load.requests() == 0 {
            loads.remove(&self.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KV: Policy = Policy::Kv { overlap_weight: 1.0, temperature: 0.0 };

    fn demand(blocks: u64) -> Demand {
        Demand {
            blocks: (1..=blocks).map(SequenceHash).collect(),
            prompt_tokens: blocks as usize * 32 + 5,
            block_tokens: 32,
            session: None,
        }
    }

    fn standings(workers: u64) -> Vec<Standing> {
        (0..workers).map(|n| Standing { worker: WorkerId::new(n, 0), barred: None }).collect()
    }

    #[test]
    fn what_is_reserved_is_given_back_at_first_token_and_on_drop() {
        let scheduler = Scheduler::new(KV);
        let placed = scheduler.place(&demand(10), &Overlap::default(), &standings(1), 0).unwrap();
        let mut reservation = placed.reservation;
        let worker = reservation.worker();
        assert_eq!(scheduler.load(worker), Load { requests: 1, prefill_tokens: 325, blocks: 10 });
        reservation.first_token();
        reservation.first_token();
        assert_eq!(scheduler.load(worker), Load { requests: 1, prefill_tokens: 0, blocks: 10 });
        let second = scheduler.reserve(&demand(12), &Overlap::default(), worker);
        assert_eq!(scheduler.load(worker), Load { requests: 2, prefill_tokens: 389, blocks: 12 });
        drop(reservation);
        drop(second);
        assert_eq!(scheduler.load(worker), Load::default());
        assert!(scheduler.loads.lock().is_empty());
    }

    /// Two requests that arrive at once do not both see the same idle worker.
    #[test]
    fn each_placement_sees_the_ones_before() {
        let scheduler = Scheduler::new(KV);
        let placed: Vec<Placement> = (0..6)
            .map(|n| {
                let own = Demand { blocks: [SequenceHash(100 + n)].into(), ..demand(1) };
                scheduler.place(&own, &Overlap::default(), &standings(3), n).unwrap()
            })
            .collect();
        for n in 0..3 {
            assert_eq!(scheduler.load(WorkerId::new(n, 0)).requests, 2);
        }
        drop(placed);
        assert!(scheduler.place(&demand(1), &Overlap::default(), &[], 0).is_err());
    }

    #[test]
    fn explaining_reserves_nothing() {
        let scheduler = Scheduler::new(KV);
        let decision = scheduler.explain(&demand(4), &Overlap::default(), &standings(2), 0);
        assert_eq!(decision.ranked.len(), 2);
        assert_eq!(scheduler.load(WorkerId::new(0, 0)), Load::default());
        scheduler.set_policy(Policy::RoundRobin);
        assert_eq!(scheduler.policy(), Policy::RoundRobin);
    }
}
