//! The event's path: what a worker says of its cache, straight into the index.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::engine_facts::{Engine, EventEndpoint};
use kvlane_engine_adapters::feed::{FeedClock, FeedHealth, FeedState, IndexTarget};
use kvlane_engine_adapters::nats::NatsView;
use kvlane_engine_adapters::trtllm::{Poll, Poller};
use kvlane_engine_adapters::vllm::subscriber::{Dialect, Subscriber, Subscription};
use kvlane_indexer::{BlockSize, Index, WorkerId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Where one worker's events are to be had.
#[derive(Clone, Debug)]
pub enum FeedPlan {
    /// Nowhere: what was placed there is remembered for a while instead.
    None,
    Zmq(Vec<EventEndpoint>),
    Poll,
    Nats(NatsView),
    /// They would be misread.
    Refused(String),
}

/// One worker's feeds, running for as long as this lives.
#[derive(Debug)]
pub struct Feeds {
    plan: FeedPlan,
    instance: u64,
    /// Every rank's health, as far as it is known by now.
    health: Arc<Mutex<Vec<Arc<FeedHealth>>>>,
    restarted: Vec<Arc<Notify>>,
    started: Instant,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Feeds {
    pub fn start(
        plan: FeedPlan,
        instance: u64,
        url: &str,
        engine: Engine,
        block_size: BlockSize,
        index: &Arc<Index>,
        clock: FeedClock,
    ) -> Self {
        let health: Arc<Mutex<Vec<Arc<FeedHealth>>>> = Arc::default();
        let (mut restarted, mut tasks) = (Vec::new(), Vec::new());
        match &plan {
            FeedPlan::None | FeedPlan::Nats(_) | FeedPlan::Refused(_) => {}
            FeedPlan::Zmq(endpoints) => {
                for endpoint in endpoints {
                    let worker = WorkerId::new(instance, endpoint.rank);
                    let subscription = Subscription {
                        replay: endpoint.replay.clone(),
                        topic: endpoint.topic.clone(),
                        dialect: if engine == Engine::Sglang { Dialect::Sglang } else { Dialect::Vllm },
                        ..Subscription::new(worker, &endpoint.events, block_size)
                    };
                    let target = IndexTarget::new(index.clone(), worker);
                    let subscriber = Subscriber::new(subscription, target, clock);
                    health.lock().push(subscriber.health());
                    restarted.push(subscriber.restarted());
                    tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                        // It says itself why it was given up.
                        let _ = subscriber.run().await;
                    })));
                }
            }
            FeedPlan::Poll => {
                let index = index.clone();
                let targets = move |worker| IndexTarget::new(index.clone(), worker);
                let poller =
                    Poller::new(Poll::new(WorkerId::new(instance, 0), url, block_size), targets, clock);
                let ranks = poller.health();
                tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                    let _ = poller.run().await;
                })));
                return Self {
                    plan,
                    instance,
                    health: ranks,
                    restarted,
                    started: Instant::now(),
                    _tasks: tasks,
                };
            }
        }
        Self { plan, instance, health, restarted, started: Instant::now(), _tasks: tasks }
    }

    /// The word for people.
    pub fn kind(&self) -> &'static str {
        match &self.plan {
            FeedPlan::None => "none",
            FeedPlan::Zmq(_) => "zmq",
            FeedPlan::Poll => "poll",
            FeedPlan::Nats(_) => "nats",
            FeedPlan::Refused(_) => "refused",
        }
    }

    /// Why there is none.
    pub fn refusal(&self) -> Option<&str> {
        match &self.plan {
            FeedPlan::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// Where its endpoints are, to see whether they have moved.
    pub fn endpoints(&self) -> Option<&[EventEndpoint]> {
        match &self.plan {
            FeedPlan::Zmq(endpoints) => Some(endpoints),
            _ => None,
        }
    }

    pub fn health(&self) -> Vec<Arc<FeedHealth>> {
        match &self.plan {
            FeedPlan::Nats(view) => view.health_of(self.instance),
            _ => self.health.lock().clone(),
        }
    }

    /// Whether what the engine holds is known as well as it ever will be.
    pub fn caught_up(&self) -> bool {
        let health = self.health();
        match &self.plan {
            FeedPlan::None | FeedPlan::Refused(_) => true,
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
