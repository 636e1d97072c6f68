//! The choice among candidates.

use kvlane_indexer::WorkerId;
use serde::Serialize;

/// How workers are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The next worker in rotation, whatever it holds: the baseline.
    RoundRobin,
    /// Any.
    Random,
    /// The one with fewest requests.
    LeastLoaded,
    /// Of two drawn ones the one with fewer requests.
    PowerOfTwo,
    /// Always the same one for a session, for as long as it is there; without a session the least loaded.
    Session,
    /// The cheapest by `overlap_weight * prefill_blocks + decode_blocks`. Above zero, `temperature` draws
    /// among all, the cheaper the likelier; at zero the cheapest wins.
    Kv { overlap_weight: f64, temperature: f64 },
}

impl Policy {
    /// Whether draws are turns, counted up, instead of random bits.
    pub fn takes_turns(&self) -> bool {
        matches!(self, Self::RoundRobin)
    }

    /// Whether what workers have cached matters.
    pub fn sees_caches(&self) -> bool {
        matches!(self, Self::Kv { .. })
    }
}

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
}

/// What a policy may know of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Blocks to compute there before the first token, those waiting ahead included.
    pub prefill_blocks: f64,
    /// Blocks in use by requests being answered there, this one's included.
    pub decode_blocks: f64,
    /// Requests placed there and not yet over.
    pub active_requests: usize,
    /// Among equal costs the smaller goes first.
    pub tie_break: u64,
    pub barred: Option<Barred>,
}

/// A cost and its terms, in blocks. Lower is better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub prefill: f64,
    pub decode: f64,
}

impl Cost {
    pub fn total(self) -> f64 {
        self.prefill + self.decode
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    pub worker: WorkerId,
    pub cost: Cost,
    pub active_requests: usize,
    pub barred: Option<Barred>,
}

/// Every candidate with its cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The chosen one first and the others as they would be tried next.
    pub ranked: Vec<Ranked>,
    /// Those that could not be chosen.
    pub barred: Vec<Ranked>,
}

impl Decision {
    /// None when there was no candidate.
    pub fn chosen(&self) -> Option<WorkerId> {
        self.ranked.first().map(|ranked| ranked.worker)
    }
}

/// Chooses a worker. `draw` is the caller's: a count for round robin, random bits otherwise. `session` is what
/// the client calls its conversation, hashed.
pub fn select(policy: &Policy, session: Option<u64>, candidates: &[Candidate], draw: u64) -> Decision {
    let weight = match policy {
        Policy::Kv { overlap_weight, .. } => *overlap_weight,
        _ => 1.0,
    };
    let rank = |candidate: &Candidate| Ranked {
        worker: candidate.worker,
        cost: Cost { prefill: weight * candidate.prefill_blocks, decode: candidate.decode_blocks },
        active_requests: candidate.active_requests,
        barred: candidate.barred,
    };
    let barred = candidates.iter().filter(|candidate| candidate.barred.is_some()).map(rank).collect();
    let mut free: Vec<&Candidate> =
        candidates.iter().filter(|candidate| candidate.barred.is_none()).collect();
    if free.is_empty() {
        return Decision { ranked: Vec::new(), barred };
    }
    // Rotated by the draw, so that full ties do not always fall to the first.
    let count = free.len() as u64;
    free.rotate_left((draw % count) as usize);
    match (policy, session) {
        (Policy::RoundRobin | Policy::Random, _) => {}
        (Policy::Session, Some(session)) => {
            free.sort_by_key(|candidate| std::cmp::Reverse(attraction(session, candidate.worker)));
        }
        (Policy::LeastLoaded | Policy::Session, _) => free.sort_by_key(|candidate| candidate.active_requests),
        (Policy::PowerOfTwo, _) => {
            // The first one was drawn by the rotation.
            if count > 1 {
                let other = 1 + ((draw >> 32) % (count - 1)) as usize;
                free.swap(1, other);
                free[..2].sort_by_key(|candidate| candidate.active_requests);
            }
        }
        (Policy::Kv { .. }, _) => {
            let total = |candidate: &Candidate| rank(candidate).cost.total();
            free.sort_by(|a, b| total(a).total_cmp(&total(b)).then_with(|| a.tie_break.cmp(&b.tie_break)));
        }
    }
    let mut ranked: Vec<_> = free.into_iter().map(rank).collect();
    if let Policy::Kv { temperature, .. } = policy
        && *temperature > 0.0
    {
        let chosen = sample(&ranked, *temperature, draw);
        ranked[..=chosen].rotate_right(1);
    }
    Decision { ranked, barred }
}

