//! Load in real time against an endpoint: conversations that resend their history, one after the other.
//!
//! A closed loop keeps a number of conversations going, an open loop starts them at moments drawn beforehand, whether the
//! last ones are over or not; both can be changed while they run. Whatever comes back is counted by one collector.

mod book;
mod collector;
mod course;
mod decisions;
mod metrics;
mod run_file;
mod self_check;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::book::Talk;
pub use self::book::{Book, Conversation, Listing, Opening};
use self::collector::{Active, ConversationRecord, Ended};
pub use self::collector::{Collector, Report, TurnRecord};
pub use self::course::{Course, Phase};
pub use self::decisions::{Decision, Decisions, DecisionsReport};
pub use self::metrics::exposition;
pub use self::run_file::{RUN_SCHEMA, Written};
pub use self::self_check::{LAG_LIMIT, SelfCheck, SelfReport};
pub use self::server::{Live, Shown, Status};
pub(crate) use self::server::{plain, routes};
use crate::arrivals::{Arrivals, Pattern, Ramp};
use crate::broker::{Broker, BrokerReport};
use crate::client::{Endpoint, Message, Question, Role};
use crate::workload::Workload;

/// A load that can be started.
#[derive(Debug)]
pub struct Load {
    pub endpoint: Endpoint,
    pub workload: Workload,
    /// Whether requests name their conversation.
    pub names_session: bool,
    /// Where decisions are looked up, when the router is ours.
    pub decisions: Option<Decisions>,
    pub seed: u64,
    pub collector: Arc<Collector>,
}

/// How much load there is, which can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Conversations at a time.
    Concurrency(usize),
    /// Conversations a second.
    Rate(f64),
}

/// More is a mistake.
const MOST_CONVERSATIONS: usize = 100_000;
const MOST_PER_SECOND: f64 = 1e5;

impl Level {
    pub fn validate(self) -> anyhow::Result<()> {
        match self {
            Self::Concurrency(count) => ensure!(
                (1..=MOST_CONVERSATIONS).contains(&count),
                "concurrency is {count}, expected 1 to {MOST_CONVERSATIONS}"
            ),
            Self::Rate(rate) => ensure!(
                rate > 0.0 && rate <= MOST_PER_SECOND,
                "rate is {rate}, expected more than 0, at most {MOST_PER_SECOND}"
            ),
        }
        Ok(())
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Concurrency(count) => write!(out, "{count} conversations at a time"),
            Self::Rate(rate) => write!(out, "{rate} conversations a second"),
        }
    }
}

/// Conversations that are wanted, and whether somebody said so since the load began.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    count: usize,
    by_hand: bool,
}

/// A load that runs. It ends when told, or when this is dropped.
#[derive(Debug)]
pub struct Running {
    load: Arc<Load>,
    control: Control,
    stop: CancellationToken,
    give_up: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Clone, Debug)]
enum Knob {
    Conversations(watch::Sender<Wanted>),
    Rate(watch::Sender<Rate>),
    /// A schedule is what it is.
    None,
}

/// A rate since a moment.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ramp: Ramp,
    since: Instant,
}

/// Changes a load that runs, from anywhere.
#[derive(Clone, Debug)]
pub struct Control {
    knob: Knob,
    changes: Arc<Mutex<Vec<Change>>>,
    began: Instant,
    fixed: bool,
}

/// What somebody changed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Seconds from when the load began.
    pub at_s: f64,
    pub level: Level,
}

/// Changes that are remembered.
const MOST_CHANGES: usize = 10_000;

impl Control {
    /// As much load as that from now on; conversations beyond it end with their turn.
    pub fn set(&self, level: Level) -> anyhow::Result<()> {
        level.validate()?;
        ensure!(!self.fixed, "this load is measured as it is, and cannot be changed");
        match (&self.knob, level) {
            (Knob::Conversations(count), Level::Concurrency(wanted)) => {
                count.send_replace(Wanted { count: wanted, by_hand: true });
            }
            (Knob::Rate(rate), Level::Rate(wanted)) => {
                rate.send_replace(Rate { ramp: Ramp::flat(wanted), since: Instant::now() });
            }
            (Knob::Conversations(_), Level::Rate(_)) => {
                bail!("this load keeps a number of conversations, expected a concurrency and no rate")
            }
            (Knob::Rate(_), Level::Concurrency(_)) => {
                bail!("this load begins conversations at a rate, expected a rate and no concurrency")
            }
            (Knob::None, _) => bail!("this load follows a schedule that cannot be changed"),
        }
        let mut changes = self.changes.lock();
        if changes.len() < MOST_CHANGES {
            changes.push(Change { at_s: self.began.elapsed().as_secs_f64(), level });
        }
        Ok(())
    }

