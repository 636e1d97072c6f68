//! The real binary: its settings, its signals, its end.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::WorkerOptions;
use serde_json::{Value, json};

use crate::support::{engine, free_port, get, next_part, question, rest, send, start, until};

fn kvlane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlane"));
    // What the machine that runs the tests has set is not part of them.
    let ours = |name: &str| {
        ["KVLANE_", "DYN_", "NATS_", "ROUTER_", "OTEL_", "RUST_LOG"].iter().any(|p| name.starts_with(p))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command
}

fn output(command: &mut Command) -> (Output, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn settings_are_shown_with_their_origin() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    std::fs::write(&file, "[routing]\ntemperature = 0.5\n").unwrap();
    let (_, out, _) = output(
        kvlane()
            .args(["config", "--print", "--config", file.to_str().unwrap(), "--port", "9001"])
            .env("DYN_ROUTER_MODE", "round-robin"),
    );
    let line = |key: &str| {
        out.lines().find(|line| line.starts_with(key)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("server.port "), ["server.port", "9001", "--port"]);
    assert_eq!(line("routing.mode "), ["routing.mode", "\"round-robin\"", "environment", "DYN_ROUTER_MODE"]);
    assert_eq!(line("routing.temperature "), ["routing.temperature", "0.5", file.to_str().unwrap()]);
    assert_eq!(line("server.host ").last(), Some(&"default"));
    let (_, out, _) = output(kvlane().args(["config", "--defaults"]));
    assert!(out.contains("[routing]") && out.contains("mode = 'kv'"), "{out}");
    for shell in ["bash", "zsh", "fish"] {
        let (_, out, _) = output(kvlane().args(["completions", shell]));
        assert!(out.contains("router-mode"), "{shell}");
    }
}

#[test]
fn wrong_settings_stop_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, env, code, says) in [
        (vec![], ("DYN_ROUTER_MODE", "kvv"), 2, "expected one of kv, round_robin"),
        (vec![], ("DYN_REQUEST_PLANE", "tcp"), 2, "expected http"),
        (vec!["--router-temperature", "-1"], ("A", ""), 2, "expected 0 or more"),
        (vec!["--worker", "gpu-0:8000"], ("A", ""), 2, "http://HOST:PORT"),
        (vec!["--config", "/nowhere/router.toml"], ("A", ""), 2, "/nowhere/router.toml"),
        (vec!["--model-path", "/nowhere"], ("A", ""), 1, "/nowhere: tokenizer.json cannot be read"),
        (vec!["--workers-file", "/nowhere.toml"], ("A", ""), 1, "/nowhere.toml"),
        (vec!["--host", "127.0.0.1", "--port", &port], ("A", ""), 1, "cannot listen on 127.0.0.1"),
        (vec!["--prot", "1"], ("A", ""), 2, "unexpected argument"),
        (vec!["--log-level", "a=b=c"], ("A", ""), 2, "expected a filter"),
    ] {
        let mut command = kvlane();
        let (output, _, err) = output(command.args(["--admin-port", "0"]).args(&arguments).env(env.0, env.1));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
}

