//! The page's own server: a load that is started, looked at, changed and stopped from outside, beside a real router.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{conversations, engine, load_of, nowhere, router};
use axum::Json;
use axum::extract::Query;
use futures_util::StreamExt;
use kvlane_engine_adapters::sim::worker::Worker;
use kvlane_loadtest::http::Http;
use kvlane_loadtest::live::{Decisions, Load, Shown};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::web::{About, Administration, Infrastructure, Play, Stage, Web, serve};
use kvlane_loadtest::workload::Workload;
use kvlane_router::app::App;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::task::AbortOnDropHandle;

/// A page over a router with two engines.
struct Page {
    address: SocketAddr,
    http: Http,
    app: App,
    _server: AbortOnDropHandle<()>,
    _workers: [Worker; 2],
}

impl Page {
    async fn open(change: impl FnOnce(&mut Web)) -> Self {
        let workers = [engine(20.0).await, engine(20.0).await];
        let app = router(&workers).await;
        let (url, admin) =
            (format!("http://{}", app.address), format!("http://{}", app.admin_address.unwrap()));
        let shown = Arc::new(Shown::default());
        let mut web = Web::watching(shown.clone(), About::default()).unwrap();
        web.router = Some(Administration::new(&admin).unwrap());
        let make = move |seed, collector| {
            let workload = Workload::Conversations(Box::new(conversations()));
            let decisions = Some(Decisions::new(&admin)?);
            Ok(Load { seed, decisions, ..load_of(workload, &url, &collector) })
        };
        let play = Play {
            make: Box::new(make),
            objective: Objective::default(),
            seed: 1,
            concurrency: 4,
            most: 1000,
            target: "a test".to_owned(),
            conditions: json!({"workload": {"think_s": 0.0}}),
        };
        web.stage = Some(Stage::new(play, shown, web.book.clone()));
        change(&mut web);
        let (address, server) = serve("127.0.0.1:0".parse().unwrap(), Arc::new(web)).await.unwrap();
        let http = Http::new(Duration::from_secs(10)).unwrap();
        Self { address, http, app, _server: server, _workers: workers }
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(&format!("http://{}{path}", self.address), 1 << 20).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// What is answered, or why not.
    async fn post(&self, path: &str, body: Value) -> Result<Value, String> {
        let answer = self.http.post(&format!("http://{}{path}", self.address), &body).await;
        answer.map(|answer| serde_json::from_slice(&answer).unwrap()).map_err(|error| format!("{error:#}"))
    }

    /// Asks until it is so.
    async fn until(&self, path: &str, so: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let answer = self.get(path).await;
            if so(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not so after 30 s: {path}");
    }
}

/// What is answered to bytes.
async fn raw(to: SocketAddr, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
    stream.write_all(request.replace('\n', "\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The next message of a kind.
async fn heard(socket: &mut Feed, kind: &str) -> Value {
    let hear = async {
        loop {
            let message = heard_any(socket).await;
            if message["type"] == kind {
                return message;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), hear).await.unwrap_or_else(|_| panic!("no {kind}"))
}

async fn heard_any(socket: &mut Feed) -> Value {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_is_started_watched_changed_and_stopped() {
    let page = Page::open(|_| {}).await;
    let (mut feed, _) =
        tokio_tungstenite::connect_async(format!("ws://{}/api/feed", page.address)).await.unwrap();
    let hello = heard(&mut feed, "hello").await;
    assert_eq!((&hello["can"]["run"], &hello["can"]["mode"]), (&json!(true), &json!(true)));
    assert_eq!(hello["slider"], json!({"min": 4, "max": 180, "step": 1}), "wide enough for four");
    assert_eq!((&hello["state"]["run"], &hello["sample"]), (&json!("stopped"), &Value::Null));
    assert!(
        page.post("/api/run/stop", json!({}))
            .await
            .unwrap_err()
            .contains("the load is stopped, expected it running")
    );
    let state = page.post("/api/run/start", json!({"concurrency": 3})).await.unwrap();
    assert_eq!((&state["run"], &state["level"]), (&json!("running"), &json!({"concurrency": 3})));
    let again = page.post("/api/run/start", json!({})).await.unwrap_err();
    assert!(again.contains("409") && again.contains("the load is running, expected it stopped"), "{again}");
    // Others hear of it without asking.
    assert_eq!(heard(&mut feed, "mark").await["kind"], "start");
    let sample = loop {
        let sample = heard(&mut feed, "sample").await;
        if sample["figures"]["ttft_p50_ms"].is_f64() && sample["kv_hit_from"] == "router" {
            break sample;
        }
    };
    assert!(sample["figures"]["tpot_p95_ms"].as_f64().unwrap() > 0.0, "{sample}");
    assert!(
        sample["requests"].as_u64().unwrap() > 0 && sample["errors"] == 0 && sample["queued"].is_f64(),
        "{sample}"
    );
    page.post("/api/load", json!({"concurrency": 6})).await.unwrap();
    assert_eq!(page.get("/api/status").await["level"], json!({"concurrency": 6}));
    assert!(
        page.post("/api/load", json!({"rate": 2.0})).await.unwrap_err().contains("expected a concurrency")
    );
    let state = page.post("/api/run/stop", json!({})).await.unwrap();
    assert_eq!(state["run"], "stopping");
    while heard(&mut feed, "state").await["run"] != "stopped" {}
    // A level that is set meanwhile is the next one's, which counts from zero.
    let before = page.get("/api/status").await["requests"].as_u64().unwrap();
    page.post("/api/load", json!({"concurrency": 2})).await.unwrap();
    let state = page.post("/api/run/start", json!({})).await.unwrap();
    assert_eq!(state["level"], json!({"concurrency": 2}));
    assert!(page.get("/api/status").await["requests"].as_u64().unwrap() < before);
    let mut late = heard_anew(&page).await;
    assert!(heard(&mut late, "hello").await["marks"].as_array().unwrap().len() >= 4);
    page.app.drain(std::future::ready(())).await;
}

type Feed = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn heard_anew(page: &Page) -> Feed {
    tokio_tungstenite::connect_async(format!("ws://{}/api/feed", page.address)).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_can_be_read_with_why_they_went_where() {
    let page = Page::open(|_| {}).await;
    page.post("/api/run/start", json!({})).await.unwrap();
    let whole = |line: &&Value| line["status"] == "completed";
    let listing = page
        .until("/api/conversations", |listing| {
            listing["conversations"].as_array().unwrap().iter().any(|line| whole(&line))
        })
        .await;
    let line = listing["conversations"].as_array().unwrap().iter().find(whole).unwrap().clone();
    assert_eq!(line["turns_done"], line["turns_planned"]);
    let path = format!("/api/conversations/{}", line["id"]);
    let told =
        |seen: &Value| seen["turns"].as_array().unwrap().iter().all(|turn| turn["decision"].is_object());
    let seen = page.until(&path, told).await;
    let turns = seen["turns"].as_array().unwrap();
    assert_eq!(turns.len() as u64, line["turns_done"].as_u64().unwrap());
    for turn in turns {
        assert!(
            !turn["user"].as_str().unwrap().is_empty() && !turn["assistant"].as_str().unwrap().is_empty(),
            "{turn}"
        );
        assert!(turn["ttft_ms"].as_f64().unwrap() > 0.0 && turn["state"] == "done", "{turn}");
        let chosen = &turn["decision"]["candidates"][0];
        assert_eq!(chosen["worker"], turn["worker"], "{turn}");
        assert!(chosen["prefill_cost"].is_f64() && chosen["cost"].is_f64(), "{turn}");
    }
    assert!(turns[1]["cached_tokens"].as_u64().unwrap() > 0, "{}", turns[1]);
    assert!(
        page.http.get(&format!("http://{}/api/conversations/999999", page.address), 1 << 16).await.is_err()
    );
    // Those that a stop cuts short are told apart.
    page.post("/api/run/stop", json!({})).await.unwrap();
    page.until("/api/conversations", |listing| listing["active"] == 0).await;
    page.app.drain(std::future::ready(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_is_asked_and_flipped_through_the_page() {
    let page = Page::open(|_| {}).await;
    page.post("/api/run/start", json!({})).await.unwrap();
    let (mut feed, _) =
        tokio_tungstenite::connect_async(format!("ws://{}/api/feed", page.address)).await.unwrap();
    while heard(&mut feed, "state").await["mode"] != "kv" {}
    let answer = page.post("/api/mode", json!({"mode": "round_robin", "reset": true})).await.unwrap();
    assert_eq!(answer["mode"], "round_robin");
    // Told before the answer came, and marked.
    let (mark, reset) = (heard(&mut feed, "mark").await, heard(&mut feed, "mark").await);
    assert_eq!((&mark["kind"], &mark["label"]), (&json!("mode"), &json!("round_robin")));
    assert_eq!(reset["kind"], "reset");
    let late = heard(&mut heard_anew(&page).await, "hello").await;
    assert_eq!(late["state"]["mode"], "round_robin");
    assert!(answer["reset"].as_object().unwrap().values().all(|said| said == "emptied"), "{answer}");
    let refused = page.post("/api/mode", json!({"mode": "random"})).await.unwrap_err();
    assert!(refused.contains("mode is random, expected kv or round_robin"), "{refused}");
    page.post("/api/mode", json!({"mode": "kv"})).await.unwrap();
    assert_eq!(page.get("/api/mode").await["mode"], "kv");
    // Whoever else changes it is seen to.
    let admin = format!("http://{}/admin/mode", page.app.admin_address.unwrap());
    page.http.post(&admin, &json!({"mode": "round_robin"})).await.unwrap();
    while heard(&mut feed, "mark").await["label"] != "round_robin" {}
    page.http.post(&admin, &json!({"mode": "kv"})).await.unwrap();
    let explained = page.post("/api/explain", json!({"prompt": "Where would this go?"})).await.unwrap();
    assert!(
        explained["chosen"]["worker"].is_string() && explained["candidates"].as_array().unwrap().len() == 2
    );
    assert!(
        page.post("/api/explain", json!({"prompt": ""})).await.unwrap_err().contains("prompt has 0 bytes")
    );
    let seen = page.get("/api/infrastructure").await;
    assert_eq!((&seen["from"], &seen["prometheus"]), (&json!("workers"), &json!("not_configured")));
    assert_eq!(seen["gpu"], "H200 (simulated)");
    let workers = seen["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    assert!(
        workers.iter().all(|worker| worker["gpus"][0]["util_pct"].is_f64() && worker["kv_blocks"].is_u64()),
        "{seen}"
    );
    // Once engines have told what they cached, the tree shows it, with what it is about.
    let topics = |tree: &Value| {
        let nodes = tree["nodes"].as_array().unwrap().clone();
        nodes
            .into_iter()
            .find(|node| node["topic"].is_string() && !node["holders"].as_array().unwrap().is_empty())
    };
    let tree = page.until("/api/tree", |tree| topics(tree).is_some()).await;
    let node = topics(&tree).unwrap();
    assert!(
        node["blocks"].as_u64().unwrap() > 0 && node["below"].as_u64() >= node["blocks"].as_u64(),
        "{node}"
    );
    assert_eq!(tree["workers"].as_array().unwrap().len(), 2);
    assert!(tree["index"]["nodes"].as_u64().unwrap() > 0 && tree["left_out"].is_u64(), "{tree}");
    let baselines = page.get("/api/baselines").await;
    assert_eq!((baselines["rows"].as_array().unwrap().len(), &baselines["source"]), (7, &json!("recorded")));
    page.app.drain(std::future::ready(())).await;
}

/// A Prometheus that knows one GPU, and how a router does.
async fn prometheus() -> (String, AbortOnDropHandle<()>) {
    async fn query(Query(asked): Query<HashMap<String, String>>) -> Json<Value> {
        let query = &asked["query"];
        let values =
            [("DCGM", "87"), ("cached_tokens", "0.943"), ("kvlane_queue", "7"), ("queued_requests", "4")];
        let value = values.iter().find(|(part, _)| query.contains(part)).unwrap().1;
        let metric = json!({"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "pod": "vllm-0", "modelName": "NVIDIA H200"});
        let result = json!([{"metric": metric, "value": [1.0, value]}]);
        Json(json!({"status": "success", "data": {"resultType": "vector", "result": result}}))
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = axum::Router::new().route("/api/v1/query", axum::routing::get(query));
    let server = tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
    (format!("http://{address}"), AbortOnDropHandle::new(server))
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_come_from_prometheus_where_there_is_one() {
    let (prometheus, _server) = prometheus().await;
    let page = Page::open(|web| web.infrastructure = Infrastructure::new(Some(&prometheus)).unwrap()).await;
    let seen = page.get("/api/infrastructure").await;
    assert_eq!(
        (&seen["from"], &seen["prometheus"], &seen["gpu"]),
        (&json!("prometheus"), &json!("ok"), &json!("H200"))
    );
    let cards = seen["workers"].as_array().unwrap();
    let card = cards.iter().find(|card| card["name"] == "vllm-0").unwrap();
    assert_eq!(card["gpus"][0]["util_pct"], 87.0);
    assert_eq!(cards.len(), 3, "two workers and a pod that is none of them");
    page.app.drain(std::future::ready(())).await;
    // How the router does comes from there too, where its administration is not known.
    let page = Page::open(|web| {
        web.infrastructure = Infrastructure::new(Some(&format!("{prometheus}/"))).unwrap();
        web.router = None;
    });
    let page = page.await;
    let mut feed = heard_anew(&page).await;
    page.post("/api/run/start", json!({})).await.unwrap();
    let sample = loop {
        let sample = heard(&mut feed, "sample").await;
        if sample["kv_hit_from"] == "prometheus" {
            break sample;
        }
    };
    assert!((sample["kv_hit_pct"].as_f64().unwrap() - 94.3).abs() < 0.01, "{sample}");
    assert_eq!((&sample["queued"], &sample["before_first_token"]), (&json!(7.0), &json!(4.0)));
    page.app.drain(std::future::ready(())).await;
    let dead = nowhere().await;
    let page = Page::open(|web| web.infrastructure = Infrastructure::new(Some(&dead)).unwrap()).await;
    let seen = page.get("/api/infrastructure").await;
    assert_eq!((&seen["prometheus"], &seen["from"]), (&json!("unavailable"), &json!("workers")));
    page.app.drain(std::future::ready(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_does_what_he_may_not() {
    let page = Page::open(|web| web.read_only = true).await;
    for (path, body) in [
        ("/api/run/start", json!({})),
        ("/api/run/stop", json!({})),
        ("/api/load", json!({"concurrency": 3})),
        ("/api/mode", json!({"mode": "kv"})),
    ] {
        let refused = page.post(path, body).await.unwrap_err();
        assert!(refused.contains("403") && refused.contains("to look at only"), "{path}: {refused}");
    }
    // A page of somebody else's may not listen.
    let mut foreign = format!("ws://{}/api/feed", page.address).into_client_request().unwrap();
    foreign.headers_mut().insert("origin", "http://elsewhere.test".parse().unwrap());
    assert!(tokio_tungstenite::connect_async(foreign).await.unwrap_err().to_string().contains("403"));
    let mut own = format!("ws://{}/api/feed", page.address).into_client_request().unwrap();
    own.headers_mut().insert("origin", format!("http://{}", page.address).parse().unwrap());
    let (mut feed, _) = tokio_tungstenite::connect_async(own).await.unwrap();
    let hello = heard(&mut feed, "hello").await;
    assert_eq!(
        (&hello["can"]["run"], &hello["can"]["mode"], &hello["can"]["explain"]),
        (&json!(false), &json!(false), &json!(true))
    );
    page.app.drain(std::future::ready(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_refused_in_one_form() {
    let page = Page::open(|_| {}).await;
    let post = |path: &str, kind: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\nHost: localhost\nConnection: close\n{kind}Content-Length: {length}\n\n{body}"
        );
        async move { raw(page.address, &request).await }
    };
    let json = "Content-Type: application/json\n";
    for (path, kind, body, status, why) in [
        ("/api/load", json, r#"{"concurency": 3}"#, 400, "unknown field"),
        ("/api/load", json, r#"{"concurrency": 1.5}"#, 400, "invalid type"),
        ("/api/load", json, r#"{"concurrency": 2000}"#, 400, "concurrency is 2000, expected at most 1000"),
        ("/api/load", json, "nonsense", 400, "JSON"),
        // What a form of another page's can send without being asked for leave.
        ("/api/run/start", "", "{}", 415, "application/json"),
        (
            "/api/sweeps",
            json,
            r#"{"kind": "virtual", "levels": [60], "modes": ["best"]}"#,
            400,
            "unknown variant",
        ),
        ("/nowhere", json, "{}", 405, "method not allowed"),
    ] {
        let answer = post(path, kind, body).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {answer}"));
        assert!(body["error"]["message"].as_str().unwrap().contains(why), "{path}: {body}");
    }
    for path in
        ["/api/conversations/x", "/api/conversations?limit=x", "/nowhere", "/api/sweeps/9", "/api/status"]
    {
        let answer =
            raw(page.address, &format!("GET {path} HTTP/1.1\nHost: [::1]\nConnection: close\n\n")).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(body.starts_with("{\"error\":{\"message\":\""), "{path}: {answer}");
    }
    // A name that was made to lead here is not ours.
    for host in ["elsewhere.test", "elsewhere.test:3000"] {
        let answer =
            raw(page.address, &format!("GET /api/sweeps HTTP/1.1\nHost: {host}\nConnection: close\n\n"))
                .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    // Before anything runs there is something to scrape and to see.
    for (path, kind) in [("/metrics", "text/plain"), ("/plain", "text/html")] {
        let answer =
            raw(page.address, &format!("GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(kind), "{answer}");
    }
    page.app.drain(std::future::ready(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_in_virtual_time_is_begun_watched_and_read() {
    let page = Page::open(|_| {}).await;
    let wanted =
        json!({"kind": "virtual", "levels": [60, 80], "modes": ["round_robin", "kvlane"], "seeds": 1});
    page.post("/api/run/start", json!({})).await.unwrap();
    let busy = page.post("/api/sweeps", wanted.clone()).await.unwrap_err();
    assert!(busy.contains("409") && busy.contains("the load runs, expected it stopped"), "{busy}");
    page.post("/api/run/stop", json!({})).await.unwrap();
    loop {
        match page.post("/api/sweeps", wanted.clone()).await {
            Ok(begun) => break assert_eq!(begun, json!({"id": 1})),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let twice = page.post("/api/sweeps", wanted).await.unwrap_err();
    assert!(twice.contains("409") && twice.contains("a sweep runs already"), "{twice}");
    let done = page.until("/api/sweeps/1", |sweep| sweep["state"] != "running").await;
    assert_eq!(
        (&done["state"], &done["done"], &done["of"]),
        (&json!("done"), &json!(4), &json!(4)),
        "{done}"
    );
    assert_eq!(done["results"]["sets"][0]["cells"].as_array().unwrap().len(), 4);
    assert_eq!((done["standings"].as_array().unwrap().len(), &done["recorded"]), (2, &json!(true)));
    assert_eq!(done["labels"]["round_robin"], "Round-robin");
    for (name, says) in [
        ("report.html", "<svg"),
        ("report.md", "| "),
        ("report.csv", "round_robin"),
        ("report.json", "kvlane-load.sweep/1"),
        ("reference-rules.yml", "record:"),
        ("reference-lines.json", "panels"),
    ] {
        let get = format!("GET /api/sweeps/1/{name} HTTP/1.1\nHost: localhost\nConnection: close\n\n");
        let answer = raw(page.address, &get).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(says), "{name}: {answer}");
        assert!(answer.contains("content-disposition: attachment; filename=\"kvlane-"), "{name}");
    }
    // What it came to can be compared with.
    let report = page.get("/api/sweeps/1/report.json").await.to_string();
    let put = format!(
        "PUT /api/baselines HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: {}\n\n",
        report.len()
    );
    let answer = raw(page.address, &format!("{put}{report}")).await;
    assert!(answer.contains("\"source\":\"sweep\"") && answer.contains("\"replaced\":true"), "{answer}");
    let delete = "DELETE /api/baselines HTTP/1.1\nHost: localhost\nConnection: close\n\n";
    assert!(raw(page.address, delete).await.contains("\"source\":\"recorded\""));
    // One that is too long is stopped, and keeps what it has.
    let long =
        json!({"kind": "virtual", "levels": (60..180).collect::<Vec<_>>(), "modes": ["kvlane"], "seeds": 2});
    assert_eq!(page.post("/api/sweeps", long).await.unwrap(), json!({"id": 2}));
    page.post("/api/sweeps/2/stop", json!({})).await.unwrap();
    let stopped = page.until("/api/sweeps/2", |sweep| sweep["state"] != "running").await;
    assert_eq!(stopped["state"], "stopped");
    for (change, why) in [
        (json!({"levels": [60, 60]}), "expected them to rise"),
        (json!({"modes": ["kvlane", "kvlane"]}), "mode kvlane is named twice"),
        (json!({"levels": []}), "expected some from 1 to 10000"),
        (json!({"seeds": 1000}), "expected 1 to 100"),
        (json!({"scenario": "nothing"}), "nothing"),
    ] {
        let mut wanted = json!({"kind": "virtual", "levels": [60], "modes": ["kvlane"]});
        wanted.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let refused = page.post("/api/sweeps", wanted).await.unwrap_err();
        assert!(refused.contains("400") && refused.contains(why), "{refused}");
    }
    page.app.drain(std::future::ready(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_has_the_load_and_the_router_to_itself() {
    let page = Page::open(|_| {}).await;
    let mut feed = heard_anew(&page).await;
    let wanted = json!({
        "kind": "live", "levels": [2, 5], "modes": ["round_robin", "kvlane"], "warm_up_s": 0.5, "window_s": 2.0,
        "snapshots": 1, "fill_s": 0.5,
    });
    assert_eq!(page.post("/api/sweeps", wanted.clone()).await.unwrap(), json!({"id": 1}));
    // It is seen like any load, at its own level.
    let (mut levels, mut answered) = (std::collections::BTreeSet::new(), false);
    while levels.len() < 2 || !answered {
        let message = heard_any(&mut feed).await;
        if message["type"] == "state" && message["sweep"] == 1 && message["run"] == "running" {
            levels.extend(message["level"]["concurrency"].as_u64());
        }
        answered |= message["type"] == "sample" && message["figures"]["ttft_p50_ms"].is_f64();
    }
    assert_eq!(levels.into_iter().collect::<Vec<_>>(), [2, 5]);
    for (path, body) in [
        ("/api/run/start", json!({})),
        ("/api/load", json!({"concurrency": 3})),
        ("/api/mode", json!({"mode": "kv"})),
    ] {
        let refused = page.post(path, body).await.unwrap_err();
        assert!(refused.contains("409") && refused.contains("sweep 1 runs"), "{path}: {refused}");
    }
    let done = page.until("/api/sweeps/1", |sweep| sweep["state"] != "running").await;
    assert_eq!((&done["state"], &done["error"]), (&json!("done"), &Value::Null));
    let set = &done["results"]["sets"][0];
    assert_eq!(set["cells"].as_array().unwrap().len(), 4);
    assert!(
        set["cells"][0].get("details").is_none_or(Value::is_null)
            && set["conditions"]["workload"].is_object()
    );
    assert_eq!(page.get("/api/mode").await["mode"], "kv", "the router is as it was");
    let hello = heard(&mut heard_anew(&page).await, "hello").await;
    assert_eq!((&hello["can"]["level"], &hello["state"]["run"]), (&json!(true), &json!("stopped")));
    assert_eq!(
        page.post("/api/load", json!({"concurrency": 3})).await.unwrap()["level"],
        json!({"concurrency": 3})
    );
    // Stopped in the middle, it puts the router back as well.
    page.post("/api/sweeps", wanted).await.unwrap();
    page.until("/api/mode", |mode| mode["mode"] == "round_robin").await;
    page.post("/api/sweeps/2/stop", json!({})).await.unwrap();
    page.until("/api/sweeps/2", |sweep| sweep["state"] == "stopped").await;
    assert_eq!(page.get("/api/mode").await["mode"], "kv");
    page.app.drain(std::future::ready(())).await;
}

/// Two answers have one form when they have the same keys, whatever the values; what is none in one may be anything.
fn differs(one: &Value, other: &Value, path: &str) -> Option<String> {
    match (one, other) {
        // What was not measured is left out.
        _ if path.ends_with(".figures") || path.ends_with(".short") => None,
        (Value::Object(one), Value::Object(other)) => {
            let of = |map: &serde_json::Map<String, Value>| {
                map.keys().cloned().collect::<std::collections::BTreeSet<_>>()
            };
            if let Some(key) = of(one).symmetric_difference(&of(other)).next() {
                return Some(format!("{path}.{key}"));
            }
            one.iter().find_map(|(key, value)| differs(value, &other[key], &format!("{path}.{key}")))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.first().zip(other.first()).and_then(|(one, other)| differs(one, other, &format!("{path}[]")))
        }
        (Value::Null, _) | (_, Value::Null) => None,
        _ => (std::mem::discriminant(one) != std::mem::discriminant(other)).then(|| path.to_owned()),
    }
}

/// The page's own tests read what is recorded here, so that the two sides say the same. `KVLANE_RECORD=1` records anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_has_the_form_the_page_was_tested_with() {
    let page = Page::open(|_| {}).await;
    let mut feed = heard_anew(&page).await;
    heard(&mut feed, "hello").await;
    page.post("/api/run/start", json!({})).await.unwrap();
    let mut said: Vec<(&str, Value)> = vec![("mark", heard(&mut feed, "mark").await)];
    said.push(("workers", heard(&mut feed, "workers").await));
    let sample = loop {
        let sample = heard(&mut feed, "sample").await;
        if sample["figures"]["ttft_p50_ms"].is_f64() && sample["short"]["tpot_p50_ms"].is_f64() {
            break sample;
        }
    };
    said.push(("sample", sample));
    let listing = |listing: &Value| listing["conversations"].as_array().unwrap().len() > 1;
    let listing = page.until("/api/conversations", listing).await;
    let id = listing["conversations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["id"].as_u64().unwrap())
        .min()
        .unwrap();
    let told =
        |seen: &Value| seen["turns"].as_array().unwrap().iter().any(|turn| turn["decision"].is_object());
    said.push(("conversations", listing));
    said.push(("conversation", page.until(&format!("/api/conversations/{id}"), told).await));
    let held = |tree: &Value| {
        tree["nodes"]
            .as_array()
            .unwrap()
            .first()
            .is_some_and(|node| !node["holders"].as_array().unwrap().is_empty())
    };
    said.push(("tree", page.until("/api/tree", held).await));
    said.push(("explanation", page.post("/api/explain", json!({"prompt": "Where to?"})).await.unwrap()));
    said.push(("baselines", page.get("/api/baselines").await));
    let stopped = page.post("/api/run/stop", json!({})).await.unwrap();
    said.push(("state", stopped));
    while heard(&mut feed, "state").await["run"] != "stopped" {}
    page.post("/api/sweeps", json!({"kind": "virtual", "levels": [60], "modes": ["round_robin", "kvlane"]}))
        .await
        .unwrap();
    said.push(("sweep", heard(&mut feed, "sweep").await));
    said.push(("sweep-detail", page.until("/api/sweeps/1", |sweep| sweep["state"] == "done").await));
    said.push(("sweeps", page.get("/api/sweeps").await));
    said.push(("hello", heard(&mut heard_anew(&page).await, "hello").await));
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("web/tests/support/recorded");
    for (name, value) in said {
        let file = folder.join(format!("{name}.json"));
        if std::env::var_os("KVLANE_RECORD").is_some() {
            std::fs::write(&file, serde_json::to_string_pretty(&value).unwrap() + "\n").unwrap();
        }
        let recorded =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let recorded: Value = serde_json::from_str(&recorded).unwrap();
        assert_eq!(differs(&value, &recorded, name), None, "record it anew with KVLANE_RECORD=1");
    }
    page.app.drain(std::future::ready(())).await;
}
