//! The bridge's NATS side: messages out, snapshots on request, its worker announced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use kvlane_indexer::{KvEvent, WorkerId};
use tokio::sync::watch;

use super::outbox::{Message as OutMessage, Outbox, in_messages};
use crate::dynamo::{Envelope, Subjects, encode_envelope, encode_events};
use crate::feed::FeedClock;
use crate::nats::{Announcement, NatsError};

/// Headers of a snapshot's messages: the number of the first message that is not in it, and which of how many
/// parts this is.
pub const SNAPSHOT_NEXT: &str = "kvlane-next-sequence";
pub const SNAPSHOT_CHUNK: &str = "kvlane-part";

/// How often a worker is announced.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Most blocks in one message, and bytes a block takes there.
const MOST_BLOCKS: usize = 8192;
const BLOCK_BYTES: usize = 80;
const TOPIC: &str = "kv-events";
/// Tells the publisher of load from that of events.
const METRICS_PUBLISHER: u64 = 1 << 52;

/// Publishes one worker until it is told to stop.
#[derive(Debug)]
pub struct BridgePublisher {
    pub client: Client,
    pub subjects: Subjects,
    pub worker: WorkerId,
    /// Counts connections; a new one may have lost messages.
    pub connected: watch::Receiver<u64>,
    pub outbox: Arc<Outbox>,
    pub clock: FeedClock,
    /// What is said of the worker; looked at before each heartbeat.
    pub announcement: watch::Receiver<Announcement>,
    /// Messages about load so far.
    pub loads: AtomicU64,
}

impl BridgePublisher {
    /// Runs until the announcement's sender is gone, and says goodbye.
    pub async fn run(self) -> Result<(), NatsError> {
        let publisher = self.announcement.borrow().publisher;
        let mut snapshots = self.subscribe(self.subjects.snapshot(publisher)).await?;
        let mut roll_calls = self.subscribe(self.subjects.roll_call()).await?;
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        let mut connected = self.connected.clone();
        let mut announcement = self.announcement.clone();
        loop {
            let max_blocks = self.max_blocks();
            tokio::select! {
                message = self.outbox.next(max_blocks) => self.send(publisher, &message).await,
                Some(request) = snapshots.next() => self.answer(&request, max_blocks).await,
                Some(_) = roll_calls.next() => self.announce(false).await,
                _ = heartbeat.tick() => self.announce(false).await,
                // Says which number comes next, so that whoever missed some notices.
                Ok(()) = connected.changed() => self.announce(false).await,
                changed = announcement.changed() => match changed {
                    Ok(()) => self.announce(false).await,
                    Err(_) => break,
                },
            }
        }
        // What the engine's end left to say comes first.
        while !self.outbox.is_drained() {
            let message = self.outbox.next(self.max_blocks()).await;
            self.send(publisher, &message).await;
        }
        self.announce(true).await;
        self.client.flush().await.map_err(|error| NatsError::new("cannot flush", &error))
    }

    async fn send(&self, publisher: u64, message: &OutMessage) {
        let published_at_ms = (self.clock.seconds() * 1e3) as u64;
        self.publish(self.subjects.events(), message_bytes(self.worker, publisher, published_at_ms, message))
            .await;
    }

    async fn subscribe(&self, subject: String) -> Result<Subscriber, NatsError> {
        self.client.subscribe(subject).await.map_err(|error| NatsError::new("cannot subscribe", &error))
    }

    fn max_blocks(&self) -> usize {
        (self.client.max_payload().saturating_sub(4096) / BLOCK_BYTES).clamp(1, MOST_BLOCKS)
    }

    async fn publish(&self, subject: String, bytes: Vec<u8>) {
        if let Err(error) = self.client.publish(subject, bytes.into()).await {
            tracing::warn!(%error, "message not published");
        }
    }

    async fn announce(&self, leaving: bool) {
        let mut announcement = self.announcement.borrow().clone();
        announcement.next_sequence = self.outbox.next_sequence();
        announcement.held_blocks = self.outbox.blocks();
        announcement.leaving = leaving;
        match serde_json::to_vec(&announcement) {
            Ok(bytes) => self.publish(self.subjects.announcements(), bytes).await,
            Err(error) => tracing::warn!(%error, "worker not announced"),
        }
        if let Some(used) = announcement.used_blocks {
            self.publish(self.subjects.metrics(), self.load(announcement.publisher, used)).await;
        }
    }

    /// Dynamo's `kv_metrics`.
    fn load(&self, publisher: u64, used_blocks: u64) -> Vec<u8> {
        let mut payload = rmp::encode::ByteBuf::new();
        let to = &mut payload;
        // Writing into memory cannot fail.
        let _ = rmp::encode::write_map_len(to, 3);
        for (field, value) in [
            ("worker_id", self.worker.instance),
            ("dp_rank", u64::from(self.worker.dp_rank)),
            ("kv_used_blocks", used_blocks),
        ] {
            let _ = (rmp::encode::write_str(to, field), rmp::encode::write_uint(to, value));
        }
        encode_envelope(&Envelope {
            // Numbered by itself, so under a name of its own.
            publisher: publisher ^ METRICS_PUBLISHER,
            sequence: self.loads.fetch_add(1, Ordering::Relaxed),
            published_at_ms: (self.clock.seconds() * 1e3) as u64,
            topic: "kv_metrics",
            payload: payload.as_slice(),
        })
    }

    /// Sends everything the worker holds, in parts.
    async fn answer(&self, request: &Message, max_blocks: usize) {
        let Some(reply) = request.reply.clone() else { return };
        let (next, parts) = snapshot_parts(self.worker, &self.outbox, max_blocks);
        tracing::info!(parts = parts.len(), next, "snapshot asked for");
        let of = parts.len();
        for (at, payload) in parts.into_iter().enumerate() {
            let mut headers = HeaderMap::new();
            headers.insert(SNAPSHOT_NEXT, next.to_string());
            headers.insert(SNAPSHOT_CHUNK, format!("{}/{of}", at + 1));
            let sent = self.client.publish_with_headers(reply.clone(), headers, Bytes::from(payload)).await;
            if let Err(error) = sent {
                tracing::warn!(%error, "snapshot not sent");
                return;
            }
        }
    }
}

/// A message as it is published.
pub fn message_bytes(
    worker: WorkerId,
    publisher: u64,
    published_at_ms: u64,
    message: &OutMessage,
) -> Vec<u8> {
    let events: Vec<(u64, &KvEvent)> = (message.first_event_id..).zip(&message.events).collect();
    let payload = encode_events(worker, events.into_iter());
    let (sequence, topic) = (message.sequence, TOPIC);
    encode_envelope(&Envelope { publisher, sequence, published_at_ms, topic, payload: &payload })
}

/// Everything the worker holds, in parts of at most so many blocks, and the number of the first message that is not in
/// them.
pub fn snapshot_parts(worker: WorkerId, outbox: &Outbox, max_blocks: usize) -> (u64, Vec<Vec<u8>>) {
    let (next, events) = outbox.snapshot();
    let part = |events: &Vec<KvEvent>| {
        let events: Vec<(u64, &KvEvent)> = events.iter().map(|event| (0, event)).collect();
        encode_events(worker, events.into_iter())
    };
    (next, in_messages(events, max_blocks).iter().map(part).collect())
}
