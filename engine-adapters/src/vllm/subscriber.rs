//! Listening to one engine's KV events over ZeroMQ, straight from vLLM or SGLang.
//!
//! The feed keeps itself right. It asks for what the engine has buffered before it listens, and again whenever
//! numbers are missing or have started over; before that it forgets the worker, so that at no time more is
//! claimed than the events heard since can prove. A connection that breaks counts as an engine that may have
//! died: forgotten at once, asked again when it is back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use kvlane_indexer::{BlockSize, WorkerId};
use tokio::sync::Notify;
use zeromq::{
    DealerSocket, Socket, SocketEvent, SocketOptions, SocketRecv, SocketSend, SubSocket, ZmqMessage,
};

use super::decode;
use crate::cursor::{EventCursor, Verdict};
use crate::feed::{CopyRule, FeedClock, FeedHealth, FeedState, Sink, Target};
use crate::translate::WrongBlockSize;

/// Whose events these are. The bytes are read alike; what differs is whether copies are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    #[default]
    Vllm,
    Sglang,
}

impl Dialect {
    fn copies(self) -> CopyRule {
        match self {
            Self::Vllm => CopyRule::Counted,
            Self::Sglang => CopyRule::Once,
        }
    }
}

/// One engine's (one data-parallel rank's) event sockets.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub worker: WorkerId,
    /// `tcp://host:port` to connect to, or `tcp://*:port` to bind and let the engine come.
    pub events: String,
    pub replay: Option<String>,
    /// Messages are taken whose topic begins so.
    pub topic: String,
    pub dialect: Dialect,
    pub block_size: BlockSize,
    /// How long one answer of the replay socket may take.
    pub replay_timeout: Duration,
}

impl Subscription {
    pub fn new(worker: WorkerId, events: impl Into<String>, block_size: BlockSize) -> Self {
        Self {
            worker,
            events: events.into(),
            replay: None,
            topic: String::new(),
            dialect: Dialect::default(),
            block_size,
            replay_timeout: Duration::from_secs(5),
        }
    }

    /// The address to bind, when the engine is to come here: vLLM's own rule, the other way round.
    fn bind_address(&self) -> Option<String> {
        let rest = self.events.strip_prefix("tcp://*:")?;
        Some(format!("tcp://0.0.0.0:{rest}"))
    }
}

/// Between two tries to reach an engine, growing.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Read at once, at first and at most: a step's batch, which by default would take several reads.
const READ: (usize, usize) = (1 << 10, 64 << 10);

/// A feed that runs until it is dropped, or until the engine turns out to be the wrong one.
#[derive(Debug)]
pub struct Subscriber {
    sink: Sink,
    subscription: Subscription,
    cursor: EventCursor,
    restarted: Arc<Notify>,
}

/// Why listening stopped.
enum Ended {
    /// To be tried again.
    Disconnected,
    /// Never to be tried again.
    Refused(WrongBlockSize),
}

impl From<WrongBlockSize> for Ended {
    fn from(error: WrongBlockSize) -> Self {
        Self::Refused(error)
    }
}

impl Subscriber {
    pub fn new(subscription: Subscription, target: impl Target + 'static, clock: FeedClock) -> Self {
        let Subscription { worker, block_size, dialect, .. } = subscription;
        let health = Arc::new(FeedHealth::new(worker));
        let sink = Sink::new(Box::new(target), block_size, dialect.copies(), clock, health);
        Self { sink, subscription, cursor: EventCursor::default(), restarted: Arc::default() }
    }

    pub fn health(&self) -> Arc<FeedHealth> {
        self.sink.health().clone()
    }

    /// To be notified by whoever sees that the engine is another process than before.
    pub fn restarted(&self) -> Arc<Notify> {
        self.restarted.clone()
    }