struct Running {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Running {
    async fn start(worker: SocketAddr, flags: &[&str]) -> Self {
        let (port, admin) = (free_port(), free_port());
        let child = kvlane()
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--admin-port", &admin.to_string()])
            .args(["--worker", &format!("http://{worker}"), "--set", "workers.probe_interval_ms=50"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let running = Self { child, address: at(port), admin: at(admin) };
        until("the router to listen", || async {
            tokio::net::TcpStream::connect(running.address).await.is_ok()
        })
        .await;
        until("the router to be ready", || async { get(running.address, "/ready").await.status == 200 })
            .await;
        running
    }

    fn signal(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }

    async fn ended(mut self) -> (ExitStatus, String) {
        for _ in 0..400 {
            if let Some(status) = self.child.try_wait().unwrap() {
                let mut text = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                return (status, text);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = self.child.kill();
        panic!("it did not end within 20 s");
    }
}

fn paced(speed: f64) -> WorkerOptions {
    let calibration = Calibration { block_tokens: 32, ..Calibration::preset("h200-llama70b-fp8").unwrap() };
    WorkerOptions { calibration, speed, ..engine() }
}

fn stream(tokens: u64) -> String {
    let mut body = question("drain");
    body["stream"] = true.into();
    body["max_tokens"] = tokens.into();
    body.to_string()
}

#[tokio::test]
async fn a_signal_drains_and_what_is_running_is_finished() {
    let worker = start(paced(4.0)).await;
    let running = Running::start(worker.address(), &["--set", "server.drain_wait_s=1"]).await;
    let mut response = send(running.address, "POST", "/v1/chat/completions", &[], stream(150)).await.unwrap();
    next_part(&mut response).await.unwrap();
    running.signal();
    // Not ready any more, alive all the same.
    until("the drain", || async { get(running.admin, "/ready").await.status == 503 }).await;
    assert_eq!(get(running.admin, "/live").await.status, 200);
    // Whoever has not heard of it yet is served.
    let late = send(running.address, "POST", "/v1/chat/completions", &[], stream(5)).await.unwrap();
    assert_eq!(late.status(), 200);
    rest(late).await;
    let text = rest(response).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let (status, log) = running.ended().await;
    assert!(status.success(), "{status}");
    // Not a terminal: one JSON object a line, one of them about the request.
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let access =
        lines.iter().find(|line| line["target"] == "kvlane::access" && line["answer_tokens"] == 150).unwrap();
    assert_eq!((&access["outcome"], &access["answer_tokens"]), (&json!("success"), &json!(150)));
    for field in
        ["request_id", "model", "worker", "cost", "ttft_ms", "duration_ms", "prompt_tokens", "cached_tokens"]
    {
        assert!(!access[field].is_null(), "{field}: {access}");
    }
}

/// The next question over a connection whose router is leaving, right behind an answer that began before.
#[tokio::test]
async fn a_kept_connection_is_not_closed_under_its_next_request() {
    let worker = start(paced(4.0)).await;
    let running = Running::start(worker.address(), &["--set", "server.drain_wait_s=0"]).await;
    let stream_to = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream_to)).await.unwrap();
    tokio::spawn(connection);
    let request = |tokens| {
        let request = Request::post("/v1/chat/completions").header("host", "router");
        request.body(Full::<Bytes>::from(stream(tokens))).unwrap()
    };
    let mut first = client.send_request(request(100)).await.unwrap();
    assert!(!first.headers().contains_key("connection"));
    next_part(&mut first).await.unwrap();
    running.signal();
    until("a closed door", || async { tokio::net::TcpStream::connect(running.address).await.is_err() }).await;
    assert!(rest(first).await.ends_with("data: [DONE]\n\n"));
    client.ready().await.unwrap();
    let second = client.send_request(request(5)).await.unwrap();
    // Told that it was the last one.
    assert_eq!(second.headers()["connection"], "close");
    assert_eq!(second.status(), 200);
    assert!(rest(second).await.ends_with("data: [DONE]\n\n"));
    let (status, _) = running.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn what_takes_too_long_is_cut_off_with_an_error() {
    let worker = start(paced(0.5)).await;
    let flags = ["--set", "server.drain_wait_s=0", "--drain-timeout-s", "1"];
    let running = Running::start(worker.address(), &flags).await;
    let mut response =
        send(running.address, "POST", "/v1/chat/completions", &[], stream(2000)).await.unwrap();
    next_part(&mut response).await.unwrap();
    running.signal();
    let text = rest(response).await;
    assert!(text.contains("answer_broke_off") && !text.contains("[DONE]"), "{text}");
    let (status, _) = running.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let worker = start(paced(0.5)).await;
    let running = Running::start(worker.address(), &["--set", "server.drain_wait_s=60"]).await;
    let mut response =
        send(running.address, "POST", "/v1/chat/completions", &[], stream(2000)).await.unwrap();
    next_part(&mut response).await.unwrap();
    running.signal();
    until("the drain", || async { get(running.admin, "/ready").await.status == 503 }).await;
    running.signal();
    let (status, log) = running.ended().await;
    assert!(status.success() && log.contains("stopping at once"), "{log}");
}

/// Spans arrive at a collector, with the client's trace and the engine told.
#[tokio::test]
async fn traces_are_exported_when_somebody_collects_them() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collected = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            bytes.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if let Ok(body) = serde_json::from_str::<Value>(body) {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                return (head.to_owned(), body);
            }
        }
    });
    let worker = start(engine()).await;
    let flags = ["--set", &format!("log.otlp_endpoint={endpoint}")];
    let running = Running::start(worker.address(), &flags).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent", trace), ("x-request-id", "traced")];
    let response = send(running.address, "POST", "/v1/chat/completions", &headers, stream(5)).await.unwrap();
    rest(response).await;
    let (head, body) = tokio::time::timeout(Duration::from_secs(20), collected).await.unwrap().unwrap();
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(
        (&span["traceId"], &span["parentSpanId"]),
        (&json!("0af7651916cd43dd8448eb211c80319c"), &json!("b7ad6b7169203331"))
    );
    assert_eq!(span["name"], "/v1/chat/completions");
    running.signal();
}
