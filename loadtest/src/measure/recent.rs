//! What came back of late, exactly: every live figure is of the last minute, over all conversations.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::figures::Objective;
use super::stopwatch::Measured;
use crate::results::LevelFigures;
use crate::statistics::percentile;

/// Requests that ended within `span`, at most `most` of them, and of all there ever were the count and the sum.
#[derive(Debug)]
pub struct Recent {
    span: Duration,
    most: usize,
    samples: VecDeque<Sample>,
    ttft: Total,
    tpot: Total,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    ttft_s: Option<f64>,
    tpot_s: Option<f64>,
    itl_s: Option<f64>,
    e2e_s: f64,
    output_tokens: u64,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    met: bool,
    failed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    count: u64,
    sum: f64,
}

impl Total {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            (self.count, self.sum) = (self.count + 1, self.sum + value);
        }
    }
}

/// As Prometheus has it: quantiles of the window, count and sum of everything.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSummary {
    /// None while the window is empty.
    pub quantiles: Vec<(f64, Option<f64>)>,
    pub count: u64,
    pub sum: f64,
}

impl Recent {
    pub fn new(span: Duration, most: usize) -> Self {
        Self { span, most, samples: VecDeque::new(), ttft: Total::default(), tpot: Total::default() }
    }

    pub fn add(&mut self, measured: &Measured, objective: &Objective, now: Instant) {
        self.ttft.add(measured.ttft_s);
        self.tpot.add(measured.tpot_s);
        while self.samples.front().is_some_and(|sample| now.saturating_duration_since(sample.at) > self.span)
        {
            self.samples.pop_front();
        }
        if self.samples.len() >= self.most {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at: now,
            ttft_s: measured.ttft_s,
            tpot_s: measured.tpot_s,
            itl_s: measured.itl_mean_s,
            e2e_s: measured.e2e_s,
            output_tokens: if measured.error.is_none() { measured.output_tokens } else { 0 },
            prompt_tokens: measured.prompt_tokens.filter(|_| measured.error.is_none()),
            cached_tokens: measured.cached_tokens.filter(|_| measured.error.is_none()),
            met: objective.met(measured),
            failed: measured.error.is_some(),
        });
    }

    /// The last `span` of it, or what there is of that.
    fn last(&self, span: Duration, now: Instant) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| now.saturating_duration_since(sample.at) <= span)
    }

    /// First tokens and times per token of the last `span`: for each share, the value below which that share lies.
    pub fn summaries(&self, shares: &[f64], span: Duration, now: Instant) -> (WindowSummary, WindowSummary) {
        let summary = |of: fn(&Sample) -> Option<f64>, total: Total| {
            let mut values: Vec<f64> = self.last(span, now).filter_map(of).collect();
            let mut at = |share: f64| (!values.is_empty()).then(|| percentile(&mut values, share));
            let quantiles = shares.iter().map(|share| (*share, at(*share))).collect();
            WindowSummary { quantiles, count: total.count, sum: total.sum }
        };
        (summary(|sample| sample.ttft_s, self.ttft), summary(|sample| sample.tpot_s, self.tpot))
    }

    /// Every figure of the last `span`. Rates are of answers that came whole.
    pub fn figures(&self, span: Duration, now: Instant) -> LevelFigures {
        let quantiles = |of: fn(&Sample) -> Option<f64>, scale: f64| {
            let mut values: Vec<f64> = self.last(span, now).filter_map(of).collect();
            if values.is_empty() {
                return (None, None);
            }
            let mut at = |share: f64| Some(percentile(&mut values, share) * scale);
            (at(0.5), at(0.95))
        };
        let (ttft_p50_ms, ttft_p95_ms) = quantiles(|sample| sample.ttft_s, 1e3);
        let (itl_p50_ms, itl_p95_ms) = quantiles(|sample| sample.itl_s.filter(|_| !sample.failed), 1e3);
        let (e2e_p50_s, e2e_p95_s) = quantiles(|sample| (!sample.failed).then_some(sample.e2e_s), 1.0);
        // Where more came than is kept, the rest of the span is not known.
        let full = self.samples.len() >= self.most;
        let known =
            self.samples.front().filter(|_| full).map(|oldest| now.saturating_duration_since(oldest.at));
        let seconds = known.map_or(span, |known| known.min(span)).as_secs_f64().max(1e-3);
        let sum = |of: fn(&Sample) -> u64| self.last(span, now).map(of).sum::<u64>() as f64;
        let requests = sum(|_| 1);
        let prompt = sum(|sample| sample.cached_tokens.and(sample.prompt_tokens).unwrap_or(0));
        let share = |part: f64, of: f64| (of > 0.0).then(|| 100.0 * part / of);
        LevelFigures {
            ttft_p50_ms,
            ttft_p95_ms,
            itl_p50_ms,
            itl_p95_ms,
            e2e_p50_s,
            e2e_p95_s,
            tops: (requests > 0.0).then(|| sum(|sample| sample.output_tokens) / seconds),
            rps: (requests > 0.0).then(|| sum(|sample| (!sample.failed).into()) / seconds),
            hit_pct: share(sum(|sample| sample.prompt_tokens.and(sample.cached_tokens).unwrap_or(0)), prompt),
            goodput_pct: share(sum(|sample| sample.met.into()), requests),
            error_pct: share(sum(|sample| sample.failed.into()), requests),
            requests: Some(requests),
            ..LevelFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::ErrorClass;

    fn measured(ttft_s: f64, error: Option<ErrorClass>) -> Measured {
        Measured {
            send_lag_s: 0.0,
            ttft_s: Some(ttft_s),
            tpot_s: Some(0.03),
            e2e_s: ttft_s + 3.0,
            gaps_s: Vec::new(),
            itl_mean_s: Some(0.03),
            output_tokens: 100,
            prompt_tokens: Some(1000),
            cached_tokens: Some(900),
            error,
        }
    }

    /// Beside the same computed from every value there ever was.
    #[tokio::test(start_paused = true)]
    async fn a_window_is_its_last_minute_exactly() {
        let (begin, span) = (Instant::now(), Duration::from_secs(60));
        let mut recent = Recent::new(span, 100_000);
        let mut all: Vec<(Instant, f64)> = Vec::new();
        for n in 0..5_000_u64 {
            let (now, value) = (begin + Duration::from_millis(n * 37), ((n * 7919) % 1000) as f64 / 1000.0);
            recent.add(&measured(value, None), &Objective::default(), now);
            all.push((now, value));
            if n % 250 == 0 {
                let mut last: Vec<f64> =
                    all.iter().filter(|(at, _)| now - *at <= span).map(|(_, value)| *value).collect();
                let (ttft, tpot) = recent.summaries(&[0.5, 0.95], span, now);
                let exact = [0.5, 0.95].map(|share| (share, Some(percentile(&mut last, share))));
                assert_eq!(ttft.quantiles, exact);
                assert_eq!((ttft.count, tpot.count), (n + 1, n + 1));
                assert!((ttft.sum - all.iter().map(|(_, value)| value).sum::<f64>()).abs() < 1e-6);
                let figures = recent.figures(span, now);
                assert_eq!(figures.ttft_p95_ms, exact[1].1.map(|value| value * 1e3));
                assert_eq!(figures.rps, Some(last.len() as f64 / 60.0));
            }
        }
        let later = begin + Duration::from_secs(10_000);
        assert_eq!(recent.summaries(&[0.5], span, later).0.quantiles, [(0.5, None)]);
        assert_eq!(
            recent.figures(span, later),
            LevelFigures { requests: Some(0.0), ..LevelFigures::default() }
        );
        // Bounded, whatever comes.
        let mut small = Recent::new(span, 10);
        (0..100).for_each(|n| small.add(&measured(f64::from(n), None), &Objective::default(), begin));
        assert_eq!(small.summaries(&[0.0], span, begin).0.quantiles, [(0.0, Some(90.0))]);
        let figures = small.figures(span, begin + Duration::from_secs(5));
        assert_eq!(figures.rps, Some(2.0), "of the time that is known");
    }

    #[tokio::test(start_paused = true)]
    async fn figures_are_of_the_span_asked_for() {
        let begin = Instant::now();
        let mut recent = Recent::new(Duration::from_secs(60), 1000);
        recent.add(&measured(9.0, None), &Objective::default(), begin);
        let now = begin + Duration::from_secs(30);
        recent.add(&measured(0.2, None), &Objective::default(), now);
        recent.add(&measured(0.4, Some(ErrorClass::BrokenOff)), &Objective::default(), now);
        let figures = recent.figures(Duration::from_secs(10), now);
        assert_eq!((figures.requests, figures.rps, figures.tops), (Some(2.0), Some(0.1), Some(10.0)));
        assert_eq!(
            (figures.error_pct, figures.goodput_pct, figures.hit_pct),
            (Some(50.0), Some(50.0), Some(90.0))
        );
        assert!(figures.ttft_p50_ms.is_some_and(|ms| (ms - 300.0).abs() < 1e-6), "{figures:?}");
    }
}
