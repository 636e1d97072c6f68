//! What is heard over NATS, and what becomes of it: publishers and the workers they speak for, each kept right by
//! itself. No connection here: whoever has one passes on what comes and asks for the snapshots that are
//! [wanted](Listener::wanted).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use kvlane_indexer::{Index, WorkerId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::announcements::Announcement;
use super::subscriber::NatsFeedConfig;
use super::view::{NatsView, Shared};
use crate::dynamo::{Envelope, RouterEvent, decode_events, decode_json_event};
use crate::feed::{CopyRule, FeedClock, FeedHealth, FeedState, IndexTarget, Sink};

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
        since: Instant,
    },
    /// Its snapshot was asked for, under this number, and these came meanwhile.
    Waiting { attempt: u64, messages: VecDeque<Bytes> },
}

/// A snapshot that is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub publisher: u64,
    attempt: u64,
}

impl Ask {
    /// What came of it: the number of the first message that is not in it, and all that is held. None when nobody
    /// answers for this publisher.
    pub fn answered(self, answer: Option<(u64, Vec<RouterEvent>)>) -> Snapshot {
        Snapshot { ask: self, answer }
    }
}

/// What came of asking for a snapshot.
#[derive(Debug)]
pub struct Snapshot {
    ask: Ask,
    answer: Option<(u64, Vec<RouterEvent>)>,
}

/// A worker that nobody announces and that says nothing for this long is forgotten.
const STRANGER_EXPIRES: Duration = Duration::from_secs(600);
/// Between two tries to make a part of the truth whole.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Debug)]
pub struct Listener {
    config: NatsFeedConfig,
    index: Arc<Index>,
    clock: FeedClock,
    ranks: HashMap<WorkerId, Rank>,
    publishers: HashMap<u64, Publisher>,
    /// Snapshots asked for so far.
    asked: u64,
    /// Those nobody has seen to yet: no more than publishers.
    wanted: Vec<Ask>,
    shared: Arc<Mutex<Shared>>,
}

impl Listener {
    pub fn new(config: NatsFeedConfig, index: Arc<Index>, clock: FeedClock) -> Self {
        Self {
            config,
            index,
            clock,
            ranks: HashMap::new(),
            publishers: HashMap::new(),
            asked: 0,
            wanted: Vec::new(),
            shared: Arc::default(),
        }
    }

    pub fn view(&self) -> NatsView {
        NatsView(self.shared.clone())
    }

