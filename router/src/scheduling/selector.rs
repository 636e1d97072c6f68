//! The choice among candidates.

use kvlane_indexer::WorkerId;
use serde::Serialize;

use super::policy::{Policy, Weights};

/// Why a worker is not to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Barred {
    /// It has not shown yet that it serves.
    Joining,
    Draining,
    Down,
    /// Its breaker is open: too many requests failed there.
    Breaker,
    /// This request failed there already.
    Tried,
    /// All its slots are taken, and another has room. Tried last.
    Full,
    /// As many wait for a slot there as may.
    Crowded,
}

/// How many requests a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// It runs so many at a time.
    pub run: usize,
    /// So many more may wait there.
    pub wait: usize,
}

/// What a policy may know of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Blocks of this request to compute there before its first token, and of those that wait ahead of it.
    pub own_blocks: f64,
    pub ahead_blocks: f64,
    /// Blocks in use by requests being answered there, this one's included.
    pub decode_blocks: f64,
    /// Requests placed there and not yet over.
    pub active_requests: usize,
    /// None where it is not known.
    pub slots: Option<Slots>,
    /// Blocks of a prompt that could be computed there while a request stays. None where it is not known.
    pub stay_blocks: Option<f64>,
    /// Whether the session's last request went there.
    pub home: bool,
    /// Among equal costs the smaller goes first.
    pub tie_break: u64,
    pub barred: Option<Barred>,
}

/// A cost and its terms, in blocks. Lower is better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub prefill: f64,
    pub decode: f64,
    pub requests: f64,
    pub waiting: f64,
    /// What being the session's last worker takes off.
    pub home: f64,
}

impl Cost {
    pub fn total(self) -> f64 {
        self.prefill + self.decode + self.requests + self.waiting - self.home
    }
}

impl Candidate {
    /// Its slots are taken.
    fn full(&self) -> bool {
        self.slots.is_some_and(|slots| self.active_requests >= slots.run)
    }

    /// Requests that would wait for a slot there, this one included.
    fn waiting(&self) -> usize {
        self.slots.map_or(0, |slots| self.active_requests.saturating_add(1).saturating_sub(slots.run))
    }

    /// Blocks to compute there before the first token, as they are weighed.
    fn prefill_blocks(&self, weights: &Weights) -> f64 {
        weights.own * self.own_blocks + self.ahead_blocks
    }

    /// Whether it is worth waiting for a slot there rather than computing so many blocks more where there is room.
    fn worth_waiting(&self, more: f64) -> bool {
        // Of so many that stay so long, one ends so often.
        let stays = self.waiting() as f64 / self.active_requests.max(1) as f64;
        self.stay_blocks.is_some_and(|blocks| blocks * stays <= PATIENCE * more)
    }

    /// Its slots are taken, and so are the places to wait.
    fn crowded(&self) -> bool {
        self.slots.is_some_and(|slots| self.active_requests >= slots.run.saturating_add(slots.wait))
    }
}

/// So many times as long as computing again what is cached there, as it is weighed, may one wait for a slot. More than once,
/// because what is computed is waited for by all who are answered meanwhile, and who waits does so alone
/// (`benches/POLICY.md`).
const PATIENCE: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    pub worker: WorkerId,
    pub cost: Cost,
    pub active_requests: usize,
    pub barred: Option<Barred>,
}

/// As many of those that can be chosen are told of, the best ones.
pub const RANKED: usize = 32;

/// Candidates with their costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The chosen one first and the others as they would be tried next, [`RANKED`] in all at most.
    pub ranked: Vec<Ranked>,
    /// Those that could not be chosen.
    pub barred: Vec<Ranked>,
    /// Placed by load alone, to compare the others with.
    pub held_out: bool,
}

impl Decision {
    /// None when there was no candidate.
    pub fn chosen(&self) -> Option<WorkerId> {
        self.ranked.first().map(|ranked| ranked.worker)
    }

    /// Nobody could be chosen, and somebody will be as soon as a request of theirs is over.
    pub fn must_wait(&self) -> bool {
        self.ranked.is_empty() && self.barred.iter().any(|ranked| ranked.barred == Some(Barred::Crowded))
    }
}

/// Where a candidate comes among the others: the lesser first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// [`LAST`] where it comes last whatever it costs; then a cost as a number that sorts as it does.
    cost: u64,
    /// What equal costs go by: the tie break, whether it is away from home, and its requests, each as far as it fits.
    tie: u64,
    /// Its turn; no two have the same.
    turn: u32,
    at: u32,
}

