//! The index fed from NATS: any number of publishers, Dynamo's or our own bridges, each kept right by itself.
//!
//! A publisher's messages are numbered. Whoever is met in mid-stream, or has numbers missing, is asked for a
//! snapshot: our bridges answer, and the worker is whole again in one round trip. Nobody else does; then the worker
//! is forgotten and refilled by what it says from now on. While a snapshot is on its way, messages wait in a bounded
//! buffer and nothing is claimed about the worker. The [`Listener`] judges all that; here is the connection.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use kvlane_indexer::{BlockSize, Index};
use tokio::sync::{Semaphore, mpsc, watch};

use super::NatsError;
use super::listener::{Ask, Listener, Snapshot};
use super::parts::{Gathered, Parts};
use super::view::NatsView;
use crate::bridge::{SNAPSHOT_CHUNK, SNAPSHOT_NEXT};
use crate::dynamo::{RouterEvent, Subjects};
use crate::feed::FeedClock;

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
    /// Bytes of one snapshot that are gathered; a larger one is none.
    pub max_snapshot: usize,
    /// Snapshots that may be on their way at a time.
    pub max_asked: usize,
}

impl NatsFeedConfig {
    pub fn new(subjects: Subjects, block_size: BlockSize) -> Self {
        Self {
            subjects,
            block_size,
            max_publishers: 4096,
            max_waiting: 4096,
            snapshot_timeout: Duration::from_secs(10),
            max_snapshot: 256 << 20,
            max_asked: 8,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct NatsFeed {
    client: Client,
    subjects: Subjects,
    snapshot_timeout: Duration,
    max_snapshot: usize,
    turns: Arc<Semaphore>,
    connected: watch::Receiver<u64>,
    listener: Listener,
    snapshots: (mpsc::Sender<Snapshot>, mpsc::Receiver<Snapshot>),
}

/// How often announcements are looked through.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
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
            subjects: config.subjects.clone(),
            snapshot_timeout: config.snapshot_timeout,
            max_snapshot: config.max_snapshot,
            turns: Arc::new(Semaphore::new(config.max_asked)),
            connected,
            listener: Listener::new(config, index, clock),
            snapshots: mpsc::channel(SNAPSHOTS),
        }
    }

    pub fn view(&self) -> NatsView {
        self.listener.view()
    }

    /// Listens until the connection is closed for good.
    pub async fn run(mut self) -> Result<(), NatsError> {
        let mut subscriptions = Vec::new();
        for subject in self.subjects.all_events() {
            subscriptions.push(self.subscribe(subject).await?);
        }
        let mut events = select_all(subscriptions);
        let mut announcements = self.subscribe(self.subjects.announcements()).await?;
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        let mut connected = self.connected.clone();
        connected.mark_unchanged();
        let _ = self.client.publish(self.subjects.roll_call(), Bytes::new()).await;
        loop {
            tokio::select! {
                // An announcement is judged after the events that were sent before it.
                biased;
                Some(snapshot) = self.snapshots.1.recv() => self.listener.restore(snapshot),
                message = events.next() => match message {
                    Some(message) => self.listener.hear(message.payload),
                    None => return Ok(()),
                },
                Some(message) = announcements.next() => self.listener.announced(&message.payload),
                _ = housekeeping.tick() => {
                    self.listener.clean_up(self.client.connection_state() == State::Connected);
                }
                Ok(()) = connected.changed() => {
                    // Whoever was missed says so with the next announcement; this asks for it now. Nobody else will.
                    let _ = self.client.publish(self.subjects.roll_call(), Bytes::new()).await;
                    self.listener.distrust_strangers();
                }
            }
            for ask in self.listener.wanted() {
                self.ask(ask);
            }
        }
    }

    async fn subscribe(&self, subject: String) -> Result<async_nats::Subscriber, NatsError> {
        self.client.subscribe(subject).await.map_err(|error| NatsError::new("cannot subscribe", &error))
    }

    fn ask(&self, ask: Ask) {
        let (client, subject) = (self.client.clone(), self.subjects.snapshot(ask.publisher));
        let (results, patience) = (self.snapshots.0.clone(), self.snapshot_timeout);
        let (parts, turns) = (Parts::new(self.max_snapshot), self.turns.clone());
        tokio::spawn(async move {
            // After the server was away all of them are asked; each has its time from when it is its turn.
            let _turn = turns.acquire_owned().await;
            let asked = tokio::time::timeout(patience, snapshot(&client, subject, parts)).await;
            // The feed may have ended meanwhile.
            let _ = results.send(ask.answered(asked.ok().flatten())).await;
        });
    }
}

/// Asks for a snapshot and gathers its parts; none when nobody is there to answer, or it came wrong.
async fn snapshot(client: &Client, subject: String, mut parts: Parts) -> Option<(u64, Vec<RouterEvent>)> {
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await.ok()?;
    client.publish_with_reply(subject, inbox, Bytes::new()).await.ok()?;
    while let Some(part) = messages.next().await {
        if part.status == Some(StatusCode::NO_RESPONDERS) {
            return None;
        }
        match parts.take(part_of(&part)?, &part.payload) {
            Gathered::More => {}
            Gathered::Whole(next, events) => return Some((next, events)),
            Gathered::Wrong => return None,
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
