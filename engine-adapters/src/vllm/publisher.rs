//! Publishing KV events over ZeroMQ as vLLM does: a PUB socket, and a ROUTER that replays what was published.
//!
//! A message is `[topic, sequence number, batch]`. Whoever missed some asks the replay socket with
//! `["", first number]` and gets what is still buffered, then an end marker.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketEvent, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::wire::Spelling;

/// Where events go.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// Subscribers come here.
    Bind(SocketAddr),
    /// We go to a subscriber that has bound.
    Connect(String),
}

impl Endpoint {
    fn zmq(host: IpAddr, port: u16) -> String {
        match host {
            IpAddr::V4(host) => format!("tcp://{host}:{port}"),
            IpAddr::V6(host) => format!("tcp://[{host}]:{port}"),
        }
    }
}

/// How an engine publishes.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    pub endpoint: Endpoint,
    pub replay: Option<SocketAddr>,
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// Replies carry the topic since vLLM 0.26, which is to say wherever events are maps here.
    pub spelling: Spelling,
}

#[derive(Debug, thiserror::Error)]
#[error("{what} {endpoint}: {error}")]
pub struct PublishError {
    what: &'static str,
    endpoint: String,
    error: ZmqError,
}

/// Batches still to be had, oldest first, numbered without gaps.
#[derive(Debug, Default)]
struct Buffer {
    first: u64,
    batches: VecDeque<Bytes>,
}

/// The publishing end. Dropping it closes both sockets.
pub struct Publisher {
    outlet: Outlet,
    topic: Bytes,
    buffer_steps: usize,
    buffer: Arc<Mutex<Buffer>>,
    /// Where the replay socket listens, and its task.
    replay: Option<(SocketAddr, AbortOnDropHandle<()>)>,
    bound: Option<SocketAddr>,
}

impl Publisher {
    pub async fn start(config: &PublisherConfig) -> Result<Self, PublishError> {
        let mut bound = None;
        let outlet = match &config.endpoint {
            Endpoint::Bind(address) => {
                let mut socket = PubSocket::new();
                let endpoint = Endpoint::zmq(address.ip(), address.port());
                let result = socket.bind(&endpoint).await;
                bound = socket_address(result.map_err(|error| PublishError {
                    what: "KV events cannot be published on",
                    endpoint,
                    error,
                })?);
                Outlet::Bound(socket)
            }
            Endpoint::Connect(endpoint) => {
                let (sender, messages) = mpsc::channel(CONNECT_QUEUE);
                let task = tokio::spawn(keep_connected(endpoint.clone(), messages));
                Outlet::Connecting { messages: sender, _task: AbortOnDropHandle::new(task) }
            }
        };
        let buffer = Arc::new(Mutex::new(Buffer::default()));
        let topic = Bytes::from(config.topic.clone());
        let replay = match config.replay {
            None => None,
            Some(address) => {
                let endpoint = Endpoint::zmq(address.ip(), address.port());
                let mut router = RouterSocket::new();
                let result = router.bind(&endpoint).await;
                let listens = socket_address(result.map_err(|error| PublishError {
                    what: "replays cannot be served on",
                    endpoint,
                    error,
                })?);
                let topic = (config.spelling == Spelling::Maps).then(|| topic.clone());
                let task = tokio::spawn(replay(router, topic, buffer.clone()));
                listens.map(|listens| (listens, AbortOnDropHandle::new(task)))
            }
        };
        Ok(Self { outlet, topic, buffer_steps: config.buffer_steps, buffer, replay, bound })
    }

