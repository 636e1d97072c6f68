//! Takes a worker out of rotation when too many of its requests fail, and lets it back carefully.
//!
//! Closed: requests pass. Open, after failures in a row or a bad share of recent ones: none do, for a while that doubles
//! with every relapse. Half-open, when that is over: one at a time, until one succeeds.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct BreakerConfig {
    /// Failures in a row that open it.
    pub failures: u32,
    /// Share of failures in a window that opens it.
    pub share: f64,
    /// How long it is open at first.
    pub open_for: Duration,
}

/// Shares are of this long, and of at least so many requests.
const WINDOW: Duration = Duration::from_secs(10);
const MIN_REQUESTS: u32 = 20;
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl BreakerState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
struct Inner {
    in_a_row: u32,
    window_began: Instant,
    requests: u32,
    failed: u32,
    /// When it was opened for the last time, for how long, and whether somebody is trying it now.
    open: Option<(Instant, Duration, bool)>,
    opened: u64,
}

#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    inner: Mutex<Inner>,
}

impl Breaker {
    pub fn new(config: BreakerConfig) -> Self {
        let inner = Inner {
            in_a_row: 0,
            window_began: Instant::now(),
            requests: 0,
            failed: 0,
            open: None,
            opened: 0,
        };
        Self { config, inner: Mutex::new(inner) }
    }

    pub fn state(&self) -> BreakerState {
        match self.inner.lock().open {
            None => BreakerState::Closed,
            Some((since, long, _)) if since.elapsed() < long => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Times it was opened.
    pub fn opened(&self) -> u64 {
        self.inner.lock().opened
    }

    /// Whether a request may be sent now.
    pub fn admits(&self) -> bool {
        match self.inner.lock().open {
            None => true,
            Some((since, long, trying)) => since.elapsed() >= long && !trying,
        }
    }

    /// A request is being sent. While half-open it is the one that tries.
    pub fn sending(&self) {
        if let Some((since, long, trying)) = &mut self.inner.lock().open
            && since.elapsed() >= *long
        {
            *trying = true;
        }
    }

    /// A request is being answered: whoever is tried again has passed. Whether all goes well is told at its end.
    pub fn answering(&self) {
        let mut inner = self.inner.lock();
        if inner.open.take().is_some() {
            inner.in_a_row = 0;
            inner.start_window();
        }
    }

    /// Nobody will say how it went: its client left.
    pub fn abandoned(&self) {
        if let Some((_, _, trying)) = &mut self.inner.lock().open {
            *trying = false;
        }
    }

    pub fn succeeded(&self) {
        let mut inner = self.inner.lock();
        inner.in_a_row = 0;
        inner.count(false);
    }

    pub fn failed(&self) {
        let mut inner = self.inner.lock();
        inner.in_a_row += 1;
        inner.count(true);
        let relapse = inner.open.map(|(_, long, _)| long);
        let bad_share = inner.requests >= MIN_REQUESTS
            && f64::from(inner.failed) >= self.config.share * f64::from(inner.requests);
        if relapse.is_some() || inner.in_a_row >= self.config.failures || bad_share {
            // Requests sent before it was opened may fail afterwards: they change nothing.
            if inner.open.is_some_and(|(since, long, _)| since.elapsed() < long) {
                return;
            }
            inner.in_a_row = 0;
            let long = relapse.map_or(self.config.open_for, |long| (long * 2).min(LONGEST));
            inner.open = Some((Instant::now(), long, false));
            inner.opened += 1;
            inner.start_window();
        }
    }
}

impl Inner {
    fn count(&mut self, failed: bool) {
        if self.window_began.elapsed() >= WINDOW {
            self.start_window();
        }
        self.requests += 1;
        self.failed += u32::from(failed);
    }

    fn start_window(&mut self) {
        (self.window_began, self.requests, self.failed) = (Instant::now(), 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BreakerConfig =
        BreakerConfig { failures: 3, share: 0.5, open_for: Duration::from_millis(100) };

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_one_success_closes_it() {
        let breaker = Breaker::new(CONFIG);
        breaker.failed();
        breaker.failed();
        breaker.succeeded();
        breaker.failed();
        breaker.failed();
        assert!(breaker.admits());
        breaker.failed();
        assert_eq!((breaker.admits(), breaker.state()), (false, BreakerState::Open));
        // Sent all the same, because everybody else was out too: that is no trial, and takes nobody's place.
        breaker.sending();
        breaker.failed();
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!((breaker.admits(), breaker.state()), (true, BreakerState::HalfOpen));
        breaker.sending();
        assert!(!breaker.admits(), "one at a time");
        breaker.abandoned();
        assert!(breaker.admits());
        breaker.sending();
        breaker.failed();
        tokio::time::advance(Duration::from_millis(150)).await;
        assert_eq!(breaker.state(), BreakerState::Open, "twice as long the second time");
        tokio::time::advance(Duration::from_millis(50)).await;
        breaker.sending();
        breaker.answering();
        assert_eq!((breaker.admits(), breaker.state(), breaker.opened()), (true, BreakerState::Closed, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_share_opens_it_too() {
        let breaker = Breaker::new(BreakerConfig { failures: 1000, ..CONFIG });
        for _ in 0..9 {
            breaker.succeeded();
            breaker.failed();
        }
        breaker.failed();
        assert!(breaker.admits(), "not enough to judge");
        breaker.failed();
        assert!(!breaker.admits());
    }
}
