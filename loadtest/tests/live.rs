//! Load in real time against simulated engines, behind the router and alone, and against endpoints that misbehave.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{collector, engine, load, nowhere, router, saying, until};
use kvlane_loadtest::arrivals::{Arrivals, Pattern, Ramp};
use kvlane_loadtest::client::{Endpoint, Message, Patience, Question, Role};
use kvlane_loadtest::http::Http;
use kvlane_loadtest::live::{Decisions, Level, Live, Load, Shown};
use kvlane_loadtest::measure::ErrorClass;
use kvlane_loadtest::web::{About, Web, serve};
use serde_json::{Value, json};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn conversations_meet_their_caches_behind_the_router() {
    let workers = [engine(20.0).await, engine(20.0).await];
    let app = router(&workers).await;
    let collector = collector();
    let admin = format!("http://{}", app.admin_address.unwrap());
    let load = Load {
        decisions: Some(Decisions::new(&admin).unwrap()),
        ..load(&format!("http://{}/v1", app.address), &collector)
    };
    let running = load.start(Arrivals::Closed(Ramp::flat(4.0)));
    until("40 requests", || collector.report().all.requests >= 40).await;
    assert!((1..=4).contains(&collector.active()));
    // More of them, then fewer, while it runs.
    running.set(Level::Concurrency(8)).unwrap();
    until("80 requests", || collector.report().all.requests >= 80).await;
    running.set(Level::Concurrency(1)).unwrap();
    until("one conversation", || collector.active() <= 1).await;
    assert!(running.set(Level::Rate(1.0)).unwrap_err().to_string().contains("expected a concurrency"));
    assert!(running.set(Level::Concurrency(0)).unwrap_err().to_string().contains("expected 1 to"));
    running.stop(Duration::from_secs(5)).await;
    let report = collector.report();
    assert_eq!(report.all.errors.len(), 0, "{:?}", report.complaints);
    assert_eq!((report.by_worker.len(), report.by_turn.len()), (2, 4));
    assert!(report.all.cached_share.unwrap() > 0.5, "{:?}", report.all.cached_share);
    let later: Vec<_> = collector.latest().into_iter().filter(|record| record.turn > 1).collect();
    let cached = |tokens: Option<u64>| tokens.unwrap() > 0;
    assert!(
        later.iter().filter(|record| cached(record.measured.cached_tokens)).count() * 10 > later.len() * 9
    );
    for record in collector.latest() {
        let measured = &record.measured;
        assert!(measured.ttft_s.unwrap() <= measured.e2e_s && measured.output_tokens <= 24, "{record:?}");
        assert!(!record.topic.is_empty());
    }
    // Each request and why it went where it went, by its id.
    let decisions = report.decisions.unwrap();
    assert!(decisions.joined * 10 >= report.all.requests * 9, "{decisions:?}");
    assert!(decisions.believed_tokens > 0, "{decisions:?}");
    let decision =
        collector.latest().into_iter().filter(|record| record.turn == 3).find_map(|record| record.decision);
    let decision = decision.expect("one that was looked up");
    assert_eq!((decision.candidates, decision.mode.as_str()), (2, "kv"));
    // Conversations, and what is shown live.
    let conversations = report.conversations;
    assert!(
        conversations.completed > 10 && (2.0..=4.0).contains(&conversations.turns_mean),
        "{conversations:?}"
    );
    assert!(conversations.later_turns_faster_share.is_some());
    let (ttft, tpot) = collector.last_minute(&[0.5, 0.95]);
    assert!(ttft.quantiles[0].1 <= ttft.quantiles[1].1 && tpot.count > 0);
    collector.reset();
    assert_eq!(collector.report().all.requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_does_not_wait_for_answers_and_its_rate_can_be_changed() {
    let worker = engine(20.0).await;
    let url = format!("http://{}", worker.address());
    let first = collector();
    let arrivals = Arrivals::Open { rate: Ramp::flat(40.0), pattern: Pattern::Constant, most: 3 };
    let running = load(&url, &first).start(arrivals);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    running.stop(Duration::from_secs(5)).await;
    let report = first.report();
    assert!(report.all.requests > 0 && report.conversations.passed_over > 0, "{report:?}");
    // So seldom that nothing would come, until it is changed.
    let second = collector();
    let arrivals =
        Arrivals::Open { rate: Ramp::flat(0.001), pattern: Pattern::Gamma { shape: 0.5 }, most: 50 };
    let running = load(&url, &second).start(arrivals);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(second.report().all.requests, 0);
    running.set(Level::Rate(50.0)).unwrap();
    assert_eq!(running.control().level(), Some(Level::Rate(50.0)));
    until("requests at the new rate", || second.report().all.requests > 20).await;
    assert!(running.set(Level::Concurrency(5)).unwrap_err().to_string().contains("expected a rate"));
    running.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ramp_raises_the_load_and_ends_when_somebody_else_sets_it() {
    let worker = engine(20.0).await;
    let collector = collector();
    let ramp = Ramp { from: 1.0, to: 12.0, over_s: 1.0 };
    let running = load(&format!("http://{}", worker.address()), &collector).start(Arrivals::Closed(ramp));
    let control = running.control();
    until("twelve wanted", || control.level() == Some(Level::Concurrency(12))).await;
    until("many go on", || collector.active() > 6).await;
    running.stop(Duration::from_secs(5)).await;
    let ramp = Ramp { from: 1.0, to: 1000.0, over_s: 1000.0 };
    let running = load(&format!("http://{}", worker.address()), &collector).start(Arrivals::Closed(ramp));
    running.set(Level::Concurrency(3)).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(running.control().level(), Some(Level::Concurrency(3)));
    running.stop(Duration::from_secs(5)).await;
}

/// What Prometheus and people see of a load, and how they change it.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_load_can_be_scraped_looked_at_and_changed() {
    let worker = engine(20.0).await;
    let collector = collector();
    let running =
        load(&format!("http://{}", worker.address()), &collector).start(Arrivals::Closed(Ramp::flat(2.0)));
    let live =
        Live { collector: collector.clone(), control: running.control(), target: "a <test>".to_owned() };
    let shown = Arc::new(Shown::default());
    let web = Arc::new(Web::watching(shown.clone(), About::default()).unwrap());
    let (address, server) = serve("127.0.0.1:0".parse().unwrap(), web).await.unwrap();
    let http = Http::new(Duration::from_secs(5)).unwrap();
    let text = async |path: &str| {
        let body = http.get(&format!("http://{address}{path}"), 1 << 20).await?;
        anyhow::Ok(String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(text("/metrics").await.unwrap(), "", "nothing runs yet, which is no failure");
    assert!(text("/api/status").await.is_err());
    shown.show(Arc::new(live));
    until("ten requests", || collector.report().all.requests >= 10).await;
    let metrics = text("/metrics").await.unwrap();
    for line in [
        "# TYPE loadgen_ttft_all_seconds summary",
        "loadgen_ttft_all_seconds{quantile=\"0.5\"} ",
        "loadgen_ttft_all_seconds{quantile=\"0.95\"} ",
        "loadgen_ttft_all_seconds_count ",
        "# TYPE loadgen_tpot_all_seconds summary",
        "loadgen_tpot_all_seconds{quantile=\"0.95\"} ",
        "loadgen_active_conversations ",
        "loadgen_errors_total{class=\"timeout\"} 0",
        "loadgen_concurrency 2",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let status: Value = serde_json::from_str(&text("/api/status").await.unwrap()).unwrap();
    assert!(status["last_minute"]["ttft_p50_ms"].as_f64().unwrap() > 0.0, "{status}");
    assert!(text("/plain").await.unwrap().contains("a &lt;test>"));
    let requests: Value = serde_json::from_str(&text("/api/requests").await.unwrap()).unwrap();
    assert!(requests[0]["topic"].is_string() && requests[0]["ttft_s"].is_f64(), "{requests}");
    let change = async |body: Value| http.post(&format!("http://{address}/api/load"), &body).await;
    change(json!({"concurrency": 5})).await.unwrap();
    assert_eq!(running.control().level(), Some(Level::Concurrency(5)));
    for (wrong, says) in [
        (json!({"rate": 5}), "keeps a number of conversations"),
        (json!({"concurrency": 0}), "expected 1 to"),
        (json!({}), "expected either concurrency or rate"),
        (json!({"concurency": 5}), "unknown field"),
    ] {
        let refused = format!("{:#}", change(wrong).await.unwrap_err());
        assert!(refused.contains(says), "{refused}");
    }
    drop(server);
    running.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn whatever_an_endpoint_does_is_an_error_of_a_class() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    const CHUNK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let error = "HTTP/1.1 500 No\r\ncontent-length: 32\r\n\r\n{\"error\":{\"message\":\"it is sick\"}}";
    for (url, class, says) in [
        (nowhere().await, ErrorClass::Connect, "refused"),
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
        (
            saying("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}", true)
                .await,
            ErrorClass::Malformed,
            "expected a stream of events",
        ),
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
            begun: None,
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