const LAST: u64 = 1 << 63;

impl Key {
    fn last(&self) -> bool {
        self.cost & LAST != 0
    }
}

/// The lesser goes first among equal costs.
fn tie(tie_break: u64, away: bool, requests: usize) -> u64 {
    const REQUESTS: u32 = 20;
    const TREE: u32 = 63 - REQUESTS;
    let requests = (requests as u64).min((1 << REQUESTS) - 1);
    tie_break.min((1 << TREE) - 1) << (REQUESTS + 1) | u64::from(away) << REQUESTS | requests
}

/// Chooses a worker. `draw` is the caller's: a count for round robin, random bits otherwise.
pub fn select(policy: &Policy, candidates: &[Candidate], draw: u64) -> Decision {
    let weights = match policy {
        Policy::Kv(weights) => *weights,
        _ => Weights::DYNAMO,
    };
    let cost = |candidate: &Candidate| Cost {
        prefill: weights.overlap * candidate.prefill_blocks(&weights),
        decode: candidate.decode_blocks,
        requests: weights.request * candidate.active_requests as f64,
        waiting: weights.waiting * candidate.waiting() as f64,
        home: if candidate.home { weights.home } else { 0.0 },
    };
    let ranked = |candidate: &Candidate, barred: Option<Barred>| Ranked {
        worker: candidate.worker,
        cost: cost(candidate),
        active_requests: candidate.active_requests,
        barred,
    };
    let bar = |candidate: &Candidate| {
        let crowded = weights.slot_guard && candidate.crowded();
        candidate.barred.or(crowded.then_some(Barred::Crowded))
    };
    let mut barred = Vec::new();
    let mut keys: Vec<Key> = Vec::with_capacity(candidates.len());
    let (mut roomy, mut elsewhere) = (0, f64::INFINITY);
    for (at, candidate) in candidates.iter().enumerate() {
        if let Some(why) = bar(candidate) {
            barred.push(ranked(candidate, Some(why)));
            continue;
        }
        let last = candidate.full();
        if !last {
            roomy += 1;
            elsewhere = elsewhere.min(candidate.prefill_blocks(&weights));
        }
        let (away, requests) = (!candidate.home, candidate.active_requests);
        let (cost, tie) = match policy {
            Policy::RoundRobin | Policy::Random | Policy::PowerOfTwo => (0, 0),
            Policy::Session => (0, tie(0, away, requests)),
            Policy::LeastLoaded => (0, tie(0, false, requests)),
            // Among equals a session stays at home, then the less busy one is better; then it goes around.
            Policy::Kv(_) => (sortable(cost(candidate).total()), tie(candidate.tie_break, away, requests)),
        };
        let cost = if last { cost | LAST } else { cost };
        keys.push(Key { cost, tie, turn: keys.len() as u32, at: at as u32 });
    }
    if keys.is_empty() {
        return Decision { barred, ..Decision::default() };
    }
    // Turns are rotated by the draw, so that full ties do not always fall to the first.
    let count = keys.len() as u32;
    let shift = (draw % u64::from(count)) as u32;
    // While anybody has room, the full ones come last, but for those worth waiting for. When nobody has, cost alone decides
    // where to wait.
    let guarded = weights.slot_guard && roomy > 0;
    let kept = if guarded { u64::MAX } else { !LAST };
    for key in &mut keys {
        key.turn = if key.turn >= shift { key.turn - shift } else { key.turn + count - shift };
        key.cost &= kept;
        let candidate = &candidates[key.at as usize];
        if guarded && key.last() && candidate.worth_waiting(elsewhere - candidate.prefill_blocks(&weights)) {
            key.cost &= !LAST;
            roomy += 1;
        }
    }
    if *policy == Policy::PowerOfTwo && count > 1 {
        // One is drawn by the rotation; this is the other.
        let other = 1 + ((draw >> 32) % u64::from(count - 1)) as u32;
        for key in keys.iter_mut().filter(|key| key.turn != 0 && key.turn != other) {
            key.cost |= !LAST;
        }
        for key in keys.iter_mut().filter(|key| key.cost & !LAST == 0) {
            key.tie = tie(0, false, candidates[key.at as usize].active_requests);
        }
    }
    let open = if guarded { roomy } else { keys.len() };
    let drawn = (policy.sees_caches() && weights.temperature > 0.0)
        .then(|| sample(&keys, &|key| cost(&candidates[key.at as usize]).total(), weights.temperature, draw))
        .flatten();
    if keys.len() > RANKED {
        keys.select_nth_unstable(RANKED - 1);
        keys.truncate(RANKED);
    }
    keys.sort_unstable();
    if let Some(drawn) = drawn {
        keys.retain(|key| key.turn != drawn.turn);
        keys.insert(0, drawn);
        keys.truncate(RANKED);
    }
    let why = |place: usize| (place >= open).then_some(Barred::Full);
    let ranked = keys.iter().enumerate().map(|(place, key)| ranked(&candidates[key.at as usize], why(place)));
    Decision { ranked: ranked.collect(), barred, held_out: false }
}

