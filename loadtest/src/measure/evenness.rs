//! How even the load on workers is, looked at again and again.

use crate::results::LevelFigures;
use crate::statistics::{mean, percentile};

#[derive(Clone, Debug, Default)]
pub(crate) struct Evenness {
    /// Most requests on a worker less least, and most by the mean.
    spread: Vec<f64>,
    skew: Vec<f64>,
}

impl Evenness {
    /// How many requests each worker has now.
    pub(crate) fn see(&mut self, counts: impl ExactSizeIterator<Item = usize>) {
        let workers = counts.len().max(1);
        let (least, most, all) =
            counts.fold((usize::MAX, 0, 0), |(least, most, all), n| (least.min(n), most.max(n), all + n));
        self.spread.push(most.saturating_sub(least) as f64);
        if all > 0 {
            self.skew.push((most * workers) as f64 / all as f64);
        }
    }

    pub(crate) fn figures(&mut self) -> LevelFigures {
        if self.spread.is_empty() {
            return LevelFigures::default();
        }
        LevelFigures {
            inflight_spread_max: self.spread.iter().copied().max_by(f64::total_cmp),
            inflight_spread_p95: Some(percentile(&mut self.spread, 0.95)),
            inflight_skew: (!self.skew.is_empty()).then(|| mean(self.skew.iter().copied())),
            ..LevelFigures::default()
        }
    }
}
