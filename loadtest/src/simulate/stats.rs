//! What a level came to.

use serde::Serialize;

/// The figures of one level. Simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    pub ttft_p50_ms: f64,
    pub ttft_p95_ms: f64,
    pub itl_p50_ms: f64,
    pub itl_p95_ms: f64,
    pub e2e_p50_s: f64,
    pub e2e_p95_s: f64,
    /// Answer tokens a second, all workers together.
    pub tops: f64,
    pub rps: f64,
    /// Prompt tokens found cached, of all.
    pub hit_pct: f64,
    /// Most requests on a worker less least, sampled each second.
    pub inflight_spread_p95: f64,
    /// Mean wait in an engine for a slot.
    pub queue_ms_mean: f64,
}

impl Level {
    fn numbers(&self) -> [f64; 11] {
        [
            self.ttft_p50_ms,
            self.ttft_p95_ms,
            self.itl_p50_ms,
            self.itl_p95_ms,
            self.e2e_p50_s,
            self.e2e_p95_s,
            self.tops,
            self.rps,
            self.hit_pct,
            self.inflight_spread_p95,
            self.queue_ms_mean,
        ]
    }

    pub(crate) fn mean(levels: &[&Self]) -> Self {
        let mut sums = [0.0; 11];
        for level in levels {
            sums.iter_mut().zip(level.numbers()).for_each(|(sum, number)| *sum += number);
        }
        let [a, b, c, d, e, f, g, h, i, j, k] = sums.map(|sum| sum / levels.len().max(1) as f64);
        Self {
            ttft_p50_ms: a,
            ttft_p95_ms: b,
            itl_p50_ms: c,
            itl_p95_ms: d,
            e2e_p50_s: e,
            e2e_p95_s: f,
            tops: g,
            rps: h,
            hit_pct: i,
            inflight_spread_p95: j,
            queue_ms_mean: k,
        }
    }
}

/// The value below which this share of `values` lies, between neighbours in proportion. Zero for none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let at = last as f64 * share;
    let (low, high) = (values[at as usize], values[(at as usize + 1).min(last)]);
    low + (high - low) * at.fract()
}

pub(crate) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        assert_eq!(percentile(&mut [4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!(percentile(&mut [1.0, 2.0], 0.95), 1.95);
        assert_eq!((percentile(&mut [7.0], 0.95), percentile(&mut [], 0.5)), (7.0, 0.0));
    }
}
