//! The load every worker carries, and placements made by it.
//!
//! Invariant: what live reservations took adds up to the counters. Written by [`Scheduler::place`] and [`Reservation`]
//! alone, under one lock that is never held across an await; read by whoever shows it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use kvlane_indexer::{Overlap, SequenceHash, WorkerId};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::active_load::{ActiveLoad, Ticket};
use super::policy::{Policy, Weights};
use super::safety_net::{SafetyNet, SafetyReport};
use super::selector::{Barred, Candidate, Decision, Slots, select};
use super::waiting_room::WaitingRoom;

/// What a request asks of a worker.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The prompt's whole blocks.
    pub blocks: Arc<[SequenceHash]>,
    pub prompt_tokens: usize,
    pub block_tokens: usize,
    /// What the client calls its conversation, hashed.
    pub session: Option<u64>,
    /// Who waits for what this request leaves behind.
    pub room: Option<Arc<WaitingRoom>>,
    /// Whether its answer is streamed, so that its first token is seen.
    pub streamed: bool,
    /// When it came, counted from any moment as all times here are.
    pub arrived: Duration,
}

/// A worker that could be chosen, or why not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    pub worker: WorkerId,
    pub barred: Option<Barred>,
    /// None where it is not known.
    pub slots: Option<Slots>,
    /// Blocks it is known to hold; the plain cost gives ties to the smallest.
    pub held_blocks: usize,
    /// What it is busy with besides our own requests.
    pub others: Load,
    /// How much of what the index says it holds is to be believed, 1 for all.
    pub trust: f64,
}

impl Standing {
    /// One of which nothing but its name is known.
    pub fn of(worker: WorkerId) -> Self {
        Self { worker, barred: None, slots: None, held_blocks: 0, others: Load::default(), trust: 1.0 }
    }
}

/// What a worker is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub requests: usize,
    pub prefill_tokens: usize,
    /// Distinct prompt blocks in use.
    pub blocks: usize,
    /// Every request's own blocks, those of its answer so far included.
    pub total_blocks: usize,
}

#[derive(Debug)]
pub struct Scheduler {
    policy: ArcSwap<Policy>,
    loads: Mutex<HashMap<WorkerId, ActiveLoad>>,
    /// Where each session's last request went; the least recently used are forgotten.
    homes: Cache<u64, WorkerId>,
    net: SafetyNet,
    started: Instant,
}

/// Idle workers are kept for what was learnt of them until there are so many, more than a fleet has.
const MOST_IDLE: usize = 1 << 14;

/// A decision with the load of its chosen worker reserved.
#[derive(Debug)]
pub struct Placement {
    pub decision: Decision,
    pub reservation: Reservation,
}

impl Scheduler {
    /// Remembers where so many `sessions` were last, and places a share of requests by load alone to compare the others
    /// with (0 for none).
    pub fn new(policy: Policy, sessions: usize, holdout: f64) -> Arc<Self> {
        Arc::new(Self {
            policy: ArcSwap::from_pointee(policy),
            loads: Mutex::default(),
            homes: Cache::new(sessions),
            net: SafetyNet::new(holdout),
            started: Instant::now(),
        })
    }

    /// An instant, as times are counted here by whoever has no clock of his own.
    pub fn time(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    pub fn policy(&self) -> Policy {
        **self.policy.load()
    }

    /// Requests placed from now on are placed so; what was compared under another policy says nothing of it.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
        self.net.reset();
    }

    /// What would be decided now. Nothing is reserved.
    pub fn explain(
        &self,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        draw: u64,
        now: Duration,
    ) -> Decision {
        let cached = cached(demand, overlap, standings);
        self.decide(&self.loads.lock(), demand, &cached, standings, Moment { draw, now, held_out: false })
    }

    /// Chooses a worker and reserves its load. A decision without a choice when there is nobody to choose.
    pub fn place(
        self: &Arc<Self>,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        draw: u64,
        now: Duration,
    ) -> Result<Placement, Decision> {
        let held_out = self.policy().sees_caches().then(|| self.net.holds_out(draw));
        self.place_on(
            demand,
            overlap,
            standings,
            Moment { draw, now, held_out: held_out == Some(true) },
            held_out,
        )
    }

