//! Load in real time against simulated engines, behind the router and alone, and against endpoints that misbehave.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails where it stands")]

use std::net::SocketAddr;
use std::time::Duration;

use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::publisher::{Endpoint as Published, PublisherConfig};
use kvlane_engine_adapters::vllm::wire::Encoder;
use kvlane_loadtest::client::{Endpoint, Message, Patience, Question, Role};
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::live::{Arrivals, Collector, Load, Talk};
use kvlane_loadtest::measure::{ErrorClass, Objective};
use kvlane_router::app::App;
use kvlane_router::cli::config_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// An engine at twenty times its speed, that tells of its cache.
async fn engine() -> Worker {
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
    let options = WorkerOptions { events, speed: 20.0, ..WorkerOptions::new(calibration) };
    Worker::start(options, Duration::from_secs(1_700_000_000), CancellationToken::new()).await.unwrap()
}

async fn router(workers: &[Worker]) -> App {
    let specs: Vec<String> = workers.iter().map(|worker| format!("http://{}", worker.address())).collect();
    let mut flags =
        vec!["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--decision-headers", "true"];
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

fn load(url: &str, collector: &std::sync::Arc<Collector>) -> Load {
    Load {
        endpoint: Endpoint::new(url, "kvlane-small", None, Patience::default()).unwrap(),
        corpus: Corpus::synthetic(1, 3, (300, 320)),
        talk: Talk { turns: (3, 4), max_tokens: 24, think_s: 0.01, names_session: false },
        seed: 1,
        collector: collector.clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_meet_their_caches_behind_the_router() {
    let workers = [engine().await, engine().await];
    let app = router(&workers).await;
    let collector = Collector::new(Objective::default());
    let running = load(&format!("http://{}/v1", app.address), &collector).start(Arrivals::Closed(4));
    let enough = |requests: u64| {
        let collector = collector.clone();
        async move {
            for _ in 0..1000 {
                if collector.report().all.requests >= requests {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("not enough: {:?}", collector.report());
        }
    };
    enough(40).await;
    assert!((1..=4).contains(&collector.active()));
    // More of them, then fewer, while it runs.
    running.set_conversations(8);
    enough(80).await;
    running.set_conversations(1);
    for _ in 0..500 {
        if collector.active() <= 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(collector.active() <= 1, "{} still go on", collector.active());
    running.stop(Duration::from_secs(5)).await;
    let report = collector.report();
    assert_eq!(report.all.errors.len(), 0, "{:?}", report.complaints);
    assert_eq!((report.by_worker.len(), report.by_turn.len()), (2, 4));
    assert!(report.all.cached_share.unwrap() > 0.5, "{:?}", report.all.cached_share);
    let later: Vec<_> = collector.records().into_iter().filter(|record| record.turn > 1).collect();
    let cached = |tokens: Option<u64>| tokens.unwrap() > 0;
    assert!(
        later.iter().filter(|record| cached(record.measured.cached_tokens)).count() * 10 > later.len() * 9
    );
    for record in collector.records() {
        let measured = &record.measured;
        assert!(measured.ttft_s.unwrap() <= measured.e2e_s && measured.output_tokens <= 24, "{record:?}");
    }
    let (ttft, tpot) = collector.last_minute(&[0.5, 0.95]);
    assert!(ttft.quantiles[0].1 <= ttft.quantiles[1].1 && tpot.count > 0);
    collector.reset();
    assert_eq!(collector.report().all.requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_does_not_wait_for_answers() {
    let worker = engine().await;
    let collector = Collector::new(Objective::default());
    let arrivals = Arrivals::Constant { per_second: 40.0, most: 3 };
    let running = load(&format!("http://{}", worker.address()), &collector).start(arrivals);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    running.stop(Duration::from_secs(5)).await;
    let report = collector.report();
    assert!(report.all.requests > 0 && report.conversations_passed_over > 0, "{report:?}");
}

/// An endpoint that says this to everybody, and closes or not.
async fn saying(answer: &'static str, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 65_536];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                if !closes {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn whatever_an_endpoint_does_is_an_error_of_a_class() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    const CHUNK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let nowhere = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = "HTTP/1.1 500 No\r\ncontent-length: 32\r\n\r\n{\"error\":{\"message\":\"it is sick\"}}";
    for (url, class, says) in [
        (nowhere, ErrorClass::Connect, "refused"),
        (saying(error, true).await, ErrorClass::Server, "status 500"),
        (saying("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", true).await, ErrorClass::Overloaded, "503"),
        (saying("HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", true).await, ErrorClass::Refused, "404"),
        (saying(CHUNK, true).await, ErrorClass::BrokenOff, "before [DONE]"),
        (saying(CHUNK, false).await, ErrorClass::Timeout, "silent"),
        (saying(HEAD, false).await, ErrorClass::Timeout, "silent"),
        (saying("", false).await, ErrorClass::Timeout, "silent"),
        (
            saying("HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\": nonsense\n\n", true).await,
            ErrorClass::Malformed,
            "not understood",
        ),
        (
            saying("HTTP/1.1 200 OK\r\n\r\ndata: {\"error\": {\"message\": \"worker died\"}}\n\n", true)
                .await,
            ErrorClass::BrokenOff,
            "worker died",
        ),
        (saying("nonsense\r\n\r\n", true).await, ErrorClass::BrokenOff, ""),
    ] {
        let patience = Patience { silence: Duration::from_millis(200), ..Patience::default() };
        let endpoint = Endpoint::new(&url, "m", Some("key"), patience).unwrap();
        let messages = [Message { role: Role::User, content: "hi".to_owned() }];
        let question = Question {
            messages: &messages,
            max_tokens: 4,
            session: None,
            request_id: "1",
            due: Instant::now(),
        };
        let answer = endpoint.ask(&question).await;
        let complaint = answer.complaint.unwrap_or_default();
        assert_eq!(answer.measured.error, Some(class), "{complaint}");
        assert!(complaint.contains(says), "{class:?}: {complaint}");
    }
    for wrong in ["localhost:8000", "ftp://x", "http://", "nonsense url"] {
        assert!(Endpoint::new(wrong, "m", None, Patience::default()).is_err(), "{wrong}");
    }
}
