//! Many requests' figures: histograms that can be merged, and what they come to.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::stopwatch::{ErrorClass, Measured};
use crate::results::{LevelFigures, TurnFigures};

/// What users are promised.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub ttft_s: f64,
    pub tpot_s: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Self { ttft_s: 0.6, tpot_s: 0.06 }
    }
}

impl Objective {
    /// Whether a request kept it; one with a single token has no time per token to break it with.
    pub fn met(&self, measured: &Measured) -> bool {
        measured.error.is_none()
            && measured.ttft_s.is_some_and(|ttft| ttft <= self.ttft_s)
            && measured.tpot_s.is_none_or(|tpot| tpot <= self.tpot_s)
    }
}

/// Seconds, to three digits, from a microsecond to an hour.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u32>);

const LONGEST_US: u64 = 3_600_000_000;

impl Default for Times {
    fn default() -> Self {
        // Grows with what it is given: there is one for every worker and turn.
        Self(Histogram::new(3).expect("a precision that is fine"))
    }
}

impl Times {
    pub fn add(&mut self, seconds: f64) {
        let micros = (seconds * 1e6).round().clamp(1.0, LONGEST_US as f64) as u64;
        self.0.record(micros).expect("it grows, and the longest is within its reach");
    }

    fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("histograms of one shape");
    }

    pub fn quantiles(&self) -> Quantiles {
        let at = |share: f64| self.0.value_at_quantile(share) as f64 / 1e6;
        if self.0.is_empty() {
            return Quantiles::default();
        }
        Quantiles {
            count: self.0.len(),
            mean: self.0.mean() / 1e6,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: self.0.max() as f64 / 1e6,
        }
    }
}

/// Seconds; all zero when nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Requests of any kind, counted together. Those of several tasks, runs or workers can be merged.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    ttft: Times,
    tpot: Times,
    itl_gaps: Times,
    itl_means: Times,
    e2e: Times,
    send_lag: Times,
    requests: u64,
    met: u64,
    errors: BTreeMap<ErrorClass, u64>,
    output_tokens: u64,
    /// Of requests whose prompt the endpoint counted, and of those whose cached part it told.
    prompts: u64,
    prompt_tokens: u64,
    cacheable_tokens: u64,
    cached_tokens: u64,
}

/// What they come to, over a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub seconds: f64,
    pub requests: u64,
    pub errors: BTreeMap<ErrorClass, u64>,
    /// Of all requests.
    pub error_share: f64,
    pub ttft_s: Quantiles,
    pub tpot_s: Quantiles,
    /// Raw gaps between chunks, and each request's mean of them: two things people call inter-token latency.
    pub itl_gap_s: Quantiles,
    pub itl_mean_s: Quantiles,
    pub e2e_s: Quantiles,
    pub send_lag_s: Quantiles,
    /// Means of those that came whole; of prompts where the endpoint tells.
    pub prompt_tokens: Option<f64>,
    pub output_tokens: f64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    pub requests_per_s: f64,
    /// Requests a second that kept the objective, and their share of all, those that ought to have begun counted in.
    pub goodput_per_s: f64,
    pub goodput_share: f64,
    /// Of prompt tokens, where the endpoint tells.
    pub cached_share: Option<f64>,
}

impl Figures {
    pub fn add(&mut self, measured: &Measured, objective: &Objective) {
        self.requests += 1;
        self.met += u64::from(objective.met(measured));
        self.send_lag.add(measured.send_lag_s);
        measured.ttft_s.into_iter().for_each(|ttft| self.ttft.add(ttft));
        if let Some(class) = measured.error {
            *self.errors.entry(class).or_default() += 1;
            return;
        }
        self.e2e.add(measured.e2e_s);
        measured.tpot_s.into_iter().for_each(|tpot| self.tpot.add(tpot));
        measured.itl_mean_s.into_iter().for_each(|mean| self.itl_means.add(mean));
        measured.gaps_s.iter().for_each(|gap| self.itl_gaps.add(f64::from(*gap)));
        self.output_tokens += measured.output_tokens;
        if let Some(prompt) = measured.prompt_tokens {
            self.prompts += 1;
            self.prompt_tokens += prompt;
            if let Some(cached) = measured.cached_tokens {
                self.cacheable_tokens += prompt;
                self.cached_tokens += cached;
            }
        }
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Those that came whole.
    fn answered(&self) -> u64 {
        self.requests - self.failed()
    }

    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in [
            (&mut self.ttft, &other.ttft),
            (&mut self.tpot, &other.tpot),
            (&mut self.itl_gaps, &other.itl_gaps),
            (&mut self.itl_means, &other.itl_means),
            (&mut self.e2e, &other.e2e),
            (&mut self.send_lag, &other.send_lag),
        ] {
            ours.merge(theirs);
        }
        self.requests += other.requests;
        self.met += other.met;
        for (class, count) in &other.errors {
            *self.errors.entry(*class).or_default() += count;
        }
        self.output_tokens += other.output_tokens;
        self.prompts += other.prompts;
        self.prompt_tokens += other.prompt_tokens;
        self.cacheable_tokens += other.cacheable_tokens;
        self.cached_tokens += other.cached_tokens;
    }

