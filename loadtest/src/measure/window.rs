//! The last minute, exactly.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Values of the last `span`, at most `most` of them, and how many there were since the beginning and their sum.
#[derive(Debug)]
pub struct Window {
    span: Duration,
    most: usize,
    values: VecDeque<(Instant, f64)>,
    count: u64,
    sum: f64,
}

/// As Prometheus has it: quantiles of the window, count and sum of everything.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSummary {
    /// None while the window is empty.
    pub quantiles: Vec<(f64, Option<f64>)>,
    pub count: u64,
    pub sum: f64,
}

impl Window {
    pub fn new(span: Duration, most: usize) -> Self {
        Self { span, most, values: VecDeque::new(), count: 0, sum: 0.0 }
    }

    pub fn add(&mut self, value: f64, now: Instant) {
        self.count += 1;
        self.sum += value;
        self.forget(now);
        if self.values.len() >= self.most {
            self.values.pop_front();
        }
        self.values.push_back((now, value));
    }

    fn forget(&mut self, now: Instant) {
        while self.values.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > self.span) {
            self.values.pop_front();
        }
    }

    /// Of what is in the window now: for each share, the value below which that share lies.
    pub fn summary(&mut self, shares: &[f64], now: Instant) -> WindowSummary {
        self.forget(now);
        let mut sorted: Vec<f64> = self.values.iter().map(|(_, value)| *value).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().checked_sub(1)?;
            sorted.get((last as f64 * share).round() as usize).copied()
        };
        WindowSummary {
            quantiles: shares.iter().map(|share| (*share, at(*share))).collect(),
            count: self.count,
            sum: self.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside the same computed from every value there ever was.
    #[tokio::test(start_paused = true)]
    async fn a_window_is_its_last_minute_exactly() {
        let (begin, span) = (Instant::now(), Duration::from_secs(60));
        let mut window = Window::new(span, 100_000);
        let mut all: Vec<(Instant, f64)> = Vec::new();
        for n in 0..5_000_u64 {
            let (now, value) = (begin + Duration::from_millis(n * 37), ((n * 7919) % 1000) as f64 / 1000.0);
            window.add(value, now);
            all.push((now, value));
            if n % 250 == 0 {
                let mut recent: Vec<f64> =
                    all.iter().filter(|(at, _)| now - *at <= span).map(|(_, value)| *value).collect();
                recent.sort_unstable_by(f64::total_cmp);
                let exact = |share: f64| recent[((recent.len() - 1) as f64 * share).round() as usize];
                let summary = window.summary(&[0.5, 0.95], now);
                assert_eq!(summary.quantiles, vec![(0.5, Some(exact(0.5))), (0.95, Some(exact(0.95)))]);
                assert_eq!(summary.count, n + 1);
            }
        }
        let later = begin + Duration::from_secs(10_000);
        assert_eq!(window.summary(&[0.5], later).quantiles, vec![(0.5, None)]);
        // Bounded, whatever comes.
        let mut small = Window::new(span, 10);
        (0..100).for_each(|n| small.add(f64::from(n), begin));
        assert_eq!(small.summary(&[0.0], begin).quantiles, vec![(0.0, Some(90.0))]);
    }
}
