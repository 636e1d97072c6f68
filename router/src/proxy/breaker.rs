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

/// A request that was sent, by its number. Whoever sent it says with it how it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent(u64);

#[derive(Clone, Copy, Debug)]
struct Open {
    /// When it was opened for the last time, and for how long.
    since: Instant,
    long: Duration,
    /// The last request sent before that. It and those before it know nothing of how the worker is now.
    after: Sent,
    /// Who is trying it.
    trial: Option<Sent>,
}

impl Open {
    fn half(&self) -> bool {
        self.since.elapsed() >= self.long
    }
}

#[derive(Debug)]
struct Inner {
    in_a_row: u32,
    window_began: Instant,
    requests: u32,
    failed: u32,
    /// The last request that was sent.
    sent: Sent,
    open: Option<Open>,
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
            sent: Sent(0),
            open: None,
            opened: 0,
        };
        Self { config, inner: Mutex::new(inner) }
    }

    pub fn state(&self) -> BreakerState {
        match self.inner.lock().open {
            None => BreakerState::Closed,
            Some(open) if open.half() => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }

    /// Times it was opened.
    pub fn opened(&self) -> u64 {
        self.inner.lock().opened
    }

    /// Whether a request may be sent now.
    pub fn admits(&self) -> bool {
        self.inner.lock().open.is_none_or(|open| open.half() && open.trial.is_none())
    }

    /// A request is being sent. While half-open, the first is the one that tries.
    pub fn sending(&self) -> Sent {
        let mut inner = self.inner.lock();
        inner.sent.0 += 1;
        let sent = inner.sent;
        if let Some(open) = &mut inner.open
            && open.half()
        {
            open.trial.get_or_insert(sent);
        }
        sent
    }

    /// A request is being answered: whoever is tried again has passed. Whether all goes well is told at its end. An
    /// answer to something sent before it was opened is no proof.
    pub fn answering(&self, sent: Sent) {
        let mut inner = self.inner.lock();
        if inner.open.take_if(|open| sent > open.after).is_some() {
            inner.in_a_row = 0;
            inner.start_window();
        }
    }

    /// Nobody will say how it went: its client left.
    pub fn abandoned(&self, sent: Sent) {
        if let Some(open) = &mut self.inner.lock().open {
            open.trial.take_if(|trial| *trial == sent);
        }
    }

    pub fn succeeded(&self) {
        let mut inner = self.inner.lock();
        inner.in_a_row = 0;
        inner.count(false);
    }

    pub fn failed(&self, sent: Sent) {
        let mut inner = self.inner.lock();
        // Requests sent before it was opened may fail afterwards, and others while it is open: they change nothing.
        if inner.open.is_some_and(|open| sent <= open.after || !open.half()) {
            return;
        }
        inner.in_a_row += 1;
        inner.count(true);
        let relapse = inner.open.map(|open| open.long);
        let bad_share = inner.requests >= MIN_REQUESTS
            && f64::from(inner.failed) >= self.config.share * f64::from(inner.requests);
        if relapse.is_some() || inner.in_a_row >= self.config.failures || bad_share {
            inner.in_a_row = 0;
            let long = relapse.map_or(self.config.open_for, |long| (long * 2).min(LONGEST));
            inner.open = Some(Open { since: Instant::now(), long, after: inner.sent, trial: None });
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

    /// One that is sent and fails at once.
    fn fails(breaker: &Breaker) {
        breaker.failed(breaker.sending());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_one_success_closes_it() {
        let breaker = Breaker::new(CONFIG);
        fails(&breaker);
        fails(&breaker);
        breaker.succeeded();
        fails(&breaker);
        fails(&breaker);
        assert!(breaker.admits());
        fails(&breaker);
        assert_eq!((breaker.admits(), breaker.state()), (false, BreakerState::Open));
        // Sent all the same, because everybody else was out too: that is no trial, and takes nobody's place.
        fails(&breaker);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!((breaker.admits(), breaker.state()), (true, BreakerState::HalfOpen));
        let trial = breaker.sending();
        assert!(!breaker.admits(), "one at a time");
        breaker.abandoned(trial);
        assert!(breaker.admits());
        fails(&breaker);
        tokio::time::advance(Duration::from_millis(150)).await;
        assert_eq!(breaker.state(), BreakerState::Open, "twice as long the second time");
        tokio::time::advance(Duration::from_millis(50)).await;
        breaker.answering(breaker.sending());
        assert_eq!((breaker.admits(), breaker.state(), breaker.opened()), (true, BreakerState::Closed, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_from_before_does_not_end_the_trial() {
        let breaker = Breaker::new(CONFIG);
        let before = [breaker.sending(), breaker.sending(), breaker.sending()];
        (0..3).for_each(|_| fails(&breaker));
        tokio::time::advance(Duration::from_millis(100)).await;
        let trial = breaker.sending();
        breaker.abandoned(before[0]);
        breaker.answering(before[1]);
        breaker.failed(before[2]);
        assert_eq!((breaker.admits(), breaker.opened()), (false, 1), "the trial goes on");
        // One more that was sent because everybody was out does not take its place either.
        let another = breaker.sending();
        breaker.abandoned(another);
        assert!(!breaker.admits());
        breaker.abandoned(trial);
        assert!(breaker.admits());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_share_opens_it_too() {
        let breaker = Breaker::new(BreakerConfig { failures: 1000, ..CONFIG });
        for _ in 0..9 {
            breaker.succeeded();
            fails(&breaker);
        }
        fails(&breaker);
        assert!(breaker.admits(), "not enough to judge");
        fails(&breaker);
        assert!(!breaker.admits());
    }
}
