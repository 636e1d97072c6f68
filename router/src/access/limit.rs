//! So many a minute, counted by [`governor`].
//!
//! Its bucket cannot be charged more than it holds. What an answer came to is known only when it is over, so the
//! bucket's state is kept where it can also be moved from here: a charge after the fact moves it past empty, and then
//! nobody is let in before that is made up for.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

const MINUTE_NS: u64 = 60_000_000_000;
/// The most a minute may have: one in 60 ns.
pub(super) const MOST: u32 = 1_000_000_000;
/// Minutes that a debt may keep its debtor out.
const MOST_DEBT: u64 = 10;

/// When the bucket is full again, shared with the limiter that moves it.
#[derive(Clone, Debug, Default)]
struct FullAt(Arc<InMemoryState>);

impl StateStore for FullAt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, change: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, change)
    }
}

/// How a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) most: u32,
    pub(super) remaining: u32,
    /// Until it is full.
    pub(super) full_in: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct PerMinute<C: Clock = DefaultClock> {
    most: NonZeroU32,
    limiter: RateLimiter<NotKeyed, FullAt, C, NoOpMiddleware<C::Instant>>,
    full_at: FullAt,
    start: C::Instant,
}

impl PerMinute {
    pub(super) fn new(most: NonZeroU32) -> Self {
        Self::with_clock(most, DefaultClock::default())
    }
}

impl<C: Clock> PerMinute<C> {
    fn with_clock(most: NonZeroU32, clock: C) -> Self {
        let (full_at, start) = (FullAt::default(), clock.now());
        let limiter = RateLimiter::new(Quota::per_minute(most), full_at.clone(), clock);
        Self { most, limiter, full_at, start }
    }

    pub(super) fn most(&self) -> u32 {
        self.most.get()
    }

    /// Takes so many, or says when they would be there. What no bucket could hold is taken as a full one.
    pub(super) fn take(&self, count: usize) -> Result<(), Duration> {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.most.get());
        let Some(count) = NonZeroU32::new(count) else { return Ok(()) };
        match self.limiter.check_n(count) {
            // More than it holds is not asked for.
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(not_until)) => Err(not_until.wait_time_from(self.limiter.clock().now())),
        }
    }

    /// Takes so many whether they are there or not.
    pub(super) fn charge(&self, count: u64) {
        let (now, each) = (self.now(), self.each());
        let latest = now.saturating_add(MINUTE_NS * (1 + MOST_DEBT));
        self.shift(|full_at| {
            full_at.max(now).saturating_add(each.saturating_mul(count)).min(latest.max(full_at))
        });
    }

    /// Puts so many back.
    pub(super) fn give_back(&self, count: u64) {
        let less = self.each().saturating_mul(count);
        self.shift(|full_at| full_at.saturating_sub(less));
    }

    fn shift(&self, moved: impl Fn(u64) -> u64) {
        let change = |full_at: Option<Nanos>| -> Result<((), Nanos), ()> {
            Ok(((), moved(full_at.map_or(0, Nanos::as_u64)).into()))
        };
        let _ = self.full_at.measure_and_replace(&NotKeyed::NonKey, change);
    }

    /// How it is, without taking anything.
    pub(super) fn left(&self) -> Left {
        let look =
            |full_at: Option<Nanos>| -> Result<((), Nanos), u64> { Err(full_at.map_or(0, Nanos::as_u64)) };
        let full_at = self.full_at.measure_and_replace(&NotKeyed::NonKey, look).err().unwrap_or(0);
        let missing = full_at.saturating_sub(self.now());
        let most = self.most.get();
        let taken = u32::try_from(missing.div_ceil(self.each())).unwrap_or(u32::MAX);
        Left { most, remaining: most.saturating_sub(taken), full_in: Duration::from_nanos(missing) }
    }

    /// Whether a single one is there, or when it will be.
    pub(super) fn any(&self) -> Result<(), Duration> {
        let left = self.left();
        if left.remaining > 0 {
            return Ok(());
        }
        let holds = Duration::from_nanos(self.each() * u64::from(self.most.get() - 1));
        Err(left.full_in.saturating_sub(holds))
    }

    fn now(&self) -> u64 {
        self.limiter.clock().now().duration_since(self.start).as_u64()
    }

    /// What one stands for, in time.
    fn each(&self) -> u64 {
        MINUTE_NS / u64::from(self.most.get())
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn per_minute(most: u32) -> (PerMinute<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (PerMinute::with_clock(NonZeroU32::new(most).unwrap(), clock.clone()), clock)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_taken_comes_back_with_time() {
        let (limit, clock) = per_minute(60);
        assert_eq!(limit.left(), Left { most: 60, remaining: 60, full_in: Duration::ZERO });
        assert_eq!(limit.take(59), Ok(()));
        assert_eq!(limit.left().remaining, 1);
        assert_eq!(limit.take(1), Ok(()));
        assert_eq!((limit.take(1), limit.any()), (Err(SECOND), Err(SECOND)));
        assert_eq!(limit.left(), Left { most: 60, remaining: 0, full_in: 60 * SECOND });
        clock.advance(3 * SECOND);
        assert_eq!((limit.left().remaining, limit.any()), (3, Ok(())));
        assert_eq!(limit.take(5), Err(2 * SECOND));
        assert_eq!(limit.left().remaining, 3, "a refusal costs nothing");
        clock.advance(1000 * SECOND);
        assert_eq!(limit.left().remaining, 60, "nothing is saved up beyond a minute's worth");
    }

    #[test]
    fn what_no_bucket_could_hold_is_taken_as_a_full_one() {
        let (limit, clock) = per_minute(60);
        assert_eq!(limit.take(1_000_000), Ok(()));
        assert_eq!(limit.left().remaining, 0);
        assert!(limit.take(usize::MAX).is_err());
        clock.advance(60 * SECOND);
        assert_eq!(limit.take(usize::MAX), Ok(()));
        assert_eq!(limit.take(0), Ok(()), "nothing is always there");
    }

    #[test]
    fn what_is_charged_afterwards_is_a_debt_that_is_paid_first() {
        let (limit, clock) = per_minute(60);
        assert_eq!(limit.take(10), Ok(()));
        limit.charge(60);
        // Ten more than there were.
        assert_eq!((limit.left().remaining, limit.any()), (0, Err(11 * SECOND)));
        assert_eq!(limit.take(1), Err(11 * SECOND));
        clock.advance(11 * SECOND);
        assert_eq!((limit.take(1), limit.take(1)), (Ok(()), Err(SECOND)));
        limit.charge(u64::MAX);
        let longest = Duration::from_nanos(MINUTE_NS * MOST_DEBT) + SECOND;
        assert_eq!(limit.take(1), Err(longest), "it is bounded");
    }

    #[test]
    fn what_is_given_back_is_there_at_once_and_no_more_than_all_of_it() {
        let (limit, _) = per_minute(60);
        assert_eq!(limit.take(60), Ok(()));
        limit.give_back(20);
        assert_eq!(limit.left().remaining, 20);
        limit.give_back(u64::MAX);
        assert_eq!(limit.left().remaining, 60);
    }
}
