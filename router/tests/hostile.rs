//! What comes from outside and means no good: heads, bodies, connections, and workers that somebody else names.

use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Bed, ask, engine, free_port, get, paced, question, router, start, until};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn heads_have_a_bound() {
    let bed = Bed::new(1, &["--set", "server.max_head_kib=16"]).await;
    let head = |bytes: usize| "x".repeat(bytes);
    for (value, status) in [(head(8 << 10), 200), (head(17 << 10), 431), (head(200 << 10), 431)] {
        let answered = ask(bed.address(), "GET", "/live", &[("x-long", &value)], "").await;
        assert_eq!(answered.status, status, "{} bytes", value.len());
    }
    let names: Vec<String> = (0..200).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(ask(bed.address(), "GET", "/live", &many, "").await.status, 431);
    // HTTP/2 has the same bound, and the connection lives on.
    let stream = TcpStream::connect(bed.address()).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (bytes, status) in [(8 << 10, 200), (40 << 10, 431), (8 << 10, 200)] {
        let request = Request::get(format!("http://{}/live", bed.address())).header("x-long", head(bytes));
        let answered = client.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(answered.status(), status, "{bytes} bytes");
    }
}

/// Until the other side closes, or says something.
async fn end_of(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A connection that is cut may end with an error as well.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_head_that_trickles_in_is_cut_off_and_an_idle_connection_is_not() {
    let bed = Bed::new(1, &["--set", "server.head_timeout_ms=300"]).await;
    let mut idle = TcpStream::connect(bed.address()).await.unwrap();
    let asked = format!("GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", bed.address());
    let mut answer = [0; 1024];
    idle.write_all(asked.as_bytes()).await.unwrap();
    assert!(idle.read(&mut answer).await.unwrap() > 0);
    for first in ["GET /live HTTP/1.1\r\nx: ", "P"] {
        let stream = TcpStream::connect(bed.address()).await.unwrap();
        let (mut from, mut to) = stream.into_split();
        to.write_all(first.as_bytes()).await.unwrap();
        let trickle = tokio::spawn(async move {
            while to.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut said = Vec::new();
        let _ = from.read_to_end(&mut said).await;
        // Nobody is answered who never got to ask.
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&said));
        trickle.abort();
    }
    // The other one was silent for longer than any head may take.
    idle.write_all(asked.as_bytes()).await.unwrap();
    assert!(idle.read(&mut answer).await.unwrap() > 0, "it is still there");
}

/// A body may take longer than a head, however slowly it begins.
#[tokio::test]
async fn a_slow_body_is_no_slow_head() {
    let bed = Bed::new(1, &["--set", "server.head_timeout_ms=100"]).await;
    let body = question("slowly").to_string();
    for expects in ["", "expect: 100-continue\r\n"] {
        let mut stream = TcpStream::connect(bed.address()).await.unwrap();
        let (length, host) = (body.len(), bed.address());
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n{expects}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        for part in body.as_bytes().chunks(length.div_ceil(5)) {
            tokio::time::sleep(Duration::from_millis(80)).await;
            stream.write_all(part).await.unwrap();
        }
        let answer = end_of(stream).await;
        assert!(answer.contains("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[tokio::test]
async fn an_address_has_so_many_connections() {
    let bed = Bed::new(1, &["--set", "server.max_connections_per_address=8"]).await;
    let alive = async || {
        let mut stream = TcpStream::connect(bed.address()).await.unwrap();
        let asked = format!("GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", bed.address());
        let mut answer = [0; 1024];
        let sent = stream.write_all(asked.as_bytes()).await;
        let heard = stream.read(&mut answer).await;
        (sent.is_ok() && heard.is_ok_and(|bytes| bytes > 0)).then_some(stream)
    };
    let mut held = Vec::new();
    while let Some(stream) = alive().await {
        held.push(stream);
        assert!(held.len() <= 8, "one too many was let in");
    }
    // Those that were asked before may not have been noticed to be gone.
    assert!(!held.is_empty());
    let refused = "kvlane_connections_refused_total";
    until("that to be told", || async {
        get(bed.admin(), "/metrics").await.body.contains(&format!("{refused} 1"))
    })
    .await;
    held.clear();
    until("a place", || async { alive().await.is_some() }).await;
}

/// Whoever begins to speak HTTP/2 and does not go on, or has nothing to ask any more.
#[tokio::test]
async fn connections_of_http2_have_their_times_as_well() {
    let flags = ["--set", "server.head_timeout_ms=300", "--set", "server.idle_connection_ms=1500"];
    let bed = Bed::new(1, &flags).await;
    for beginning in ["P", "PRI * HTTP/2.0"] {
        let mut stream = TcpStream::connect(bed.address()).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        assert_eq!(end_of(stream).await, "", "{beginning}");
    }
    let stream = TcpStream::connect(bed.address()).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(connection);
    let request = Request::get(format!("http://{}/live", bed.address())).body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(client.send_request(request).await.unwrap().status(), 200);
    // Its owner keeps it, and answers when it is asked whether it is there.
    ended.await.unwrap().unwrap();
    drop(client);
}

/// A client that takes everything and leaves no window for an answer does not keep an engine's slot.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let worker = start(paced(0.2)).await;
    let url = format!("http://{}", worker.address());
    let app = router(&[url], &["--set", "server.stalled_client_ms=400"]).await;
    until("the worker", || async { get(app.address, "/ready").await.status == 200 }).await;
    let running = async || {
        let workers = get(app.admin_address.unwrap(), "/admin/workers").await.json();
        workers["workers"][0]["load"][0]["requests"].as_u64().unwrap_or_else(|| panic!("{workers}"))
    };
    let (settings, headers, data) = (4, 1, 0);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 2000});
    let stream = TcpStream::connect(app.address).await.unwrap();
    let (from, mut to) = stream.into_split();
    let reading = tokio::spawn(frames(from));
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // No window for anything that comes back.
    said.extend(frame(settings, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let mut head = vec![0x83, 0x86, 0x41, 1, b'a', 0x44, u8::try_from(CHAT.len()).unwrap()];
    head.extend(CHAT.as_bytes());
    said.extend(frame(headers, 0x4, 1, &head));
    said.extend(frame(data, 0x1, 1, body.to_string().as_bytes()));
    to.write_all(&said).await.unwrap();
    until("the answer to begin", || async { running().await == 1 }).await;
    until("the answer to be given up", || async { running().await == 0 }).await;
    drop(to);
    reading.abort();
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Kinds and payloads of the frames until the other side closes.
async fn frames(mut from: impl AsyncReadExt + Unpin) -> Vec<(u8, Vec<u8>)> {
    let (mut frames, mut head) = (Vec::new(), [0; 9]);
    while from.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if from.read_exact(&mut payload).await.is_err() {
            break;
        }
        frames.push((head[3], payload));
    }
    frames
}

/// Streams that are taken back as soon as they are opened cost their sender the connection, and nobody else anything.
#[tokio::test]
async fn whoever_opens_streams_only_to_take_them_back_is_cut_off() {
    let (headers, reset, settings, goaway) = (1, 3, 4, 7);
    const ENHANCE_YOUR_CALM: [u8; 4] = 11_u32.to_be_bytes();
    const CANCEL: [u8; 4] = 8_u32.to_be_bytes();
    let bed = Bed::new(1, &[]).await;
    let stream = TcpStream::connect(bed.address()).await.unwrap();
    let (from, mut to) = stream.into_split();
    let reading = tokio::spawn(frames(from));
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    flood.extend(frame(settings, 0, 0, &[]));
    for stream in (1..20_000).step_by(2) {
        // GET / of http://a, complete.
        flood.extend(frame(headers, 0x5, stream, &[0x82, 0x84, 0x86, 0x41, 1, b'a']));
        flood.extend(frame(reset, 0, stream, &CANCEL));
    }
    // It is closed before all of it was taken.
    let _ = to.write_all(&flood).await;
    let frames = reading.await.unwrap();
    let goodbye = frames.iter().find(|(kind, _)| *kind == goaway).map(|(_, payload)| &payload[4..8]);
    assert_eq!(goodbye, Some(&ENHANCE_YOUR_CALM[..]), "{} frames", frames.len());
    assert_eq!(get(bed.address(), "/live").await.status, 200);
    assert_eq!(bed.chat(&question("after the flood")).await.status, 200);
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// A chat with one more field.
fn with(field: &str, value: &str) -> String {
    format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 2, "{field}": {value}}}"#)
}

#[tokio::test]
async fn bodies_that_mean_no_good_are_answered_and_nothing_falls_over() {
    let bed = Bed::new(1, &[]).await;
    let (deep, number) = (nested(10_000), "9".repeat(400));
    let content = |content: &str| {
        format!(r#"{{"messages": [{{"role": "user", "content": {content}}}], "max_tokens": 2}}"#)
    };
    let listed = |count: usize, item: &str| format!("[{}]", vec![item; count].join(","));
    let biases: Vec<String> = (0..1_000_000).map(|n| format!("\"{n}\":1")).collect();
    let long = "x".repeat(40_000);
    let refused = [
        content(&deep),
        with("tools", &deep),
        with("tools", &format!(r#"[{{"type": "function", "function": {deep}}}]"#)),
        with("documents", &deep),
        with("chat_template_kwargs", &format!(r#"{{"x": {deep}}}"#)),
        with("tool_choice", &deep),
        with("user", &deep),
        with("stop", &deep),
        with("seed", &deep),
        format!(r#"{{"messages": {deep}}}"#),
        deep.clone(),
        with("max_tokens", "1e400"),
        with("max_completion_tokens", &number),
        with("max_completion_tokens", "-9223372036854775809"),
        with("n", "1000000000"),
        with("n", &number),
        with("seed", &number),
        with("priority", "99999999999"),
        with("n", "1, \"n\": 2"),
        content(r#""\ud800""#),
        content(r#""\udfff\ud800""#),
        format!("\u{feff}{}", content("\"hi\"")),
        content("\"a\u{0}b\""),
        content("\"line\nbreak\""),
        "\u{0}".repeat(100),
        String::new(),
        "{".repeat(100_000),
        "\"".to_owned(),
        "nul".to_owned(),
        "null".to_owned(),
    ];
    for body in refused {
        let answered = ask(bed.address(), "POST", CHAT, &[], &body).await;
        let shown: String = body.chars().take(120).collect();
        assert_eq!(answered.status, 400, "{shown}: {}", answered.body);
        assert!(answered.json()["error"]["message"].is_string(), "{shown}");
    }
    // What nothing here reads is for the engine to judge; what is odd but right is answered.
    let taken = [
        with("unknown", &deep),
        with("logit_bias", &format!("{{{}}}", biases.join(","))),
        with("stop", &listed(1_000_000, "\"~~\"")),
        with(
            "chat_template_kwargs",
            &format!(r#"{{"x": {}, "messages": 1, "bos_token": {{}}}}"#, nested(100)),
        ),
        with("chat_template_kwargs", r#"{"add_generation_prompt": [[]], "tools": "x", "strftime_now": 3}"#),
        with("max_completion_tokens", "9223372036854775807"),
        with("session_id", &format!("\"{long}\"")),
        with("user", "\"a\\u0000\\r\\nb\""),
        with("cache_salt", &format!("\"{long}\"")),
        content("\"a\\u0000b\""),
        content(&nested(100)),
    ];
    for body in taken {
        let answered = ask(bed.address(), "POST", CHAT, &[("x-session-id", &long)], &body).await;
        let shown: String = body.chars().take(120).collect();
        assert!(matches!(answered.status.as_u16(), 200 | 400), "{shown}: {}", answered.body);
    }
    for (path, body) in [
        ("/v1/completions", format!(r#"{{"prompt": {deep}}}"#)),
        ("/v1/completions", r#"{"prompt": [-1, 99999999999999999999]}"#.to_owned()),
        ("/tokenize", format!(r#"{{"model": {deep}}}"#)),
        ("/v1/embeddings", "[".repeat(10_000)),
    ] {
        let answered = ask(bed.address(), "POST", path, &[], &body).await;
        assert_eq!(answered.status, 400, "{path}: {}", answered.body);
    }
    // Whatever a model is called, it does not get into headers.
    for model in ["a\r\nx-injected: 1", "a\u{0}b", "\u{202e}", &long] {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let answered = ask(bed.address(), "POST", CHAT, &[], &body).await;
        assert_eq!((answered.status.as_u16(), answered.headers.get("x-injected")), (404, None));
    }
    let metrics = get(bed.address(), "/metrics").await.body;
    assert!(!metrics.contains("injected") && !metrics.contains(&long[..100]));
    let bent = get(bed.address(), "/v1/models/a%0d%0ax-injected:%201").await;
    assert_eq!((bent.status.as_u16(), bent.headers.get("x-injected")), (404, None));
    assert_eq!(bed.chat(&question("and well")).await.status, 200);
}

/// Nothing that a client says begins a line of the log.
#[tokio::test]
async fn logs_have_no_lines_of_a_clients_making() {
    let worker = start(engine()).await;
    let port = free_port();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvlane"))
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--admin-port", "0"])
        .args(["--worker", &format!("http://{}", worker.address()), "--set", "server.drain_wait_s=0"])
        .args(["--log-level", "debug", "--log-format", "text"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let written = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).unwrap();
        text
    });
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    until("a router", || async { TcpStream::connect(to).await.is_ok() }).await;
    // Before there is a model, after it, and in every text that is repeated.
    let forged = "x\nINJECTED \u{1b}[31m";
    let mut bodies = vec![json!({"model": forged, "messages": [{"role": "user", "content": "hi"}]})];
    bodies.push(
        json!({"messages": [{"role": "user", "content": "hi"}], "session_id": forged, "max_tokens": 1}),
    );
    bodies.push(json!({"messages": 3, "model": forged, forged: forged}));
    ask(to, "POST", CHAT, &[], &bodies[0].to_string()).await;
    until("a ready router", || async { get(to, "/ready").await.status == 200 }).await;
    for body in &bodies {
        ask(to, "POST", CHAT, &[], &body.to_string()).await;
    }
    get(to, "/v1/models/x%0aINJECTED").await;
    get(to, "/x%0aINJECTED").await;
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    let written = written.join().unwrap();
    assert!(written.contains("INJECTED"), "it is told, in its place: {written}");
    for line in written.lines() {
        assert!(!line.starts_with("INJECTED") && !line.contains('\u{1b}'), "{line}");
    }
}

/// An engine that answers as told and counts who comes.
async fn fake(
    address: &str,
    answer: impl Fn(&str) -> Response<Full<Bytes>> + Clone + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = TcpListener::bind(address).await.unwrap();
    let (address, seen) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = answer.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let answered = answer(request.uri().path());
                async move { Ok::<_, Infallible>(answered) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, seen)
}

fn text(body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(body.into()))
}

#[tokio::test]
async fn workers_that_others_name_are_where_they_may_be() {
    let worker = start(engine()).await;
    let (elsewhere, seen) = fake("127.0.0.2:0", |_| text("{\"data\": [{\"id\": \"m\"}]}")).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("workers.toml");
    let own = worker.address();
    let listed = format!(
        "workers = ['http://{own}', 'http://{elsewhere}', 'url=http://127.0.0.1:1,events=tcp://{elsewhere}']"
    );
    std::fs::write(&file, listed).unwrap();
    let flags = [
        "--workers-file",
        file.to_str().unwrap(),
        "--set",
        "workers.allow=127.0.0.1",
        "--set",
        "workers.refresh_ms=20",
    ];
    let app = router(&[], &flags).await;
    let bed = Bed { workers: vec![worker], app };
    bed.ready().await;
    assert_eq!(bed.metric("kvlane_workers_refused_total{source=\"file\"}").await, Some(2.0));
    let told = bed.admin_get("/admin/workers").await;
    assert_eq!(told["workers"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(seen.load(Ordering::SeqCst), 0, "nobody went there");
    // The operator may name whom he likes.
    let app = router(&[format!("http://{elsewhere}")], &["--set", "workers.allow=127.0.0.1"]).await;
    until("the worker", || async { get(app.address, "/v1/models").await.body.contains("\"m\"") }).await;
}

/// What an engine says of itself leads nowhere else.
#[tokio::test]
async fn engines_lead_nowhere_else() {
    let (elsewhere, seen) = fake("127.0.0.2:0", |_| text("{\"data\": [{\"id\": \"m\"}]}")).await;
    let sources = json!({"0": {"endpoint": format!("tcp://{elsewhere}"), "topic": ""}}).to_string();
    let (bent, _) = fake("127.0.0.1:0", move |path| match path {
        "/v1/models" => text("{\"data\": [{\"id\": \"m\"}]}"),
        "/kv_event_sources" => text(sources.clone()),
        "/tokenize" => text("{\"tokens\": [1]}"),
        _ => text(""),
    })
    .await;
    let app = router(&[format!("http://{bent}")], &["--set", "workers.allow=127.0.0.1"]).await;
    until("the worker", || async {
        let told = get(app.admin_address.unwrap(), "/admin/workers").await.json();
        let events = &told["workers"][0]["events"];
        events["source"] == "refused" && events["refused"].as_str().unwrap().contains("workers.allow")
    })
    .await;
    let target = format!("http://{elsewhere}/v1/models");
    let (moved, asked) = fake("127.0.0.1:0", move |_| {
        Response::builder().status(302).header("location", &target).body(Full::default()).unwrap()
    })
    .await;
    let _app = router(&[format!("http://{moved}")], &[]).await;
    until("some questions", || async { asked.load(Ordering::SeqCst) > 0 }).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(seen.load(Ordering::SeqCst), 0, "neither events nor redirects were followed");
}
