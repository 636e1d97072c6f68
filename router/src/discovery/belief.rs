//! How far the index is believed about one worker: as far as its answers bear it out.
//!
//! Written by whoever sees an answer's usage, and by the worker's watcher, which builds anew what is suspect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::scheduling::{Answered, Cause, OverlapAudit, Verdict};

/// Between two times the index is built anew for one worker; doubled each time it did not help.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Belief {
    /// Bits of a number: the share of what the index says that is believed.
    trust: AtomicU64,
    /// Counts how often everything was learnt again.
    epoch: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    audit: OverlapAudit,
    suspect: Option<Cause>,
    /// It holds more than is known; said once.
    unseen: Option<Cause>,
    wants_resync: bool,
    resyncs: u64,
    /// When the next one may be, and how long the pause after that is.
    next: Option<Instant>,
    pause: Duration,
}

/// For people and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BeliefReport {
    pub trust: f64,
    pub suspect: Option<&'static str>,
    pub unseen: Option<&'static str>,
    pub resyncs: u64,
}

impl Default for Belief {
    fn default() -> Self {
        Self { trust: AtomicU64::new(1.0_f64.to_bits()), epoch: AtomicU64::new(0), inner: Mutex::default() }
    }
}

impl Belief {
    pub fn trust(&self) -> f64 {
        f64::from_bits(self.trust.load(Ordering::Relaxed))
    }

    /// To be remembered with a placement: what the index said then is of this epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// An answer of this worker, placed in an epoch, told what was cached.
    pub fn answered(&self, worker: &str, epoch: u64, answer: Answered) {
        let mut inner = self.inner.lock();
        if epoch != self.epoch() {
            return;
        }
        let Some(verdict) = inner.audit.observe(answer) else { return };
        match verdict {
            Verdict::Suspect { trust, cause } => {
                self.trust.store(trust.to_bits(), Ordering::Relaxed);
                inner.wants_resync = cause.resync_helps();
                if inner.suspect.replace(cause) != Some(cause) {
                    tracing::warn!(
                        worker,
                        cause = cause.name(),
                        trust,
                        "worker has less cached than the index says, which is believed that far from now on; {}",
                        cause.advice()
                    );
                }
            }
            Verdict::Unseen(cause) => {
                if inner.unseen.replace(cause) != Some(cause) {
                    tracing::warn!(worker, cause = cause.name(), "hits go unseen: {}", cause.advice());
                }
            }
            Verdict::Agrees => {
                self.trust.store(1.0_f64.to_bits(), Ordering::Relaxed);
                inner.wants_resync = false;
                inner.pause = Duration::ZERO;
                let (suspect, unseen) = (inner.suspect.take(), inner.unseen.take());
                if suspect.is_some() || unseen.is_some() {
                    tracing::info!(worker, "index and worker agree again");
                }
            }
        }
    }

    /// True when what is known of the worker is to be built anew now.
    pub fn takes_resync(&self) -> bool {
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        if !inner.wants_resync || inner.next.is_some_and(|next| now < next) {
            return false;
        }
        inner.pause = (inner.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        inner.next = Some(now + inner.pause);
        inner.wants_resync = false;
        inner.resyncs += 1;
        inner.audit = OverlapAudit::default();
        // What is learnt again is believed again, until it proves wrong again.
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.trust.store(1.0_f64.to_bits(), Ordering::Relaxed);
        true
    }

    /// It is another process: nothing of all this is its own.
    pub fn forget(&self) {
        let mut inner = self.inner.lock();
        *inner = Inner { resyncs: inner.resyncs, ..Inner::default() };
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.trust.store(1.0_f64.to_bits(), Ordering::Relaxed);
    }

    pub fn report(&self) -> BeliefReport {
        let inner = self.inner.lock();
        BeliefReport {
            trust: self.trust(),
            suspect: inner.suspect.map(Cause::name),
            unseen: inner.unseen.map(Cause::name),
            resyncs: inner.resyncs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_suspect_is_built_anew_but_not_over_and_over() {
        let belief = Belief::default();
        let answers = |reported: usize| {
            let answer =
                Answered { predicted: 640, reported, prompt_here: 700, prompt_there: 700, block: 32 };
            (0..32).for_each(|_| belief.answered("w", belief.epoch(), answer));
        };
        answers(640);
        assert!(!belief.takes_resync() && belief.trust() == 1.0);
        answers(320);
        assert_eq!(
            belief.report(),
            BeliefReport { trust: 0.5, suspect: Some("events"), unseen: None, resyncs: 0 }
        );
        assert!(belief.takes_resync() && !belief.takes_resync());
        assert_eq!(belief.trust(), 1.0);
        answers(320);
        assert!(!belief.takes_resync(), "it was just built anew");
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(belief.takes_resync());
        answers(320);
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(!belief.takes_resync(), "it did not help twice");
        answers(640);
        assert_eq!(belief.report(), BeliefReport { trust: 1.0, suspect: None, unseen: None, resyncs: 2 });
        // Answers from before do not count any more, and neither do those of another process.
        let stale = belief.epoch();
        belief.forget();
        let wrong = Answered { predicted: 640, reported: 0, prompt_here: 700, prompt_there: 700, block: 32 };
        (0..64).for_each(|_| belief.answered("w", stale, wrong));
        assert_eq!(belief.trust(), 1.0);
        // What building it anew cannot mend is only believed less.
        (0..32).for_each(|_| belief.answered("w", belief.epoch(), wrong));
        assert_eq!(
            (belief.trust(), belief.report().suspect, belief.takes_resync()),
            (0.0, Some("no_caching"), false)
        );
    }
}
