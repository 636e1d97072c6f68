//! The index fed from NATS: any number of publishers, Dynamo's or our own bridges, each kept right by itself.
//!
//! A publisher's messages are numbered. Whoever is met in mid-stream, or has numbers missing, is asked for a
//! snapshot: our bridges answer, and the worker is whole again in one round trip. Nobody else does; then the worker
//! is forgotten and refilled by what it says from now on. While a snapshot is on its way, messages wait in a bounded
//! buffer and nothing is claimed about the worker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use hashbrown::{HashMap, HashSet};
use kvlane_indexer::{BlockSize, Index, WorkerId};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::NatsError;
use super::announcements::{Announcement, Announcements};
use crate::bridge::{SNAPSHOT_CHUNK, SNAPSHOT_NEXT};
use crate::dynamo::{Envelope, RouterEvent, Subjects, decode_events, decode_json_event};
use crate::feed::{CopyRule, FeedClock, FeedHealth, FeedReport, FeedState, IndexTarget, Sink};

/// How a router listens.
#[derive(Clone, Debug)]
pub struct NatsFeedConfig {
    pub subjects: Subjects,
    pub block_size: BlockSize,
    /// Publishers remembered at a time; more are not listened to.
    pub max_publishers: usize,
    /// Messages of one publisher that may wait for its snapshot.
    pub max_waiting: usize,
    pub snapshot_timeout: Duration,
}

impl NatsFeedConfig {
    pub fn new(subjects: Subjects, block_size: BlockSize) -> Self {
        Self {
            subjects,
            block_size,
            max_publishers: 4096,
            max_waiting: 4096,
            snapshot_timeout: Duration::from_secs(10),
        }
    }
}

/// How listening goes, for people and for metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NatsReport {
    pub messages: u64,
    /// Messages that could not be read.
    pub undecodable: u64,
    pub last_error: Option<String>,
    /// Publishers heard of, and those beyond the bound.
    pub publishers: usize,
    pub too_many_publishers: u64,
    /// Workers that say something and were announced by nobody.
    pub unbound_workers: Vec<u64>,
    pub snapshots: u64,
    pub failed_snapshots: u64,
    /// Messages that waited for a snapshot in vain, there being too many.
    pub dropped_waiting: u64,
    pub workers: BTreeMap<String, FeedReport>,
}

/// What others may look at.
#[derive(Debug, Default)]
struct Shared {
    report: NatsReport,
    health: BTreeMap<WorkerId, Arc<FeedHealth>>,
    announcements: Announcements,
    /// Instances whose events come another way.
    left_alone: HashSet<u64>,
    /// Instances whose blocks are to be asked for anew.
    distrusted: HashSet<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct NatsFeed {
    client: Client,
    config: NatsFeedConfig,
    index: Arc<Index>,
    clock: FeedClock,
    connected: watch::Receiver<u64>,
    ranks: HashMap<WorkerId, Rank>,
    publishers: HashMap<u64, Publisher>,
    snapshots: (mpsc::Sender<Snapshot>, mpsc::Receiver<Snapshot>),
    /// Snapshots asked for so far, and when the last time.
    asked: u64,
    last_ask: Instant,
    shared: Arc<Mutex<Shared>>,
}

/// A view on a feed that runs.
#[derive(Clone, Debug)]
pub struct NatsView(Arc<Mutex<Shared>>);

impl NatsView {
    pub fn report(&self) -> NatsReport {
        let shared = self.0.lock();
        let mut report = shared.report.clone();
        let name = |worker: &WorkerId| format!("{}/{}", worker.instance, worker.dp_rank);
        report.workers =
            shared.health.iter().map(|(worker, health)| (name(worker), health.report())).collect();
        let bound: HashSet<u64> =
            shared.announcements.all().map(|announcement| announcement.worker_id).collect();
        let mut unbound: Vec<u64> = shared.health.keys().map(|worker| worker.instance).collect();
        unbound.retain(|worker| !bound.contains(worker));
        unbound.dedup();
        report.unbound_workers = unbound;
        report
    }

