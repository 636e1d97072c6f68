//! Threads for work that would hold up others: templates, tokenizing, long JSON.
//!
//! The work runs on tokio's blocking threads, as many at a time as there are cores. Long requests have half as many
//! places of their own, so that however many of them come, short ones do not wait behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use crate::error::RouterError;
use crate::threads;

/// Tokio has 512 of them for everybody.
const MOST_THREADS: usize = 256;

#[derive(Debug)]
pub struct Pool {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    long_bytes: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
}

impl Pool {
    /// `threads` of 0 means one per core.
    pub fn new(threads: usize, long_bytes: usize, max_waiting: usize) -> Self {
        let threads = if threads == 0 { threads::cores() } else { threads };
        Self {
            short: Arc::new(Semaphore::new(threads.min(MOST_THREADS))),
            long: Arc::new(Semaphore::new((threads / 2).clamp(1, MOST_THREADS))),
            long_bytes,
            waiting: AtomicUsize::new(0),
            max_waiting,
        }
    }

    pub fn is_long(&self, bytes: usize) -> bool {
        bytes >= self.long_bytes
    }

    /// Requests waiting for a thread.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Does some work for a request of that size.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RouterError> {
        let places = if self.is_long(bytes) { &self.long } else { &self.short };
        let place = match places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let waits = Waits::begin(self)?;
                let place = places.clone().acquire_owned().await.map_err(|_| RouterError::Internal)?;
                drop(waits);
                place
            }
        };
        // The place belongs to the work: whoever asked may leave before it is done.
        let placed = move || {
            let done = work();
            drop(place);
            done
        };
        tokio::task::spawn_blocking(placed).await.map_err(|error| {
            tracing::error!(%error, "a request's preparation failed");
            RouterError::Internal
        })
    }
}

/// One request that waits, counted until it does no more.
struct Waits<'a>(&'a Pool);

impl<'a> Waits<'a> {
    fn begin(pool: &'a Pool) -> Result<Self, RouterError> {
        if pool.waiting.fetch_add(1, Ordering::Relaxed) >= pool.max_waiting {
            pool.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(RouterError::Busy { what: "too many requests wait to be tokenized" });
        }
        Ok(Self(pool))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn long_requests_leave_room_for_short_ones_and_waiting_is_bounded() {
        let pool = Arc::new(Pool::new(2, 1000, 1));
        let (let_go, held) = mpsc::channel::<()>();
        let holding = pool.clone();
        let long = tokio::spawn(async move { holding.run(5000, move || held.recv().is_ok()).await });
        while pool.long.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let waits = pool.clone();
        let second = tokio::spawn(async move { waits.run(5000, || 2).await });
        while pool.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(pool.run(5000, || 3).await, Err(RouterError::Busy { .. })));
        assert_eq!(pool.run(10, || 4).await.unwrap(), 4, "short ones pass");
        let_go.send(()).unwrap();
        assert!(long.await.unwrap().unwrap());
        assert_eq!(second.await.unwrap().unwrap(), 2);
        assert_eq!(pool.waiting(), 0);
    }
}
