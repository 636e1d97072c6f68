//! Everything that came back, counted: all together, by turn, by worker, by conversation, and the last minute.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::book::Book;
use super::decisions::{Decision, DecisionsReport};
use crate::measure::{
    ErrorClass, Figures, Measured, Objective, Quantiles, Recent, Summary, Times, WindowSummary,
};
use crate::results::{LevelFigures, TurnFigures};
use crate::statistics::percentile;

/// One answered (or failed) question.
#[derive(Clone, Debug, Serialize)]
pub struct TurnRecord {
    /// Seconds from when the load began until it was over.
    pub at_s: f64,
    /// Before anything is counted.
    pub warm_up: bool,
    pub conversation: u64,
    pub topic: Arc<str>,
    /// From 1 on.
    pub turn: usize,
    pub request_id: String,
    pub worker: Option<String>,
    #[serde(flatten)]
    pub measured: Measured,
    pub complaint: Option<String>,
    /// Why it went where it went, where the router tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// A conversation that is over.
#[derive(Clone, Debug)]
pub(super) struct ConversationRecord {
    first_turn: usize,
    began: Instant,
    answered: usize,
    pub(super) ended: Ended,
    first_ttft_s: Option<f64>,
    later_ttfts_s: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Whole,
    CutShort,
    Failed,
}

impl ConversationRecord {
    pub(super) fn new(first_turn: usize) -> Self {
        let (began, ended, later_ttfts_s) = (Instant::now(), Ended::CutShort, Vec::new());
        Self { first_turn, began, answered: 0, ended, first_ttft_s: None, later_ttfts_s }
    }

    pub(super) fn add(&mut self, turn: usize, measured: &Measured) {
        self.answered += 1;
        if turn == 1 {
            self.first_ttft_s = measured.ttft_s;
        } else {
            self.later_ttfts_s.extend(measured.ttft_s);
        }
    }
}

/// What conversations came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConversationsReport {
    pub active: usize,
    /// From their first turn to their last, ended by a failure, ended because fewer were wanted (or begun in the middle),
    /// and not begun because there were too many.
    pub completed: u64,
    pub failed: u64,
    pub cut_short: u64,
    pub passed_over: u64,
    pub turns_mean: f64,
    pub seconds: Quantiles,
    /// Share of those with several turns whose later first tokens came sooner (by their median) than the first one.
    pub later_turns_faster_share: Option<f64>,
}

/// Requests that were not over when the report was made. They are in no other figure but goodput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unfinished {
    pub requests: u64,
    /// Of these, without a first token, and past the objective for it.
    pub late: u64,
    pub oldest_s: f64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub objective: Objective,
    pub all: Summary,
    pub unfinished: Unfinished,
    pub by_turn: BTreeMap<usize, Summary>,
    pub by_worker: BTreeMap<String, Summary>,
    pub conversations: ConversationsReport,
    /// What went wrong, in the endpoint's words, and how often.
    pub complaints: BTreeMap<String, u64>,
    pub decisions: Option<DecisionsReport>,
    /// Requests whose own figures could not be written in time.
    pub records_dropped: u64,
}

