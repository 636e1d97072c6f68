//! A real engine's steps, and the simulated engine that takes as long for them.
//!
//! The model is piecewise linear: which part of a step is the longer one decides what it is charged for. So each step is
//! assigned a piece by the constants so far, the constants are fitted to all pieces at once, and again, until nothing moves.

mod fit;
mod steps;

use std::collections::BTreeSet;

use kvlane_engine_adapters::sim::Calibration;
use serde::Serialize;

use self::fit::fit;
pub use self::steps::{Step, read};

/// How well a calibration tells what steps took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Residuals {
    pub steps: usize,
    /// The mean of what steps are off by, each relative to the longer of both times and without its sign.
    pub error_pct: f64,
    /// All of the model's time over all of the time measured, less one.
    pub total_off_pct: f64,
    pub groups: Vec<Group>,
}

/// Steps that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub prefills: bool,
    /// Sequences decoded, or tokens prefilled.
    pub from: usize,
    pub to: usize,
    pub steps: usize,
    /// Means.
    pub measured_ms: f64,
    pub model_ms: f64,
    pub error_pct: f64,
}

/// The last group has no end.
const BATCHES: [usize; 7] = [1, 5, 9, 17, 33, 65, usize::MAX];
const PREFILLS: [usize; 8] = [1, 65, 257, 513, 1025, 2049, 4097, usize::MAX];

/// The calibration with the constants under which its steps take as long as these. `base` gives the sizes, and the form.
pub fn calibrate(base: &Calibration, steps: &[Step]) -> Calibration {
    let decoding = |eager: bool| {
        let alike = steps.iter().filter(move |step| step.work.prefill == 0 && step.eager == eager);
        alike.map(|step| step.work.batch).collect::<BTreeSet<usize>>()
    };
    let (captured, launched) = (decoding(false), decoding(true));
    let first = launched.first().copied().unwrap_or(usize::MAX);
    let sizes = Calibration {
        graph_max: captured.range(..first).next_back().copied().unwrap_or(0),
        graph_sizes: captured.range(first..).filter(|batch| !launched.contains(batch)).copied().collect(),
        speculation: None,
        ..base.clone()
    };
    fit(&sizes, steps)
}

impl Residuals {
    pub fn of(calibration: &Calibration, steps: &[Step]) -> Self {
        let groups = |prefills: bool, bounds: &[usize]| {
            let of = move |step: &&Step| (step.work.prefill > 0) == prefills;
            let size = move |step: &&Step| if prefills { step.work.prefill } else { step.work.batch };
            let group = |(from, to): (usize, usize)| {
                let alike: Vec<&Step> =
                    steps.iter().filter(of).filter(|step| (from..to).contains(&size(step))).collect();
                let count = alike.len();
                let mean = |value: &dyn Fn(&Step) -> f64| {
                    alike.iter().map(|step| value(step)).sum::<f64>() / count as f64
                };
                (count > 0).then(|| Group {
                    prefills,
                    from,
                    to,
                    steps: count,
                    measured_ms: mean(&|step| step.ms),
                    model_ms: mean(&|step| step.modelled(calibration)),
                    error_pct: mean(&|step| step.error(calibration).abs() * 100.0),
                })
            };
            bounds.windows(2).filter_map(|pair| group((pair[0], pair[1]))).collect::<Vec<_>>()
        };
        let total = |value: &dyn Fn(&Step) -> f64| steps.iter().map(value).sum::<f64>();
        let count = steps.len().max(1) as f64;
        Self {
            steps: steps.len(),
            error_pct: total(&|step| step.error(calibration).abs() * 100.0) / count,
            total_off_pct: 100.0
                * (total(&|step| step.modelled(calibration)) / total(&|step| step.ms).max(f64::MIN_POSITIVE)
                    - 1.0),
            groups: [groups(false, &BATCHES), groups(true, &PREFILLS)].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvlane_engine_adapters::sim::Work;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn truth(roofline: bool) -> Calibration {
        Calibration {
            max_batch: 32,
            graph_max: 32,
            graph_sizes: Vec::new(),
            weights_ms: 11.0,
            kv_ns_per_token: 80.0,
            prefill_us_per_token: 65.0,
            attention_ps_per_pair: if roofline { 4000.0 } else { 0.0 },
            eager_ms: 1.5,
            launch_ms: if roofline { 13.5 } else { 0.0 },
            roofline,
            ..Calibration::preset(Calibration::DEFAULT).unwrap()
        }
    }

    /// Steps as a day brings them: mostly decoding, now and then prompts of all sizes, and one in fifty disturbed.
    fn day(engine: &Calibration, noise: f64) -> Vec<Step> {
        let mut random = StdRng::seed_from_u64(5);
        let step = |_| {
            let batch = random.random_range(0..=32_usize);
            let mut work =
                Work { batch, context: batch as u64 * random.random_range(500..6000), ..Work::default() };
            if batch == 0 || random.random_bool(0.2) {
                let size = *[40, 90, 300, 800, 2048].get(random.random_range(0..5_usize)).unwrap();
                work.prefill(random.random_range(0..4000), random.random_range(1..=size));
            }
            let disturbed = if random.random_bool(0.02) { 3.0 } else { 1.0 };
            let ms = engine.step_ms(&work) * disturbed * (1.0 + noise * (random.random::<f64>() - 0.5));
            Step { work, ms, eager: work.prefill > 0 }
        };
        (0..6000).map(step).collect()
    }

    #[test]
    fn the_constants_are_found_again() {
        for roofline in [true, false] {
            let (truth, steps) = (truth(roofline), day(&truth(roofline), 0.1));
            let base = Calibration {
                weights_ms: 1.0,
                kv_ns_per_token: 0.0,
                eager_ms: 0.0,
                launch_ms: 0.0,
                ..truth.clone()
            };
            let found = calibrate(&base, &steps);
            for (name, found, truth) in [
                ("weights_ms", found.weights_ms, truth.weights_ms),
                ("kv_ns_per_token", found.kv_ns_per_token, truth.kv_ns_per_token),
                ("prefill_us_per_token", found.prefill_us_per_token, truth.prefill_us_per_token),
            ] {
                assert!((found / truth - 1.0).abs() < 0.05, "{name}: {found} instead of {truth}");
            }
            let residuals = Residuals::of(&found, &steps);
            assert!(residuals.error_pct < 6.0, "{residuals:?}");
            assert_eq!((found.graph_max, residuals.steps), (32, 6000));
        }
    }

    #[test]
    fn the_form_that_fits_is_seen_by_its_residuals() {
        let steps = day(&truth(true), 0.05);
        let error = |roofline| {
            let base = Calibration { roofline, ..truth(roofline) };
            Residuals::of(&calibrate(&base, &steps), &steps).error_pct
        };
        assert!(error(true) < 0.7 * error(false), "{} and {}", error(true), error(false));
    }

    #[test]
    fn an_engine_that_only_decodes_can_be_fitted() {
        let steps: Vec<Step> = day(&truth(true), 0.02).into_iter().filter(|step| !step.eager).collect();
        let found = calibrate(&truth(true), &steps);
        assert!((found.weights_ms / 11.0 - 1.0).abs() < 0.05, "{found:?}");
        found.validate().unwrap();
    }
}
