//! A worker in this process and a client that keeps nothing to itself.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::publisher::{Endpoint, PublisherConfig};
use kvlane_engine_adapters::vllm::wire::Encoder;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// A fast engine with blocks of 32.
pub(crate) fn options() -> WorkerOptions {
    let calibration = Calibration { block_tokens: 32, ..Calibration::preset("instant").unwrap() };
    WorkerOptions::new(calibration)
}

/// The same, publishing on ports of the system's choosing.
pub(crate) fn publishing(encoder: Encoder) -> WorkerOptions {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let publish = PublisherConfig {
        endpoint: Endpoint::Bind(loopback),
        replay: Some(loopback),
        topic: "kv-events".to_owned(),
        buffer_steps: 1000,
        spelling: encoder.spelling,
    };
    WorkerOptions {
        events: EventOptions { publish: Some(publish), encoder, ..EventOptions::default() },
        ..options()
    }
}

pub(crate) async fn start(options: WorkerOptions) -> Worker {
    Worker::start(options, Duration::from_secs(1_700_000_000), CancellationToken::new()).await.unwrap()
}

/// Sends one request on a connection of its own, and leaves the body to be read.
pub(crate) async fn send(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> hyper::Result<Response<Incoming>> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", to.to_string());
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send_request(request.body(Full::new(body.into())).unwrap()).await
}

pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub(crate) async fn ask(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answered {
    let response = send(to, method, path, headers, body.to_owned()).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answered { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answered {
    ask(to, "GET", path, &[], "").await
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &Value) -> Answered {
    ask(to, "POST", path, &[], &body.to_string()).await
}

/// A metric's value, the first of its name.
pub(crate) async fn metric(of: SocketAddr, name: &str) -> f64 {
    let text = get(of, "/metrics").await.body;
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Until something is so; a test that waits forever fails by its own patience.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    for _ in 0..2000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited 20 s for {what}");
}
