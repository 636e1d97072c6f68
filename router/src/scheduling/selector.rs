//! The choice among candidates.

use kvlane_indexer::WorkerId;

/// How workers are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The next worker in rotation, whatever it holds: the baseline.
    RoundRobin,
    /// The cheapest by `overlap_weight * prefill_blocks + decode_blocks`. Above zero, `temperature` draws
    /// among all, the cheaper the likelier; at zero the cheapest wins.
    Kv { overlap_weight: f64, temperature: f64 },
}

/// What a policy may know of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Blocks to compute there before the first token, those waiting ahead included.
    pub prefill_blocks: f64,
    /// Blocks in use by requests being answered there, this one's included.
    pub decode_blocks: f64,
    /// Among equal costs the smaller goes first.
    pub tie_break: u64,
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
}

/// Every candidate with its cost, the chosen one first and the others as they would be tried next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub ranked: Vec<Ranked>,
}

impl Decision {
    /// None when there was no candidate.
    pub fn chosen(&self) -> Option<WorkerId> {
        self.ranked.first().map(|ranked| ranked.worker)
    }
}

/// Chooses a worker. `draw` is the caller's: a count for round robin, random bits otherwise.
pub fn select(policy: &Policy, candidates: &[Candidate], draw: u64) -> Decision {
    let weight = match policy {
        Policy::Kv { overlap_weight, .. } => *overlap_weight,
        Policy::RoundRobin => 1.0,
    };
    let rank = |candidate: &Candidate| Ranked {
        worker: candidate.worker,
        cost: Cost { prefill: weight * candidate.prefill_blocks, decode: candidate.decode_blocks },
    };
    let Some(count) = (!candidates.is_empty()).then_some(candidates.len() as u64) else {
        return Decision::default();
    };
    // Rotated by the draw, so that full ties do not always fall to the first.
    let start = (draw % count) as usize;
    let rotated = candidates[start..].iter().chain(&candidates[..start]);
    let Policy::Kv { temperature, .. } = policy else {
        return Decision { ranked: rotated.map(rank).collect() };
    };
    let mut ranked: Vec<_> = rotated.map(|candidate| (rank(candidate), candidate.tie_break)).collect();
    ranked.sort_by(|(a, a_tie), (b, b_tie)| {
        a.cost.total().total_cmp(&b.cost.total()).then_with(|| a_tie.cmp(b_tie))
    });
    let mut ranked: Vec<_> = ranked.into_iter().map(|(ranked, _)| ranked).collect();
    if *temperature > 0.0 {
        let chosen = sample(&ranked, *temperature, draw);
        ranked[..=chosen].rotate_right(1);
    }
    Decision { ranked }
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
            tie_break: 0,
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
        let decision = select(&KV, &candidates, 0);
        assert_eq!(order(&decision), [2, 1, 3]);
        let costs: Vec<f64> = decision.ranked.iter().map(|ranked| ranked.cost.total()).collect();
        assert_eq!(costs, [30.0, 90.0, 99.0]);
    }

    #[test]
    fn the_weight_counts_computing_against_waiting() {
        let candidates = [candidate(1, 10.0, 0.0), candidate(2, 0.0, 30.0)];
        assert_eq!(order(&select(&KV, &candidates, 0)), [1, 2]);
        let heavy = Policy::Kv { overlap_weight: 4.0, temperature: 0.0 };
        assert_eq!(order(&select(&heavy, &candidates, 0)), [2, 1]);
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
        let policy = Policy::Kv { overlap_weight: 1.0, temperature: 0.5 };
        for odd in [f64::INFINITY, f64::NAN] {
            let decision = select(&policy, &[candidate(1, odd, 0.0), candidate(2, 3.0, 0.0)], u64::MAX);
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
            let chosen = select(&policy, &candidates, n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).chosen();
            counts[chosen.map_or(0, |worker| worker.instance as usize - 1)] += 1.0 / draws as f64;
        }
        // Weights 1, e^-1 and e^-2.
        for (share, expected) in counts.iter().zip([0.665, 0.245, 0.090]) {
            assert!((share - expected).abs() < 0.01, "{counts:?}");
        }
    }
}