    /// `side` is the side of the comparison it is on.
    fn place_on(
        self: &Arc<Self>,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        moment: Moment,
        side: Option<bool>,
    ) -> Result<Placement, Decision> {
        // Everything that does not depend on load, before others have to wait for it.
        let cached = cached(demand, overlap, standings);
        let mut loads = self.loads.lock();
        let decision = self.decide(&loads, demand, &cached, standings, moment);
        let Some(worker) = decision.chosen() else { return Err(decision) };
        let at = standings.iter().position(|standing| standing.worker == worker).unwrap_or(0);
        let mut reservation = self.book(&mut loads, demand, cached[at], worker, moment.now);
        drop(loads);
        // What was held out says nothing of where the session is at home.
        if let Some(session) = demand.session.filter(|_| side != Some(true)) {
            self.homes.insert(session, worker);
        }
        reservation.held_out = side;
        Ok(Placement { decision, reservation })
    }

    /// The same for a request that cannot wait: where every worker has as many as it may, the cheapest takes one more. It
    /// is on neither side of the comparison.
    pub fn place_anyway(
        self: &Arc<Self>,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        draw: u64,
        now: Duration,
    ) -> Result<Placement, Decision> {
        let moment = Moment { draw, now, held_out: false };
        let decision = match self.place_on(demand, overlap, standings, moment, None) {
            Err(decision) if decision.must_wait() => decision,
            placed => return placed,
        };
        let roomy: Vec<Standing> =
            standings.iter().map(|standing| Standing { slots: None, ..*standing }).collect();
        self.place_on(demand, overlap, &roomy, moment, None).map_err(|_| decision)
    }

    fn book(
        self: &Arc<Self>,
        loads: &mut HashMap<WorkerId, ActiveLoad>,
        demand: &Demand,
        cached: usize,
        worker: WorkerId,
        now: Duration,
    ) -> Reservation {
        let prefill_tokens = demand.prompt_tokens.saturating_sub(cached);
        if loads.len() >= MOST_IDLE && !loads.contains_key(&worker) {
            loads.retain(|_, load| load.requests() > 0);
        }
        let load = loads.entry(worker).or_default();
        let ticket = load.add(&demand.blocks, prefill_tokens, demand.streamed, now);
        Reservation {
            scheduler: self.clone(),
            worker,
            blocks: demand.blocks.clone(),
            block_tokens: demand.block_tokens.max(1),
            prefill: Some(ticket),
            arrived: demand.arrived,
            last_block_tokens: demand.prompt_tokens.saturating_sub(demand.blocks.len() * demand.block_tokens),
            answer_blocks: 0,
            held_out: None,
            room: demand.room.clone(),
        }
    }

    fn decide(
        &self,
        loads: &HashMap<WorkerId, ActiveLoad>,
        demand: &Demand,
        cached: &[usize],
        standings: &[Standing],
        moment: Moment,
    ) -> Decision {
        let Moment { draw, now, held_out } = moment;
        let policy = match self.policy() {
            Policy::Kv(weights) if held_out => Policy::Kv(weights.by_load_alone()),
            Policy::Kv(weights) => Policy::Kv(weights.leaning(self.net.lean())),
            other => other,
        };
        let smaller_tree = policy.compares_trees();
        let drains = matches!(policy, Policy::Kv(Weights { drains: true, .. }));
        let block_tokens = demand.block_tokens.max(1) as f64;
        let idle = ActiveLoad::default();
        let home = demand.session.and_then(|session| self.homes.get(&session));
        let candidate = |(standing, cached): (&Standing, &usize)| {
            let (load, others) = (loads.get(&standing.worker).unwrap_or(&idle), standing.others);
            let ahead = if drains { load.prefill_left(now) } else { load.prefill_tokens() };
            let ahead = ahead.saturating_add(others.prefill_tokens);
            Candidate {
                worker: standing.worker,
                own_blocks: demand.prompt_tokens.saturating_sub(*cached) as f64 / block_tokens,
                ahead_blocks: ahead as f64 / block_tokens,
                decode_blocks: load.blocks_with(&demand.blocks).saturating_add(others.blocks) as f64,
                active_requests: load.requests().saturating_add(others.requests),
                slots: standing.slots,
                stay_blocks: load.tokens_of_a_stay().map(|tokens| tokens / block_tokens),
                home: home == Some(standing.worker),
                tie_break: if smaller_tree { standing.held_blocks as u64 } else { 0 },
                barred: standing.barred,
            }
        };
        let candidates: Vec<Candidate> = standings.iter().zip(cached).map(candidate).collect();
        Decision { held_out, ..select(&policy, &candidates, draw) }
    }

