//! Routers, engines, bridges and NATS as real processes, with conversations running before them.

#![allow(dead_code, reason = "no test needs all of it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvlane_loadtest::chaos::{Balancer, Bench, Conversations, Layout, Reference, Script, Tally};
use serde_json::Value;
use tokio::sync::Mutex;

const LOAD: &str = env!("CARGO_BIN_EXE_kvlane-load");
const CONNECTIONS: usize = 1000;
/// Held by whoever has processes running: there are ten of them to a test.
pub(crate) static ALONE: Mutex<()> = Mutex::const_new(());

/// Where the programs of this workspace are.
pub(crate) fn programs() -> PathBuf {
    let beside = PathBuf::from(LOAD).parent().unwrap().to_path_buf();
    for name in ["kvlane", "kvlane-worker", "kvlane-bridge"] {
        assert!(
            beside.join(name).exists(),
            "{name} is not built, expected `cargo build --workspace --bins` first"
        );
    }
    beside
}

pub(crate) fn nats_server() -> PathBuf {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/nats-server");
    assert!(binary.exists(), "{} is missing, expected it from `make setup-clients`", binary.display());
    binary
}

/// Everything that runs, the conversations as well.
pub(crate) struct Scene {
    pub(crate) bench: Bench,
    pub(crate) balancer: Arc<Balancer>,
    pub(crate) reference: Arc<Reference>,
}

impl Scene {
    /// Ports are counted from `first_port`; no two tests have the same.
    pub(crate) async fn start(of: &str, first_port: u16, change: impl FnOnce(&mut Layout)) -> Self {
        let mut layout = Layout { programs: Some(programs()), ..Layout::new(first_port, nats_server()) };
        change(&mut layout);
        let reference = Arc::new(Reference::start(layout.answer_tokens).await.unwrap());
        let routers: Vec<SocketAddr> = (0..layout.routers).map(|n| layout.router(n)).collect();
        let balancer = Balancer::start(layout.balancer(), &routers, CONNECTIONS).await.unwrap();
        let mut bench = Bench::new(of, layout).unwrap();
        bench.start_all().await.unwrap();
        Self { bench, balancer: Arc::new(balancer), reference }
    }

    pub(crate) fn talk(&self, script: Script) -> (Conversations, Arc<Tally>) {
        let tally = Arc::new(Tally::default());
        let (balancer, reference) = (self.balancer.clone(), self.reference.clone());
        (Conversations::start(script, balancer, reference, tally.clone()), tally)
    }

    /// What a router says of a worker.
    pub(crate) async fn worker(&self, router: usize, worker: usize) -> Value {
        let name = self.bench.layout.worker(worker).to_string();
        let workers = self.bench.workers(router).await.unwrap();
        workers.into_iter().find(|worker| worker["name"] == name).unwrap_or_default()
    }

    /// Blocks a router takes the worker to hold.
    pub(crate) async fn held(&self, router: usize, worker: usize) -> u64 {
        self.worker(router, worker).await["load"][0]["held_blocks"].as_u64().unwrap_or(0)
    }

    /// Requests all routers together have there.
    pub(crate) async fn load(&self, worker: usize) -> u64 {
        let mut sum = 0;
        for router in 0..self.bench.layout.routers {
            sum += self.worker(router, worker).await["load"][0]["requests"].as_u64().unwrap();
        }
        sum
    }

    /// Every router has nothing in hand and nothing to complain of.
    pub(crate) async fn is_at_rest(&self) -> bool {
        for router in 0..self.bench.layout.routers {
            for worker in self.bench.workers(router).await.unwrap() {
                let load = &worker["load"][0];
                let nothing = ["requests", "prefill_tokens", "blocks", "total_blocks"]
                    .iter()
                    .all(|name| load[*name] == 0);
                if !nothing || worker["state"] != "ready" || worker["breaker"] == "open" {
                    return false;
                }
            }
        }
        true
    }
}

/// Until something is so; a test that waits for ever fails by its own patience.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    for _ in 0..600 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited 30 s for {what}");
}
