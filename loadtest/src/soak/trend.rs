//! Whether a quantity grows: a line through it, and how far its slope can be believed.
//!
//! Neighbouring samples resemble each other, so that a plain fit would be far too sure of itself. Samples are averaged
//! over longer stretches first, and what resemblance is left between neighbouring stretches counts against their number.

use serde::Serialize;

use crate::statistics::{mean_of, t_9975};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trend {
    pub mean: f64,
    pub slope_per_hour: f64,
    /// Half of the interval in which the slope lies: 99.5 % confidence, so that ten of them hold together with 95 %.
    pub plus_minus: f64,
    /// What the slope comes to over the whole time, as a share of the mean.
    pub growth: f64,
    /// By how much the last quarter lies above the first, as a share of the mean.
    pub rise: f64,
    /// It does not grow, as far as can be seen: zero is within the interval, or the growth below a hundredth; and the
    /// last quarter is not far above the first, however it came there.
    pub within_noise: bool,
}

/// Stretches that samples are averaged over: about a minute each, and no fewer or more of them than this.
const STRETCHES: (usize, usize) = (8, 240);
const NO_MATTER: f64 = 0.01;
/// The last quarter may lie so far above the first, and twice as much as either varies in itself.
const LITTLE: f64 = 0.05;

impl Trend {
    /// Of samples (seconds, value) in order; none for too few.
    pub fn of(samples: &[(f64, f64)]) -> Option<Self> {
        let ((begin, _), (end, _)) = (*samples.first()?, *samples.last()?);
        let span = end - begin;
        let count = ((span / 60.0) as usize).clamp(STRETCHES.0, STRETCHES.1);
        let points = stretches(samples, begin, span / count as f64);
        if span <= 0.0 || points.len() < 4 {
            return None;
        }
        let (times, values): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        let (middle, mean) = (mean_of(&times), mean_of(&values));
        let spread: f64 = times.iter().map(|time| (time - middle).powi(2)).sum();
        let joint: f64 =
            times.iter().zip(&values).map(|(time, value)| (time - middle) * (value - mean)).sum();
        let slope = joint / spread;
        let rest: Vec<f64> =
            times.iter().zip(&values).map(|(time, value)| value - mean - slope * (time - middle)).collect();
        let squares: f64 = rest.iter().map(|rest| rest * rest).sum();
        let neighbours: f64 = rest.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let alike = if squares > 0.0 { (neighbours / squares).clamp(0.0, 0.95) } else { 0.0 };
        // So many stretches that have nothing to do with each other would say as much.
        let degrees = (times.len() as f64 * (1.0 - alike) / (1.0 + alike) - 2.0).max(1.0);
        let half = t_9975(degrees) * (squares / degrees / spread).sqrt();
        let growth = if mean == 0.0 { 0.0 } else { slope * span / mean };
        let (slope_per_hour, plus_minus) = (slope * 3600.0, half * 3600.0);
        // A curve makes its own line look doubtful: what only grows late, or in one step, is found by its ends.
        let quarter = values.len() / 4;
        let ((first, before), (last, after)) =
            (spread_of(&values[..quarter]), spread_of(&values[values.len() - quarter..]));
        let varies = (before.powi(2) + after.powi(2)).sqrt() / std::f64::consts::SQRT_2;
        let rises = last - first > 2.0 * varies + LITTLE * mean.abs();
        let rise = if mean == 0.0 { 0.0 } else { (last - first) / mean };
        let within_noise = (slope_per_hour <= plus_minus || growth < NO_MATTER) && !rises;
        Some(Self { mean, slope_per_hour, plus_minus, growth, rise, within_noise })
    }
}

/// The mean, and the standard deviation around it.
fn spread_of(values: &[f64]) -> (f64, f64) {
    let mean = mean_of(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / values.len() as f64).sqrt())
}

/// Means of stretches of that length, empty ones left out.
fn stretches(samples: &[(f64, f64)], begin: f64, length: f64) -> Vec<(f64, f64)> {
    let stretch = |time: f64| ((time - begin) / length) as usize;
    let chunks = samples.chunk_by(|one, other| stretch(one.0) == stretch(other.0));
    let means = chunks.map(|chunk| {
        let count = chunk.len() as f64;
        let (time, value) = chunk.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (time / count, value / count)
    });
    means.collect()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// An hour of samples every five seconds that wander around a line, each taking most of the last one's error along.
    fn wandering(slope_per_hour: f64, seed: u64) -> Vec<(f64, f64)> {
        let (mut random, mut error) = (StdRng::seed_from_u64(seed), 0.0);
        let sample = |n: usize| {
            error = 0.95 * error + random.random_range(-1.0..1.0);
            let time = n as f64 * 5.0;
            (time, 100.0 + slope_per_hour * time / 3600.0 + error)
        };
        (0..720).map(sample).collect()
    }

    #[test]
    fn what_grows_is_told_from_what_wanders() {
        let false_alarms =
            (0..100).filter(|seed| !Trend::of(&wandering(0.0, *seed)).unwrap().within_noise).count();
        assert!(false_alarms <= 4, "{false_alarms} of 100 that do not grow are said to");
        let found = (0..100).filter(|seed| !Trend::of(&wandering(20.0, *seed)).unwrap().within_noise).count();
        assert!(found >= 98, "{found} of 100 that grow are found");
    }

    #[test]
    fn what_grows_late_or_in_a_step_is_found_as_well() {
        type Grows = fn(f64) -> f64;
        let ways: [(&str, Grows); 4] = [
            ("ever faster", |share| 100.0 * share * share),
            ("doubling", |share| 100.0 * (share.exp2() - 1.0)),
            ("from half-way on", |share| 200.0 * (share - 0.5).max(0.0)),
            ("one step", |share| if share < 0.5 { 0.0 } else { 100.0 }),
        ];
        for (way, grows) in ways {
            let found = (0..100).filter(|seed| {
                let samples = wandering(0.0, *seed);
                let grown = samples.iter().map(|(time, value)| (*time, value + grows(time / 3600.0)));
                !Trend::of(&grown.collect::<Vec<_>>()).unwrap().within_noise
            });
            assert_eq!(found.count(), 100, "{way}");
        }
    }

    #[test]
    fn lines_are_fitted_as_they_are() {
        let line: Vec<(f64, f64)> = (0..720).map(|n| (f64::from(n) * 5.0, 50.0 + f64::from(n))).collect();
        let trend = Trend::of(&line).unwrap();
        assert!((trend.slope_per_hour - 720.0).abs() < 1e-6 && !trend.within_noise, "{trend:?}");
        let falling: Vec<(f64, f64)> = line.iter().map(|(time, value)| (*time, 1000.0 - value)).collect();
        assert!(Trend::of(&falling).unwrap().within_noise, "what shrinks is no leak");
        let still = Trend::of(&[(0.0, 7.0), (5.0, 7.0), (10.0, 7.0), (15.0, 7.0), (20.0, 7.0)]).unwrap();
        assert_eq!((still.slope_per_hour, still.within_noise), (0.0, true));
        assert_eq!((Trend::of(&[]), Trend::of(&[(0.0, 1.0)])), (None, None));
    }
}
