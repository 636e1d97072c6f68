//! Listening straight to engines: a simulated one that misbehaves, and a publisher on the real libzmq.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvlane_engine_adapters::feed::{FeedClock, FeedHealth, FeedState, IndexTarget};
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::trtllm::{Poll, Poller};
use kvlane_engine_adapters::vllm::subscriber::{Subscriber, Subscription};
use kvlane_engine_adapters::vllm::wire::{Encoder, Naming, Spelling};
use kvlane_indexer::{BlockHasher, BlockSize, Index, IndexConfig, Namespace, Tick, WorkerId};
use serde_json::{Value, json};

use crate::ports::free_port;
use crate::support::{options, post, publishing, start, until};

const WORKER: WorkerId = WorkerId::new(3, 0);

/// An index and the feed that fills it.
struct Listening {
    index: Arc<Index>,
    health: Arc<FeedHealth>,
    task: tokio::task::JoinHandle<String>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn index() -> Arc<Index> {
    Arc::new(Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }))
}

fn clock() -> FeedClock {
    FeedClock::starting(Duration::from_secs(1_700_000_000))
}

impl Listening {
    fn start(subscription: Subscription) -> Self {
        let index = index();
        let subscriber = Subscriber::new(subscription, IndexTarget::new(index.clone(), WORKER), clock());
        let health = subscriber.health();
        Self { index, health, task: tokio::spawn(async move { subscriber.run().await.to_string() }) }
    }

    fn to(worker: &Worker, block_tokens: u32) -> Self {
        let size = BlockSize::new(block_tokens).unwrap();
        let events = format!("tcp://{}", worker.events_address().unwrap());
        let replay = Some(format!("tcp://{}", worker.replay_address().unwrap()));
        Self::start(Subscription { replay, ..Subscription::new(WORKER, events, size) })
    }

    fn held(&self, tokens: &[u32], block_tokens: u32) -> usize {
        let hasher = BlockHasher::new(BlockSize::new(block_tokens).unwrap(), Namespace::default());
        self.index.overlap(&hasher.sequence(tokens), Tick(0)).of(WORKER).device as usize
    }

    fn blocks(&self) -> usize {
        self.index.stats().workers.iter().map(|stats| stats.device_blocks).sum()
    }

    async fn until_state(&self, state: FeedState) {
        until(&format!("{state:?}"), || async { self.health.state() == state }).await;
    }
}

fn prompt(number: u32) -> Vec<u32> {
    (0..100).map(|at| (number * 131 + at * 7) % 4000).collect()
}

async fn say(worker: &Worker, number: u32) -> usize {
    let answer =
        post(worker.address(), "/v1/completions", &json!({"prompt": prompt(number), "max_tokens": 1}))
            .await
            .json();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
        as usize
}

/// Before each prompt, what the index knows is what the engine then reports.
async fn agree(worker: &Worker, listening: &Listening, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let known = listening.held(&prompt(number), 32) * 32;
        assert_eq!(known, say(worker, number).await, "prompt {number}");
        until("the prompt to be known", || async { listening.held(&prompt(number), 32) == 3 }).await;
    }
}

/// An engine too busy to tell its past is asked again, and until then what it says is believed.
#[tokio::test]
async fn a_past_that_nobody_told_is_asked_for_again() {
    let worker = start(publishing(Encoder::default())).await;
    say(&worker, 1).await;
    // Takes connections and says nothing, until it leads to the engine's own replay.
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (replay, open) = (worker.replay_address().unwrap(), Arc::new(AtomicBool::new(false)));
    let address = door.local_addr().unwrap();
    let opened = open.clone();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = door.accept().await {
            if !opened.load(Ordering::Relaxed) {
                kept.push(stream);
                continue;
            }
            tokio::spawn(async move {
                let mut engine = tokio::net::TcpStream::connect(replay).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut engine).await;
            });
        }
    });
    let events = format!("tcp://{}", worker.events_address().unwrap());
    let listening = Listening::start(Subscription {
        replay: Some(format!("tcp://{address}")),
        replay_timeout: Duration::from_millis(200),
        ask_again: Duration::from_millis(300),
        ..Subscription::new(WORKER, events, BlockSize::new(32).unwrap())
    });
    listening.until_state(FeedState::Partial).await;
    say(&worker, 2).await;
    until("what it says meanwhile", || async { listening.held(&prompt(2), 32) == 3 }).await;
    assert_eq!(listening.held(&prompt(1), 32), 0);
    open.store(true, Ordering::Relaxed);
    listening.until_state(FeedState::Live).await;
    assert_eq!((listening.held(&prompt(1), 32), listening.held(&prompt(2), 32)), (3, 3));
    agree(&worker, &listening, 1..4).await;
}

