//! The whole sidecar: finds out about its engine, listens to it, publishes, and announces it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_nats::Client;
use hyper::header::HeaderValue;
use kvlane_indexer::{BlockSize, WorkerId};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::outbox::{Outbox, OutboxTarget};
use super::publisher::BridgePublisher;
use crate::dynamo::Subjects;
use crate::engine_facts::{Engine, EngineFacts, EngineProbe, EventEndpoint};
use crate::feed::FeedClock;
use crate::nats::{Announcement, NatsError};
use crate::tls::ClientTls;
use crate::translate::WrongBlockSize;
use crate::trtllm::{Poll, Poller};
use crate::vllm::subscriber::{Dialect, Subscriber, Subscription};

#[derive(Clone, Debug)]
pub struct SidecarConfig {
    pub engine: Engine,
    /// The engine's API, as the bridge reaches it.
    pub url: String,
    /// The same as routers reach it.
    pub advertised_url: String,
    pub worker_id: u64,
    /// Where the engine's events are; asked from the engine when empty.
    pub events: Vec<EventEndpoint>,
    /// Asked from the engine when none.
    pub block_size: Option<BlockSize>,
    pub slots: Option<u32>,
    /// Events that may wait to be published.
    pub outbox: usize,
    /// Marks this run; a new one starts over.
    pub publisher: u64,
    /// Towards the engine.
    pub tls: Arc<ClientTls>,
    /// What the engine is shown with every question.
    pub authorization: Option<HeaderValue>,
}