    /// The same to look at only.
    pub fn fixed(&self) -> Self {
        Self { fixed: true, ..self.clone() }
    }

    pub fn is_fixed(&self) -> bool {
        self.fixed || matches!(self.knob, Knob::None)
    }

    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }

    /// What is wanted now; none of a schedule.
    pub fn level(&self) -> Option<Level> {
        match &self.knob {
            Knob::Conversations(count) => Some(Level::Concurrency(count.borrow().count)),
            Knob::Rate(rate) => {
                let Rate { ramp, since } = *rate.borrow();
                Some(Level::Rate(ramp.at(since.elapsed().as_secs_f64())))
            }
            Knob::None => None,
        }
    }
}

impl Running {
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    pub fn set(&self, level: Level) -> anyhow::Result<()> {
        self.control.set(level)
    }

    /// How often somebody else asked on, where somebody does.
    pub fn broker(&self) -> Option<BrokerReport> {
        self.load.workload.broker().map(Broker::report)
    }

    /// Waits until a schedule is through and all its answers are there; for ever with any other load.
    pub async fn over(&self) {
        match self.control.knob {
            Knob::None => self.tasks.wait().await,
            _ => std::future::pending().await,
        }
    }

    /// No more questions; those that were asked are waited for that long, then given up.
    pub async fn stop(self, patience: Duration) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            self.give_up.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.give_up.cancel();
    }
}

/// What the tasks of a load have in common.
#[derive(Clone)]
struct Shared {
    load: Arc<Load>,
    numbers: Arc<AtomicU64>,
    tasks: TaskTracker,
    /// A number that no other run has.
    run: u32,
    /// No more questions.
    stop: CancellationToken,
    /// No more answers either.
    give_up: CancellationToken,
}

