//! How a feed is doing, for people and for metrics.

use std::time::Duration;

use kvlane_indexer::{Applied, KvEvent, WorkerId};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::translate::LeftOut;

/// Where a feed stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedState {
    /// The source cannot be reached (yet). Nothing is known of the worker's cache.
    #[default]
    Connecting,
    /// Track was lost; the worker was forgotten and what it holds is being asked for.
    Repairing,
    /// Events come in order.
    Live,
    /// In order from now on, but what came before could not be had: some of what the worker holds is not known.
    Partial,
    /// The feed was given up for a reason that will not pass by itself.
    Refused,
}

/// Upper bounds of the lag histogram, in milliseconds; one more bucket holds the rest.
pub const LAG_BOUNDS_MS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 500.0, 1000.0, 5000.0];

/// Everything counted since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FeedReport {
    pub state: FeedState,
    pub batches: u64,
    pub stored_events: u64,
    pub removed_events: u64,
    pub cleared_events: u64,
    pub stored_blocks: u64,
    pub removed_blocks: u64,
    /// Stored blocks dropped because their parent is not known.
    pub orphaned_blocks: u64,
    /// Removed blocks that were not known.
    pub unknown_blocks: u64,
    /// Events of a kind not known here.
    pub unknown_events: u64,
    /// Events the index refused because they contradict themselves.
    pub refused_events: u64,
    pub left_out: LeftOut,
    pub duplicates: u64,
    pub gaps: u64,
    pub restarts: u64,
    /// Times the past was asked for and had.
    pub replays: u64,
    pub failed_replays: u64,
    pub decode_errors: u64,
    pub disconnects: u64,
    /// From an event's making to its being applied.
    pub lag_ms_buckets: [u64; LAG_BOUNDS_MS.len() + 1],
    pub lag_ms_sum: f64,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
    /// The worker serves and says nothing of its cache.
    pub silent: bool,
}

/// A worker that has served for this long without a word about its cache is silent.
const SILENT_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Noted {
    report: FeedReport,
    /// When it first served without having said anything since.
    served_since: Option<Instant>,
}

/// One feed's health. The feed writes, anyone reads.
#[derive(Debug)]
pub struct FeedHealth {
    pub worker: WorkerId,
    noted: Mutex<Noted>,
}

impl FeedHealth {
    pub fn new(worker: WorkerId) -> Self {
        Self { worker, noted: Mutex::new(Noted { report: FeedReport::default(), served_since: None }) }
    }

    pub fn report(&self) -> FeedReport {
        self.noted.lock().report.clone()
    }

    pub fn state(&self) -> FeedState {
        self.noted.lock().report.state
    }

    fn note(&self, change: impl FnOnce(&mut FeedReport)) {
        change(&mut self.noted.lock().report);
    }

    pub(crate) fn set_state(&self, state: FeedState) {
        let before = std::mem::replace(&mut self.noted.lock().report.state, state);
        if before != state {
            tracing::info!(worker = self.worker.instance, rank = self.worker.dp_rank, ?before, now = ?state, "KV event feed");
        }
    }

    pub(crate) fn batch(&self, lag_ms: f64, unknown_events: u64) {
        let lag_ms = lag_ms.max(0.0);
        let mut noted = self.noted.lock();
        noted.served_since = None;
        let report = &mut noted.report;
        report.silent = false;
        report.batches += 1;
        report.unknown_events += unknown_events;
        let bucket = LAG_BOUNDS_MS.iter().position(|bound| lag_ms <= *bound).unwrap_or(LAG_BOUNDS_MS.len());
        report.lag_ms_buckets[bucket] += 1;
        report.lag_ms_sum += lag_ms;
    }

    pub(crate) fn applied(&self, event: &KvEvent, applied: Applied) {
        self.note(|report| {
            match event {
                KvEvent::Stored { .. } => report.stored_events += 1,
                KvEvent::Removed { .. } => report.removed_events += 1,
                KvEvent::Cleared { .. } => report.cleared_events += 1,
            }
            report.stored_blocks += applied.stored as u64;
            report.removed_blocks += applied.removed as u64;
            report.orphaned_blocks += applied.orphaned as u64;
            report.unknown_blocks += applied.unknown as u64;
        });
    }

    pub(crate) fn left_out(&self, left_out: LeftOut) {
        self.note(|report| report.left_out = left_out);
    }

    pub(crate) fn refused(&self, error: &str) {
        self.note(|report| {
            report.refused_events += 1;
            report.last_error = Some(error.to_owned());
        });
    }

    pub(crate) fn duplicate(&self) {
        self.note(|report| report.duplicates += 1);
    }

    pub(crate) fn gap(&self) {
        self.note(|report| report.gaps += 1);
    }

    pub(crate) fn restart(&self) {
        self.note(|report| report.restarts += 1);
    }

    pub(crate) fn replayed(&self, whole: bool) {
        self.note(|report| if whole { report.replays += 1 } else { report.failed_replays += 1 });
    }

    pub(crate) fn disconnected(&self) {
        self.note(|report| report.disconnects += 1);
    }

    pub(crate) fn undecodable(&self, error: &str) {
        self.note(|report| {
            report.decode_errors += 1;
            report.last_error = Some(error.to_owned());
        });
    }

    pub(crate) fn failed(&self, error: &str) {
        self.note(|report| report.last_error = Some(error.to_owned()));
    }

    /// The worker answered a request long enough to be cached. If it goes on like that without a word, its
    /// events are switched off or go elsewhere.
    pub fn served(&self) {
        self.noted.lock().served_since.get_or_insert_with(Instant::now);
    }

    /// Looks whether the worker has become silent, and says so once.
    pub fn check_silence(&self) -> bool {
        let mut noted = self.noted.lock();
        let silent = noted.served_since.is_some_and(|since| since.elapsed() >= SILENT_AFTER);
        if silent && !std::mem::replace(&mut noted.report.silent, true) {
            tracing::warn!(
                worker = self.worker.instance,
                rank = self.worker.dp_rank,
                "worker serves but publishes no KV events; is publishing switched on, and to where?"
            );
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_serves_without_a_word_is_noticed() {
        let health = FeedHealth::new(WorkerId::new(1, 0));
        tokio::time::advance(SILENT_AFTER * 2).await;
        assert!(!health.check_silence(), "nobody asked it anything");
        health.served();
        tokio::time::advance(SILENT_AFTER / 2).await;
        assert!(!health.check_silence());
        tokio::time::advance(SILENT_AFTER / 2).await;
        assert!(health.check_silence() && health.report().silent);
        health.batch(3.0, 0);
        assert!(!health.check_silence() && !health.report().silent);
        assert_eq!(health.report().lag_ms_buckets[2], 1);
    }
}