#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    #[error("the engine at {url} does not say how many tokens a block has, expected --block-size")]
    NoBlockSize { url: String },
    #[error("the engine at {url} does not say where its KV events are, expected --events")]
    NoEvents { url: String },
    #[error(transparent)]
    WrongBlockSize(#[from] WrongBlockSize),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// How often the engine is asked how it is.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// Questions without an answer after which the engine counts as gone.
const MOST_UNANSWERED: u32 = 3;

/// A sidecar about to run.
#[derive(Debug)]
pub struct Sidecar {
    pub config: SidecarConfig,
    pub client: Client,
    pub connected: watch::Receiver<u64>,
    pub subjects: Subjects,
    pub clock: FeedClock,
}

/// Everything there is per rank, while it runs.
struct Outlets {
    sidecar: Arc<Sidecar>,
    announcement: Announcement,
    tasks: JoinSet<Result<(), SidecarError>>,
    /// Says what changes about the worker; gone, its publishers say goodbye.
    said: Vec<watch::Sender<Announcement>>,
}

impl Outlets {
    /// Begins to publish one rank.
    fn open(&mut self, rank: u32) -> OutboxTarget {
        let outbox = Arc::new(Outbox::new(self.sidecar.config.outbox));
        self.publish(rank, outbox.clone());
        OutboxTarget(outbox)
    }

    fn publish(&mut self, rank: u32, outbox: Arc<Outbox>) {
        let publisher = self.announcement.publisher.wrapping_add(u64::from(rank));
        let announcement = Announcement { dp_rank: rank, publisher, ..self.announcement.clone() };
        let (said, announcement) = watch::channel(announcement);
        self.said.push(said);
        let publisher = BridgePublisher {
            client: self.sidecar.client.clone(),
            subjects: self.sidecar.subjects.clone(),
            worker: WorkerId::new(self.sidecar.config.worker_id, rank),
            connected: self.sidecar.connected.clone(),
            outbox,
            clock: self.sidecar.clock,
            announcement,
            loads: AtomicU64::new(0),
        };
        self.tasks.spawn(async move { Ok(publisher.run().await?) });
    }
}

impl Sidecar {
    /// Runs until it is stopped, or the engine turns out to be unusable.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SidecarError> {
        let probe = EngineProbe::new(PROBE_PATIENCE, self.config.tls.clone());
        let probe = probe.bearing(self.config.authorization.clone());
        let Some(facts) = stop.run_until_cancelled(self.facts(&probe)).await else { return Ok(()) };
        let config = &self.config;
        let told = facts.block_size.and_then(BlockSize::new);
        let block_size = config.block_size.or(told);
        let block_size = block_size.ok_or_else(|| SidecarError::NoBlockSize { url: config.url.clone() })?;
        if let (Some(configured), Some(told)) = (config.block_size, told)
            && configured != told
        {
            let (found, expected) = (told.tokens() as u32, configured.tokens());
            return Err(WrongBlockSize { found, expected }.into());
        }
        let announcement = Announcement {
            worker_id: config.worker_id,
            url: config.advertised_url.clone(),
            model: facts.models.first().map(|model| model.name.clone()).unwrap_or_default(),
            engine: config.engine.name().to_owned(),
            block_size: block_size.tokens() as u32,
            slots: config.slots,
            kv_blocks: facts.kv_blocks,
            publisher: config.publisher,
            ..Announcement::default()
        };
        let sidecar = Arc::new(self);
        let mut outlets =
            Outlets { sidecar: sidecar.clone(), announcement, tasks: JoinSet::new(), said: Vec::new() };
        let (opened, mut to_publish) = mpsc::unbounded_channel();
        let restarted = sidecar.listen(&mut outlets, facts, block_size, opened)?;
        let mut tick = tokio::time::interval(PROBE_EVERY);
        let mut process_start = None;
        let mut unanswered = 0;
        let ended = loop {
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                Some((rank, outbox)) = to_publish.recv() => outlets.publish(rank, outbox),
                Some(ended) = outlets.tasks.join_next() => {
                    let ended = ended.unwrap_or_else(|error| Err(NatsError::new("a task of the bridge died", &error).into()));
                    if ended.is_err() {
                        break ended;
                    }
                }
                _ = tick.tick() => {
                    let path = sidecar.config.engine.metrics_path();
                    let Ok(facts) = probe.load(&sidecar.config.url, path).await else {
                        // A host that vanished leaves connections open that nobody will ever close.
                        unanswered += 1;
                        if unanswered == MOST_UNANSWERED {
                            tracing::warn!(url = sidecar.config.url, "the engine does not answer, its feed is dropped");
                            restarted.iter().for_each(|restarted| restarted.notify_one());
                        }
                        continue;
                    };
                    unanswered = 0;
                    if let Some(before) = process_start.replace(facts.process_start)
                        && before != facts.process_start
                    {
                        restarted.iter().for_each(|restarted| restarted.notify_one());
                    }
                    let used = facts.kv_usage.zip(outlets.announcement.kv_blocks).map(|(share, blocks)| (share * blocks as f64) as u64);
                    outlets.said.iter().for_each(|said| {
                        said.send_if_modified(|announcement| std::mem::replace(&mut announcement.used_blocks, used) != used);
                    });
                }
            }
        };
        // Feeds end with the set; publishers say goodbye when nobody can tell them anything any more.
        outlets.said.clear();
        let goodbyes = async { while outlets.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(500), goodbyes).await;
        ended
    }

    /// What the engine says, once it does.
    async fn facts(&self, probe: &EngineProbe) -> EngineFacts {
        loop {
            match probe.ask(&self.config.url).await {
                Ok(facts) => return facts,
                Err(error) => tracing::info!(%error, "waiting for the engine"),
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }

    fn listen(
        &self,
        outlets: &mut Outlets,
        facts: EngineFacts,
        block_size: BlockSize,
        opened: mpsc::UnboundedSender<(u32, Arc<Outbox>)>,
    ) -> Result<Vec<Arc<Notify>>, SidecarError> {
        let config = &self.config;
        let dialect = match config.engine {
            Engine::Vllm => Dialect::Vllm,
            Engine::Sglang => Dialect::Sglang,
            Engine::Trtllm => {
                let poll = Poll::new(WorkerId::new(config.worker_id, 0), config.url.clone(), block_size);
                let poll = Poll { tls: config.tls.clone(), ..poll };
                // Ranks are known when they first speak; there are only so many that a poller listens to.
                let bound = config.outbox;
                let target = move |worker: WorkerId| {
                    let outbox = Arc::new(Outbox::new(bound));
                    let _ = opened.send((worker.dp_rank, outbox.clone()));
                    OutboxTarget(outbox)
                };
                let poller = Poller::new(poll, target, self.clock).bearing(config.authorization.clone());
                outlets.tasks.spawn(async move { Err(poller.run().await.into()) });
                return Ok(Vec::new());
            }
        };
        let endpoints = if config.events.is_empty() { facts.events } else { config.events.clone() };
        if endpoints.is_empty() {
            return Err(SidecarError::NoEvents { url: config.url.clone() });
        }
        let mut restarted = Vec::new();
        for endpoint in endpoints {
            let worker = WorkerId::new(config.worker_id, endpoint.rank);
            let subscription = Subscription {
                replay: endpoint.replay,
                topic: endpoint.topic,
                dialect,
                ..Subscription::new(worker, endpoint.events, block_size)
            };
            let subscriber = Subscriber::new(subscription, outlets.open(endpoint.rank), self.clock);
            restarted.push(subscriber.restarted());
            outlets.tasks.spawn(async move { Err(subscriber.run().await.into()) });
        }
        Ok(restarted)
    }
}