    pub fn health(&self, worker: WorkerId) -> Option<Arc<FeedHealth>> {
        self.0.lock().health.get(&worker).cloned()
    }

    /// The health of every rank of a worker.
    pub fn health_of(&self, instance: u64) -> Vec<Arc<FeedHealth>> {
        let (first, last) = (WorkerId::new(instance, 0), WorkerId::new(instance, u32::MAX));
        self.0.lock().health.range(first..=last).map(|(_, health)| health.clone()).collect()
    }

    /// The worker's events come another way, and two feeds must not write what one worker holds. Or they do not any more.
    pub fn leave_alone(&self, instance: u64, alone: bool) {
        let left_alone = &mut self.0.lock().left_alone;
        if alone {
            left_alone.insert(instance);
        } else {
            left_alone.remove(&instance);
        }
    }

    /// What is known of the worker is not to be believed: it is forgotten and asked for anew, soon.
    pub fn resync(&self, instance: u64) {
        self.0.lock().distrusted.insert(instance);
    }

    /// Workers announced by their bridges.
    pub fn announced(&self) -> Vec<Announcement> {
        self.0.lock().announcements.all().cloned().collect()
    }
}

#[derive(Debug)]
struct Rank {
    sink: Sink,
    /// Whose events it is fed by; none for the plain JSON of 0.9, which has no publishers.
    publisher: Option<u64>,
    /// The last event's number.
    last_event: Option<u64>,
    heard: Instant,
}

#[derive(Debug)]
enum Publisher {
    Live {
        expected: u64,
        /// Known from its beginning, or from a snapshot.
        whole: bool,
    },
    /// Its snapshot was asked for, under this number, and these came meanwhile.
    Waiting { attempt: u64, messages: VecDeque<Bytes> },
}

/// What came of asking for a snapshot.
#[derive(Debug)]
struct Snapshot {
    publisher: u64,
    attempt: u64,
    /// None when nobody answers for this publisher.
    answer: Option<(u64, Vec<RouterEvent>)>,
}

/// How often announcements are looked through.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// A worker that nobody announces and that says nothing for this long is forgotten.
const STRANGER_EXPIRES: Duration = Duration::from_secs(600);
/// Between two tries to make a part of the truth whole.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Snapshots on their way back; more wait at their senders.
const SNAPSHOTS: usize = 16;

impl NatsFeed {
    pub fn new(
        client: Client,
        connected: watch::Receiver<u64>,
        config: NatsFeedConfig,
        index: Arc<Index>,
        clock: FeedClock,
    ) -> Self {
        Self {
            client,
            config,
            index,
            clock,
            connected,
            ranks: HashMap::new(),
            publishers: HashMap::new(),
            snapshots: mpsc::channel(SNAPSHOTS),
            asked: 0,
            last_ask: Instant::now(),
            shared: Arc::default(),
        }
    }

    pub fn view(&self) -> NatsView {
        NatsView(self.shared.clone())
    }

    /// Listens until the connection is closed for good.
    pub async fn run(mut self) -> Result<(), NatsError> {
        let mut subscriptions = Vec::new();
        for subject in self.config.subjects.all_events() {
            subscriptions.push(self.subscribe(subject).await?);
        }
        let mut events = select_all(subscriptions);
        let mut announcements = self.subscribe(self.config.subjects.announcements()).await?;
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        let mut connected = self.connected.clone();
        connected.mark_unchanged();
        let _ = self.client.publish(self.config.subjects.roll_call(), Bytes::new()).await;
        loop {
            tokio::select! {
                // An announcement is judged after the events that were sent before it.
                biased;
                Some(snapshot) = self.snapshots.1.recv() => self.restore(snapshot),
                message = events.next() => match message {
                    Some(message) => self.hear(message.payload),
                    None => return Ok(()),
                },
                Some(message) = announcements.next() => self.announced(&message.payload),
                _ = housekeeping.tick() => self.clean_up(),
                Ok(()) = connected.changed() => {
                    // Whoever was missed says so with the next announcement; this asks for it now. Nobody else will.
                    let _ = self.client.publish(self.config.subjects.roll_call(), Bytes::new()).await;
                    self.distrust_strangers();
                }
            }
        }
    }

