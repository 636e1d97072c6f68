//! What happens when workers, connections and clients misbehave.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::scripted::{Scripted, ready_router};
use crate::support::{Bed, ask, engine, next_part, paced, post, question, rest, send, until};

fn streamed(topic: &str, tokens: u64) -> Value {
    let mut body = question(topic);
    body["stream"] = true.into();
    body["max_tokens"] = tokens.into();
    body
}

#[tokio::test]
async fn a_worker_killed_before_its_first_byte_is_not_noticed_by_clients() {
    let bed = Bed::of(vec![paced(0.2), engine(), engine()], &["--router-mode", "round_robin"]).await;
    // In the middle of a prefill: the request is there, no byte of an answer is.
    let waiting: Vec<_> = (0..6)
        .map(|n| {
            let (address, body) = (bed.address(), streamed(&format!("victim {n}"), 5).to_string());
            tokio::spawn(async move { ask(address, "POST", "/v1/chat/completions", &[], &body).await })
        })
        .collect();
    until("requests at the slow worker", || async { bed.worker(0).await["load"][0]["requests"] == 2 }).await;
    let _ = send(bed.workers[0].address(), "POST", "/faults/die", &[], "").await;
    for answered in waiting {
        let answered = answered.await.unwrap();
        assert_eq!(answered.status, 200, "{}", answered.body);
        assert!(answered.body.ends_with("data: [DONE]\n\n"));
    }
    let retries = bed.metric("kvlane_retries_total").await.unwrap();
    assert!(retries >= 2.0);
    assert_eq!(bed.in_flight().await, 0);
    until("the worker to be down", || async { bed.worker(0).await["state"] == "down" }).await;
    assert_eq!(bed.chat(&question("after")).await.status, 200);
}

#[tokio::test]
async fn a_worker_killed_in_mid_stream_ends_it_with_a_clear_error() {
    let bed = Bed::of(vec![paced(2.0)], &[]).await;
    let body = streamed("cut", 300).to_string();
    let mut response = send(bed.address(), "POST", "/v1/chat/completions", &[], body).await.unwrap();
    let first = next_part(&mut response).await.unwrap();
    assert!(first.starts_with("data: {"));
    let _ = send(bed.workers[0].address(), "POST", "/faults/die", &[], "").await;
    let text = rest(response).await;
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "answer_broke_off", "{last}");
    assert!(!text.contains("[DONE]"), "the client must not take it for whole");
    until("everything to be settled", || async { bed.in_flight().await == 0 }).await;
    let failed = "dynamo_frontend_requests_total{endpoint=\"chat_completions\",error_type=\"internal\"";
    assert_eq!(bed.metric(failed).await, Some(1.0));
}

#[tokio::test]
async fn a_hung_worker_is_left_for_another() {
    let flags = ["--set", "proxy.first_byte_timeout_ms=300", "--set", "proxy.answer_timeout_ms=300"];
    let bed = Bed::new(2, &flags).await;
    bed.faults(0, json!({"hang": true})).await;
    for n in 0..6 {
        for body in [streamed(&format!("s{n}"), 4), question(&format!("w{n}"))] {
            let answered = bed.chat(&body).await;
            assert_eq!(answered.status, 200, "{}", answered.body);
        }
    }
    let name = bed.workers[0].address();
    let failures =
        bed.metric(&format!("kvlane_worker_failures_total{{reason=\"timeout\",worker=\"{name}\"}}")).await;
    assert!(failures.unwrap() >= 1.0);
    // Everybody hangs: that is said, in time.
    bed.faults(1, json!({"hang": true})).await;
    let late = bed.chat(&question("nobody")).await;
    assert_eq!((late.status.as_u16(), late.json()["error"]["code"].as_str()), (504, Some("worker_failed")));
}

#[tokio::test]
async fn a_stream_that_stalls_is_ended() {
    let bed = Bed::of(vec![paced(2.0)], &["--set", "proxy.idle_timeout_ms=400"]).await;
    let body = streamed("stall", 300).to_string();
    let mut response = send(bed.address(), "POST", "/v1/chat/completions", &[], body).await.unwrap();
    next_part(&mut response).await.unwrap();
    bed.faults(0, json!({"hang": true})).await;
    let text = rest(response).await;
    assert!(text.contains("the worker did not answer in time"), "{text}");
    until("everything to be settled", || async { bed.in_flight().await == 0 }).await;
}