#[tokio::test]
async fn every_spelling_is_followed_through_evictions_copies_and_resets() {
    for (spelling, naming, second_copies) in [
        (Spelling::Maps, Naming::Ints, true),
        (Spelling::Arrays, Naming::Bytes, false),
        (Spelling::Arrays, Naming::Ints, true),
    ] {
        let options = publishing(Encoder { spelling, naming, ..Encoder::default() });
        let calibration = Calibration { kv_blocks: 40, ..options.calibration };
        let events = EventOptions { second_copies, ..options.events };
        let worker = start(WorkerOptions { calibration, events, ..publishing(Encoder::default()) }).await;
        let listening = Listening::to(&worker, 32);
        listening.until_state(FeedState::Live).await;
        agree(&worker, &listening, 0..30).await;
        agree(&worker, &listening, 24..34).await;
        post(worker.address(), "/reset_prefix_cache", &Value::Null).await;
        // Said with the next step, which is the next prompt's.
        assert_eq!(say(&worker, 90).await, 0);
        until("the reset", || async { listening.blocks() == 3 }).await;
        agree(&worker, &listening, 30..34).await;
        let report = listening.health.report();
        assert_eq!((report.gaps, report.decode_errors, report.orphaned_blocks), (0, 0, 0), "{report:?}");
    }
}

#[tokio::test]
async fn what_is_lost_doubled_or_swapped_is_made_good_from_the_replay() {
    let options = publishing(Encoder::default());
    let calibration = Calibration { kv_blocks: 60, ..options.calibration };
    let worker =
        start(WorkerOptions { calibration, fault_switches: true, ..publishing(Encoder::default()) }).await;
    let listening = Listening::to(&worker, 32);
    listening.until_state(FeedState::Live).await;
    for faults in
        [json!({"drop_events": 0.3}), json!({"duplicate_events": 1}), json!({"reorder_events": 0.5})]
    {
        post(worker.address(), "/faults", &faults).await;
        for number in 0..40 {
            say(&worker, number).await;
        }
        post(worker.address(), "/faults", &json!({})).await;
        // The first batch that arrives brings everything right.
        say(&worker, 100).await;
        say(&worker, 101).await;
        until("the index to be right again", || async { listening.held(&prompt(101), 32) == 3 }).await;
        agree(&worker, &listening, 36..50).await;
    }
    let report = listening.health.report();
    assert!(report.gaps > 0 && report.duplicates > 0 && report.replays > 0, "{report:?}");
    assert_eq!((report.failed_replays, report.state), (0, FeedState::Live));
}

#[tokio::test]
async fn a_late_listener_is_warm_and_a_restarted_engine_empty() {
    let worker = start(WorkerOptions { fault_switches: true, ..publishing(Encoder::default()) }).await;
    for number in 0..10 {
        say(&worker, number).await;
    }
    let listening = Listening::to(&worker, 32);
    until("the past", || async { listening.blocks() == 30 }).await;
    post(worker.address(), "/faults/restart", &Value::Null).await;
    until("the worker to be forgotten", || async { listening.blocks() == 0 }).await;
    listening.until_state(FeedState::Live).await;
    agree(&worker, &listening, 0..5).await;
    assert!(listening.health.report().disconnects > 0);
    worker.kill();
    until("it to be forgotten again", || async {
        listening.blocks() == 0 && listening.health.state() == FeedState::Connecting
    })
    .await;
}

#[tokio::test]
async fn a_wrong_block_size_ends_the_feed_with_a_sentence() {
    let worker = start(publishing(Encoder::default())).await;
    say(&worker, 0).await;
    let mut listening = Listening::to(&worker, 16);
    let sentence = (&mut listening.task).await.unwrap();
    assert!(sentence.starts_with("the engine's blocks have 32 tokens, expected 16"), "{sentence}");
    assert_eq!((listening.health.state(), listening.blocks()), (FeedState::Refused, 0));
}

#[tokio::test]
async fn tensorrt_llm_is_polled() {
    let calibration = Calibration { kv_blocks: 40, ..options().calibration };
    let events = EventOptions { trtllm_buffer: Some(10_000), ..EventOptions::default() };
    let worker = start(WorkerOptions { calibration, events, fault_switches: true, ..options() }).await;
    let index = index();
    let poll = Poll::new(WORKER, format!("http://{}", worker.address()), BlockSize::new(32).unwrap());
    let targets = index.clone();
    let poller = Poller::new(poll, move |worker| IndexTarget::new(targets.clone(), worker), clock());
    let health = poller.health().lock()[0].clone();
    let task = tokio::spawn(async move { poller.run().await.to_string() });
    let listening = Listening { index, health, task };
    listening.until_state(FeedState::Live).await;
    agree(&worker, &listening, 0..30).await;
    agree(&worker, &listening, 25..32).await;
    post(worker.address(), "/faults/restart", &Value::Null).await;
    say(&worker, 50).await;
    until("the restart", || async { listening.blocks() == 3 }).await;
    agree(&worker, &listening, 25..30).await;
    assert_eq!(listening.health.report().restarts, 1);
}

/// A publisher on libzmq, in a process of its own.
struct Libzmq {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    events: u16,
    replay: u16,
}