    /// Workers that are gone take what was known of them along.
    fn clean_up(&mut self) {
        // Nobody can be heard while the server is away: that is not the workers' silence.
        if self.client.connection_state() != State::Connected {
            self.shared.lock().announcements.postpone();
            return;
        }
        let mut gone = self.shared.lock().announcements.expire();
        gone.iter()
            .for_each(|worker| tracing::warn!(worker = worker.instance, "worker is not announced any more"));
        let announced: HashSet<WorkerId> =
            self.shared.lock().announcements.all().map(Announcement::worker).collect();
        let silent = |rank: &Rank| rank.heard.elapsed() > STRANGER_EXPIRES;
        let strangers =
            self.ranks.iter().filter(|(worker, rank)| !announced.contains(*worker) && silent(rank));
        gone.extend(strangers.map(|(worker, _)| *worker));
        gone.iter().for_each(|worker| self.dismiss(*worker));
        let distrusted = std::mem::take(&mut self.shared.lock().distrusted);
        distrusted.iter().for_each(|instance| self.distrust(*instance));
    }

    /// Forgets what a worker holds; its publisher is asked, where it has one.
    fn distrust(&mut self, instance: u64) {
        let mut publishers: HashSet<u64> = HashSet::new();
        for (_, rank) in self.ranks.iter_mut().filter(|(worker, _)| worker.instance == instance) {
            rank.sink.forget();
            rank.sink.health().set_state(FeedState::Partial);
            publishers.extend(rank.publisher);
        }
        publishers.iter().for_each(|publisher| self.ask(*publisher, None));
    }

    fn dismiss(&mut self, worker: WorkerId) {
        let Some(rank) = self.ranks.remove(&worker) else { return };
        self.index.forget(worker);
        if let Some(publisher) = rank.publisher.filter(|publisher| !self.feeds_any(*publisher)) {
            self.publishers.remove(&publisher);
        }
        let mut shared = self.shared.lock();
        shared.health.remove(&worker);
        shared.report.publishers = self.publishers.len();
    }

    fn feeds_any(&self, publisher: u64) -> bool {
        self.ranks.values().any(|rank| rank.publisher == Some(publisher))
    }

    /// Messages may have been lost, and these publishers never say which one is next.
    fn distrust_strangers(&mut self) {
        let announced: HashSet<WorkerId> =
            self.shared.lock().announcements.all().map(Announcement::worker).collect();
        for (_, rank) in self.ranks.iter_mut().filter(|(worker, _)| !announced.contains(*worker)) {
            rank.sink.forget();
            rank.sink.health().set_state(FeedState::Partial);
        }
    }

    async fn subscribe(&self, subject: String) -> Result<async_nats::Subscriber, NatsError> {
        self.client.subscribe(subject).await.map_err(|error| NatsError::new("cannot subscribe", &error))
    }

    fn undecodable(&self, error: &str) {
        let report = &mut self.shared.lock().report;
        report.undecodable += 1;
        report.last_error = Some(error.to_owned());
    }

    fn announced(&mut self, bytes: &[u8]) {
        let announcement: Announcement = match serde_json::from_slice(bytes) {
            Ok(announcement) => announcement,
            Err(error) => return self.undecodable(&format!("announcement: {error}")),
        };
        if self.shared.lock().announcements.hear(&announcement) {
            let Announcement { url, model, leaving, .. } = &announcement;
            tracing::info!(worker = announcement.worker_id, url, model, leaving, "worker announced");
        }
        let (worker, publisher) = (announcement.worker(), announcement.publisher);
        if announcement.leaving {
            if self.ranks.get(&worker).is_some_and(|rank| rank.publisher == Some(publisher)) {
                self.dismiss(worker);
            }
            return;
        }
        if !self.adopt(worker, Some(publisher)) {
            return;
        }
        match self.publishers.get(&publisher) {
            // Nothing said yet, nothing missed.
            None if announcement.next_sequence == 0 => {
                if let Some(rank) = self.ranks.get(&worker) {
                    rank.sink.health().set_state(FeedState::Live);
                }
            }
            Some(Publisher::Waiting { .. }) => {}
            Some(Publisher::Live { expected, .. }) if *expected >= announcement.next_sequence => {
                // Its bridge can tell the rest; the last time it could not be reached.
                let partial = |rank: &Rank| rank.sink.health().state() == FeedState::Partial;
                if self.ranks.get(&worker).is_some_and(partial) && self.last_ask.elapsed() > ASK_AGAIN {
                    self.ask(publisher, None);
                }
            }
            Some(Publisher::Live { .. }) => {
                self.note_gap(publisher);
                self.ask(publisher, None);
            }
            None => self.ask(publisher, None),
        }
    }

