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
use tokio::time::Instant;
use zeromq::{
    DealerSocket, Socket, SocketEvent, SocketOptions, SocketRecv, SocketSend, SubSocket, ZmqMessage,
};

use super::decode;
use super::track::{Next, ReplayEnd, Track};
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
    /// After this an engine that did not tell its past is asked again, and then ever more seldom.
    pub ask_again: Duration,
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
            ask_again: Duration::from_secs(30),
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
/// Between two questions for a past that is never told to its end, at most.
const SELDOM: Duration = Duration::from_secs(3600);
/// Read at once, at first and at most: a step's batch, which by default would take several reads.
const READ: (usize, usize) = (1 << 10, 64 << 10);

/// A feed that runs until it is dropped, or until the engine turns out to be the wrong one.
#[derive(Debug)]
pub struct Subscriber {
    track: Track,
    subscription: Subscription,
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
        Self { track: Track::new(sink), subscription, restarted: Arc::default() }
    }

    pub fn health(&self) -> Arc<FeedHealth> {
        self.track.sink().health().clone()
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
                    self.track.sink().health().failed(&error.to_string());
                    self.track.lost(FeedState::Refused);
                    return error;
                }
            }
            self.track.lost(FeedState::Connecting);
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
                self.track.sink().health().failed(&format!("{}: {error}", self.subscription.events));
                return Ended::Disconnected;
            }
            Err(_) => {
                self.track.sink().health().failed(&format!("{}: no connection", self.subscription.events));
                return Ended::Disconnected;
            }
        }
        *pause = FIRST_PAUSE;
        if self.subscription.bind_address().is_some() {
            // Nobody may be there yet; whoever comes starts the repair.
            self.track.sink().health().set_state(FeedState::Partial);
        } else if let Err(error) = self.repair().await {
            return error.into();
        }
        let mut patience = self.subscription.ask_again;
        let mut ask_again = Instant::now() + patience;
        loop {
            let in_vain = self.track.asks_again() && self.subscription.replay.is_some();
            tokio::select! {
                biased;
                happening = happenings.next() => match happening {
                    Some(SocketEvent::Disconnected(_)) => {
                        self.track.sink().health().disconnected();
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
                    self.track.sink().health().restart();
                    return Ended::Disconnected;
                }
                () = tokio::time::sleep_until(ask_again), if in_vain => {
                    // What was learnt meanwhile is given up only for somebody who answers.
                    if self.answers().await {
                        if let Err(error) = self.repair().await {
                            return error.into();
                        }
                        patience = (patience * 2).min(SELDOM);
                    }
                    ask_again = Instant::now() + patience;
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
        match self.track.hear(number, batch)? {
            Next::GoOn => Ok(()),
            Next::Repair => self.repair().await,
        }
    }

    /// A message's number and batch, read from its end. None when it is no such message, no batch when that cannot
    /// be read.
    fn read(&self, frames: &[Bytes]) -> Option<(u64, Option<decode::Batch>)> {
        let health = self.track.sink().health();
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
        let mut start = self.track.repair();
        let Some(endpoint) = self.subscription.replay.clone() else { return self.track.unrepaired() };
        loop {
            let end = self.replay_from(&endpoint, start).await?;
            match self.track.replay_ended(end)? {
                Some(again) => start = again,
                None => return Ok(()),
            }
        }
    }

    /// Whether anybody answers who is asked for the past; little of it, to find out.
    async fn answers(&self) -> bool {
        let Some(endpoint) = &self.subscription.replay else { return false };
        let Some(mut socket) = self.asked(endpoint, self.track.expected()).await else { return false };
        matches!(tokio::time::timeout(self.subscription.replay_timeout, socket.recv()).await, Ok(Ok(_)))
    }

    /// Where everything from `start` on was asked for; none when nobody is there.
    async fn asked(&self, endpoint: &str, start: u64) -> Option<DealerSocket> {
        let mut socket = DealerSocket::new();
        let request = vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())];
        let asked = tokio::time::timeout(self.subscription.replay_timeout, async {
            socket.connect(endpoint).await.ok()?;
            socket.send(ZmqMessage::try_from(request).ok()?).await.ok()
        });
        matches!(asked.await, Ok(Some(()))).then_some(socket)
    }

    /// Goes through everything from `start` on.
    async fn replay_from(&mut self, endpoint: &str, start: u64) -> Result<ReplayEnd, WrongBlockSize> {
        let patience = self.subscription.replay_timeout;
        let Some(mut socket) = self.asked(endpoint, start).await else {
            self.track.sink().health().failed(&format!("{endpoint}: no replay"));
            return Ok(ReplayEnd::Silent);
        };
        loop {
            let Ok(Ok(reply)) = tokio::time::timeout(patience, socket.recv()).await else {
                return Ok(ReplayEnd::Broken);
            };
            let frames = reply.into_vec();
            if let [.., number, _] = frames.as_slice()
                && number.as_ref() == [0xff; 8]
            {
                return Ok(ReplayEnd::Ended);
            }
            let Some((number, batch)) = self.read(&frames) else { continue };
            if !self.track.replayed(number, batch)? {
                return Ok(ReplayEnd::Broken);
            }
        }
    }
}
