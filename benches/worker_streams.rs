//! What the simulated worker costs: 200 streams at real speed, in shares of one core.
//!
//! Timed: the worker's own threads (HTTP, engine, events), from `/proc`, over the ten seconds after all streams
//! have begun. Outside: the clients, which run on other threads of this process. Two rows: four engines of the
//! default calibration with 50 streams each, and one engine with 200 slots.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and fails where it stands")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const STREAMS: usize = 200;
const WINDOW: Duration = Duration::from_secs(10);
/// The bar: a demo's workers leave the machine to the router.
const MOST_CORES: f64 = 0.5;

/// Seconds the threads called `name` have run.
fn cpu_seconds(name: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
        .filter(|stat| stat.split_once('(').is_some_and(|(_, rest)| rest.starts_with(name)))
        .map(|stat| {
            let fields: Vec<f64> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .skip(11)
                .take(2)
                .map(|n| n.parse().unwrap())
                .collect();
            (fields[0] + fields[1]) / 100.0
        })
        .sum()
}

fn runtime(name: &str) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .unwrap()
}

/// Reads one stream until nobody counts any more.
async fn stream(to: SocketAddr, chunks: Arc<AtomicUsize>, begun: Arc<AtomicUsize>) {
    let body = r#"{"messages":[{"role":"user","content":"Tell me of caches."}],"max_tokens":1500,"ignore_eos":true,"stream":true}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(to).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    let mut first = true;
    while let Ok(read @ 1..) = connection.read(&mut buffer).await {
        let events = buffer[..read].windows(6).filter(|bytes| bytes == b"data: ").count();
        if first && events > 0 {
            begun.fetch_add(1, Ordering::Relaxed);
            first = false;
        }
        chunks.fetch_add(events, Ordering::Relaxed);
    }
}

fn measure(what: &str, workers: usize, calibration: &Calibration) -> f64 {
    let (serving, clients) = (runtime("worker"), runtime("client"));
    let stop = CancellationToken::new();
    let started: Vec<Worker> = (0..workers)
        .map(|_| {
            let options = WorkerOptions::new(calibration.clone());
            serving.block_on(Worker::start(options, Duration::ZERO, stop.clone())).unwrap()
        })
        .collect();
    let (chunks, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for number in 0..STREAMS {
        clients.spawn(stream(started[number % workers].address(), chunks.clone(), begun.clone()));
    }
    while begun.load(Ordering::Relaxed) < STREAMS {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (cpu, seen) = (cpu_seconds("worker"), chunks.load(Ordering::Relaxed));
    std::thread::sleep(WINDOW);
    let cores = (cpu_seconds("worker") - cpu) / WINDOW.as_secs_f64();
    let rate = (chunks.load(Ordering::Relaxed) - seen) as f64 / WINDOW.as_secs_f64();
    let per_chunk = cores / rate * 1e6;
    println!(
        "{what}: {rate:.0} chunks/s for {cores:.3} cores, {per_chunk:.1} us a chunk (simulated engines)"
    );
    stop.cancel();
    clients.shutdown_background();
    serving.shutdown_background();
    cores
}

fn main() {
    let calibration = Calibration::preset(Calibration::DEFAULT).unwrap();
    let four = measure("4 engines, 50 streams each", 4, &calibration);
    let one = measure("1 engine, 200 streams", 1, &Calibration { max_batch: STREAMS, ..calibration });
    assert!(
        four.max(one) < MOST_CORES,
        "{:.3} cores for {STREAMS} streams, expected under {MOST_CORES}",
        four.max(one)
    );
}