    fn note_gap(&self, publisher: u64) {
        self.ranks
            .values()
            .filter(|rank| rank.publisher == Some(publisher))
            .for_each(|rank| rank.sink.health().gap());
    }

    /// The rank is this publisher's from now on. Another one than before means that its bridge or its engine
    /// started over.
    /// False when there are too many ranks already.
    fn adopt(&mut self, worker: WorkerId, publisher: Option<u64>) -> bool {
        if self.shared.lock().left_alone.contains(&worker.instance) {
            // Whoever feeds it now has made a fresh start.
            if self.ranks.remove(&worker).is_some() {
                self.shared.lock().health.remove(&worker);
            }
            return false;
        }
        if !self.ranks.contains_key(&worker) {
            if self.ranks.len() >= self.config.max_publishers {
                self.shared.lock().report.too_many_publishers += 1;
                return false;
            }
            let health = Arc::new(FeedHealth::new(worker));
            self.shared.lock().health.insert(worker, health.clone());
            let target = Box::new(IndexTarget::new(self.index.clone(), worker));
            let sink = Sink::new(target, self.config.block_size, CopyRule::Once, self.clock, health);
            self.ranks.insert(worker, Rank { sink, publisher, last_event: None, heard: Instant::now() });
        }
        let Some(rank) = self.ranks.get_mut(&worker) else { return false };
        rank.heard = Instant::now();
        if rank.publisher == publisher {
            return true;
        }
        rank.sink.health().restart();
        rank.sink.forget();
        rank.last_event = None;
        let old = std::mem::replace(&mut rank.publisher, publisher);
        if let Some(old) = old.filter(|old| !self.feeds_any(*old)) {
            self.publishers.remove(&old);
        }
        true
    }

    fn hear(&mut self, bytes: Bytes) {
        self.shared.lock().report.messages += 1;
        if bytes.first() == Some(&b'{') {
            return self.hear_json(&bytes);
        }
        let envelope = match Envelope::decode(&bytes) {
            Ok(envelope) => envelope,
            Err(error) => return self.undecodable(&error.to_string()),
        };
        let (publisher, sequence) = (envelope.publisher, envelope.sequence);
        let full = self.publishers.len() >= self.config.max_publishers;
        match self.publishers.get_mut(&publisher) {
            Some(Publisher::Waiting { messages, .. }) => {
                if messages.len() >= self.config.max_waiting {
                    // The numbers missing then start another repair.
                    self.shared.lock().report.dropped_waiting += messages.len() as u64;
                    messages.clear();
                }
                messages.push_back(bytes);
            }
            Some(Publisher::Live { expected, .. }) if sequence == *expected => {
                *expected = expected.saturating_add(1);
                self.take(&bytes);
            }
            Some(Publisher::Live { expected, .. }) if sequence < *expected => {
                let of = |rank: &&Rank| rank.publisher == Some(publisher);
                self.ranks.values().filter(of).for_each(|rank| rank.sink.health().duplicate());
            }
            Some(Publisher::Live { .. }) => {
                self.note_gap(publisher);
                self.ask(publisher, Some(bytes));
            }
            None if full => {
                self.shared.lock().report.too_many_publishers += 1;
            }
            None if sequence == 0 => {
                self.publishers.insert(publisher, Publisher::Live { expected: 1, whole: true });
                self.shared.lock().report.publishers = self.publishers.len();
                self.take(&bytes);
            }
            // Met in mid-stream.
            None => self.ask(publisher, Some(bytes)),
        }
    }