    pub fn load(&self, worker: WorkerId) -> Load {
        self.loads.lock().get(&worker).map_or_else(Load::default, Load::of)
    }

    /// Every worker that is busy, and what with; of prefill what is left of it by now.
    pub fn loads(&self, now: Duration) -> Vec<(WorkerId, Load)> {
        let loads = self.loads.lock();
        let of = |(worker, load): (&WorkerId, &ActiveLoad)| {
            (*worker, Load { prefill_tokens: load.prefill_left(now), ..Load::of(load) })
        };
        loads.iter().filter(|(_, load)| load.requests() > 0).map(of).collect()
    }

    /// How placement by cache does beside placement by load.
    pub fn safety(&self) -> SafetyReport {
        self.net.report()
    }
}

/// What a decision depends on besides the workers.
#[derive(Clone, Copy, Debug)]
struct Moment {
    draw: u64,
    now: Duration,
    held_out: bool,
}

impl Load {
    fn of(load: &ActiveLoad) -> Self {
        Self {
            requests: load.requests(),
            prefill_tokens: load.prefill_tokens(),
            blocks: load.blocks(),
            total_blocks: load.total_blocks(),
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            prefill_tokens: self.prefill_tokens.saturating_add(other.prefill_tokens),
            blocks: self.blocks.saturating_add(other.blocks),
            total_blocks: self.total_blocks.saturating_add(other.total_blocks),
        }
    }
}

/// Prompt tokens each worker is believed to have cached.
fn cached(demand: &Demand, overlap: &Overlap, standings: &[Standing]) -> Vec<usize> {
    let of = |standing: &Standing| {
        let blocks = overlap.of(standing.worker).expected() as usize;
        let believed = if standing.trust < 1.0 { (blocks as f64 * standing.trust) as usize } else { blocks };
        believed * demand.block_tokens
    };
    standings.iter().map(of).collect()
}

/// Load that one request puts on one worker, for as long as this lives.
#[derive(Debug)]
pub struct Reservation {
    scheduler: Arc<Scheduler>,
    worker: WorkerId,
    blocks: Arc<[SequenceHash]>,
    block_tokens: usize,
    /// Until its first token.
    prefill: Option<Ticket>,
    arrived: Duration,
    /// Tokens in the block being filled, and blocks the answer has filled.
    last_block_tokens: usize,
    answer_blocks: usize,
    /// Which side of the comparison it is on; none when it is on neither.
    held_out: Option<bool>,
    room: Option<Arc<WaitingRoom>>,
}

impl Reservation {
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// An instant, as times are counted here.
    pub fn time(&self, instant: Instant) -> Duration {
        self.scheduler.time(instant)
    }

    /// Whether it has not come yet.
    pub fn awaits_first_token(&self) -> bool {
        self.prefill.is_some()
    }

    /// The first token came: nothing is left to compute before it.
    pub fn first_token(&mut self, now: Duration) {
        let Some(ticket) = self.prefill.take() else { return };
        if let Some(load) = self.scheduler.loads.lock().get_mut(&self.worker) {
            load.prefilled(ticket, now);
        }
        if let Some(held_out) = self.held_out {
            self.scheduler.net.observe(held_out, now.saturating_sub(self.arrived));
        }
    }

    /// Something of the answer came, at a time that says nothing of how long its prompt took.
    pub fn begins(&mut self) {
        if let Some(ticket) = self.prefill.take()
            && let Some(load) = self.scheduler.loads.lock().get_mut(&self.worker)
        {
            load.give_up(ticket);
        }
    }