    /// Listens for as long as the engine is the right one.
    pub async fn run(mut self) -> WrongBlockSize {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.listen(&mut pause).await {
                Ended::Disconnected => {}
                Ended::Refused(error) => {
                    tracing::error!(worker = self.subscription.worker.instance, %error, "KV event feed given up");
                    self.sink.forget();
                    self.sink.health().failed(&error.to_string());
                    self.sink.health().set_state(FeedState::Refused);
                    return error;
                }
            }
            // Whether it has died or only its connection, what it holds is not known any more.
            self.sink.forget();
            self.cursor.reset();
            self.sink.health().set_state(FeedState::Connecting);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn listen(&mut self, pause: &mut Duration) -> Ended {
        let mut options = SocketOptions::default();
        options.read_buffer(READ.0, READ.1, 2);
        let mut socket = SubSocket::with_options(options);
        let mut happenings = socket.monitor();
        let subscribed = socket.subscribe(&self.subscription.topic).await;
        let opened = async {
            subscribed?;
            match self.subscription.bind_address() {
                Some(address) => socket.bind(&address).await.map(drop),
                None => socket.connect(&self.subscription.events).await,
            }
        };
        match tokio::time::timeout(CONNECT_PATIENCE, opened).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.sink.health().failed(&format!("{}: {error}", self.subscription.events));
                return Ended::Disconnected;
            }
            Err(_) => {
                self.sink.health().failed(&format!("{}: no connection", self.subscription.events));
                return Ended::Disconnected;
            }
        }
        *pause = FIRST_PAUSE;
        if self.subscription.bind_address().is_some() {
            // Nobody may be there yet; whoever comes starts the repair.
            self.sink.health().set_state(FeedState::Partial);
        } else if let Err(error) = self.repair().await {
            return error.into();
        }
        loop {
            tokio::select! {
                biased;
                happening = happenings.next() => match happening {
                    Some(SocketEvent::Disconnected(_)) => {
                        self.sink.health().disconnected();
                        return Ended::Disconnected;
                    }
                    // An engine has come to us: what it said before can be had.
                    Some(SocketEvent::Accepted(..)) if self.subscription.replay.is_some() => {
                        if let Err(error) = self.repair().await {
                            return error.into();
                        }
                    }
                    Some(_) => {}
                    None => return Ended::Disconnected,
                },
                () = self.restarted.notified() => {
                    // The connection may still be to the old process, which will never say so.
                    self.sink.health().restart();
                    return Ended::Disconnected;
                }
                message = socket.recv() => match message {
                    Ok(message) => {
                        if let Err(error) = self.hear(&message.into_vec()).await {
                            return error.into();
                        }
                    }
                    Err(_) => return Ended::Disconnected,
                },
            }
        }
    }

    /// One message: `[topic, number, batch]`.
    async fn hear(&mut self, frames: &[Bytes]) -> Result<(), WrongBlockSize> {
        let Some((number, batch)) = self.read(frames) else { return Ok(()) };
        let Some(batch) = batch else {
            // Whatever it took away is not known, and a replay would bring the same bytes.
            self.sink.forget();
            self.cursor.passed(number, 0.0);
            self.sink.health().set_state(FeedState::Partial);
            return Ok(());
        };
        match self.cursor.judge(number, batch.seconds) {
            Verdict::Next => {}
            Verdict::Duplicate => {
                self.sink.health().duplicate();
                return Ok(());
            }
            verdict => {
                let health = self.sink.health();
                if verdict == Verdict::Restart {
                    health.restart();
                } else {
                    health.gap();
                }
                tracing::warn!(
                    worker = self.subscription.worker.instance,
                    number,
                    ?verdict,
                    "KV events lost"
                );
                self.repair().await?;
                match self.cursor.judge(number, batch.seconds) {
                    Verdict::Next if number == 0 => self.sink.health().set_state(FeedState::Live),
                    Verdict::Next => {}
                    Verdict::Duplicate => return Ok(()),
                    // What the replay did not have, nobody has.
                    Verdict::Gap { .. } | Verdict::Restart => {
                        self.sink.forget();
                        self.sink.health().set_state(FeedState::Partial);
                    }
                }
            }
        }
        self.sink.apply(&batch)?;
        self.cursor.passed(number, batch.seconds);
        Ok(())
    }

    /// A message's number and batch, read from its end. None when it is no such message, no batch when that cannot
    /// be read.
    fn read(&self, frames: &[Bytes]) -> Option<(u64, Option<decode::Batch>)> {
        let health = self.sink.health();
        let [.., number, batch] = frames else {
            health.undecodable(&format!(
                "message has {} frames, expected topic, number and batch",
                frames.len()
            ));
            return None;
        };
        let Ok(number) = <[u8; 8]>::try_from(number.as_ref()) else {
            health.undecodable(&format!("number has {} bytes, expected 8", number.len()));
            return None;
        };
        let batch = decode::batch(batch).map_err(|error| health.undecodable(&error.to_string()));
        Some((u64::from_be_bytes(number), batch.ok()))
    }

    /// Forgets the worker and takes in all that the engine still has buffered.
    async fn repair(&mut self) -> Result<(), WrongBlockSize> {
        self.sink.health().set_state(FeedState::Repairing);
        self.cursor.reset();
        self.sink.rebuild();
        let whole = match self.subscription.replay.clone() {
            Some(endpoint) => {
                let whole = self.replay(&endpoint).await?;
                self.sink.health().replayed(whole.is_some());
                whole
            }
            None => None,
        };
        if whole.is_none() {
            // A part of the past proves nothing: what came after it may have taken it away.
            self.sink.forget();
            self.cursor.reset();
        }
        self.sink.rebuilt();
        self.sink.health().set_state(match whole {
            Some(true) => FeedState::Live,
            // The first batches are gone from the buffer, or the engine did not answer.
            Some(false) | None => FeedState::Partial,
        });
        Ok(())
    }

    /// Takes in what the engine still has. True when that began with the very first batch, false when later, none
    /// when it did not come. A replay socket drops what its listener is too slow for, so whatever is missing in
    /// the middle is asked for again, as long as that leads anywhere.
    async fn replay(&mut self, endpoint: &str) -> Result<Option<bool>, WrongBlockSize> {
        let mut whole = true;
        let mut stuck = false;
        loop {
            let start = self.cursor.expected();
            match self.replay_from(endpoint, start, stuck).await? {
                Replay::Ended { began_at } => return Ok(Some(whole && began_at == start)),
                Replay::Silent => return Ok(None),
                Replay::Broken { began_at } => {
                    whole &= began_at.is_none_or(|began_at| began_at == start);
                    let moved = self.cursor.expected() > start;
                    if stuck && !moved {
                        self.sink.health().failed(&format!("{endpoint}: the replay breaks off"));
                        return Ok(None);
                    }
                    stuck = !moved;
                }
            }
        }
    }

    /// Asks for everything from `start` on. Only when `jump` is set, or nothing is known yet, may it begin later;
    /// what is known by then proves nothing any more.
    async fn replay_from(
        &mut self,
        endpoint: &str,
        start: u64,
        jump: bool,
    ) -> Result<Replay, WrongBlockSize> {
        let patience = self.subscription.replay_timeout;
        let mut socket = DealerSocket::new();
        let request = vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())];
        let asked = tokio::time::timeout(patience, async {
            socket.connect(endpoint).await.ok()?;
            socket.send(ZmqMessage::try_from(request).ok()?).await.ok()
        });
        if !matches!(asked.await, Ok(Some(()))) {
            self.sink.health().failed(&format!("{endpoint}: no replay"));
            return Ok(Replay::Silent);
        }
        let mut began_at = None;
        loop {
            let Ok(Ok(reply)) = tokio::time::timeout(patience, socket.recv()).await else {
                // Not even a first reply: an engine that does not replay.
                return Ok(if began_at.is_none() && start == 0 {
                    Replay::Silent
                } else {
                    Replay::Broken { began_at }
                });
            };
            let frames = reply.into_vec();
            if let [.., number, _] = frames.as_slice()
                && number.as_ref() == [0xff; 8]
            {
                return Ok(Replay::Ended { began_at: began_at.unwrap_or(start) });
            }
            let Some((number, batch)) = self.read(&frames) else { continue };
            if number < self.cursor.expected() {
                continue;
            }
            let Some(batch) = batch else {
                // What it took away is not known, so what came before proves nothing.
                self.sink.forget();
                self.cursor.passed(number, 0.0);
                began_at.get_or_insert(u64::MAX);
                continue;
            };
            if number > self.cursor.expected() {
                if began_at.is_some() || !(jump || start == 0) {
                    return Ok(Replay::Broken { began_at });
                }
                self.sink.forget();
            }
            began_at.get_or_insert(number);
            self.sink.apply(&batch)?;
            self.cursor.passed(number, batch.seconds);
        }
    }
}

/// How a replay ended, and with which number it began.
enum Replay {
    Ended { began_at: u64 },
    Broken { began_at: Option<u64> },
    Silent,
}
