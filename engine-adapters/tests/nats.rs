//! From an engine through a bridge and a real NATS server into an index, with everything that can break on the way.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kvlane_engine_adapters::bridge::{BridgePublisher, Outbox, OutboxTarget, Sidecar, SidecarConfig};
use kvlane_engine_adapters::dynamo::{Envelope, Scope, Subjects, encode_envelope, encode_events};
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_engine_adapters::feed::{FeedClock, FeedState, Target};
use kvlane_engine_adapters::nats::{self, Announcement, NatsFeed, NatsFeedConfig, NatsView};
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_engine_adapters::vllm::wire::Encoder;
use kvlane_indexer::{
    BlockHash, BlockHasher, BlockSize, Index, IndexConfig, KvEvent, Namespace, SequenceHash, StoredBlock,
    Tick, Tier, WorkerId,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{post, publishing, start, until};

const WORKER: WorkerId = WorkerId::new(7, 0);

/// A real server on a port of its own, gone with its value.
struct Server {
    binary: PathBuf,
    port: u16,
    child: Child,
}

/// An old server and a current one; `make setup-clients` gets both.
fn servers() -> [PathBuf; 2] {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let found = [tools.join("nats-2.9/usr/sbin/nats-server"), tools.join("venv/bin/nats-server")];
    found.iter().for_each(|path| {
        assert!(path.exists(), "{} is missing, expected it from `make setup-clients`", path.display());
    });
    found
}

impl Server {
    fn start(binary: &Path) -> Self {
        let port = crate::ports::free_port();
        Self { child: Self::spawn(binary, port), binary: binary.to_owned(), port }
    }

    fn spawn(binary: &Path, port: u16) -> Child {
        let address = ["-a", "127.0.0.1", "-p"];
        Command::new(binary)
            .args(address)
            .arg(port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = Self::spawn(&self.binary, self.port);
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn clock() -> FeedClock {
    FeedClock::starting(Duration::from_secs(1_700_000_000))
}

fn subjects() -> Subjects {
    Subjects::new(&Scope::default())
}

fn block_size() -> BlockSize {
    BlockSize::new(32).unwrap()
}

/// A router's half: an index fed from NATS.
struct Router {
    index: Arc<Index>,
    view: NatsView,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Router {
    async fn start(url: &str) -> Self {
        let index = Arc::new(Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }));
        let (client, connected) = nats::connect(url, "router").await.unwrap();
        let config = NatsFeedConfig {
            snapshot_timeout: Duration::from_secs(2),
            ..NatsFeedConfig::new(subjects(), block_size())
        };
        let feed = NatsFeed::new(client, connected, config, index.clone(), clock());
        let view = feed.view();
        let task = tokio::spawn(async move { feed.run().await.unwrap() });
        Self { index, view, task }
    }

    fn held(&self, worker: WorkerId, tokens: &[u32]) -> usize {
        let hashes = BlockHasher::new(block_size(), Namespace::default()).sequence(tokens);
        self.index.overlap(&hashes, Tick(0)).of(worker).device as usize
    }

    fn blocks(&self) -> usize {
        self.index.stats().workers.iter().map(|stats| stats.device_blocks).sum()
    }

    fn state(&self) -> Option<FeedState> {
        self.view.health(WORKER).map(|health| health.state())
    }
}

/// An engine's half: a simulated worker, its bridge beside it.
struct Engined {
    worker: Worker,
    stop: CancellationToken,
    bridge: tokio::task::JoinHandle<()>,
}

impl Engined {
    async fn start(url: &str, kv_blocks: usize) -> Self {
        let options = publishing(Encoder::default());
        let calibration = Calibration { kv_blocks, ..options.calibration };
        let worker = start(WorkerOptions { calibration, fault_switches: true, ..options }).await;
        let stop = CancellationToken::new();
        let bridge = bridge(url, worker.address(), 1000, stop.clone()).await;
        Self { worker, stop, bridge }
    }

    /// A prompt of full blocks and a little more, so that it fills nothing while answering.
    async fn say(&self, number: u32) -> (Vec<u32>, usize) {
        let prompt: Vec<u32> = (0..100).map(|at| (number * 131 + at * 7) % 4000).collect();
        let answer =
            post(self.worker.address(), "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1}))
                .await
                .json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or_else(|| panic!("{answer}"));
        (prompt, cached as usize)
    }

    /// Before each prompt, what the router knows is what the engine then reports.
    async fn agrees_with(&self, router: &Router, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let prompt: Vec<u32> = (0..100).map(|at| (number * 131 + at * 7) % 4000).collect();
            let known = router.held(WORKER, &prompt) * 32;
            let (_, cached) = self.say(number).await;
            assert_eq!(known, cached, "prompt {number}");
            // What this prompt changed has to arrive before the next is judged.
            until("the prompt to be known", || async { router.held(WORKER, &prompt) == 3 }).await;
        }
    }
}

async fn bridge(
    url: &str,
    engine: SocketAddr,
    publisher: u64,
    stop: CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let (client, connected) = nats::connect(url, "bridge").await.unwrap();
    let url = format!("http://{engine}");
    let config = SidecarConfig {
        engine: Engine::Vllm,
        advertised_url: url.clone(),
        url,
        worker_id: WORKER.instance,
        events: Vec::new(),
        block_size: None,
        slots: Some(64),
        outbox: 1000,
        publisher,
        tls: ClientTls::system(),
        authorization: None,
    };
    let sidecar = Sidecar { config, client, connected, subjects: subjects(), clock: clock() };
    tokio::spawn(async move { sidecar.run(stop).await.unwrap() })
}

#[tokio::test]
async fn what_an_engine_caches_is_known_on_the_other_side() {
    for server in servers() {
        let server = Server::start(&server);
        let router = Router::start(&server.url()).await;
        let engine = Engined::start(&server.url(), 40).await;
        until("the worker to be announced", || async { router.view.announced().len() == 1 }).await;
        let announced = router.view.announced().remove(0);
        assert_eq!((announced.block_size, announced.slots, announced.kv_blocks), (32, Some(64), Some(40)));
        assert_eq!((announced.model.as_str(), announced.engine.as_str()), ("kvlane-small", "vllm"));
        // More prompts than fit: what goes is known as well as what comes.
        engine.agrees_with(&router, 0..30).await;
        engine.agrees_with(&router, 25..32).await;
        let report = router.view.report();
        let worker = &report.workers["7/0"];
        assert_eq!((worker.gaps, worker.orphaned_blocks, report.undecodable), (0, 0, 0), "{report:?}");
        assert!(worker.removed_blocks > 0 && report.unbound_workers.is_empty());
        engine.stop.cancel();
        engine.bridge.await.unwrap();
        until("the goodbye", || async { router.view.announced().is_empty() }).await;
    }
}

#[tokio::test]
async fn a_router_that_comes_late_is_warm_after_one_snapshot_and_two_agree() {
    let server = Server::start(&servers()[1]);
    let first = Router::start(&server.url()).await;
    let engine = Engined::start(&server.url(), 400).await;
    for number in 0..20 {
        engine.say(number).await;
    }
    until("the first router to know", || async { first.blocks() == 60 }).await;
    let late = Router::start(&server.url()).await;
    until("the late one to be warm", || async { late.blocks() == 60 }).await;
    let report = late.view.report();
    assert_eq!((report.snapshots, report.failed_snapshots), (1, 0), "{report:?}");
    assert_eq!(late.state(), Some(FeedState::Live));
    engine.agrees_with(&late, 15..25).await;
    until("both to agree", || async { first.blocks() == late.blocks() }).await;
}

#[tokio::test]
async fn a_server_that_dies_and_comes_back_costs_one_snapshot() {
    for binary in servers() {
        let mut server = Server::start(&binary);
        let router = Router::start(&server.url()).await;
        let engine = Engined::start(&server.url(), 400).await;
        engine.agrees_with(&router, 0..5).await;
        server.kill();
        for number in 5..15 {
            engine.say(number).await;
        }
        server.start_again();
        until("all that was missed to be known", || async { router.blocks() == 45 }).await;
        engine.agrees_with(&router, 10..20).await;
        assert_eq!(router.state(), Some(FeedState::Live));
    }
}

#[tokio::test]
async fn an_engine_that_restarts_is_known_to_be_empty() {
    let server = Server::start(&servers()[1]);
    let router = Router::start(&server.url()).await;
    let engine = Engined::start(&server.url(), 400).await;
    engine.agrees_with(&router, 0..5).await;
    post(engine.worker.address(), "/faults/restart", &Value::Null).await;
    until("the router to forget", || async { router.blocks() == 0 }).await;
    engine.agrees_with(&router, 0..5).await;
}

#[tokio::test]
async fn a_bridge_that_is_replaced_brings_everything_along() {
    let server = Server::start(&servers()[1]);
    let router = Router::start(&server.url()).await;
    let engine = Engined::start(&server.url(), 400).await;
    engine.agrees_with(&router, 0..5).await;
    engine.bridge.abort();
    let stop = CancellationToken::new();
    let _second = bridge(&server.url(), engine.worker.address(), 2000, stop.clone()).await;
    until("the new bridge to have told everything", || async {
        router.view.report().workers["7/0"].restarts > 0 && router.blocks() == 15
    })
    .await;
    engine.agrees_with(&router, 3..8).await;
}

fn stored(parent: Option<u64>, names: std::ops::Range<u64>) -> KvEvent {
    let blocks = names.map(|name| StoredBlock { id: name.into(), hash: BlockHash(name) }).collect();
    KvEvent::Stored { tier: Tier::Device, parent: parent.map(Into::into), blocks }
}

/// Blocks of the path `names` that `worker` is known to hold.
fn path_held(router: &Router, worker: WorkerId, names: std::ops::Range<u64>) -> usize {
    let hashes: Vec<SequenceHash> = SequenceHash::chain(None, names.map(BlockHash)).collect();
    router.index.overlap(&hashes, Tick(0)).of(worker).device as usize
}

#[tokio::test]
async fn dropped_messages_are_noticed_and_made_good() {
    let server = Server::start(&servers()[1]);
    let router = Router::start(&server.url()).await;
    let (client, connected) = nats::connect(&server.url(), "bridge").await.unwrap();
    // Three events may wait; a burst overflows before the first message leaves.
    let outbox = Arc::new(Outbox::new(3));
    let announcement = Announcement { worker_id: 7, publisher: 5, block_size: 32, ..Announcement::default() };
    let (_said, announcement) = watch::channel(announcement);
    let publisher = BridgePublisher {
        client,
        subjects: subjects(),
        worker: WORKER,
        connected,
        outbox: outbox.clone(),
        clock: clock(),
        announcement,
        loads: AtomicU64::new(0),
    };
    let bridge = tokio::spawn(publisher.run());
    let mut target = OutboxTarget(outbox.clone());
    let mut say = |event: &KvEvent| target.apply(event, Tick(0), &mut |_| ()).unwrap();
    let _ = say(&stored(None, 0..5));
    until("the first message", || async { path_held(&router, WORKER, 0..5) == 5 }).await;
    for at in 5..25 {
        let _ = say(&stored(Some(at - 1), at..at + 1));
    }
    assert!(outbox.drops() > 0);
    until("the snapshot", || async { path_held(&router, WORKER, 0..25) == 25 }).await;
    let report = router.view.report();
    assert!(report.snapshots >= 1 && report.workers["7/0"].orphaned_blocks == 0, "{report:?}");
    bridge.abort();
}

#[tokio::test]
async fn strangers_are_listened_to_as_far_as_they_can_be_trusted() {
    let server = Server::start(&servers()[0]);
    let router = Router::start(&server.url()).await;
    let (client, _) = nats::connect(&server.url(), "dynamo").await.unwrap();
    let worker = WorkerId::new(42, 1);
    let publish = async |subject: &str, publisher: u64, sequence: u64, events: &[KvEvent]| {
        let payload =
            encode_events(worker, (1..).zip(events).take(events.len()).collect::<Vec<_>>().into_iter());
        let envelope =
            Envelope { publisher, sequence, published_at_ms: 5, topic: "kv-events", payload: &payload };
        client.publish(subject.to_owned(), encode_envelope(&envelope).into()).await.unwrap();
    };
    let [_, component, json] = subjects().all_events();
    let endpoint = subjects().events();
    let held = |to: u64| path_held(&router, worker, 0..to);
    until("the router to listen", || async {
        publish(&endpoint, 1, 0, &[stored(None, 0..3)]).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        held(3) == 3
    })
    .await;
    assert_eq!(router.view.report().unbound_workers, [42]);
    // A number is missing and nobody can say what it was: forgotten, and refilled by what follows.
    publish(&endpoint, 1, 2, &[stored(None, 0..2)]).await;
    until("the gap to be noticed", || async {
        router.view.report().workers["42/1"].gaps == 1 && held(3) == 2
    })
    .await;
    assert_eq!(router.view.health(worker).unwrap().state(), FeedState::Partial);
    publish(&endpoint, 1, 3, &[stored(Some(1), 2..4)]).await;
    until("more", || async { held(4) == 4 }).await;
    publish(&endpoint, 1, 3, &[KvEvent::Cleared { tier: None }]).await;
    // A new publisher for the same worker is a new process.
    publish(&component, 2, 0, &[stored(None, 0..1)]).await;
    until("the restart", || async { held(4) == 1 }).await;
    assert!(router.view.report().workers["42/1"].duplicates >= 1);
    client.publish(endpoint.clone(), "rubbish".into()).await.unwrap();
    // Version 0.9: plain JSON, one number for all events of a batch.
    let event = |id: u64, name: u64, parent: Value| {
        json!({"worker_id": 9, "event": {"event_id": id, "data": {"stored": {"parent_hash": parent, "blocks": [
            {"block_hash": name, "tokens_hash": name, "mm_extra_info": null}]}}, "dp_rank": 0}})
    };
    for event in [event(1, 0, Value::Null), event(1, 1, json!(0)), event(2, 2, json!(1))] {
        client.publish(json.clone(), event.to_string().into()).await.unwrap();
    }
    let old = WorkerId::new(9, 0);
    until("the old form", || async { path_held(&router, old, 0..3) == 3 }).await;
    client.publish(json.clone(), event(5, 0, Value::Null).to_string().into()).await.unwrap();
    until("its gap", || async { path_held(&router, old, 0..3) == 1 }).await;
    assert_eq!(router.view.report().undecodable, 1);
}
