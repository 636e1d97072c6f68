//! How long people think between an answer and their next question.

use std::time::Duration;

use anyhow::{bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Exp1, LogNormal};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Think {
    Fixed { seconds: f64 },
    Exponential { mean_s: f64 },
    Uniform { least_s: f64, most_s: f64 },
    LogNormal { median_s: f64, sigma: f64 },
}

/// Nobody thinks longer.
const MOST_S: f64 = 1e6;

impl Think {
    pub fn sample(&self, random: &mut StdRng) -> Duration {
        let seconds = match *self {
            Self::Fixed { seconds } => seconds,
            Self::Exponential { mean_s } => {
                let drawn: f64 = Exp1.sample(random);
                drawn * mean_s
            }
            Self::Uniform { least_s, most_s } => random.random_range(least_s..=most_s),
            Self::LogNormal { median_s, sigma } => {
                LogNormal::new(median_s.ln(), sigma).map_or(median_s, |drawn| drawn.sample(random))
            }
        };
        Duration::from_secs_f64(seconds.clamp(0.0, MOST_S))
    }

    pub fn mean_s(&self) -> f64 {
        match *self {
            Self::Fixed { seconds } => seconds,
            Self::Exponential { mean_s } => mean_s,
            Self::Uniform { least_s, most_s } => f64::midpoint(least_s, most_s),
            Self::LogNormal { median_s, sigma } => median_s * (sigma * sigma / 2.0).exp(),
        }
    }
}

impl std::str::FromStr for Think {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, numbers) = text.split_once(':').unwrap_or(("exponential", text));
        let separator = if kind == "uniform" { '-' } else { ',' };
        let numbers: Result<Vec<f64>, _> =
            numbers.split(separator).map(|number| number.trim().parse()).collect();
        let numbers = numbers.unwrap_or_default();
        ensure!(
            numbers.iter().all(|number| (0.0..=MOST_S).contains(number)),
            "think time is {text:?}, expected seconds from 0 to {MOST_S}"
        );
        match (kind, &numbers[..]) {
            ("fixed", [seconds]) => Ok(Self::Fixed { seconds: *seconds }),
            ("exponential", [mean_s]) => Ok(Self::Exponential { mean_s: *mean_s }),
            ("uniform", [least_s, most_s]) if least_s <= most_s => {
                Ok(Self::Uniform { least_s: *least_s, most_s: *most_s })
            }
            ("lognormal", [median_s, sigma]) if *median_s > 0.0 && *sigma <= 5.0 => {
                Ok(Self::LogNormal { median_s: *median_s, sigma: *sigma })
            }
            _ => bail!(
                "think time is {text:?}, expected a mean in seconds (exponential), fixed:S, uniform:LEAST-MOST or \
                 lognormal:MEDIAN,SIGMA"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn samples_have_the_mean_they_say() {
        for text in ["2", "fixed:3", "uniform:1-5", "lognormal:2,0.5", "0"] {
            let think: Think = text.parse().unwrap();
            let mut random = StdRng::seed_from_u64(1);
            let mean = (0..20_000).map(|_| think.sample(&mut random).as_secs_f64()).sum::<f64>() / 20_000.0;
            assert!((mean - think.mean_s()).abs() <= 0.05 * think.mean_s() + 1e-9, "{text}: {mean}");
        }
        for wrong in ["-1", "often", "uniform:5-1", "lognormal:0,1", "fixed:", "fixed:inf", "uniform:1"] {
            assert!(wrong.parse::<Think>().unwrap_err().to_string().starts_with("think time is"), "{wrong}");
        }
    }
}