    /// Where subscribers connect, when bound.
    pub fn address(&self) -> Option<SocketAddr> {
        self.bound
    }

    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay.as_ref().map(|(address, _)| *address)
    }

    /// Numbers a batch and keeps it for replay. Sending it is a second act, so that a test can lose it.
    pub fn number(&mut self, batch: Vec<u8>) -> Numbered {
        let batch = Bytes::from(batch);
        let mut buffer = self.buffer.lock();
        buffer.batches.push_back(batch.clone());
        if buffer.batches.len() > self.buffer_steps {
            buffer.batches.pop_front();
            buffer.first += 1;
        }
        Numbered { sequence: buffer.first + buffer.batches.len() as u64 - 1, batch }
    }

    /// Hands a batch to everyone who listens. A subscriber that is too slow loses it, as with any PUB socket.
    pub async fn send(&mut self, numbered: Numbered) {
        let sequence = Bytes::copy_from_slice(&numbered.sequence.to_be_bytes());
        let frames = vec![self.topic.clone(), sequence, numbered.batch];
        let Ok(message) = ZmqMessage::try_from(frames) else { return };
        match &mut self.outlet {
            Outlet::Bound(socket) => {
                if let Err(error) = socket.send(message).await {
                    tracing::debug!(%error, "KV events not sent");
                }
            }
            // Full means that nobody has been there for long: the oldest were lost already, as with libzmq.
            Outlet::Connecting { messages, .. } => drop(messages.try_send(message)),
        }
    }
}

/// Messages that wait for a subscriber that we go to.
const CONNECT_QUEUE: usize = 1024;
/// Between two tries to reach it.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

enum Outlet {
    Bound(PubSocket),
    /// Its own task connects, and connects again when the subscriber was away.
    Connecting {
        messages: mpsc::Sender<ZmqMessage>,
        _task: AbortOnDropHandle<()>,
    },
}

/// Sends messages to a subscriber that has bound, for as long as there are any.
async fn keep_connected(endpoint: String, mut messages: mpsc::Receiver<ZmqMessage>) {
    loop {
        let mut socket = PubSocket::new();
        let mut happenings = socket.monitor();
        let connected = tokio::time::timeout(CONNECT_PATIENCE, socket.connect(&endpoint)).await;
        if !matches!(connected, Ok(Ok(()))) {
            if messages.is_closed() {
                return;
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
            continue;
        }
        loop {
            tokio::select! {
                happening = happenings.next() => match happening {
                    Some(SocketEvent::Disconnected(_)) | None => break,
                    Some(_) => {}
                },
                message = messages.recv() => match message {
                    Some(message) => drop(socket.send(message).await),
                    None => return,
                },
            }
        }
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("topic", &self.topic)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

/// A batch with its number.
#[derive(Clone, Debug)]
pub struct Numbered {
    pub sequence: u64,
    pub batch: Bytes,
}

fn socket_address(endpoint: zeromq::Endpoint) -> Option<SocketAddr> {
    match endpoint {
        zeromq::Endpoint::Tcp(host, port) => Some(SocketAddr::new(IpAddr::try_from(host).ok()?, port)),
        _ => None,
    }
}

/// Answers replay requests until the socket is gone.
async fn replay(mut socket: RouterSocket, topic: Option<Bytes>, buffer: Arc<Mutex<Buffer>>) {
    const END: Bytes = Bytes::from_static(&[0xff; 8]);
    while let Ok(request) = socket.recv().await {
        let frames = request.into_vec();
        // Whose, an empty delimiter, and the first number wanted; anything else gets no answer, as with vLLM.
        let [who, delimiter, first] = frames.as_slice() else { continue };
        if !delimiter.is_empty() || first.len() > 8 {
            continue;
        }
        let first = first.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let wanted: Vec<(u64, Bytes)> = {
            let buffer = buffer.lock();
            let skip = first.saturating_sub(buffer.first) as usize;
            (buffer.first..).zip(buffer.batches.iter().cloned()).skip(skip).collect()
        };
        let numbered =
            wanted.into_iter().map(|(at, batch)| (Bytes::copy_from_slice(&at.to_be_bytes()), batch, &topic));
        let no_topic = topic.as_ref().map(|_| Bytes::new());
        for (number, batch, topic) in numbered.chain([(END, Bytes::new(), &no_topic)]) {
            let mut reply = vec![who.clone(), Bytes::new()];
            reply.extend(topic.clone());
            reply.extend([number, batch]);
            let Ok(reply) = ZmqMessage::try_from(reply) else { break };
            if socket.send(reply).await.is_err() {
                break;
            }
        }
    }
}