impl Load {
    pub fn start(self, arrivals: Arrivals) -> Running {
        let (stop, give_up, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let shared = Shared {
            load: Arc::new(self),
            numbers: Arc::new(AtomicU64::new(0)),
            tasks: tasks.clone(),
            run: rand::random(),
            stop: stop.clone(),
            give_up: give_up.clone(),
        };
        let load = shared.load.clone();
        let knob = match arrivals {
            Arrivals::Closed(ramp) => {
                let first = Wanted { count: ramp.at(0.0) as usize, by_hand: false };
                let conversations = watch::Sender::new(first);
                tasks.spawn(keep(shared, conversations.subscribe()));
                if ramp.over_s > 0.0 {
                    tasks.spawn(climb(ramp, conversations.clone(), stop.clone()));
                }
                Knob::Conversations(conversations)
            }
            Arrivals::Open { rate, pattern, most } => {
                let rate = watch::Sender::new(Rate { ramp: rate, since: Instant::now() });
                tasks.spawn(arrive(shared, rate.subscribe(), pattern, most));
                Knob::Rate(rate)
            }
            Arrivals::Scheduled { moments, most } => {
                tasks.spawn(follow(shared, moments, most));
                tasks.close();
                Knob::None
            }
        };
        let control = Control { knob, changes: Arc::default(), began: Instant::now(), fixed: false };
        Running { load, control, stop, give_up, tasks }
    }

    /// One conversation from its first question to its last answer. An answer that fails ends it, and so does `goes_on`,
    /// asked before every question but the first. True when it did not fail.
    async fn converse(
        &self,
        seat: Seat,
        initial: bool,
        mut due: Instant,
        goes_on: impl Fn() -> bool,
    ) -> bool {
        let Seat { number, shared, active: _active } = seat;
        let mut random = StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let script = self.workload.script(number, initial, &mut random);
        // Told apart from those of other runs: routers remember conversations, and decisions are looked up by request.
        let session = format!("kvlane-load-{}-{:x}-{number}", self.seed, shared.run);
        let mut messages = script.messages;
        let mut conversation = ConversationRecord::new(script.turn);
        let book = self.collector.book();
        let talk = book.map(|book| book.begins(&script.topic, &session, script.turn, script.turns));
        let mut fine = true;
        for turn in script.turn..=script.turns {
            let request_id = format!("{session}-{turn}");
            if let (Some(talk), Some(question)) = (&talk, messages.last()) {
                talk.asks(turn, &request_id, &question.content);
            }
            let in_flight = self.collector.asks(due);
            let question = Question {
                messages: &messages,
                max_tokens: script.max_tokens,
                session: self.names_session.then_some(session.as_str()),
                request_id: &request_id,
                due,
                begun: Some(in_flight.begun()),
            };
            let answer = self.endpoint.ask(&question).await;
            drop(in_flight);
            fine = answer.measured.error.is_none();
            conversation.add(turn, &answer.measured);
            if let Some(talk) = &talk {
                let (worker, complaint) = (answer.worker.as_deref(), answer.complaint.as_deref());
                talk.answers(turn, &answer.measured, worker, complaint, &answer.text);
            }
            let last = turn == script.turns;
            let record = TurnRecord {
                at_s: 0.0,
                warm_up: false,
                conversation: number,
                topic: script.topic.clone(),
                turn,
                request_id: request_id.clone(),
                worker: answer.worker,
                measured: answer.measured,
                complaint: answer.complaint,
                decision: None,
            };
            shared.keep(record, talk.as_ref().map(Talk::id));
            conversation.ended = if !fine {
                Ended::Failed
            } else if last {
                Ended::Whole
            } else {
                Ended::CutShort
            };
            if !fine || last || !goes_on() {
                break;
            }
            let (next, think) =
                self.workload.next(&script.topic, &answer.text, &request_id, &mut random).await;
            messages.push(Message { role: Role::Assistant, content: answer.text });
            messages.push(Message { role: Role::User, content: next });
            due = Instant::now() + think;
            let thinks = shared.stop.run_until_cancelled(tokio::time::sleep_until(due));
            if thinks.await.is_none() || !goes_on() {
                break;
            }
        }
        if let Some(talk) = talk {
            talk.ends(conversation.ended);
        }
        self.collector.ends(conversation);
        fine
    }
}

/// What a conversation has while it goes on.
struct Seat {
    number: u64,
    shared: Shared,
    active: Active,
}

/// Raises or lowers the number of conversations along a ramp, until somebody else sets it.
async fn climb(ramp: Ramp, conversations: watch::Sender<Wanted>, stop: CancellationToken) {
    let begin = Instant::now();
    let mut over = false;
    while !over {
        if stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(100))).await.is_none() {
            return;
        }
        let elapsed = begin.elapsed().as_secs_f64();
        over = elapsed >= ramp.over_s;
        let count = ramp.at(elapsed).round() as usize;
        let ours = |wanted: &mut Wanted| {
            let moved = !wanted.by_hand && wanted.count != count;
            wanted.count = if moved { count } else { wanted.count };
            moved
        };
        conversations.send_if_modified(ours);
        over |= conversations.borrow().by_hand;
    }
}

/// The first ones begin within this time of each other, not all at once.
const SPREAD_MS: u64 = 2000;

/// Keeps as many conversations going as are wanted.
async fn keep(shared: Shared, mut wanted: watch::Receiver<Wanted>) {
    let mut started = 0;
    loop {
        let want = wanted.borrow_and_update().count;
        // Each place is one loop; those beyond what is wanted sleep.
        while started < want {
            let (shared, place, wanted) = (shared.clone(), started, wanted.clone());
            started += 1;
            shared.tasks.clone().spawn(sit(shared, place, wanted));
        }
        if shared.stop.run_until_cancelled(wanted.changed()).await.is_none_or(|changed| changed.is_err()) {
            return;
        }
    }
}

