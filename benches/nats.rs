//! What a NATS server and a router pay for each message of KV events, and how that grows with routers that listen.
//!
//! A real server, a publisher that stands for eight workers, and one, two or four routers' halves, each with an index of
//! its own. A message is a step of one worker: four answers that each filled a block. Counted: processor time of the
//! server's process, and of this one, which is publisher and routers together; a router's own share is what one more
//! of them adds. Outside: making the messages.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and fails where it stands")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::dynamo::{Envelope, Scope, Subjects, encode_envelope, encode_events};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::nats::{self, NatsFeed, NatsFeedConfig};
use kvlane_indexer::{
    BlockHash, BlockSize, EngineBlockId, Index, IndexConfig, KvEvent, StoredBlock, Tier, WorkerId,
};

const WORKERS: u64 = 8;
const STEPS: u64 = 5000;
const ANSWERS: u64 = 4;
/// Messages on their way at once.
const AHEAD: usize = 2000;
const ROUTERS: [usize; 3] = [1, 2, 4];

/// Where `make setup-clients` puts it, or wherever it is found.
fn server() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/nats-server");
    if own.exists() { own } else { PathBuf::from("nats-server") }
}

/// Gone with its value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of a process so far, in microseconds.
fn processor_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Fields are counted from behind the name, which may hold anything; a tick is 10 ms.
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
    let mut ticks = || fields.next().and_then(|ticks| ticks.parse::<f64>().ok()).unwrap();
    (ticks() + ticks()) * 10_000.0
}

/// A worker's steps: each continues four conversations by a block.
fn messages() -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    for step in 0..STEPS {
        for worker in 0..WORKERS {
            let id = |answer: u64, step: u64| (worker << 40 | answer << 32 | step) + 1;
            let event = |answer: u64| KvEvent::Stored {
                tier: Tier::Device,
                parent: step.checked_sub(1).map(|before| EngineBlockId::from(id(answer, before))),
                blocks: vec![StoredBlock {
                    id: id(answer, step).into(),
                    hash: BlockHash(id(answer, step).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                }],
            };
            let events: Vec<KvEvent> = (0..ANSWERS).map(event).collect();
            let numbered: Vec<_> = (step * ANSWERS + 1..).zip(&events).take(events.len()).collect();
            let payload = encode_events(WorkerId::new(worker + 1, 0), numbered.into_iter());
            messages.push(encode_envelope(&Envelope {
                publisher: worker + 1,
                sequence: step,
                published_at_ms: 0,
                topic: "kv-events",
                payload: &payload,
            }));
        }
    }
    messages
}

fn held(index: &Index) -> usize {
    index.stats().workers.iter().map(|stats| stats.device_blocks).sum()
}

/// Microseconds of processor time a message: the server's, and ours.
async fn measured(routers: usize, messages: &[Vec<u8>]) -> (f64, f64) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(server());
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server(command.spawn().unwrap());
    let url = format!("nats://127.0.0.1:{port}");
    let subjects = Subjects::new(&Scope::default());
    let mut indexes = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..routers {
        let index = Arc::new(Index::new(IndexConfig::default()));
        let (client, connected) = nats::connect(&url, "router").await.unwrap();
        let config = NatsFeedConfig::new(subjects.clone(), BlockSize::new(16).unwrap());
        let clock = FeedClock::starting(Duration::from_secs(1));
        let feed = NatsFeed::new(client, connected, config, index.clone(), clock);
        tasks.spawn(feed.run());
        indexes.push(index);
    }
    let (publisher, _connected) = nats::connect(&url, "publisher").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = (processor_us(server.0.id()), processor_us(std::process::id()));
    let mut sent = 0;
    for part in messages.chunks(AHEAD) {
        for message in part {
            publisher.publish(subjects.events(), message.clone().into()).await.unwrap();
        }
        publisher.flush().await.unwrap();
        sent += part.len();
        while indexes.iter().any(|index| held(index) < sent * ANSWERS as usize) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let after = (processor_us(server.0.id()), processor_us(std::process::id()));
    let count = messages.len() as f64;
    ((after.0 - before.0) / count, (after.1 - before.1) / count)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let messages = messages();
    let bytes: usize = messages.iter().map(Vec::len).sum();
    println!("{} messages of {} bytes, {ANSWERS} blocks each", messages.len(), bytes / messages.len());
    let mut series = Vec::new();
    for routers in ROUTERS {
        let (server, ours) = measured(routers, &messages).await;
        println!(
            "{routers} routers listen: server {server:.2} us a message, publisher and routers {ours:.2}"
        );
        series.push((routers as f64, server, ours));
    }
    let (first, last) = (series[0], series[series.len() - 1]);
    let more = |a: f64, b: f64| (b - a) / (last.0 - first.0);
    println!(
        "one more router: {:.2} us of the server's time a message, {:.2} of its own",
        more(first.1, last.1),
        more(first.2, last.2)
    );
}
