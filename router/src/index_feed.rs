//! The event's path: what a worker says of its cache, straight into the index.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use kvlane_engine_adapters::engine_facts::{Engine, EventEndpoint};
use kvlane_engine_adapters::feed::{FeedClock, FeedHealth, FeedState, IndexTarget, Target};
use kvlane_engine_adapters::nats::NatsView;
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_engine_adapters::trtllm::{Poll, Poller};
use kvlane_engine_adapters::vllm::subscriber::{Dialect, Subscriber, Subscription};
use kvlane_indexer::{Applied, BlockSize, EngineBlockId, EventError, Index, KvEvent, Tick, WorkerId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Where one worker's events are to be had.
#[derive(Clone, Debug)]
pub enum FeedPlan {
    /// Nowhere: what was placed there is remembered for a while instead. Why, when somebody should know.
    None(Option<String>),
    Zmq(Vec<EventEndpoint>),
    Poll,
    Nats(NatsView),
    /// They would be misread.
    Refused(String),
}

impl FeedPlan {
    /// The word for people.
    fn kind(&self) -> &'static str {
        match self {
            Self::None(_) => "none",
            Self::Zmq(_) => "zmq",
            Self::Poll => "poll",
            Self::Nats(_) => "nats",
            Self::Refused(_) => "refused",
        }
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Zmq(one), Self::Zmq(other)) => one == other,
            (Self::Refused(one), Self::Refused(other)) => one == other,
            _ => self.kind() == other.kind(),
        }
    }
}

/// Which worker, and how its events are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub instance: u64,
    pub engine: Engine,
    pub block_size: BlockSize,
}

/// One worker's feeds, running for as long as this lives. What they put into the index goes with them.
#[derive(Debug)]
pub struct Feeds {
    plan: FeedPlan,
    reading: Reading,
    gate: Arc<Gate>,
    /// Every rank's health, as far as it is known by now.
    health: Arc<Mutex<Vec<Arc<FeedHealth>>>>,
    restarted: Vec<Arc<Notify>>,
    started: Instant,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// Stands between a feed and the index. A task that is told to end may still be in the middle of something; once the
/// gate is closed nothing of that gets through.
#[derive(Debug)]
struct Gate {
    index: Arc<Index>,
    /// Whom the feed has written; none once it is closed.
    open: RwLock<Option<Vec<WorkerId>>>,
}

#[derive(Debug)]
struct Gated {
    gate: Arc<Gate>,
    target: IndexTarget,
}

impl Gate {
    fn target(self: &Arc<Self>, worker: WorkerId) -> Gated {
        if let Some(fed) = self.open.write().as_mut() {
            fed.push(worker);
        }
        Gated { gate: self.clone(), target: IndexTarget::new(self.index.clone(), worker) }
    }
}

impl Target for Gated {
    fn forget(&mut self) {
        if self.gate.open.read().is_some() {
            self.target.forget();
        }
    }

    fn apply(
        &mut self,
        event: &KvEvent,
        tick: Tick,
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        let open = self.gate.open.read();
        if open.is_some() { self.target.apply(event, tick, held) } else { Ok(Applied::default()) }
    }
}

impl Feeds {
    /// `authorization` is shown to engines that are asked over HTTP.
    pub fn start(
        plan: FeedPlan,
        reading: Reading,
        url: &str,
        index: &Arc<Index>,
        clock: FeedClock,
        authorization: Option<HeaderValue>,
        tls: &Arc<ClientTls>,
    ) -> Self {
        let Reading { instance, engine, block_size } = reading;
        let gate = Arc::new(Gate { index: index.clone(), open: RwLock::new(Some(Vec::new())) });
        let mut health: Arc<Mutex<Vec<Arc<FeedHealth>>>> = Arc::default();
        let (mut restarted, mut tasks) = (Vec::new(), Vec::new());
        match &plan {
            FeedPlan::None(_) | FeedPlan::Nats(_) | FeedPlan::Refused(_) => {}
            FeedPlan::Zmq(endpoints) => {
                for endpoint in endpoints {
                    let worker = WorkerId::new(instance, endpoint.rank);
                    let subscription = Subscription {
                        replay: endpoint.replay.clone(),
                        topic: endpoint.topic.clone(),
                        dialect: if engine == Engine::Sglang { Dialect::Sglang } else { Dialect::Vllm },
                        ..Subscription::new(worker, &endpoint.events, block_size)
                    };
                    let subscriber = Subscriber::new(subscription, gate.target(worker), clock);
                    health.lock().push(subscriber.health());
                    restarted.push(subscriber.restarted());
                    tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                        // It says itself why it was given up.
                        let _ = subscriber.run().await;
                    })));
                }
            }
            FeedPlan::Poll => {
                let gate = gate.clone();
                let targets = move |worker| gate.target(worker);
                let poll = Poll::new(WorkerId::new(instance, 0), url, block_size);
                let poll = Poll { tls: tls.clone(), ..poll };
                let poller = Poller::new(poll, targets, clock).bearing(authorization);
                health = poller.health();
                tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                    let _ = poller.run().await;
                })));
            }
        }
        Self { plan, reading, gate, health, restarted, started: Instant::now(), _tasks: tasks }
    }

    pub fn kind(&self) -> &'static str {
        self.plan.kind()
    }

    /// Whether it can go on as it is. Starting anew forgets everything.
    pub fn suits(&self, plan: &FeedPlan, reading: Reading) -> bool {
        self.plan.same(plan) && self.reading == reading
    }

    /// Why there is none.
    pub fn refusal(&self) -> Option<&str> {
        match &self.plan {
            FeedPlan::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// Whether events will ever confirm what is placed there.
    pub fn confirms(&self) -> bool {
        !matches!(self.plan, FeedPlan::None(_) | FeedPlan::Refused(_))
    }

    pub fn health(&self) -> Vec<Arc<FeedHealth>> {
        match &self.plan {
            FeedPlan::Nats(view) => view.health_of(self.reading.instance),
            _ => self.health.lock().clone(),
        }
    }

    /// Whether what the engine holds is known as well as it ever will be.
    pub fn caught_up(&self) -> bool {
        let health = self.health();
        match &self.plan {
            FeedPlan::None(_) | FeedPlan::Refused(_) => true,
            FeedPlan::Nats(_) if health.is_empty() => false,
            _ => health.iter().all(|health| {
                matches!(health.state(), FeedState::Live | FeedState::Partial | FeedState::Refused)
            }),
        }
    }

    /// How long it has been running.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The engine is another process than before.
    pub fn engine_restarted(&self) {
        self.restarted.iter().for_each(|restarted| restarted.notify_one());
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        let fed = self.gate.open.write().take();
        for worker in fed.into_iter().flatten() {
            self.gate.index.forget(worker);
        }
    }
}
