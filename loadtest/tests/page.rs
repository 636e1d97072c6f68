//! The page's own server: a load that is started, looked at, changed and stopped from outside, beside a real router.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails where it stands")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{conversations, engine, load_of, nowhere, router, saying};
use futures_util::StreamExt;
use kvlane_engine_adapters::sim::worker::Worker;
use kvlane_loadtest::http::Http;
use kvlane_loadtest::live::{Decisions, Load, Shown};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::web::{About, Administration, Infrastructure, Stage, Web, serve};
use kvlane_loadtest::workload::Workload;
use kvlane_router::app::App;
use serde_json::{Value, json};
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
        let (objective, book) = (Objective::default(), web.book.clone());
        web.stage = Some(Stage::new(Box::new(make), objective, 1, 4, "a test".to_owned(), shown, book));
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

/// The next message of a kind.
async fn heard<S>(socket: &mut S, kind: &str) -> Value
where
    S: StreamExt<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
{
    let hear = async {
        loop {
            let Message::Text(text) = socket.next().await.unwrap().unwrap() else { continue };
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["type"] == kind {
                return message;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), hear).await.unwrap_or_else(|_| panic!("no {kind}"))
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

async fn heard_anew(
    page: &Page,
) -> tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>> {
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
    let answer = page.post("/api/mode", json!({"mode": "round_robin", "reset": true})).await.unwrap();
    assert_eq!(answer["mode"], "round_robin");
    assert!(answer["reset"].as_object().unwrap().values().all(|said| said == "emptied"), "{answer}");
    let refused = page.post("/api/mode", json!({"mode": "random"})).await.unwrap_err();
    assert!(refused.contains("mode is random, expected kv or round_robin"), "{refused}");
    page.post("/api/mode", json!({"mode": "kv"})).await.unwrap();
    assert_eq!(page.get("/api/mode").await["mode"], "kv");
    let explained = page.post("/api/explain", json!({"prompt": "Where would this go?"})).await.unwrap();
    assert!(
        explained["chosen"]["worker"].is_string() && explained["candidates"].as_array().unwrap().len() == 2
    );
    assert!(
        page.post("/api/explain", json!({"prompt": ""})).await.unwrap_err().contains("prompt has 0 bytes")
    );
    let seen = page.get("/api/infrastructure").await;
    assert_eq!((&seen["from"], &seen["prometheus"]), (&json!("workers"), &json!("not_configured")));
    assert_eq!(seen["gpu"], "h200-llama70b-fp8 (simulated)");
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

#[tokio::test(flavor = "multi_thread")]
async fn gpus_come_from_prometheus_where_there_is_one() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
        {\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[{\"metric\":{\"__name__\":\"DCGM_FI_DEV_GPU_UTIL\",\
        \"gpu\":\"0\",\"pod\":\"vllm-0\",\"modelName\":\"NVIDIA H200\"},\"value\":[1.0,\"87\"]}]}}";
    let prometheus = saying(ANSWER, true).await;
    let page = Page::open(|web| web.infrastructure = Infrastructure::new(Some(&prometheus)).unwrap()).await;
    let seen = page.get("/api/infrastructure").await;
    assert_eq!(
        (&seen["from"], &seen["prometheus"], &seen["gpu"]),
        (&json!("prometheus"), &json!("ok"), &json!("H200"))
    );
    let cards = seen["workers"].as_array().unwrap();
    let card = cards.iter().find(|card| card["name"] == "vllm-0").unwrap();
    assert_eq!(card["gpus"][0]["util_pct"], 87.0);
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