#[tokio::test]
async fn failing_workers_are_taken_out_and_tried_again() {
    let bed = Bed::new(2, &["--set", "proxy.breaker_open_ms=200", "--router-mode", "round_robin"]).await;
    bed.faults(0, json!({"status": 500})).await;
    for n in 0..20 {
        assert_eq!(bed.chat(&question(&format!("q{n}"))).await.status, 200);
    }
    let name = bed.workers[0].address();
    let opened = format!("kvlane_breaker_opened_total{{worker=\"{name}\"}}");
    assert!(bed.metric(&opened).await.unwrap() >= 1.0);
    let failures = format!("kvlane_worker_failures_total{{reason=\"status\",worker=\"{name}\"}}");
    let before = bed.metric(&failures).await.unwrap();
    assert!(before < 10.0, "{before} requests were sent to a worker that fails all");
    bed.faults(0, json!({})).await;
    until("the worker to be back", || async {
        bed.chat(&question("again")).await;
        bed.worker(0).await["breaker"] == "closed"
    })
    .await;
}

/// All workers fail all requests: clients get errors and not one request is sent in a loop.
#[tokio::test]
async fn when_everybody_fails_the_error_says_so_and_retries_are_bounded() {
    let first = Scripted::start("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let second = Scripted::start("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let app = ready_router(&[first.url(), second.url()], &[]).await;
    let answered = post(app.address, "/v1/chat/completions", &question("x")).await;
    assert!(matches!(answered.status.as_u16(), 502 | 503), "{}", answered.body);
    let error = answered.json()["error"].clone();
    assert!(
        error["message"].as_str().unwrap().starts_with("2 of the workers for model `kvlane-small`"),
        "{error}"
    );
    assert_eq!(first.asked.load(Ordering::SeqCst) + second.asked.load(Ordering::SeqCst), 2);
    assert!(!answered.body.contains("127.0.0.1"), "addresses stay in the log");
}

#[tokio::test]
async fn malformed_answers_are_passed_on_and_do_no_harm() {
    for (answer, expected) in [
        // Nonsense between good events, and a proper end.
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
             data: {broken\n\nevent: odd\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n",
            "data: {broken\n\nevent: odd\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n",
        ),
        // Half an event, then nothing: the half is not shown, the end is explained.
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choi",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":\"the worker's answer \
             broke off: the stream ended before the answer did\",\"type\":\"server_error\",\"param\":null,\
             \"code\":\"answer_broke_off\"}}\n\n",
        ),
        // Not a stream at all although one was asked for.
        ("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello", "hello"),
    ] {
        let engine = Scripted::start(answer).await;
        let app = ready_router(&[engine.url()], &[]).await;
        let answered = post(app.address, "/v1/chat/completions", &streamed("odd", 4)).await;
        assert_eq!((answered.status.as_u16(), answered.body.as_str()), (200, expected));
        assert_eq!(app.router.scheduler.load(kvlane_indexer::WorkerId::new(0, 0)), Default::default());
    }
    // Headers and then nothing at all: no answer yet, so another worker is asked.
    let dead =
        Scripted::start("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n")
            .await;
    let fine = Scripted::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
    let app = ready_router(&[dead.url(), fine.url()], &["--router-mode", "round_robin"]).await;
    for _ in 0..2 {
        assert_eq!(post(app.address, "/v1/chat/completions", &question("x")).await.body, "ok");
    }
}

