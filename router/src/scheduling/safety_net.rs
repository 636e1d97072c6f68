//! Whether placing by cache pays. A small share of requests is placed by load alone; if the others come out measurably
//! slower over a window, placement leans towards load, and back again when they do not.
//!
//! Leaning halves the weight of what is cached, window after window, down to none; it is given back when placing by cache
//! is measurably faster, or has not been slower for some windows. Written by first tokens, read by every placement.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Requests placed by load alone that a judgement takes.
const WINDOW: u64 = 64;
/// The others have to be slower by this much.
const MARGIN: f64 = 1.1;
/// And it must hardly be chance: as many standard errors apart.
const CERTAIN: f64 = 3.0;
/// Windows without a difference until it is tried again.
const CALM: u32 = 4;
/// Below this the weight is none.
const LEAST: f64 = 1.0 / 16.0;

#[derive(Debug)]
pub(super) struct SafetyNet {
    share: f64,
    /// Bits of a number: 1 when placements are as configured, 0 when they are by load alone.
    lean: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By cache, and by load alone.
    sides: [Times; 2],
    judged: u64,
    last: [f64; 2],
    /// Windows in a row that were not slower.
    calm: u32,
}

/// A running mean and variance (Welford's).
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Times {
    fn add(&mut self, seconds: f64) {
        self.count += 1;
        let off = seconds - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (seconds - self.mean);
    }

    /// Of the mean.
    fn variance(self) -> f64 {
        self.squares / ((self.count - 1).max(1) * self.count.max(1)) as f64
    }
}

/// For people and metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SafetyReport {
    pub share: f64,
    /// 1 when placements are as configured, 0 when they are by load alone.
    pub lean: f64,
    pub judged: u64,
    /// Mean seconds to the first token in the last window, by cache and by load alone.
    pub ttft_s: [f64; 2],
}

impl SafetyNet {
    /// Holds out this share of requests; 0 for none, and then nothing ever leans.
    pub(super) fn new(share: f64) -> Self {
        Self { share, lean: AtomicU64::new(1.0_f64.to_bits()), state: Mutex::default() }
    }

    /// Whether a request with this draw is placed by load alone.
    pub(super) fn holds_out(&self, draw: u64) -> bool {
        // Other bits than the ones the choice itself uses.
        let mixed = (draw ^ draw >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.share > 0.0 && ((mixed ^ mixed >> 27) as f64) < self.share * u64::MAX as f64
    }

    pub(super) fn lean(&self) -> f64 {
        f64::from_bits(self.lean.load(Ordering::Relaxed))
    }

    /// A request's first token came after so long.
    pub(super) fn observe(&self, held_out: bool, waited: Duration) {
        if self.share <= 0.0 {
            return;
        }
        let mut state = self.state.lock();
        state.sides[usize::from(held_out)].add(waited.as_secs_f64());
        let [by_cache, by_load] = state.sides;
        if by_load.count < WINDOW || by_cache.count < WINDOW {
            return;
        }
        let apart =
            (by_cache.mean - by_load.mean) / (by_cache.variance() + by_load.variance()).sqrt().max(1e-9);
        let slower = by_cache.mean > MARGIN * by_load.mean && apart > CERTAIN;
        let faster = by_load.mean > MARGIN * by_cache.mean && apart < -CERTAIN;
        let calm = if slower { 0 } else { state.calm + 1 };
        // Leaning all the way there is no difference to be seen, so that it is tried again after a while.
        let returns = faster || calm >= CALM;
        *state = State {
            calm: if returns { 0 } else { calm },
            judged: state.judged + 1,
            last: [by_cache.mean, by_load.mean],
            sides: Default::default(),
        };
        drop(state);
        let before = self.lean();
        let lean = match before {
            _ if slower && before / 2.0 < LEAST => 0.0,
            _ if slower => before / 2.0,
            _ if !returns => before,
            0.0 => LEAST,
            _ => (before * 2.0).min(1.0),
        };
        self.lean.store(lean.to_bits(), Ordering::Relaxed);
        let (cache_ms, load_ms) = (by_cache.mean * 1e3, by_load.mean * 1e3);
        if lean < before {
            tracing::warn!(
                lean,
                cache_ms,
                load_ms,
                "requests placed by cache wait longer than those placed by load; leaning towards load"
            );
        } else if lean > before {
            tracing::info!(lean, cache_ms, load_ms, "placing by cache pays; leaning back");
        }
    }

    /// Begins anew.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        *state = State { judged: state.judged, last: state.last, ..State::default() };
        self.lean.store(1.0_f64.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> SafetyReport {
        let state = self.state.lock();
        SafetyReport { share: self.share, lean: self.lean(), judged: state.judged, ttft_s: state.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(net: &SafetyNet, count: u64, cache_ms: u64, load_ms: u64) {
        for n in 0..WINDOW * count {
            let noise = n * 7 % 40;
            net.observe(false, Duration::from_millis(cache_ms + noise));
            net.observe(true, Duration::from_millis(load_ms + noise));
        }
    }

    #[test]
    fn what_is_slower_is_left_and_returned_to() {
        let net = SafetyNet::new(0.02);
        windows(&net, 3, 200, 400);
        assert_eq!((net.lean(), net.report().judged), (1.0, 3));
        windows(&net, 1, 800, 400);
        assert_eq!(net.lean(), 0.5);
        windows(&net, 4, 800, 400);
        assert_eq!(net.lean(), 0.0);
        windows(&net, u64::from(CALM) - 1, 405, 400);
        assert_eq!(net.lean(), 0.0);
        windows(&net, 1, 405, 400);
        assert_eq!(net.lean(), LEAST);
        windows(&net, 4, 200, 400);
        assert_eq!(net.lean(), 1.0);
        // A little slower, or by chance, is not slower.
        windows(&net, 1, 430, 400);
        assert_eq!(net.lean(), 1.0);
    }

    #[test]
    fn the_share_is_held_out_and_none_when_off() {
        let net = SafetyNet::new(0.02);
        let draws = (0..50_000_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let held = draws.clone().filter(|draw| net.holds_out(*draw)).count();
        assert!((800..1200).contains(&held), "{held} of 50000");
        let off = SafetyNet::new(0.0);
        assert!(!{ draws }.any(|draw| off.holds_out(draw)));
        windows(&off, 2, 900, 1);
        assert_eq!((off.lean(), off.report().judged), (1.0, 0));
    }
}
