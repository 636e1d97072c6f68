//! What the tests of live load have in common: engines that run fast and tell of their caches, and a router.

#![allow(dead_code, reason = "no test needs all of it")]

#[path = "../../../engine-adapters/tests/support/ports.rs"]
mod ports;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::publisher::{Endpoint as Published, PublisherConfig};
use kvlane_engine_adapters::vllm::wire::Encoder;
use kvlane_loadtest::client::{Endpoint, Patience};
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::live::{Collector, Load};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::think::Think;
use kvlane_loadtest::workload::{Conversations, Pool, Workload};
use kvlane_router::app::App;
use kvlane_router::cli::config_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use ports::free_port;

/// An engine at so many times its speed, that tells of its cache.
pub(crate) async fn engine(speed: f64) -> Worker {
    let calibration = Calibration { block_tokens: 32, ..Calibration::preset("h200-llama70b-fp8").unwrap() };
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let encoder = Encoder::default();
    let publish = PublisherConfig {
        endpoint: Published::Bind(loopback),
        replay: Some(loopback),
        topic: "kv-events".to_owned(),
        buffer_steps: 1000,
        spelling: encoder.spelling,
    };
    let events = EventOptions { publish: Some(publish), encoder, ..EventOptions::default() };
    let options = WorkerOptions { events, speed, ..WorkerOptions::new(calibration) };
    Worker::start(options, Duration::from_secs(1_700_000_000), CancellationToken::new()).await.unwrap()
}

pub(crate) async fn router(workers: &[Worker]) -> App {
    router_with(workers, &[]).await
}

pub(crate) async fn router_with(workers: &[Worker], more: &[&str]) -> App {
    let specs: Vec<String> = workers.iter().map(|worker| format!("http://{}", worker.address())).collect();
    // Port 0 is no administration at all.
    let free = free_port().to_string();
    let mut flags =
        vec!["--host", "127.0.0.1", "--port", "0", "--admin-port", &free, "--decision-headers", "true"];
    flags.extend(more);
    specs.iter().for_each(|spec| flags.extend(["--worker", spec.as_str()]));
    let (config, settings) = config_of(&flags).unwrap();
    let app = App::start(config, &settings, since_1970()).await.unwrap();
    for _ in 0..500 {
        if app.router.ready().is_ok() {
            return app;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the router is not ready: {:?}", app.router.ready());
}

pub(crate) fn endpoint(url: &str) -> Endpoint {
    Endpoint::new(url, "kvlane-small", None, Patience::default()).unwrap()
}

pub(crate) fn collector() -> Arc<Collector> {
    Collector::new(Objective::default(), Duration::from_secs(60))
}

/// Short conversations about three short documents.
pub(crate) fn conversations() -> Conversations {
    Conversations {
        pool: Pool::documents(Corpus::synthetic(1, 3, (300, 320)), 0.0),
        turns: (3, 4),
        max_tokens: 24,
        think: Think::Exponential { mean_s: 0.01 },
        broker: None,
        steady_start: false,
    }
}

pub(crate) fn load_of(workload: Workload, url: &str, collector: &Arc<Collector>) -> Load {
    let (endpoint, collector) = (endpoint(url), collector.clone());
    Load { endpoint, workload, names_session: false, decisions: None, seed: 1, collector }
}

pub(crate) fn load(url: &str, collector: &Arc<Collector>) -> Load {
    load_of(Workload::Conversations(Box::new(conversations())), url, collector)
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..1500 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not so after 30 s: {what}");
}

/// All of it: who closes on a request that is not read resets the connection.
async fn read_request(stream: &mut tokio::net::TcpStream) {
    let (mut request, mut part) = (Vec::new(), [0; 65_536]);
    loop {
        match stream.read(&mut part).await {
            Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return;
        }
    }
}

/// An endpoint that says this to everybody, and closes or not.
pub(crate) async fn saying(answer: &'static str, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_request(&mut stream).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                if !closes {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    format!("http://{address}")
}

/// An address where nobody listens, and nobody will: it is taken.
pub(crate) async fn nowhere() -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    std::mem::forget(socket);
    url
}
