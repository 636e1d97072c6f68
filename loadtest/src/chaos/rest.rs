//! What must be so when nobody asks anything any more: no load, no reservation, everybody ready, and an index that holds
//! what the engines hold.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::engine_facts::instance_of;
use kvlane_engine_adapters::feed::{FeedClock, FeedState, IndexTarget};
use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::vllm::subscriber::{Subscriber, Subscription};
use kvlane_indexer::{BlockSize, Index, IndexConfig, WorkerId};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::bench::{BLOCK_TOKENS, Bench};

/// One router's view of one worker, and the worker's own.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    pub router: usize,
    pub worker: usize,
    pub state: String,
    pub breaker: String,
    pub requests: u64,
    /// Blocks the router takes it to hold, and blocks it says it holds to somebody who asks for the first time.
    pub held_blocks: u64,
    pub really_holds: usize,
}

/// A router's process.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Footprint {
    pub router: usize,
    pub resident_bytes: f64,
    pub open_fds: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Rest {
    pub views: Vec<View>,
    pub footprints: Vec<Footprint>,
    /// What is not as it must be.
    pub complaints: Vec<String>,
}

/// How long things may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);

/// Looks until all is well, or for as long as that may take.
pub async fn at_rest(bench: &Bench) -> anyhow::Result<Rest> {
    let engines = Engines::listen(bench);
    let until = Instant::now() + PATIENCE;
    loop {
        let rest = look(bench, &engines).await?;
        if rest.complaints.is_empty() || Instant::now() >= until {
            return Ok(rest);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What engines hold, by their own account of all that happened since they were started.
struct Engines {
    index: Arc<Index>,
    feeds: Vec<(WorkerId, Arc<kvlane_engine_adapters::feed::FeedHealth>, AbortOnDropHandle<()>)>,
}

impl Engines {
    fn listen(bench: &Bench) -> Self {
        let (index, clock) =
            (Arc::new(Index::new(IndexConfig::default())), FeedClock::starting(since_1970()));
        let block_size = BlockSize::new(BLOCK_TOKENS).unwrap_or(BlockSize::USUAL);
        let feeds = (0..bench.layout.workers).map(|n| {
            let worker = WorkerId::new(instance_of(&format!("http://{}", bench.layout.worker(n))), 0);
            let (events, replay) = bench.layout.events(n);
            let subscription = Subscription {
                replay: Some(format!("tcp://{replay}")),
                topic: "kv-events".to_owned(),
                ..Subscription::new(worker, format!("tcp://{events}"), block_size)
            };
            let subscriber = Subscriber::new(subscription, IndexTarget::new(index.clone(), worker), clock);
            let health = subscriber.health();
            let task = tokio::spawn(async move {
                let _ = subscriber.run().await;
            });
            (worker, health, AbortOnDropHandle::new(task))
        });
        let feeds = feeds.collect();
        Self { index, feeds }
    }

    /// None until all of it is known.
    fn holds(&self, n: usize) -> Option<usize> {
        let (worker, health, _) = self.feeds.get(n)?;
        (health.state() == FeedState::Live).then(|| self.index.held_blocks(*worker))
    }
}

async fn look(bench: &Bench, engines: &Engines) -> anyhow::Result<Rest> {
    let mut rest = Rest::default();
    for router in 0..bench.layout.routers {
        let Ok(known) = bench.workers(router).await else {
            rest.complaints.push(format!("router-{router} does not answer"));
            continue;
        };
        for n in 0..bench.layout.workers {
            let name = bench.layout.worker(n).to_string();
            let Some(worker) = known.iter().find(|worker| worker["name"] == name) else {
                rest.complaints.push(format!("router-{router} does not know worker-{n}"));
                continue;
            };
            rest.see(router, n, worker, engines.holds(n));
        }
        for (series, what) in
            [("kvlane_queue_requests{", "requests waiting"), ("kvlane_breaker_open{", "breakers open")]
        {
            if let Some(count) = bench.metric(router, series).await.filter(|count| *count >= 1.0) {
                rest.complaints.push(format!("router-{router} has {count} {what}"));
            }
        }
        let resident = bench.metric(router, "process_resident_memory_bytes").await;
        let open = bench.metric(router, "process_open_fds").await;
        if let (Some(resident_bytes), Some(open_fds)) = (resident, open) {
            rest.footprints.push(Footprint { router, resident_bytes, open_fds });
        }
    }
    Ok(rest)
}

impl Rest {
    fn see(&mut self, router: usize, n: usize, worker: &Value, holds: Option<usize>) {
        let text = |name: &str| worker[name].as_str().unwrap_or_default().to_owned();
        let load = &worker["load"][0];
        let count = |name: &str| load[name].as_u64().unwrap_or(0);
        let view = View {
            router,
            worker: n,
            state: text("state"),
            breaker: text("breaker"),
            requests: count("requests"),
            held_blocks: count("held_blocks"),
            really_holds: holds.unwrap_or(0),
        };
        let mut complain =
            |what: String| self.complaints.push(format!("router-{router}, worker-{n}: {what}"));
        if view.state != "ready" {
            complain(format!("it is {}, expected ready", view.state));
        }
        for name in ["requests", "prefill_tokens", "blocks", "total_blocks"] {
            if count(name) > 0 {
                complain(format!("{} {name} in hand, expected none", count(name)));
            }
        }
        match holds {
            None => complain("it does not say what it holds".to_owned()),
            Some(holds) if holds as u64 != view.held_blocks => {
                complain(format!("{} blocks known, it holds {holds}", view.held_blocks));
            }
            Some(_) => {}
        }
        self.views.push(view);
    }
}