    /// Tokens of the answer came.
    pub fn grew(&mut self, tokens: usize) {
        self.last_block_tokens += tokens;
        let filled = self.last_block_tokens / self.block_tokens;
        if filled > 0 {
            self.last_block_tokens %= self.block_tokens;
            self.answer_blocks += filled;
            if let Some(load) = self.scheduler.loads.lock().get_mut(&self.worker) {
                load.grew(filled);
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(load) = self.scheduler.loads.lock().get_mut(&self.worker) {
            self.prefill.and_then(|ticket| load.give_up(ticket));
            load.remove(&self.blocks, self.answer_blocks);
        }
        if let Some(room) = &self.room {
            room.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scheduling::Weights;

    const KV: Policy = Policy::Kv(Weights::DYNAMO);

    fn demand(blocks: u64) -> Demand {
        Demand {
            blocks: (1..=blocks).map(SequenceHash).collect(),
            prompt_tokens: blocks as usize * 32 + 5,
            block_tokens: 32,
            session: None,
            room: None,
            streamed: true,
            arrived: Duration::ZERO,
        }
    }

    fn standings(workers: u64) -> Vec<Standing> {
        (0..workers).map(|n| Standing::of(WorkerId::new(n, 0))).collect()
    }

    #[test]
    fn what_is_reserved_is_given_back_at_first_token_and_on_drop() {
        let scheduler = Scheduler::new(KV, 64, 0.0);
        let placed =
            scheduler.place(&demand(10), &Overlap::default(), &standings(1), 0, Duration::ZERO).unwrap();
        let mut reservation = placed.reservation;
        let worker = reservation.worker();
        let load = |requests, prefill_tokens, blocks, total_blocks| {
            assert_eq!(scheduler.load(worker), Load { requests, prefill_tokens, blocks, total_blocks });
        };
        load(1, 325, 10, 10);
        reservation.first_token(Duration::ZERO);
        reservation.first_token(Duration::ZERO);
        load(1, 0, 10, 10);
        // Five tokens of the prompt are in its last block already.
        reservation.grew(26);
        load(1, 0, 10, 10);
        reservation.grew(1);
        reservation.grew(64);
        load(1, 0, 10, 13);
        let second = scheduler
            .place(&demand(12), &Overlap::default(), &standings(1), 0, Duration::ZERO)
            .unwrap()
            .reservation;
        load(2, 389, 12, 25);
        drop(reservation);
        drop(second);
        assert_eq!(scheduler.load(worker), Load::default());
        assert!(scheduler.loads(Duration::ZERO).is_empty());
    }

    /// Two requests that arrive at once do not both see the same idle worker.
    #[test]
    fn each_placement_sees_the_ones_before() {
        let scheduler = Scheduler::new(KV, 64, 0.0);
        let placed: Vec<Placement> = (0..6)
            .map(|n| {
                let own = Demand { blocks: [SequenceHash(100 + n)].into(), ..demand(1) };
                scheduler.place(&own, &Overlap::default(), &standings(3), n, Duration::ZERO).unwrap()
            })
            .collect();
        for n in 0..3 {
            assert_eq!(scheduler.load(WorkerId::new(n, 0)).requests, 2);
        }
        drop(placed);
        assert!(scheduler.place(&demand(1), &Overlap::default(), &[], 0, Duration::ZERO).is_err());
    }

    #[test]
    fn a_session_remembers_where_it_was() {
        let scheduler = Scheduler::new(Policy::Session, 64, 0.0);
        let demand = |session| Demand { session: Some(session), ..demand(2) };
        let place = |session: u64, draw: u64| {
            scheduler
                .place(&demand(session), &Overlap::default(), &standings(3), draw, Duration::ZERO)
                .unwrap()
                .reservation
        };
        let homes: Vec<_> = (0..6).map(|session| place(session, session)).collect();
        for n in 0..3 {
            assert_eq!(scheduler.load(WorkerId::new(n, 0)).requests, 2, "dealt evenly");
        }
        for (session, home) in homes.iter().enumerate() {
            assert_eq!(place(session as u64, 99).worker(), home.worker());
        }
    }

    /// Who cannot wait is taken by the cheapest, and what is not believed is to be computed.
    #[test]
    fn crowded_workers_take_one_more_when_they_must() {
        let scheduler = Scheduler::new(Policy::Kv(Weights::KVLANE), 64, 0.0);
        let mut full = standings(2);
        full.iter_mut().for_each(|standing| standing.slots = Some(Slots { run: 1, wait: 0 }));
        let place = |anyway: bool, standings: &[Standing]| {
            let (demand, overlap) = (demand(4), Overlap::default());
            match anyway {
                true => scheduler.place_anyway(&demand, &overlap, standings, 0, Duration::ZERO),
                false => scheduler.place(&demand, &overlap, standings, 0, Duration::ZERO),
            }
        };
        let _running: Vec<Placement> = (0..2).map(|_| place(false, &full).unwrap()).collect();
        assert!(place(false, &full).unwrap_err().must_wait());
        assert_eq!(place(true, &full).unwrap().decision.ranked.len(), 2);
        full.iter_mut().for_each(|standing| standing.barred = Some(Barred::Down));
        assert!(place(true, &full).is_err());
    }

    #[test]
    fn explaining_reserves_nothing() {
        let scheduler = Scheduler::new(KV, 64, 0.0);
        let decision = scheduler.explain(&demand(4), &Overlap::default(), &standings(2), 0, Duration::ZERO);
        assert_eq!(decision.ranked.len(), 2);
        assert_eq!(scheduler.load(WorkerId::new(0, 0)), Load::default());
        scheduler.set_policy(Policy::RoundRobin);
        assert_eq!(scheduler.policy(), Policy::RoundRobin);
    }

    proptest! {
        /// Whatever is placed, begins, grows and ends, in any order: what live reservations took is what the counters say.
        #[test]
        fn reservations_add_up_to_the_counters(
            steps in prop::collection::vec((0_u8..6, 0_u64..4, 1_usize..12, any::<prop::sample::Index>()), 1..200),
        ) {
            let scheduler = Scheduler::new(Policy::Kv(Weights::KVLANE), 64, 0.1);
            let mut live: Vec<(Reservation, usize, usize, usize, usize)> = Vec::new();
            for (n, (step, topic, blocks, index)) in steps.into_iter().enumerate() {
                let now = Duration::from_millis(n as u64 * 7);
                let one = if live.is_empty() { 0 } else { index.index(live.len()) };
                match step {
                    0..=2 => {
                        let hashes: Arc<[SequenceHash]> =
                            (0..blocks as u64).map(|at| SequenceHash(topic * 1000 + at)).collect();
                        let tokens = blocks * 32 + 5;
                        let demand = Demand { blocks: hashes, prompt_tokens: tokens, ..demand(1) };
                        let placed = scheduler.place(&demand, &Overlap::default(), &standings(3), n as u64, now);
                        live.push((placed.unwrap().reservation, blocks, tokens, 5, 0));
                    }
                    3 if !live.is_empty() => {
                        let (reservation, _, pending, ..) = &mut live[one];
                        reservation.first_token(now);
                        *pending = 0;
                    }
                    4 if !live.is_empty() => {
                        let (reservation, _, _, partial, grown) = &mut live[one];
                        reservation.grew(blocks * 9);
                        *partial += blocks * 9;
                        *grown += *partial / 32;
                        *partial %= 32;
                    }
                    5 if !live.is_empty() => drop(live.swap_remove(one)),
                    _ => {}
                }
                for worker in (0..3).map(|worker| WorkerId::new(worker, 0)) {
                    let mine = || live.iter().filter(|(reservation, ..)| reservation.worker() == worker);
                    let distinct: std::collections::HashSet<SequenceHash> =
                        mine().flat_map(|(reservation, ..)| reservation.blocks.iter().copied()).collect();
                    let expected = Load {
                        requests: mine().count(),
                        prefill_tokens: mine().map(|(_, _, pending, ..)| pending).sum(),
                        blocks: distinct.len(),
                        total_blocks: mine().map(|(_, blocks, _, _, grown)| blocks + grown).sum(),
                    };
                    prop_assert_eq!(scheduler.load(worker), expected);
                }
            }
            live.clear();
            prop_assert!(scheduler.loads(Duration::ZERO).is_empty());
        }
    }
}