/// Values the window holds at most, workers and complaints that are told apart, turns that are looked at.
const MOST_VALUES: usize = 200_000;
const MOST_WORKERS: usize = 256;
const MOST_TURNS: usize = 64;
const MOST_COMPLAINTS: usize = 64;
const MOST_LATEST: usize = 500;
/// Live figures are of this long.
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Collector {
    objective: Objective,
    /// Conversations that are going on.
    active: AtomicUsize,
    /// Questions that are being answered.
    asked: Mutex<HashMap<u64, Arc<Asked>>>,
    next: AtomicU64,
    created: Instant,
    warming_up: AtomicBool,
    /// Since this collector began, for counters that only grow.
    totals: Totals,
    /// Where every request's own figures go.
    records: Mutex<Option<SyncSender<TurnRecord>>>,
    /// Where conversations are kept to be read.
    book: Option<Arc<Book>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Totals {
    requests: AtomicU64,
    output_tokens: AtomicU64,
    passed_over: AtomicU64,
    errors: [AtomicU64; ErrorClass::ALL.len()],
}

#[derive(Debug)]
struct Inner {
    since: Instant,
    all: Figures,
    by_turn: BTreeMap<usize, Figures>,
    by_worker: BTreeMap<String, Figures>,
    conversations: ConversationsReport,
    conversation_seconds: Times,
    /// Conversations with several turns, and how many of them were faster later.
    several: (u64, u64),
    passed_over_before: u64,
    recent: Recent,
    latest: VecDeque<TurnRecord>,
    records_dropped: u64,
    complaints: BTreeMap<String, u64>,
    decisions: DecisionsReport,
}

/// A conversation that is going on.
#[derive(Debug)]
pub(super) struct Active(Arc<Collector>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Asked {
    due: Instant,
    begun: AtomicBool,
}

/// A question that is being answered.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    collector: &'a Collector,
    number: u64,
    asked: Arc<Asked>,
}

impl InFlight<'_> {
    pub(super) fn begun(&self) -> &AtomicBool {
        &self.asked.begun
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.collector.asked.lock().remove(&self.number);
    }
}

impl Inner {
    fn new(recent: Recent) -> Self {
        Self {
            since: Instant::now(),
            all: Figures::default(),
            by_turn: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            conversations: ConversationsReport::default(),
            conversation_seconds: Times::default(),
            several: (0, 0),
            passed_over_before: 0,
            recent,
            latest: VecDeque::new(),
            records_dropped: 0,
            complaints: BTreeMap::new(),
            decisions: DecisionsReport::default(),
        }
    }
}

impl Collector {
    /// Live figures are of the last minute; `look_back` is the longest that [`Self::last`] is asked for.
    pub fn new(objective: Objective, look_back: Duration) -> Arc<Self> {
        Arc::new(Self::build(objective, look_back, None))
    }

    /// The same, what is said is kept in a book, and every request's own figures go to `records`: what it does not take
    /// at once is dropped and counted.
    pub fn keeping(
        objective: Objective,
        look_back: Duration,
        records: Option<SyncSender<TurnRecord>>,
        book: Option<Arc<Book>>,
    ) -> Arc<Self> {
        Arc::new(Self { book, ..Self::build(objective, look_back, records) })
    }

    pub(super) fn book(&self) -> Option<&Arc<Book>> {
        self.book.as_ref()
    }

    fn build(objective: Objective, look_back: Duration, records: Option<SyncSender<TurnRecord>>) -> Self {
        Self {
            objective,
            active: AtomicUsize::new(0),
            asked: Mutex::default(),
            next: AtomicU64::new(0),
            created: Instant::now(),
            warming_up: AtomicBool::new(false),
            totals: Totals::default(),
            records: Mutex::new(records),
            book: None,
            inner: Mutex::new(Inner::new(Recent::new(look_back.max(MINUTE), MOST_VALUES))),
        }
    }

    pub(super) fn begins(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(self.clone())
    }