/// What an engine gets is what the client sent, and TensorRT-LLM gets nothing it would refuse.
#[tokio::test]
async fn engines_get_the_clients_bytes() {
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
    let flat = "HTTP/1.1 400 Bad\r\ncontent-length: 67\r\nconnection: close\r\n\r\n\
                {\"object\":\"error\",\"message\":\"no\",\"type\":\"BadRequestError\",\"code\":4}";
    let engine = Scripted::start(ok).await;
    let app = ready_router(&[engine.url()], &[]).await;
    let body = " { \"messages\" : [ {\"role\":\"user\",  \"content\":\"h\\u0069\"} ] , \"odd\": 1.50 }";
    let headers = [
        ("x-custom", "1"),
        ("authorization", "Bearer k"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("te", "trailers"),
    ];
    ask(app.address, "POST", "/v1/chat/completions", &headers, body).await;
    let got = engine.bodies.lock()[0].clone();
    let (head, sent) = got.split_once("\r\n\r\n").unwrap();
    assert_eq!(sent, body);
    let head = head.to_lowercase();
    for kept in ["x-custom: 1", "authorization: bearer k", "x-request-id: ", "content-type: application/json"]
    {
        assert!(head.contains(kept), "{kept} is missing: {head}");
    }
    assert!(!head.contains("x-hop") && !head.contains("te: "), "{head}");

    let trt = Scripted::with_metrics(flat, "trtllm_request_success_total 1\n").await;
    let app = ready_router(&[trt.url()], &[]).await;
    let body = "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"nvext\":{\"a\":1}}";
    let answered = ask(app.address, "POST", "/v1/chat/completions", &[], body).await;
    assert_eq!((answered.status.as_u16(), answered.json()["error"]["message"].as_str()), (400, Some("no")));
    let got = trt.bodies.lock()[0].clone();
    let sent = got.split_once("\r\n\r\n").unwrap().1;
    assert!(!sent.contains("nvext") && !sent.contains("stream_options"), "{sent}");
}

/// A client that reads slowly is waited for; nothing piles up here, and others are served.
#[tokio::test]
async fn a_slow_client_holds_up_nobody_else() {
    let bed = Bed::new(1, &[]).await;
    let mut slow = TcpStream::connect(bed.address()).await.unwrap();
    let body = streamed("slow", 20_000).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    slow.write_all(request.as_bytes()).await.unwrap();
    for n in 0..10 {
        assert_eq!(bed.chat(&question(&format!("fast {n}"))).await.status, 200);
    }
    // It gets all of it in the end.
    let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while !text.ends_with(b"[DONE]\n\n\r\n0\r\n\r\n") && !text.ends_with(b"0\r\n\r\n") {
        let read =
            tokio::time::timeout(Duration::from_secs(20), slow.read(&mut buffer)).await.unwrap().unwrap();
        assert!(read > 0, "the stream was cut");
        text.extend_from_slice(&buffer[..read]);
    }
    assert!(String::from_utf8_lossy(&text).contains("data: [DONE]"));
    until("everything to be settled", || async { bed.in_flight().await == 0 }).await;
}

/// Whoever closes its side is gone, and its engine's place is free.
#[tokio::test]
async fn half_closed_sockets_count_as_gone() {
    let bed = Bed::of(vec![paced(0.05)], &[]).await;
    let mut client = TcpStream::connect(bed.address()).await.unwrap();
    let body = streamed("half", 50).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    until("the request to be placed", || async { bed.in_flight().await == 1 }).await;
    client.shutdown().await.unwrap();
    until("its place to be free", || async { bed.in_flight().await == 0 }).await;
}

#[tokio::test]
async fn a_body_of_fifty_megabytes_is_refused_and_read_away() {
    let bed = Bed::new(1, &[]).await;
    let body = vec![b'x'; 50 << 20];
    let response = send(bed.address(), "POST", "/v1/chat/completions", &[], body).await.unwrap();
    assert_eq!(response.status(), 413);
    let text = rest(response).await;
    assert!(text.contains("expected 45 MiB or less"), "{text}");
    // Below the limit it is read, and what is wrong with it is said.
    let body = vec![b'x'; 40 << 20];
    assert_eq!(send(bed.address(), "POST", "/v1/chat/completions", &[], body).await.unwrap().status(), 400);
}

/// Many connections that do nothing cost little and stop nobody. As many as this machine's limit on files allows, up to
/// ten thousand: each takes two in this process.
#[tokio::test]
async fn thousands_of_idle_connections_stop_nobody() {
    let files = std::fs::read_to_string("/proc/self/limits").unwrap();
    let limit = files.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limit: usize = limit.split_whitespace().nth(3).unwrap().parse().unwrap_or(1 << 20);
    let count = 10_000.min((limit - 400) / 2);
    assert!(count > 200, "{limit} files are too few for this test");
    let bed = Bed::new(1, &[]).await;
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        idle.push(TcpStream::connect(bed.address()).await.unwrap());
    }
    assert_eq!(bed.chat(&question("busy")).await.status, 200);
    drop(idle);
    assert_eq!(bed.chat(&question("still")).await.status, 200);
}

#[tokio::test]
async fn workers_speak_http2_without_tls_when_told() {
    let worker = crate::support::start(engine()).await;
    let url = format!("url=http://{},http2=true", worker.address());
    let app = ready_router(&[url], &[]).await;
    let answered = post(app.address, "/v1/chat/completions", &streamed("h2", 4)).await;
    assert_eq!(answered.status, 200);
    assert!(answered.body.ends_with("data: [DONE]\n\n"), "{}", answered.body);
}
