//! A router before simulated workers, all in this process, and what tests ask of them.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "../../../engine-adapters/tests/support/ports.rs"]
mod ports;
#[path = "../../../engine-adapters/tests/support/mod.rs"]
mod workers;

pub(crate) mod scripted;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::wire::Encoder;
use kvlane_router::app::App;
use kvlane_router::cli::config_of;
use serde_json::{Value, json};

pub(crate) use ports::free_port;
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use workers::{Answered, ask, get, post, publishing, send, start, until};

/// Blocks of 32, no time at all, KV events, faults to be switched.
pub(crate) fn engine() -> WorkerOptions {
    WorkerOptions { fault_switches: true, ..publishing(Encoder::default()) }
}

/// An engine at its real speed, times `speed`.
pub(crate) fn paced(speed: f64) -> WorkerOptions {
    let calibration = Calibration { block_tokens: 32, ..Calibration::preset("h200-llama70b-fp8").unwrap() };
    WorkerOptions { calibration, speed, ..engine() }
}

pub(crate) struct Bed {
    pub(crate) workers: Vec<Worker>,
    pub(crate) app: App,
}

/// A router for these URLs, not waited for.
pub(crate) async fn router(urls: &[String], flags: &[&str]) -> App {
    let admin = free_port().to_string();
    let mut all = vec!["--host", "127.0.0.1", "--port", "0", "--admin-port", &admin];
    all.extend(["--set", "workers.probe_interval_ms=50", "--set", "server.drain_wait_s=0"]);
    for url in urls {
        all.extend(["--worker", url]);
    }
    all.extend(flags);
    let (config, settings) = config_of(&all).unwrap();
    App::start(config, &settings, since_1970()).await.unwrap()
}

impl Bed {
    /// Workers with these options each, and a router that is ready.
    pub(crate) async fn of(options: Vec<WorkerOptions>, flags: &[&str]) -> Self {
        let mut workers = Vec::new();
        for options in options {
            workers.push(start(options).await);
        }
        let urls: Vec<String> = workers.iter().map(|worker| format!("http://{}", worker.address())).collect();
        let app = router(&urls, flags).await;
        let bed = Self { workers, app };
        bed.ready().await;
        bed
    }

    pub(crate) async fn new(workers: usize, flags: &[&str]) -> Self {
        Self::of((0..workers).map(|_| engine()).collect(), flags).await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.app.address
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.app.admin_address.unwrap()
    }

    /// Every worker is there, and so is what it holds.
    pub(crate) async fn ready(&self) {
        let count = self.workers.len() as u64;
        until("a ready router", || async {
            let health = get(self.address(), "/health").await.json();
            health["ready"] == true && health["workers"]["ready"] == count
        })
        .await;
    }

    pub(crate) async fn chat(&self, body: &Value) -> Answered {
        post(self.address(), "/v1/chat/completions", body).await
    }

    pub(crate) async fn admin_get(&self, path: &str) -> Value {
        get(self.admin(), path).await.json()
    }

    pub(crate) async fn faults(&self, worker: usize, faults: Value) {
        let answered = post(self.workers[worker].address(), "/faults", &faults).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
    }

    /// What the router says of a worker.
    pub(crate) async fn worker(&self, n: usize) -> Value {
        let name = self.workers[n].address().to_string();
        let workers = self.admin_get("/admin/workers").await;
        workers["workers"].as_array().unwrap().iter().find(|worker| worker["name"] == name).unwrap().clone()
    }

    /// Requests the router has placed and not settled.
    pub(crate) async fn in_flight(&self) -> u64 {
        let workers = self.admin_get("/admin/workers").await;
        let loads = workers["workers"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|worker| worker["load"].as_array().unwrap());
        loads.map(|load| load["requests"].as_u64().unwrap()).sum()
    }

    /// The sum of the series that begin so, or nothing when none does.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let text = get(self.address(), "/metrics").await.body;
        let lines = text.lines().filter(|line| line.starts_with(series));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }
}

/// A chat of one question, long enough for some blocks.
pub(crate) fn question(topic: &str) -> Value {
    let text = format!("{topic}: {}", "please tell me everything about caches and routers ".repeat(20));
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": 8})
}

/// The same chat after an answer, with another question.
pub(crate) fn follow_up(before: &Value, answer: &Value) -> Value {
    let mut next = before.clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
    messages.push(json!({"role": "user", "content": "And then?"}));
    next
}

/// The next part of a streamed answer.
pub(crate) async fn next_part(response: &mut Response<Incoming>) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(20), response.body_mut().frame()).await.unwrap()?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

/// Everything that is left of it.
pub(crate) async fn rest(mut response: Response<Incoming>) -> String {
    let mut text = String::new();
    while let Some(part) = next_part(&mut response).await {
        text.push_str(&part);
    }
    text
}

/// A real NATS server on a port of its own.
pub(crate) struct NatsServer(Child, pub(crate) u16);

impl NatsServer {
    pub(crate) fn start() -> Self {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/nats-server");
        assert!(binary.exists(), "{} is missing, expected it from `make setup-clients`", binary.display());
        let port = free_port();
        let child = Command::new(binary)
            .args(["-a", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child, port)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
