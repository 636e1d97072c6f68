//! Everything that came back, counted: all together, by turn, by worker, and the last minute.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::measure::{Figures, Measured, Objective, Summary, Window, WindowSummary};

/// One answered (or failed) question.
#[derive(Clone, Debug, Serialize)]
pub struct TurnRecord {
    pub conversation: u64,
    pub topic: String,
    /// From 1 on.
    pub turn: usize,
    pub request_id: String,
    pub worker: Option<String>,
    #[serde(flatten)]
    pub measured: Measured,
    pub complaint: Option<String>,
}

/// Values the window holds at most, and records that are kept to look at.
const MOST_VALUES: usize = 200_000;
const MOST_RECORDS: usize = 100_000;
const MOST_WORKERS: usize = 1024;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Collector {
    objective: Objective,
    /// Conversations that are going on.
    active: AtomicUsize,
    /// Those that were not begun because there were too many.
    passed_over: AtomicU64,
    failing: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    since: Instant,
    all: Figures,
    by_turn: BTreeMap<usize, Figures>,
    by_worker: BTreeMap<String, Figures>,
    ttft: Window,
    tpot: Window,
    records: VecDeque<TurnRecord>,
    records_dropped: u64,
    complaints: BTreeMap<String, u64>,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub objective: Objective,
    pub all: Summary,
    pub by_turn: BTreeMap<usize, Summary>,
    pub by_worker: BTreeMap<String, Summary>,
    pub conversations_active: usize,
    pub conversations_passed_over: u64,
    /// What went wrong, in the endpoint's words, and how often.
    pub complaints: BTreeMap<String, u64>,
    pub records_dropped: u64,
}

/// A conversation that is going on.
#[derive(Debug)]
pub(super) struct Active<'a>(&'a Collector);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            all: Figures::default(),
            by_turn: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            ttft: Window::new(WINDOW, MOST_VALUES),
            tpot: Window::new(WINDOW, MOST_VALUES),
            records: VecDeque::new(),
            records_dropped: 0,
            complaints: BTreeMap::new(),
        }
    }
}

impl Collector {
    pub fn new(objective: Objective) -> Arc<Self> {
        Arc::new(Self {
            objective,
            active: AtomicUsize::new(0),
            passed_over: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
        })
    }

    pub(super) fn begins(&self) -> Active<'_> {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(self)
    }

    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn passes_over(&self) {
        self.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// A moment's rest where the last answer was a failure.
    pub(super) async fn pause_after_failure(&self) {
        if self.failing.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub fn take(&self, record: TurnRecord) {
        let now = Instant::now();
        self.failing.store(record.measured.error.is_some(), Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let measured = &record.measured;
        inner.all.add(measured, &self.objective);
        inner.by_turn.entry(record.turn).or_default().add(measured, &self.objective);
        if let Some(worker) = &record.worker
            && (inner.by_worker.contains_key(worker) || inner.by_worker.len() < MOST_WORKERS)
        {
            inner.by_worker.entry(worker.clone()).or_default().add(measured, &self.objective);
        }
        measured.ttft_s.into_iter().for_each(|ttft| inner.ttft.add(ttft, now));
        measured.tpot_s.into_iter().for_each(|tpot| inner.tpot.add(tpot, now));
        if let Some(complaint) = &record.complaint
            && (inner.complaints.contains_key(complaint) || inner.complaints.len() < 64)
        {
            *inner.complaints.entry(complaint.clone()).or_default() += 1;
        }
        if inner.records.len() >= MOST_RECORDS {
            inner.records.pop_front();
            inner.records_dropped += 1;
        }
        inner.records.push_back(record);
    }

    /// Counts from here on: what came before was warming up.
    pub fn reset(&self) {
        let mut inner = self.inner.lock();
        let fresh = Inner::new();
        let old = std::mem::replace(&mut *inner, fresh);
        // The live view goes on.
        (inner.ttft, inner.tpot) = (old.ttft, old.tpot);
    }

    pub fn report(&self) -> Report {
        let inner = self.inner.lock();
        let seconds = inner.since.elapsed().as_secs_f64();
        Report {
            objective: self.objective,
            all: inner.all.summary(seconds),
            by_turn: inner.by_turn.iter().map(|(turn, of)| (*turn, of.summary(seconds))).collect(),
            by_worker: inner.by_worker.iter().map(|(name, of)| (name.clone(), of.summary(seconds))).collect(),
            conversations_active: self.active(),
            conversations_passed_over: self.passed_over.load(Ordering::Relaxed),
            complaints: inner.complaints.clone(),
            records_dropped: inner.records_dropped,
        }
    }

    /// First tokens and times per token of the last minute.
    pub fn last_minute(&self, shares: &[f64]) -> (WindowSummary, WindowSummary) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        (inner.ttft.summary(shares, now), inner.tpot.summary(shares, now))
    }

    pub fn records(&self) -> Vec<TurnRecord> {
        self.inner.lock().records.iter().cloned().collect()
    }
}