/// One conversation after the other, as long as the place is wanted.
async fn sit(shared: Shared, place: usize, mut wanted: watch::Receiver<Wanted>) {
    let Shared { load, stop, give_up, .. } = shared.clone();
    let spread = Duration::from_millis(place as u64 * 10 % SPREAD_MS);
    if stop.run_until_cancelled(tokio::time::sleep(spread)).await.is_none() {
        return;
    }
    let mut initial = true;
    while !stop.is_cancelled() {
        let seat = wanted.wait_for(|want| place < want.count);
        if stop.run_until_cancelled(seat).await.is_none_or(|seat| seat.is_err()) {
            return;
        }
        let goes_on = || place < wanted.borrow().count && !stop.is_cancelled();
        let converse = load.converse(shared.seat(), initial, Instant::now(), goes_on);
        match give_up.run_until_cancelled(converse).await {
            Some(true) => {}
            // An endpoint that fails at once is not to be hammered.
            Some(false) => tokio::time::sleep(AFTER_FAILURE).await,
            None => return,
        }
        initial = false;
    }
}

const AFTER_FAILURE: Duration = Duration::from_millis(200);

impl Shared {
    fn seat(&self) -> Seat {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        Seat { number, shared: self.clone(), active: self.load.collector.begins() }
    }

    /// Begins the next conversation, unless there are too many.
    fn begin(&self, due: Instant, most: usize) {
        if self.load.collector.active() >= most {
            self.numbers.fetch_add(1, Ordering::Relaxed);
            self.load.collector.passes_over();
            return;
        }
        let (seat, Self { load, stop, give_up, .. }) = (self.seat(), self.clone());
        self.tasks.spawn(async move {
            let converse = load.converse(seat, false, due, || !stop.is_cancelled());
            give_up.run_until_cancelled(converse).await;
        });
    }

    /// Counts a request that is over; with its decision, when it can be looked up. Nobody waits for that.
    fn keep(&self, record: TurnRecord, talk: Option<u64>) {
        let collector = self.load.collector.clone();
        let record = collector.take(record, Instant::now());
        let Some(decisions) = self.load.decisions.clone() else { return collector.keep(record) };
        let give_up = self.give_up.clone();
        self.tasks.spawn(async move {
            let decision = give_up.run_until_cancelled(decisions.of(&record.request_id)).await.flatten();
            let record = TurnRecord { decision, ..record };
            if let (Some(book), Some(talk), Some(decision)) = (collector.book(), talk, &record.decision) {
                book.decided(talk, record.turn, decision);
            }
            collector.decided(&record);
            collector.keep(record);
        });
    }
}

/// Begins conversations at moments that do not depend on how the last ones do.
async fn arrive(shared: Shared, mut rate: watch::Receiver<Rate>, pattern: Pattern, most: usize) {
    let mut random = StdRng::seed_from_u64(shared.load.seed);
    let mut at = Instant::now();
    loop {
        let mut owed = pattern.gap(&mut random);
        // Until it is due; a rate that changes in between moves it.
        loop {
            let Rate { ramp, since } = *rate.borrow_and_update();
            let from_s = at.saturating_duration_since(since).as_secs_f64();
            let due_s = ramp.when(from_s, owed).min(FAR_S);
            let due = since + Duration::from_secs_f64(due_s);
            // What is due comes before a change: none is lost.
            let changed = tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = tokio::time::sleep_until(due) => false,
                changed = rate.changed() => changed.is_ok(),
            };
            if !changed {
                at = due;
                break;
            }
            let now = Instant::now();
            owed = (owed - ramp.sum(from_s, now.saturating_duration_since(since).as_secs_f64())).max(0.0);
            at = now;
        }
        shared.begin(at, most);
    }
}

/// Later than any run.
const FAR_S: f64 = 1e8;

/// Begins conversations at moments that were written down.
async fn follow(shared: Shared, moments: Vec<Duration>, most: usize) {
    let begin = Instant::now();
    for moment in moments {
        let due = begin + moment;
        if shared.stop.run_until_cancelled(tokio::time::sleep_until(due)).await.is_none() {
            return;
        }
        shared.begin(due, most);
    }
}
