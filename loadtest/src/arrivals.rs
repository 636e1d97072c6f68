//! When conversations begin: so many at a time, or at moments that do not depend on how the last ones do.
//!
//! Moments are found on a schedule of its own: a unit of "due" is spread over time by the rate, so that a rate that rises,
//! or is changed in between, moves the next moment and loses none.

use std::time::Duration;

use rand::rngs::StdRng;
use rand_distr::{Distribution, Exp1, Gamma};
use serde::{Deserialize, Serialize};

/// How moments lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// At random, each on its own.
    Poisson,
    /// At even distances.
    Constant,
    /// In bunches where the shape is below 1, more evenly above it.
    Gamma { shape: f64 },
}

impl Pattern {
    /// A distance whose mean is 1.
    pub fn gap(&self, random: &mut StdRng) -> f64 {
        match *self {
            Self::Poisson => Exp1.sample(random),
            Self::Constant => 1.0,
            Self::Gamma { shape } => Gamma::new(shape, 1.0 / shape).map_or(1.0, |gamma| gamma.sample(random)),
        }
    }
}

/// A number that goes from one value to another in some time, and stays there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ramp {
    pub from: f64,
    pub to: f64,
    pub over_s: f64,
}

impl Ramp {
    pub fn flat(value: f64) -> Self {
        Self { from: value, to: value, over_s: 0.0 }
    }

    pub fn at(&self, seconds: f64) -> f64 {
        if seconds >= self.over_s {
            return self.to;
        }
        self.from + (self.to - self.from) * seconds / self.over_s
    }

    /// What comes together between two moments at this rate.
    pub fn sum(&self, from_s: f64, until_s: f64) -> f64 {
        let bend = self.over_s.clamp(from_s, until_s);
        // A straight piece's mean lies in its middle.
        (bend - from_s) * f64::midpoint(self.at(from_s), self.at(bend)) + (until_s - bend) * self.to
    }

    /// When `owed` has come together since `from_s`.
    pub fn when(&self, from_s: f64, owed: f64) -> f64 {
        let bend = self.over_s.max(from_s);
        let before = self.sum(from_s, bend);
        if owed >= before {
            return bend + (owed - before) / self.to.max(f64::MIN_POSITIVE);
        }
        // start * t + slope / 2 * t^2 = owed, in the form that also holds for slopes near zero.
        let (start, slope) = (self.at(from_s), (self.to - self.from) / self.over_s);
        let root = (start * start + 2.0 * slope * owed).max(0.0).sqrt();
        from_s + 2.0 * owed / (start + root).max(f64::MIN_POSITIVE)
    }
}

/// When conversations begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// So many at a time, a new one when one is over.
    Closed(Ramp),
    /// So many a second; at most so many at a time.
    Open { rate: Ramp, pattern: Pattern, most: usize },
    /// At these moments from the beginning; at most so many at a time.
    Scheduled { moments: Vec<Duration>, most: usize },
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn moments_come_as_often_as_the_rate_says() {
        let ramps = [
            Ramp { from: 1.0, to: 10.0, over_s: 20.0 },
            Ramp { from: 10.0, to: 1.0, over_s: 20.0 },
            Ramp { from: 0.0, to: 5.0, over_s: 10.0 },
            Ramp::flat(3.0),
        ];
        for ramp in ramps {
            let mut at = 0.0;
            for n in 1..=200 {
                let next = ramp.when(at, 1.0);
                assert!((ramp.sum(at, next) - 1.0).abs() < 1e-6, "{ramp:?}: moment {n} at {next}");
                at = next;
            }
            assert!((ramp.sum(0.0, at) - 200.0).abs() < 1e-3);
        }
        let rising = Ramp { from: 0.0, to: 10.0, over_s: 10.0 };
        assert_eq!((rising.at(5.0), rising.at(50.0), rising.sum(0.0, 10.0)), (5.0, 10.0, 50.0));
    }

    #[test]
    fn patterns_have_mean_one_and_their_own_unevenness() {
        let spread = |pattern: Pattern| {
            let mut random = StdRng::seed_from_u64(3);
            let gaps: Vec<f64> = (0..50_000).map(|_| pattern.gap(&mut random)).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean - 1.0).abs() < 0.03, "{pattern:?}: {mean}");
            variance
        };
        assert_eq!(spread(Pattern::Constant), 0.0);
        assert!((spread(Pattern::Poisson) - 1.0).abs() < 0.05);
        assert!((spread(Pattern::Gamma { shape: 0.25 }) - 4.0).abs() < 0.4);
        assert!((spread(Pattern::Gamma { shape: 4.0 }) - 0.25).abs() < 0.03);
    }
}