    /// The same as a sweep keeps it. Inter-token latency is that of request means.
    pub fn level(&self, seconds: f64) -> LevelFigures {
        let summary = self.summary(seconds);
        let known = |of: &Quantiles, value: f64, scale: f64| (of.count > 0).then_some(value * scale);
        let p50 = |of: &Quantiles, scale: f64| known(of, of.p50, scale);
        let p95 = |of: &Quantiles, scale: f64| known(of, of.p95, scale);
        LevelFigures {
            ttft_p50_ms: p50(&summary.ttft_s, 1e3),
            ttft_p95_ms: p95(&summary.ttft_s, 1e3),
            itl_p50_ms: p50(&summary.itl_mean_s, 1e3),
            itl_p95_ms: p95(&summary.itl_mean_s, 1e3),
            e2e_p50_s: p50(&summary.e2e_s, 1.0),
            e2e_p95_s: p95(&summary.e2e_s, 1.0),
            tops: Some(summary.output_tokens_per_s),
            rps: Some(summary.requests_per_s),
            hit_pct: summary.cached_share.map(|share| share * 100.0),
            goodput_pct: Some(summary.goodput_share * 100.0),
            error_pct: Some(summary.error_share * 100.0),
            requests: Some(summary.requests as f64),
            ..LevelFigures::default()
        }
    }

    /// The same of one turn.
    pub fn turn(&self, turn: usize, seconds: f64) -> TurnFigures {
        let (summary, level) = (self.summary(seconds), self.level(seconds));
        TurnFigures {
            turn,
            requests: summary.requests,
            prompt_tokens: summary.prompt_tokens,
            output_tokens: Some(summary.output_tokens),
            ttft_p50_ms: level.ttft_p50_ms,
            ttft_p95_ms: level.ttft_p95_ms,
            e2e_p50_s: level.e2e_p50_s,
            hit_pct: level.hit_pct,
        }
    }

    pub fn summary(&self, seconds: f64) -> Summary {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let share = |count: u64| count as f64 / self.requests.max(1) as f64;
        Summary {
            seconds,
            requests: self.requests,
            errors: self.errors.clone(),
            error_share: share(self.errors.values().sum()),
            ttft_s: self.ttft.quantiles(),
            tpot_s: self.tpot.quantiles(),
            itl_gap_s: self.itl_gaps.quantiles(),
            itl_mean_s: self.itl_means.quantiles(),
            e2e_s: self.e2e.quantiles(),
            send_lag_s: self.send_lag.quantiles(),
            prompt_tokens: (self.prompts > 0).then(|| self.prompt_tokens as f64 / self.prompts as f64),
            output_tokens: self.output_tokens as f64 / self.answered().max(1) as f64,
            output_tokens_per_s: per_second(self.output_tokens),
            total_tokens_per_s: per_second(self.output_tokens + self.prompt_tokens),
            requests_per_s: per_second(self.answered()),
            goodput_per_s: per_second(self.met),
            goodput_share: share(self.met),
            cached_share: (self.cacheable_tokens > 0)
                .then(|| self.cached_tokens as f64 / self.cacheable_tokens as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ttft_s: f64, tpot_s: f64, error: Option<ErrorClass>) -> Measured {
        Measured {
            send_lag_s: 0.001,
            ttft_s: Some(ttft_s),
            tpot_s: Some(tpot_s),
            e2e_s: ttft_s + 10.0 * tpot_s,
            gaps_s: vec![tpot_s as f32; 10],
            itl_mean_s: Some(tpot_s),
            output_tokens: 11,
            prompt_tokens: Some(100),
            cached_tokens: Some(60),
            error,
        }
    }

    #[test]
    fn merged_figures_are_those_of_all() {
        let objective = Objective::default();
        let all: Vec<Measured> = (1..=100).map(|n| measured(f64::from(n) / 100.0, 0.03, None)).collect();
        let mut whole = Figures::default();
        let mut parts = [Figures::default(), Figures::default()];
        for (n, one) in all.iter().enumerate() {
            whole.add(one, &objective);
            parts[n % 2].add(one, &objective);
        }
        let [mut merged, rest] = parts;
        merged.merge(&rest);
        assert_eq!(merged.summary(10.0), whole.summary(10.0));
        let summary = whole.summary(10.0);
        assert!((summary.ttft_s.p50 - 0.5).abs() < 0.001 && (summary.ttft_s.p95 - 0.95).abs() < 0.001);
        assert_eq!((summary.ttft_s.count, summary.itl_gap_s.count), (100, 1000));
        assert_eq!((summary.output_tokens_per_s, summary.requests_per_s), (110.0, 10.0));
        // Sixty of a hundred had their first token in time.
        assert_eq!((summary.goodput_share, summary.cached_share), (0.6, Some(0.6)));
    }

    #[test]
    fn failures_count_as_failures_and_keep_no_objective() {
        let mut figures = Figures::default();
        figures.add(&measured(0.1, 0.01, None), &Objective::default());
        figures.add(&measured(0.1, 0.01, Some(ErrorClass::BrokenOff)), &Objective::default());
        figures.add(&measured(0.1, 0.09, None), &Objective::default());
        let summary = figures.summary(1.0);
        assert_eq!((summary.requests, summary.e2e_s.count, summary.goodput_per_s), (3, 2, 1.0));
        assert!((summary.error_share - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(Figures::default().summary(0.0).ttft_s, Quantiles::default());
    }
}