    /// Applies a message whose turn it is.
    fn take(&mut self, bytes: &[u8]) {
        let events =
            Envelope::decode(bytes).and_then(|envelope| Ok((envelope, decode_events(envelope.payload)?)));
        let (envelope, events) = match events {
            Ok(decoded) => decoded,
            Err(error) => {
                // Whatever it said is lost, and with it what is known of its workers.
                self.undecodable(&error.to_string());
                if let Ok(Envelope { publisher, .. }) = Envelope::decode(bytes) {
                    self.ask(publisher, None);
                }
                return;
            }
        };
        let seconds = envelope.published_at_ms as f64 / 1e3;
        let mut heard: Option<WorkerId> = None;
        let whole =
            matches!(self.publishers.get(&envelope.publisher), Some(Publisher::Live { whole: true, .. }));
        for event in events {
            if !self.adopt(event.worker, Some(envelope.publisher)) {
                continue;
            }
            let Some(rank) = self.ranks.get_mut(&event.worker) else { continue };
            if heard.replace(event.worker) != Some(event.worker) {
                rank.sink.heard(seconds, 0);
                if rank.sink.health().state() == FeedState::Connecting {
                    rank.sink.health().set_state(if whole { FeedState::Live } else { FeedState::Partial });
                }
            }
            // Messages in order can still lack events, when their publisher lost some before numbering messages.
            let last = rank.last_event.replace(event.event_id);
            if last.is_some_and(|last| event.event_id > last.saturating_add(1)) {
                rank.sink.health().gap();
                rank.sink.forget();
                rank.sink.health().set_state(FeedState::Partial);
            }
            if let Some(event) = event.event {
                rank.sink.apply_event(event);
            }
        }
    }

    /// The plain JSON of 0.9: no envelope, events numbered, all of one batch alike.
    fn hear_json(&mut self, bytes: &[u8]) {
        let Some(RouterEvent { worker, event_id, event }) = decode_json_event(bytes) else {
            return self.undecodable("JSON that is no router event");
        };
        if !self.adopt(worker, None) {
            return;
        }
        let Some(rank) = self.ranks.get_mut(&worker) else { return };
        let health = rank.sink.health().clone();
        match rank.last_event.replace(event_id) {
            Some(last) if event_id == last || event_id == last.saturating_add(1) => {}
            // From its beginning on.
            None if event_id <= 1 => health.set_state(FeedState::Live),
            last => {
                match last {
                    Some(last) if event_id < last => health.restart(),
                    Some(_) => health.gap(),
                    None => {}
                }
                rank.sink.forget();
                health.set_state(FeedState::Partial);
            }
        }
        rank.sink.heard(self.clock.seconds(), 0);
        if let Some(event) = event {
            rank.sink.apply_event(event);
        }
    }

    /// Forgets a publisher's workers and asks for what they hold. `message` is the first that waits for it.
    fn ask(&mut self, publisher: u64, message: Option<Bytes>) {
        for rank in self.ranks.values_mut().filter(|rank| rank.publisher == Some(publisher)) {
            rank.sink.forget();
            rank.last_event = None;
            rank.sink.health().set_state(FeedState::Repairing);
        }
        self.asked += 1;
        self.last_ask = Instant::now();
        let attempt = self.asked;
        self.publishers
            .insert(publisher, Publisher::Waiting { attempt, messages: message.into_iter().collect() });
        self.shared.lock().report.publishers = self.publishers.len();
        let (client, subject) = (self.client.clone(), self.config.subjects.snapshot(publisher));
        let (results, patience) = (self.snapshots.0.clone(), self.config.snapshot_timeout);
        tokio::spawn(async move {
            let asked = tokio::time::timeout(patience, snapshot(&client, subject)).await;
            let answer = asked.ok().flatten();
            // The feed may have ended meanwhile.
            let _ = results.send(Snapshot { publisher, attempt, answer }).await;
        });
    }