    pub(super) fn asks(&self, due: Instant) -> InFlight<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let asked = Arc::new(Asked { due, begun: AtomicBool::new(false) });
        self.asked.lock().insert(number, asked.clone());
        InFlight { collector: self, number, asked }
    }

    fn unfinished(&self) -> Unfinished {
        let asked = self.asked.lock();
        let age = |of: &Arc<Asked>| of.due.elapsed().as_secs_f64();
        let late = |of: &&Arc<Asked>| !of.begun.load(Ordering::Relaxed) && age(of) > self.objective.ttft_s;
        Unfinished {
            requests: asked.len() as u64,
            late: asked.values().filter(late).count() as u64,
            oldest_s: asked.values().map(age).fold(0.0, f64::max),
        }
    }

    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn passes_over(&self) {
        self.totals.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was over then, and gives it back with what is known of when that was.
    pub fn take(&self, mut record: TurnRecord, now: Instant) -> TurnRecord {
        let measured = &record.measured;
        self.totals.requests.fetch_add(1, Ordering::Relaxed);
        self.totals.output_tokens.fetch_add(measured.output_tokens, Ordering::Relaxed);
        if let Some(class) = measured.error {
            self.totals.errors[class as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut inner = self.inner.lock();
        record.at_s = now.saturating_duration_since(self.created).as_secs_f64();
        record.warm_up = self.warming_up.load(Ordering::Relaxed);
        inner.all.add(measured, &self.objective);
        let turn = record.turn.min(MOST_TURNS);
        inner.by_turn.entry(turn).or_default().add(measured, &self.objective);
        if let Some(worker) = &record.worker
            && (inner.by_worker.contains_key(worker) || inner.by_worker.len() < MOST_WORKERS)
        {
            inner.by_worker.entry(worker.clone()).or_default().add(measured, &self.objective);
        }
        inner.recent.add(measured, &self.objective, now);
        if let Some(complaint) = &record.complaint
            && (inner.complaints.contains_key(complaint) || inner.complaints.len() < MOST_COMPLAINTS)
        {
            *inner.complaints.entry(complaint.clone()).or_default() += 1;
        }
        // They are in the histograms, and they are most of a record.
        record.measured.gaps_s = Vec::new();
        record
    }

    /// A request's decision was looked up.
    pub(super) fn decided(&self, record: &TurnRecord) {
        if !record.warm_up {
            self.inner.lock().decisions.add(record.decision.as_ref(), &record.measured);
        }
    }

    /// Keeps a request to be looked at, and passes it on to whoever takes them all.
    pub fn keep(&self, record: TurnRecord) {
        let mut inner = self.inner.lock();
        if let Some(records) = &*self.records.lock()
            && records.try_send(record.clone()).is_err()
        {
            inner.records_dropped += 1;
        }
        if inner.latest.len() >= MOST_LATEST {
            inner.latest.pop_front();
        }
        inner.latest.push_back(record);
    }

    /// No more records are passed on; whoever takes them can finish.
    pub fn close_records(&self) {
        self.records.lock().take();
    }

    pub(super) fn ends(&self, conversation: ConversationRecord) {
        let ConversationRecord { first_turn, began, answered, ended, first_ttft_s, mut later_ttfts_s } =
            conversation;
        let mut inner = self.inner.lock();
        let of = &mut inner.conversations;
        match ended {
            Ended::Failed => of.failed += 1,
            Ended::Whole if first_turn == 1 => {
                of.completed += 1;
                of.turns_mean += (answered as f64 - of.turns_mean) / of.completed as f64;
                inner.conversation_seconds.add(began.elapsed().as_secs_f64());
            }
            Ended::Whole | Ended::CutShort => of.cut_short += 1,
        }
        if let Some(first) = first_ttft_s.filter(|_| !later_ttfts_s.is_empty()) {
            inner.several.0 += 1;
            inner.several.1 += u64::from(percentile(&mut later_ttfts_s, 0.5) < first);
        }
    }

    /// What comes from here on does not count, until [`Self::reset`].
    pub(super) fn warms_up(&self) {
        self.warming_up.store(true, Ordering::Relaxed);
    }

    /// Counts from here on: what came before was warming up. Live figures go on.
    pub fn reset(&self) {
        let mut inner = self.inner.lock();
        self.warming_up.store(false, Ordering::Relaxed);
        let recent = std::mem::replace(&mut inner.recent, Recent::new(MINUTE, 1));
        let passed_over = self.totals.passed_over.load(Ordering::Relaxed);
        *inner = Inner { passed_over_before: passed_over, ..Inner::new(recent) };
    }

    pub fn report(&self) -> Report {
        let unfinished = self.unfinished();
        let inner = self.inner.lock();
        let seconds = inner.since.elapsed().as_secs_f64();
        let (several, faster) = inner.several;
        let mut all = inner.all.summary(seconds);
        all.goodput_share *= all.requests as f64 / (all.requests + unfinished.late).max(1) as f64;
        Report {
            objective: self.objective,
            all,
            unfinished,
            by_turn: inner.by_turn.iter().map(|(turn, of)| (*turn, of.summary(seconds))).collect(),
            by_worker: inner.by_worker.iter().map(|(name, of)| (name.clone(), of.summary(seconds))).collect(),
            conversations: ConversationsReport {
                active: self.active(),
                passed_over: self.totals.passed_over.load(Ordering::Relaxed) - inner.passed_over_before,
                seconds: inner.conversation_seconds.quantiles(),
                later_turns_faster_share: (several > 0).then(|| faster as f64 / several as f64),
                ..inner.conversations.clone()
            },
            complaints: inner.complaints.clone(),
            decisions: (inner.decisions.joined + inner.decisions.missed > 0).then(|| inner.decisions.clone()),
            records_dropped: inner.records_dropped,
        }
    }

    /// Since counting began, as a sweep keeps it.
    pub fn level(&self) -> (LevelFigures, Vec<TurnFigures>) {
        let inner = self.inner.lock();
        let seconds = inner.since.elapsed().as_secs_f64();
        let mut again = Figures::default();
        inner.by_turn.iter().filter(|(turn, _)| **turn > 1).for_each(|(_, of)| again.merge(of));
        let again = again.level(seconds);
        let all = LevelFigures {
            ttft_again_p50_ms: again.ttft_p50_ms,
            ttft_again_p95_ms: again.ttft_p95_ms,
            ..inner.all.level(seconds)
        };
        (all, inner.by_turn.iter().map(|(turn, of)| of.turn(*turn, seconds)).collect())
    }

    /// Figures of the last so long, and of nothing before counting began.
    pub fn last(&self, span: Duration) -> LevelFigures {
        let inner = self.inner.lock();
        inner.recent.figures(span.min(inner.since.elapsed()), Instant::now())
    }

    /// What is shown live: the last minute, whether it counts or not.
    pub fn live(&self) -> LevelFigures {
        let span = MINUTE.min(self.created.elapsed());
        self.inner.lock().recent.figures(span, Instant::now())
    }

    /// Requests that are over and counted, and how many of them failed.
    pub fn counted(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.all.requests(), inner.all.failed())
    }

    /// Figures of the last so long, whether they count or not, and the median and 95th percentile of the time per token in
    /// milliseconds.
    pub fn seen(&self, span: Duration) -> (LevelFigures, [Option<f64>; 2]) {
        let (span, now) = (span.min(self.created.elapsed()), Instant::now());
        let inner = self.inner.lock();
        let (_, tpot) = inner.recent.summaries(&[0.5, 0.95], span, now);
        let ms = |at: usize| tpot.quantiles.get(at).and_then(|(_, seconds)| Some((*seconds)? * 1e3));
        (inner.recent.figures(span, now), [ms(0), ms(1)])
    }

    /// First tokens and times per token of the last minute.
    pub fn last_minute(&self, shares: &[f64]) -> (WindowSummary, WindowSummary) {
        self.inner.lock().recent.summaries(shares, MINUTE, Instant::now())
    }

    /// Since this collector began: requests, output tokens, conversations passed over, errors by class.
    pub(crate) fn totals(&self) -> (u64, u64, u64, [(ErrorClass, u64); ErrorClass::ALL.len()]) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let errors = ErrorClass::ALL.map(|class| (class, of(&self.totals.errors[class as usize])));
        (of(&self.totals.requests), of(&self.totals.output_tokens), of(&self.totals.passed_over), errors)
    }

    /// The latest requests, oldest first.
    pub fn latest(&self) -> Vec<TurnRecord> {
        self.inner.lock().latest.iter().cloned().collect()
    }
}