impl Libzmq {
    fn start() -> Self {
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = crate_dir.join("../.tools/venv/bin/python");
        assert!(python.exists(), "{} is missing, expected it from `make setup-clients`", python.display());
        let mut child = Command::new(python)
            .arg(crate_dir.join("tests/clients/publisher.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, events: free_port(), replay: free_port() }
    }

    fn tell(&mut self, command: &Value) {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    fn open(&mut self, hwm: u32, buffer_steps: u32) {
        let events = format!("tcp://127.0.0.1:{}", self.events);
        self.open_at(&events, hwm, buffer_steps);
    }

    fn open_at(&mut self, events: &str, hwm: u32, buffer_steps: u32) {
        let replay = format!("tcp://127.0.0.1:{}", self.replay);
        self.tell(&json!({"do": "open", "events": events, "replay": replay, "hwm": hwm, "buffer_steps": buffer_steps}));
    }

    fn publish(&mut self, first: u32, count: u32, lost: bool) {
        self.tell(&json!({"do": "publish", "first": first, "count": count, "lost": lost}));
    }

    fn subscription(&self) -> Subscription {
        let events = format!("tcp://127.0.0.1:{}", self.events);
        Subscription {
            replay: Some(format!("tcp://127.0.0.1:{}", self.replay)),
            topic: "kv".to_owned(),
            ..Subscription::new(WORKER, events, BlockSize::new(4).unwrap())
        }
    }
}

impl Drop for Libzmq {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn libzmq_is_found_followed_and_found_again() {
    let mut libzmq = Libzmq::start();
    // Nobody is there yet.
    let listening = Listening::start(libzmq.subscription());
    libzmq.open(1000, 10_000);
    libzmq.publish(0, 10, false);
    until("what was said before", || async { listening.blocks() == 10 }).await;
    libzmq.publish(10, 10, false);
    until("what is said now", || async { listening.blocks() == 20 }).await;
    libzmq.publish(20, 5, true);
    libzmq.publish(25, 1, false);
    until("the gap to be filled", || async { listening.blocks() == 26 }).await;
    assert_eq!(listening.held(&[22; 4], 4), 1);
    // A new process counts from zero.
    libzmq.tell(&json!({"do": "close"}));
    until("it to be forgotten", || async { listening.blocks() == 0 }).await;
    libzmq.open(1000, 10_000);
    libzmq.publish(50, 3, false);
    until("the new one", || async { listening.blocks() == 3 }).await;
    let report = listening.health.report();
    assert!(report.gaps == 1 && report.disconnects == 1 && report.state == FeedState::Live, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_a_slow_listener_can_take_is_made_good() {
    let mut libzmq = Libzmq::start();
    // Ten messages may wait at the publisher: of a burst most are lost on the way.
    libzmq.open(10, 100_000);
    let listening = Listening::start(libzmq.subscription());
    listening.until_state(FeedState::Live).await;
    libzmq.publish(0, 20_000, false);
    // The last one may be among the lost; whatever comes next tells.
    until("all of them", || {
        libzmq.publish(30_000, 1, false);
        let blocks = listening.blocks();
        async move { blocks == 20_001 }
    })
    .await;
    assert_eq!(listening.health.report().failed_replays, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_that_is_over_is_never_shown() {
    let mut libzmq = Libzmq::start();
    libzmq.open(1000, 100_000);
    // Three thousand blocks came and went, ten stayed.
    libzmq.publish(0, 3000, false);
    libzmq.tell(&json!({"do": "remove", "first": 10, "count": 2990}));
    for _ in 0..3 {
        let listening = Listening::start(libzmq.subscription());
        let mut most = 0;
        // Looked at all the time, from before it connects until after it is live.
        while listening.health.state() != FeedState::Live {
            most = most.max(listening.blocks());
            tokio::task::yield_now().await;
        }
        assert_eq!((most.max(listening.blocks()), listening.blocks()), (10, 10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buffer_that_does_not_reach_back_leaves_less_and_says_so() {
    let mut libzmq = Libzmq::start();
    libzmq.open(1000, 5);
    libzmq.publish(0, 20, false);
    let listening = Listening::start(libzmq.subscription());
    listening.until_state(FeedState::Partial).await;
    assert_eq!(listening.blocks(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_to_us_is_heard() {
    let mut libzmq = Libzmq::start();
    let listening = Listening::start(Subscription {
        events: format!("tcp://*:{}", libzmq.events),
        ..libzmq.subscription()
    });
    let address = format!("connect:tcp://127.0.0.1:{}", libzmq.events);
    libzmq.open_at(&address, 1000, 10_000);
    // What is said before the connection stands is lost to a PUB socket, and had from the replay.
    until("the engine to be heard", || {
        libzmq.publish(0, 1, false);
        let blocks = listening.blocks();
        async move { blocks == 1 }
    })
    .await;
    libzmq.publish(5, 5, false);
    until("more", || async { listening.blocks() == 6 }).await;
}