/// How strongly a session is drawn to a worker. The strongest wins, so that only sessions of a worker that is
/// gone move, and each to where it would have gone before (rendezvous hashing).
fn attraction(session: u64, worker: WorkerId) -> u64 {
    let mut bytes = [0_u8; 20];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    bytes[8..16].copy_from_slice(&worker.instance.to_le_bytes());
    bytes[16..].copy_from_slice(&worker.dp_rank.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Draws a place of the sorted list by softmax over costs normalised to their range: 1 apart at most.
fn sample(sorted: &[Ranked], temperature: f64, draw: u64) -> usize {
    let (least, most) = (sorted[0].cost.total(), sorted[sorted.len() - 1].cost.total());
    let range = if most > least { most - least } else { 1.0 };
    let weight = |ranked: &Ranked| (-(ranked.cost.total() - least) / (range * temperature)).exp();
    let sum: f64 = sorted.iter().map(weight).sum();
    if !sum.is_finite() {
        return 0;
    }
    // The draw's high bits as a point between 0 and the sum of all weights.
    let mut point = (draw >> 11) as f64 / (1_u64 << 53) as f64 * sum;
    for (place, ranked) in sorted.iter().enumerate() {
        point -= weight(ranked);
        if point < 0.0 {
            return place;
        }
    }
    sorted.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(n: u64, prefill: f64, decode: f64) -> Candidate {
        Candidate {
            worker: WorkerId::new(n, 0),
            prefill_blocks: prefill,
            decode_blocks: decode,
            active_requests: 0,
            tie_break: 0,
            barred: None,
        }
    }

    fn order(decision: &Decision) -> Vec<u64> {
        decision.ranked.iter().map(|ranked| ranked.worker.instance).collect()
    }

    const KV: Policy = Policy::Kv { overlap_weight: 1.0, temperature: 0.0 };

    #[test]
    fn the_worked_example_of_the_reference() {
        // 100 blocks; cached 20, 75 and 10; decoding 10, 5 and 9.
        let candidates = [candidate(1, 80.0, 10.0), candidate(2, 25.0, 5.0), candidate(3, 90.0, 9.0)];
        let decision = select(&KV, None, &candidates, 0);
        assert_eq!(order(&decision), [2, 1, 3]);
        let costs: Vec<f64> = decision.ranked.iter().map(|ranked| ranked.cost.total()).collect();
        assert_eq!(costs, [30.0, 90.0, 99.0]);
    }

    #[test]
    fn the_weight_counts_computing_against_waiting() {
        let candidates = [candidate(1, 10.0, 0.0), candidate(2, 0.0, 30.0)];
        assert_eq!(order(&select(&KV, None, &candidates, 0)), [1, 2]);
        let heavy = Policy::Kv { overlap_weight: 4.0, temperature: 0.0 };
        assert_eq!(order(&select(&heavy, None, &candidates, 0)), [2, 1]);
    }

    #[test]
    fn round_robin_takes_turns() {
        let candidates: Vec<_> = (0..3).map(|n| candidate(n, n as f64, 0.0)).collect();
        let turns: Vec<_> =
            (0..4).map(|draw| order(&select(&Policy::RoundRobin, None, &candidates, draw))).collect();
        assert_eq!(turns, [vec![0, 1, 2], vec![1, 2, 0], vec![2, 0, 1], vec![0, 1, 2]]);
        assert_eq!(select(&Policy::RoundRobin, None, &[], 5).chosen(), None);
    }

    #[test]
    fn ties_go_to_the_smaller_then_around() {
        let mut candidates = [candidate(1, 5.0, 5.0), candidate(2, 5.0, 5.0), candidate(3, 5.0, 5.0)];
        assert_eq!([0, 1, 2].map(|draw| order(&select(&KV, None, &candidates, draw))[0]), [1, 2, 3]);
        candidates[0].tie_break = 9;
        candidates[1].tie_break = 9;
        assert_eq!([0, 1, 2].map(|draw| order(&select(&KV, None, &candidates, draw))[0]), [3, 3, 3]);
    }

    #[test]
    fn costs_that_are_no_numbers_leave_the_cheapest_first() {
        let policy = Policy::Kv { overlap_weight: 1.0, temperature: 0.5 };
        for odd in [f64::INFINITY, f64::NAN] {
            let decision = select(&policy, None, &[candidate(1, odd, 0.0), candidate(2, 3.0, 0.0)], u64::MAX);
            assert_eq!(order(&decision), [2, 1]);
        }
    }

    #[test]
    fn temperature_spreads_by_cost() {
        let candidates = [candidate(1, 0.0, 0.0), candidate(2, 50.0, 0.0), candidate(3, 100.0, 0.0)];
        let policy = Policy::Kv { overlap_weight: 1.0, temperature: 0.5 };
        let mut counts = [0.0; 3];
        let draws = 20_000_u64;
        for n in 0..draws {
            let chosen = select(&policy, None, &candidates, n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).chosen();
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
            assert_eq!(order(&select(&Policy::LeastLoaded, None, &candidates, draw)), [1, 2, 0, 3]);
            assert_eq!(order(&select(&Policy::Session, None, &candidates, draw))[0], 1, "no session said");
        }
        // Of two that are drawn the less loaded one: never the most loaded, mostly the least.
        let mut chosen = [0; 4];
        for n in 0..4000_u64 {
            let draw = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let decision = select(&Policy::PowerOfTwo, None, &candidates, draw);
            assert_eq!(decision.ranked.len(), 4);
            chosen[order(&decision)[0] as usize] += 1;
        }
        assert!(
            chosen[3] == 0 && chosen[1] > chosen[2] && chosen[2] > chosen[0] && chosen[0] > 0,
            "{chosen:?}"
        );
        let spread: std::collections::BTreeSet<u64> =
            (0..4).map(|draw| order(&select(&Policy::Random, None, &candidates, draw))[0]).collect();
        assert_eq!(spread.len(), 4);
    }

    #[test]
    fn a_session_stays_and_moves_only_when_its_worker_goes() {
        let mut candidates: Vec<_> = (0..5).map(|n| candidate(n, 0.0, 0.0)).collect();
        let home = |candidates: &[Candidate], session: u64| {
            select(&Policy::Session, Some(session), candidates, session * 7).chosen().unwrap().instance
        };
        let before: Vec<u64> = (0..1000).map(|session| home(&candidates, session)).collect();
        candidates[2].barred = Some(Barred::Down);
        candidates.reverse();
        for (session, before) in before.iter().enumerate() {
            let after = home(&candidates, session as u64);
            assert!(if *before == 2 { after != 2 } else { after == *before });
        }
        let of_two = before.iter().filter(|worker| **worker == 2).count();
        assert!((150..250).contains(&of_two), "{of_two} of 1000 on one of five");
    }

    #[test]
    fn who_is_barred_is_told_and_not_chosen() {
        let mut candidates = [candidate(1, 0.0, 0.0), candidate(2, 50.0, 0.0)];
        candidates[0].barred = Some(Barred::Breaker);
        let decision = select(&KV, None, &candidates, 0);
        assert_eq!(order(&decision), [2]);
        assert_eq!(
            (decision.barred[0].worker.instance, decision.barred[0].barred),
            (1, Some(Barred::Breaker))
        );
        candidates[1].barred = Some(Barred::Draining);
        assert_eq!(select(&KV, None, &candidates, 0).chosen(), None);
    }
}
