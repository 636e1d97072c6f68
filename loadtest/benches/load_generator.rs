//! Whether the generator keeps up with itself. Timed: requests sent against when they were due, at 200 requests a second in
//! an open loop; and the process's largest resident size with 400 streams at a time over documents of 3,500 tokens. Outside
//! of both: the endpoint, which is a process of its own (this program again) and answers on a fixed beat.
//!
//! Fails when send lag p99 is 5 ms or more, or 150 MB are exceeded.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench is a program")]

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::post;
use futures_util::stream;
use kvlane_loadtest::arrivals::{Arrivals, Pattern, Ramp};
use kvlane_loadtest::client::{Endpoint, Patience};
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::live::{Collector, LAG_LIMIT, Load, Report, SelfCheck};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::think::Think;
use kvlane_loadtest::workload::{Conversations, Pool, Workload};

/// Set for the process that is the endpoint: chunks of an answer, and milliseconds between them.
const STUB: &str = "KVLANE_BENCH_STUB";
const MOST_LAG_MS: f64 = 5.0;
const MOST_MB: f64 = 150.0;
const RATE: f64 = 200.0;
const STREAMS: usize = 400;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Ok(beat) = std::env::var(STUB) {
        let (chunks, every_ms) = beat.split_once('x').unwrap();
        runtime.block_on(stub(chunks.parse().unwrap(), Duration::from_millis(every_ms.parse().unwrap())));
        return;
    }
    let (streams, megabytes) = runtime.block_on(many_streams());
    let open = runtime.block_on(open_loop());
    let lag_ms = open.all.send_lag_s.p99 * 1e3;
    println!(
        "{STREAMS} streams: {} requests, {:.0} chunks/s, largest resident size {megabytes:.1} MB (at most {MOST_MB})",
        streams.all.requests, streams.all.output_tokens_per_s
    );
    println!(
        "open loop: {:.1} requests/s asked for {RATE}, send lag p50 {:.2} ms, p99 {lag_ms:.2} ms (at most {MOST_LAG_MS})",
        open.all.requests_per_s,
        open.all.send_lag_s.p50 * 1e3
    );
    assert_eq!((streams.all.errors.len(), open.all.errors.len()), (0, 0), "no request failed");
    assert!(
        streams.all.requests as usize > STREAMS && open.all.requests_per_s > 0.9 * RATE,
        "as much load as asked for"
    );
    assert!(megabytes < MOST_MB, "{megabytes:.1} MB");
    assert!(lag_ms < MOST_LAG_MS, "{lag_ms:.2} ms");
}

/// Answers every question with so many chunks, one each beat.
async fn stub(chunks: u64, every: Duration) {
    let answer = move || async move {
        let begin = tokio::time::Instant::now();
        let body = stream::unfold(0, move |n| async move {
            if n > chunks {
                return None;
            }
            tokio::time::sleep_until(begin + every * n as u32).await;
            let text = if n < chunks {
                "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n".to_owned()
            } else {
                format!(
                    "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{chunks}}}}}\n\ndata: [DONE]\n\n"
                )
            };
            Some((Ok::<_, Infallible>(Bytes::from(text)), n + 1))
        });
        Response::new(Body::from_stream(body))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    axum::serve(listener, Router::new().route("/v1/chat/completions", post(answer))).await.unwrap();
}

struct Stub(Child);

impl Stub {
    fn start(beat: &str) -> (Self, String) {
        let me = std::env::current_exe().unwrap();
        let mut child = Command::new(me).env(STUB, beat).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        (Self(child), url.trim().to_owned())
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(url: &str, turns: (usize, usize), collector: &Arc<Collector>) -> Load {
    Load {
        endpoint: Endpoint::new(url, "stub", None, Patience::default()).unwrap(),
        workload: Workload::Conversations(Box::new(Conversations {
            pool: Pool::documents(Corpus::synthetic(1, 10, (2600, 2900)), 0.0),
            turns,
            max_tokens: 1024,
            think: Think::Exponential { mean_s: 0.15 },
            broker: None,
            steady_start: false,
        })),
        names_session: false,
        decisions: None,
        seed: 1,
        collector: collector.clone(),
    }
}

async fn many_streams() -> (Report, f64) {
    let (_stub, url) = Stub::start("100x40");
    let collector = Collector::new(Objective::default(), Duration::from_secs(60));
    let running = load(&url, (3, 5), &collector).start(Arrivals::Closed(Ramp::flat(STREAMS as f64)));
    tokio::time::sleep(Duration::from_secs(15)).await;
    let report = collector.report();
    running.stop(Duration::from_secs(1)).await;
    (report, largest_mb())
}

async fn open_loop() -> Report {
    let (_stub, url) = Stub::start("16x10");
    let collector = Collector::new(Objective::default(), Duration::from_secs(60));
    let arrivals = Arrivals::Open { rate: Ramp::flat(RATE), pattern: Pattern::Poisson, most: 2000 };
    let running = load(&url, (1, 1), &collector).start(arrivals);
    tokio::time::sleep(Duration::from_secs(3)).await;
    collector.reset();
    let check = SelfCheck::start(LAG_LIMIT);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let report = collector.report();
    println!("generator: {:?}", check.report(report.all.send_lag_s.p99));
    running.stop(Duration::from_secs(1)).await;
    report
}

/// Of this process so far.
fn largest_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