/// Bits below [`LAST`] that sort as numbers do, those that are none behind all others. Costs that differ by a rounding
/// error are equal.
fn sortable(number: f64) -> u64 {
    let bits = number.to_bits();
    (if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }) >> 1
}

/// Draws one of those with room by softmax over costs normalised to their range: 1 apart at most. None where costs are no
/// numbers to draw by.
fn sample(keys: &[Key], cost: &dyn Fn(&Key) -> f64, temperature: f64, draw: u64) -> Option<Key> {
    let open = || keys.iter().filter(|key| !key.last());
    let (least, most) =
        open().map(cost).fold((f64::MAX, f64::MIN), |(least, most), cost| (least.min(cost), most.max(cost)));
    let range = if most > least { most - least } else { 1.0 };
    let weight = |key: &Key| (-(cost(key) - least) / (range * temperature)).exp();
    let sum: f64 = open().map(weight).sum();
    if !sum.is_finite() {
        return None;
    }
    // The draw's high bits as a point between 0 and the sum of all weights.
    let mut point = (draw >> 11) as f64 / (1_u64 << 53) as f64 * sum;
    let drawn = open().find(|key| {
        point -= weight(key);
        point < 0.0
    });
    drawn.or(open().next_back()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(n: u64, prefill: f64, decode: f64) -> Candidate {
        Candidate {
            worker: WorkerId::new(n, 0),
            own_blocks: prefill,
            ahead_blocks: 0.0,
            decode_blocks: decode,
            active_requests: 0,
            slots: None,
            stay_blocks: None,
            home: false,
            tie_break: 0,
            barred: None,
        }
    }

    fn order(decision: &Decision) -> Vec<u64> {
        decision.ranked.iter().map(|ranked| ranked.worker.instance).collect()
    }

    const KV: Policy = Policy::Kv(Weights::DYNAMO);

    #[test]
    fn the_worked_example_of_the_reference() {
        // 100 blocks; cached 20, 75 and 10; decoding 10, 5 and 9.
        let candidates = [candidate(1, 80.0, 10.0), candidate(2, 25.0, 5.0), candidate(3, 90.0, 9.0)];
        let decision = select(&KV, &candidates, 0);
        assert_eq!(order(&decision), [2, 1, 3]);
        let costs: Vec<f64> = decision.ranked.iter().map(|ranked| ranked.cost.total()).collect();
        assert_eq!(costs, [30.0, 90.0, 99.0]);
    }

    #[test]
    fn the_weight_counts_computing_against_waiting() {
        let candidates = [candidate(1, 10.0, 0.0), candidate(2, 0.0, 30.0)];
        assert_eq!(order(&select(&KV, &candidates, 0)), [1, 2]);
        let heavy = Policy::Kv(Weights { overlap: 4.0, ..Weights::DYNAMO });
        assert_eq!(order(&select(&heavy, &candidates, 0)), [2, 1]);
    }

    #[test]
    fn what_only_this_request_computes_weighs_more_than_what_is_computed_anyway() {
        let mut candidates = [candidate(1, 100.0, 0.0), candidate(2, 5.0, 0.0)];
        let mut chosen = |ahead: f64| {
            candidates[1].ahead_blocks = ahead;
            [KV, Policy::Kv(Weights::KVLANE)].map(|policy| order(&select(&policy, &candidates, 0))[0])
        };
        assert_eq!(chosen(90.0), [2, 2]);
        assert_eq!(chosen(140.0), [1, 2], "half as much again may wait ahead");
        assert_eq!(chosen(150.0), [1, 1]);
    }

    #[test]
    fn round_robin_takes_turns() {
        let candidates: Vec<_> = (0..3).map(|n| candidate(n, n as f64, 0.0)).collect();
        let turns: Vec<_> =
            (0..4).map(|draw| order(&select(&Policy::RoundRobin, &candidates, draw))).collect();
        assert_eq!(turns, [vec![0, 1, 2], vec![1, 2, 0], vec![2, 0, 1], vec![0, 1, 2]]);
        assert_eq!(select(&Policy::RoundRobin, &[], 5).chosen(), None);
    }

    #[test]
    fn ties_go_to_the_smaller_then_around() {
        let mut candidates = [candidate(1, 5.0, 5.0), candidate(2, 5.0, 5.0), candidate(3, 5.0, 5.0)];
        assert_eq!([0, 1, 2].map(|draw| order(&select(&KV, &candidates, draw))[0]), [1, 2, 3]);
        candidates[0].tie_break = 9;
        candidates[1].tie_break = 9;
        assert_eq!([0, 1, 2].map(|draw| order(&select(&KV, &candidates, draw))[0]), [3, 3, 3]);
    }

    #[test]
    fn costs_that_are_no_numbers_leave_the_cheapest_first() {
        let policy = Policy::Kv(Weights { temperature: 0.5, ..Weights::DYNAMO });
        for odd in [f64::INFINITY, f64::NAN] {
            let decision = select(&policy, &[candidate(1, odd, 0.0), candidate(2, 3.0, 0.0)], u64::MAX);
            assert_eq!(order(&decision), [2, 1]);
        }
    }

    #[test]
    fn temperature_spreads_by_cost() {
        let candidates = [candidate(1, 0.0, 0.0), candidate(2, 50.0, 0.0), candidate(3, 100.0, 0.0)];
        let policy = Policy::Kv(Weights { temperature: 0.5, ..Weights::DYNAMO });
        let mut counts = [0.0; 3];
        let draws = 20_000_u64;
        for n in 0..draws {
            let chosen = select(&policy, &candidates, n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).chosen();
            counts[chosen.map_or(0, |worker| worker.instance as usize - 1)] += 1.0 / draws as f64;
        }
        // Weights 1, e^-1 and e^-2.
        for (share, expected) in counts.iter().zip([0.665, 0.245, 0.090]) {
            assert!((share - expected).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn load_alone_decides_where_nobody_looks_at_caches() {
        let mut candidates: Vec<_> = (0..4).map(|n| candidate(n, 0.0, 0.0)).collect();
        for (candidate, active) in candidates.iter_mut().zip([3, 1, 2, 9]) {
            candidate.active_requests = active;
        }
        for draw in 0..8 {
            assert_eq!(order(&select(&Policy::LeastLoaded, &candidates, draw)), [1, 2, 0, 3]);
            assert_eq!(order(&select(&Policy::Session, &candidates, draw))[0], 1, "no session said");
        }
        // Of two that are drawn the less loaded one: never the most loaded, mostly the least.
        let mut chosen = [0; 4];
        for n in 0..4000_u64 {
            let draw = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let decision = select(&Policy::PowerOfTwo, &candidates, draw);
            assert_eq!(decision.ranked.len(), 4);
            chosen[order(&decision)[0] as usize] += 1;
        }
        assert!(
            chosen[3] == 0 && chosen[1] > chosen[2] && chosen[2] > chosen[0] && chosen[0] > 0,
            "{chosen:?}"
        );
        let spread: std::collections::BTreeSet<u64> =
            (0..4).map(|draw| order(&select(&Policy::Random, &candidates, draw))[0]).collect();
        assert_eq!(spread.len(), 4);
    }

    #[test]
    fn a_session_stays_at_home_for_as_long_as_it_is_there() {
        let mut candidates: Vec<_> = (0..4).map(|n| candidate(n, 0.0, 0.0)).collect();
        for (candidate, active) in candidates.iter_mut().zip([3, 1, 2, 9]) {
            candidate.active_requests = active;
        }
        candidates[3].home = true;
        assert_eq!(order(&select(&Policy::Session, &candidates, 7)), [3, 1, 2, 0]);
        // Among equal costs too.
        assert_eq!(order(&select(&KV, &candidates, 0)), [3, 1, 2, 0]);
        candidates[3].barred = Some(Barred::Down);
        assert_eq!(order(&select(&Policy::Session, &candidates, 7)), [1, 2, 0]);
    }

    #[test]
    fn full_workers_come_last_while_another_has_room() {
        let guarded = Policy::Kv(Weights { slot_guard: true, ..Weights::DYNAMO });
        let mut candidates = [candidate(1, 0.0, 0.0), candidate(2, 10.0, 0.0), candidate(3, 5.0, 0.0)];
        candidates.iter_mut().for_each(|candidate| candidate.slots = Some(Slots { run: 4, wait: 2 }));
        candidates[0].active_requests = 4;
        let decision = select(&guarded, &candidates, 0);
        assert_eq!(order(&decision), [3, 2, 1], "the cheapest has no room, and is tried last");
        assert_eq!(decision.ranked[2].barred, Some(Barred::Full));
        assert_eq!(order(&select(&KV, &candidates, 0)), [1, 3, 2], "the plain cost knows no slots");
        let warm = Policy::Kv(Weights { slot_guard: true, temperature: 1e9, ..Weights::DYNAMO });
        assert!((0..100_u64).all(|n| order(&select(&warm, &candidates, n << 55))[0] != 1));
        // Nobody has room: cost decides where to wait.
        candidates.iter_mut().for_each(|candidate| candidate.active_requests = 5);
        let decision = select(&guarded, &candidates, 0);
        assert_eq!((order(&decision), decision.ranked[0].barred), (vec![1, 3, 2], None));
        // Nor a place to wait: none is chosen, until a request is over.
        candidates.iter_mut().for_each(|candidate| candidate.active_requests = 6);
        let decision = select(&guarded, &candidates, 0);
        assert!(
            decision.must_wait() && decision.barred.iter().all(|one| one.barred == Some(Barred::Crowded))
        );
        assert_eq!(select(&KV, &candidates, 0).ranked.len(), 3);
        // Without a number of slots nobody is ever full.
        candidates.iter_mut().for_each(|candidate| candidate.slots = None);
        assert_eq!(order(&select(&guarded, &candidates, 0)), [1, 3, 2]);
    }

    #[test]
    fn a_full_worker_is_waited_for_where_that_takes_not_much_longer() {
        let full = |requests: usize, stay_blocks: Option<f64>| Candidate {
            active_requests: requests,
            slots: Some(Slots { run: 4, wait: 4 }),
            stay_blocks,
            ..candidate(1, 0.0, 0.0)
        };
        let decide = |full: Candidate, elsewhere: f64| {
            let decision = select(&Policy::Kv(Weights::KVLANE), &[full, candidate(2, elsewhere, 0.0)], 0);
            let why = decision.ranked.iter().find(|ranked| ranked.worker.instance == 1).unwrap().barred;
            (order(&decision)[0], why)
        };
        // One of four that stay so long ends in a quarter of it.
        assert_eq!(decide(full(4, Some(1200.0)), 100.0), (1, None));
        assert_eq!(decide(full(4, Some(1204.0)), 100.0), (2, Some(Barred::Full)), "that takes too long");
        assert_eq!(decide(full(5, Some(755.0)), 100.0), (2, Some(Barred::Full)), "for two as well");
        assert_eq!(decide(full(4, None), 100.0), (2, Some(Barred::Full)), "nobody knows how long");
        assert_eq!(decide(full(4, Some(20.0)), 10.0), (2, None), "not for nothing: cost decides");
    }

    /// Pearson's test: how often each worker is drawn, against the softmax of costs normalised to their range.
    #[test]
    fn draws_follow_the_softmax() {
        let mut random = 7_u64;
        let mut next = || {
            // SplitMix64.
            random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (random ^ random >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ mixed >> 31
        };
        let costs = [40.0, 55.0, 70.0, 100.0, 160.0];
        let candidates: Vec<_> =
            costs.iter().enumerate().map(|(n, cost)| candidate(n as u64, *cost, 0.0)).collect();
        for temperature in [0.1, 0.5, 2.0] {
            let policy = Policy::Kv(Weights { temperature, ..Weights::DYNAMO });
            let (mut seen, draws) = ([0.0_f64; 5], 40_000);
            for _ in 0..draws {
                seen[order(&select(&policy, &candidates, next()))[0] as usize] += 1.0;
            }
            let weight = |cost: f64| (-(cost - 40.0) / (120.0 * temperature)).exp();
            let sum: f64 = costs.iter().map(|cost| weight(*cost)).sum();
            let apart = |(seen, cost): (&f64, &f64)| {
                let expected = f64::from(draws) * weight(*cost) / sum;
                (seen - expected).powi(2) / expected
            };
            let chi_squared: f64 = seen.iter().zip(&costs).map(apart).sum();
            // Four degrees of freedom: one in a thousand is above this.
            assert!(chi_squared < 18.47, "temperature {temperature}: {chi_squared}, {seen:?}");
        }
        // Equal costs are equally likely, and the least likely draw is somebody, too.
        let equal = [candidate(0, 9.0, 0.0), candidate(1, 9.0, 0.0)];
        let policy = Policy::Kv(Weights { temperature: 1.0, ..Weights::DYNAMO });
        let first = (0..10_000).filter(|_| order(&select(&policy, &equal, next()))[0] == 0).count();
        assert!((4_800..5_200).contains(&first), "{first} of 10000");
        assert_eq!(select(&policy, &candidates, u64::MAX).ranked.len(), 5);
    }

    /// Of many, the first are those of a list sorted whole.
    #[test]
    fn the_best_of_many_come_in_order() {
        let candidates: Vec<Candidate> = (0..200_u64)
            .map(|n| {
                let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let slots = (mixed % 3 == 0).then_some(Slots { run: 2, wait: 50 });
                let active_requests = (mixed >> 20) as usize % 5;
                Candidate {
                    slots,
                    active_requests,
                    ahead_blocks: (mixed >> 30) as f64 % 5.0,
                    ..candidate(n, (mixed >> 40) as f64 % 9.0, (mixed >> 50) as f64 % 7.0)
                }
            })
            .collect();
        for weights in [Weights::DYNAMO, Weights::KVLANE] {
            for draw in [0, 77, 199] {
                let decision = select(&Policy::Kv(weights), &candidates, draw);
                let mut all: Vec<&Candidate> = candidates.iter().collect();
                all.rotate_left(draw as usize);
                let cost = |candidate: &Candidate| {
                    weights.overlap * (weights.own * candidate.own_blocks + candidate.ahead_blocks)
                        + candidate.decode_blocks
                        + weights.request * candidate.active_requests as f64
                        + weights.waiting * candidate.waiting() as f64
                };
                all.sort_by(|one, other| {
                    let key = |candidate: &Candidate| {
                        (weights.slot_guard && candidate.full(), candidate.active_requests)
                    };
                    let ((one_full, one_busy), (other_full, other_busy)) = (key(one), key(other));
                    let costs = cost(one).total_cmp(&cost(other));
                    one_full.cmp(&other_full).then(costs).then(one_busy.cmp(&other_busy))
                });
                let expected: Vec<u64> =
                    all[..RANKED].iter().map(|candidate| candidate.worker.instance).collect();
                assert_eq!(order(&decision), expected, "draw {draw}");
            }
        }
        let warm = Policy::Kv(Weights { temperature: 100.0, ..Weights::DYNAMO });
        let drawn = (0..50).map(|n| select(&warm, &candidates, u64::MAX / 50 * n));
        assert!(drawn.into_iter().all(|decision| decision.ranked.len() == RANKED));
    }

    #[test]
    fn requests_count_whatever_they_share() {
        let policy = Policy::Kv(Weights { request: 10.0, ..Weights::DYNAMO });
        let mut candidates = [candidate(1, 0.0, 5.0), candidate(2, 20.0, 5.0)];
        assert_eq!(order(&select(&policy, &candidates, 0)), [1, 2]);
        candidates[0].active_requests = 3;
        let decision = select(&policy, &candidates, 0);
        assert_eq!((order(&decision), decision.ranked[1].cost.requests), (vec![2, 1], 30.0));
    }

    #[test]
    fn who_is_barred_is_told_and_not_chosen() {
        let mut candidates = [candidate(1, 0.0, 0.0), candidate(2, 50.0, 0.0)];
        candidates[0].barred = Some(Barred::Breaker);
        let decision = select(&KV, &candidates, 0);
        assert_eq!(order(&decision), [2]);
        assert_eq!(
            (decision.barred[0].worker.instance, decision.barred[0].barred),
            (1, Some(Barred::Breaker))
        );
        candidates[1].barred = Some(Barred::Draining);
        assert_eq!(select(&KV, &candidates, 0).chosen(), None);
    }
}