    /// A snapshot came, or nobody answered: the publisher is live again either way.
    fn restore(&mut self, snapshot: Snapshot) {
        let Snapshot { publisher, attempt, answer } = snapshot;
        let messages = match self.publishers.get_mut(&publisher) {
            Some(Publisher::Waiting { attempt: current, messages }) if *current == attempt => {
                std::mem::take(messages)
            }
            // Started over meanwhile.
            _ => return,
        };
        let whole = answer.is_some();
        let expected = match answer {
            Some((next, events)) => {
                let mut fresh: HashSet<WorkerId> = HashSet::new();
                for event in events {
                    if !self.adopt(event.worker, Some(publisher)) {
                        continue;
                    }
                    let Some(rank) = self.ranks.get_mut(&event.worker) else { continue };
                    if fresh.insert(event.worker) {
                        rank.sink.forget();
                    }
                    if let Some(event) = event.event {
                        rank.sink.apply_event(event);
                    }
                }
                next
            }
            // From the first that waits; with none waiting, from whichever comes.
            None => match messages.front().map(|bytes| Envelope::decode(bytes)) {
                Some(Ok(envelope)) => envelope.sequence,
                _ => {
                    self.publishers.remove(&publisher);
                    return self.note_snapshot(publisher, false);
                }
            },
        };
        self.publishers.insert(publisher, Publisher::Live { expected, whole });
        self.note_snapshot(publisher, whole);
        for bytes in messages {
            self.hear(bytes);
        }
    }

    fn note_snapshot(&self, publisher: u64, whole: bool) {
        let report = &mut self.shared.lock().report;
        if whole {
            report.snapshots += 1;
        } else {
            report.failed_snapshots += 1;
        }
        for rank in self.ranks.values().filter(|rank| rank.publisher == Some(publisher)) {
            rank.sink.health().replayed(whole);
            rank.sink.health().set_state(if whole { FeedState::Live } else { FeedState::Partial });
        }
    }
}

/// Messages without a server.
#[cfg(fuzzing)]
impl NatsFeed {
    pub fn hear_event(&mut self, message: &[u8]) {
        self.hear(Bytes::copy_from_slice(message));
    }

    pub fn hear_announcement(&mut self, message: &[u8]) {
        self.announced(message);
    }

    /// Answers the last question that was asked, or lets it go unanswered.
    pub fn answer_snapshot(&mut self, publisher: u64, next: u64, payload: Option<&[u8]>) {
        let answer = payload.and_then(|payload| Some((next, decode_events(payload).ok()?)));
        self.restore(Snapshot { publisher, attempt: self.asked, answer });
    }
}

/// Asks for a snapshot and gathers its parts; none when nobody is there to answer, or it came wrong.
async fn snapshot(client: &Client, subject: String) -> Option<(u64, Vec<RouterEvent>)> {
    let inbox = client.new_inbox();
    let mut parts = client.subscribe(inbox.clone()).await.ok()?;
    client.publish_with_reply(subject, inbox, Bytes::new()).await.ok()?;
    let mut events = Vec::new();
    let mut expected = 1;
    while let Some(part) = parts.next().await {
        if part.status == Some(StatusCode::NO_RESPONDERS) {
            return None;
        }
        let (next, at, of) = part_of(&part)?;
        if at != expected {
            return None;
        }
        events.extend(decode_events(&part.payload).ok()?);
        expected += 1;
        if at == of {
            return Some((next, events));
        }
    }
    None
}

/// The number after the snapshot, which part this is, and of how many.
fn part_of(message: &Message) -> Option<(u64, usize, usize)> {
    let headers = message.headers.as_ref()?;
    let next = headers.get(SNAPSHOT_NEXT)?.as_str().parse().ok()?;
    let (at, of) = headers.get(SNAPSHOT_CHUNK)?.as_str().split_once('/')?;
    Some((next, at.parse().ok()?, of.parse().ok()?))
}