    /// Snapshots to be asked for since the last time.
    pub fn wanted(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.wanted)
    }

    /// Number of the publisher's message that is expected next; none while its snapshot is waited for, or nothing was
    /// heard of it.
    pub fn expected(&self, publisher: u64) -> Option<u64> {
        match self.publishers.get(&publisher)? {
            Publisher::Live { expected, .. } => Some(*expected),
            Publisher::Waiting { .. } => None,
        }
    }

    /// Workers that are gone take what was known of them along.
    pub fn clean_up(&mut self, connected: bool) {
        // Nobody can be heard while the server is away: that is not the workers' silence.
        if !connected {
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
        self.forget_publishers();
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

    /// Those that feed nobody here and that nobody announces: workers that others feed have such.
    fn forget_publishers(&mut self) {
        let mut used: HashSet<u64> = self.ranks.values().filter_map(|rank| rank.publisher).collect();
        used.extend(self.shared.lock().announcements.all().map(|announced| announced.publisher));
        self.publishers.retain(|publisher, state| {
            let old = |since: &Instant| since.elapsed() > STRANGER_EXPIRES;
            used.contains(publisher) || !matches!(state, Publisher::Live { since, .. } if old(since))
        });
        self.shared.lock().report.publishers = self.publishers.len();
    }

    fn feeds_any(&self, publisher: u64) -> bool {
        self.ranks.values().any(|rank| rank.publisher == Some(publisher))
    }

    /// Messages may have been lost, and these publishers never say which one is next.
    pub fn distrust_strangers(&mut self) {
        let announced: HashSet<WorkerId> =
            self.shared.lock().announcements.all().map(Announcement::worker).collect();
        for (_, rank) in self.ranks.iter_mut().filter(|(worker, _)| !announced.contains(*worker)) {
            rank.sink.forget();
            rank.sink.health().set_state(FeedState::Partial);
        }
    }

    fn undecodable(&self, error: &str) {
        let report = &mut self.shared.lock().report;
        report.undecodable += 1;
        report.last_error = Some(error.to_owned());
    }

    /// An announcement came.
    pub fn announced(&mut self, bytes: &[u8]) {
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
            } else if !self.feeds_any(publisher) {
                self.publishers.remove(&publisher);
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
            Some(Publisher::Live { expected, since, .. }) if *expected >= announcement.next_sequence => {
                // Its bridge can tell the rest; the last time it could not be reached.
                let live = |rank: &Rank| rank.sink.health().state() == FeedState::Live;
                if !self.ranks.get(&worker).is_some_and(live) && since.elapsed() > ASK_AGAIN {
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
        // How much of the new one is known is for its own messages to say.
        rank.sink.health().set_state(FeedState::Connecting);
        let old = std::mem::replace(&mut rank.publisher, publisher);
        if let Some(old) = old.filter(|old| !self.feeds_any(*old)) {
            self.publishers.remove(&old);
        }
        true
    }

    /// A message of any publisher came.
    pub fn hear(&mut self, bytes: Bytes) {
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
                self.publishers
                    .insert(publisher, Publisher::Live { expected: 1, whole: true, since: Instant::now() });
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
                self.not_taken(envelope.publisher);
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

    /// Something it said was left out: should its worker be ours later on, it has to be asked.
    fn not_taken(&mut self, publisher: u64) {
        if let Some(Publisher::Live { whole, .. }) = self.publishers.get_mut(&publisher) {
            *whole = false;
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

    /// Forgets a publisher's workers and wants to know what they hold. `message` is the first that waits for it.
    fn ask(&mut self, publisher: u64, message: Option<Bytes>) {
        for rank in self.ranks.values_mut().filter(|rank| rank.publisher == Some(publisher)) {
            rank.sink.forget();
            rank.last_event = None;
            rank.sink.health().set_state(FeedState::Repairing);
        }
        self.asked += 1;
        let attempt = self.asked;
        self.publishers
            .insert(publisher, Publisher::Waiting { attempt, messages: message.into_iter().collect() });
        self.shared.lock().report.publishers = self.publishers.len();
        self.wanted.retain(|ask| ask.publisher != publisher);
        self.wanted.push(Ask { publisher, attempt });
    }

    /// A snapshot came, or nobody answered: the publisher is live again either way.
    pub fn restore(&mut self, snapshot: Snapshot) {
        let Snapshot { ask: Ask { publisher, attempt }, answer } = snapshot;
        let messages = match self.publishers.get_mut(&publisher) {
            Some(Publisher::Waiting { attempt: current, messages }) if *current == attempt => {
                std::mem::take(messages)
            }
            // Started over meanwhile.
            _ => return,
        };
        let mut whole = answer.is_some();
        let expected = match answer {
            Some((next, events)) => {
                let mut fresh: HashSet<WorkerId> = HashSet::new();
                for event in events {
                    if !self.adopt(event.worker, Some(publisher)) {
                        whole = false;
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
        self.publishers.insert(publisher, Publisher::Live { expected, whole, since: Instant::now() });
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

#[cfg(test)]
mod tests {
    use kvlane_indexer::{BlockHash, BlockSize, IndexConfig, KvEvent, StoredBlock, Tier};

    use super::*;
    use crate::dynamo::{Scope, Subjects, encode_envelope, encode_events};

    fn message(worker: u64, publisher: u64, sequence: u64) -> Bytes {
        let block = StoredBlock { id: (100 * publisher + sequence).into(), hash: BlockHash(sequence) };
        let event = KvEvent::Stored { tier: Tier::Device, parent: None, blocks: vec![block] };
        let payload = encode_events(WorkerId::new(worker, 0), [(sequence + 1, &event)].into_iter());
        let envelope = Envelope { publisher, sequence, published_at_ms: 0, topic: "", payload: &payload };
        encode_envelope(&envelope).into()
    }

    fn announcement(worker_id: u64, publisher: u64, next_sequence: u64) -> Vec<u8> {
        let announcement = Announcement { worker_id, publisher, next_sequence, ..Announcement::default() };
        serde_json::to_vec(&announcement).unwrap()
    }

    fn listener() -> Listener {
        let scope = Scope { namespace: "n".to_owned(), component: "c".to_owned(), endpoint: "e".to_owned() };
        let config = NatsFeedConfig::new(Subjects::new(&scope), BlockSize::USUAL);
        let index = Arc::new(Index::new(IndexConfig::default()));
        Listener::new(config, index, FeedClock::starting(Duration::ZERO))
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_others_fed_is_asked_for_when_it_is_ours() {
        let mut listener = listener();
        let worker = WorkerId::new(1, 0);
        let state = |listener: &Listener| listener.view().health(worker).map(|health| health.state());
        listener.view().leave_alone(worker.instance, true);
        for sequence in 0..3 {
            listener.hear(message(1, 1, sequence));
        }
        assert_eq!(state(&listener), None);
        listener.view().leave_alone(worker.instance, false);
        tokio::time::advance(ASK_AGAIN * 2).await;
        listener.hear(message(1, 1, 3));
        assert_eq!(state(&listener), Some(FeedState::Partial), "what it said before was not taken");
        listener.announced(&announcement(1, 1, 4));
        let ask = listener.wanted()[0];
        listener.restore(ask.answered(Some((4, Vec::new()))));
        assert_eq!(state(&listener), Some(FeedState::Live));
        // Nobody announces it, nobody is fed by it, and in time it is nobody's.
        listener.view().leave_alone(worker.instance, true);
        listener.hear(message(1, 1, 4));
        tokio::time::advance(STRANGER_EXPIRES * 2).await;
        listener.clean_up(true);
        assert_eq!(listener.view().report().publishers, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_known_in_part_is_asked_again_however_often_others_are() {
        let mut listener = listener();
        listener.hear(message(1, 1, 5));
        let ask = listener.wanted()[0];
        listener.restore(ask.answered(None));
        assert_eq!(listener.expected(1), Some(6));
        let mut asked = Vec::new();
        for second in 0..40 {
            tokio::time::advance(Duration::from_secs(1)).await;
            // The other one has numbers missing all the time.
            listener.hear(message(2, 2, 10 + 2 * second));
            listener.announced(&announcement(1, 1, 6));
            for ask in listener.wanted() {
                asked.push(ask.publisher);
                listener.restore(ask.answered(None));
            }
        }
        assert!(asked.contains(&1), "{asked:?}");
        assert!(asked.iter().filter(|publisher| **publisher == 2).count() > 20, "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_bridge_whose_snapshot_did_not_come_is_known_in_part_and_asked_again() {
        let mut listener = listener();
        let worker = WorkerId::new(1, 0);
        listener.hear(message(1, 10, 0));
        let state = |listener: &Listener| listener.view().health(worker).map(|health| health.state());
        assert_eq!(state(&listener), Some(FeedState::Live));
        // Heard of before it was announced, in mid-stream, and its snapshot does not come.
        listener.hear(message(1, 11, 3));
        let ask = listener.wanted()[0];
        listener.restore(ask.answered(None));
        assert_eq!(state(&listener), Some(FeedState::Partial), "not all of it is known");
        listener.announced(&announcement(1, 11, 4));
        assert!(listener.wanted().is_empty());
        tokio::time::advance(ASK_AGAIN * 2).await;
        listener.announced(&announcement(1, 11, 4));
        let ask = listener.wanted()[0];
        listener.restore(ask.answered(Some((4, Vec::new()))));
        assert_eq!(state(&listener), Some(FeedState::Live));
    }
}
