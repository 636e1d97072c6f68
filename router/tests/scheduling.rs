//! Slots, waiting, priorities, the audit of overlap and several routers, through the whole path.

use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::WorkerOptions;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{
    Answered, Bed, NatsServer, ask, engine, get, post, question, rest, router, send, start, until,
};

/// An engine that runs two requests at a time and takes a while for each.
fn two_slots() -> WorkerOptions {
    let calibration =
        Calibration { block_tokens: 32, max_batch: 2, ..Calibration::preset("h200-llama70b-fp8").unwrap() };
    WorkerOptions { calibration, speed: 4.0, ..engine() }
}

fn specs(workers: &[kvlane_engine_adapters::sim::worker::Worker], slots: u32) -> Vec<String> {
    workers.iter().map(|worker| format!("url=http://{},slots={slots}", worker.address())).collect()
}

async fn bed(workers: usize, slots: u32, flags: &[&str]) -> Bed {
    let mut started = Vec::new();
    for _ in 0..workers {
        started.push(start(two_slots()).await);
    }
    let app = router(&specs(&started, slots), flags).await;
    let bed = Bed { workers: started, app };
    bed.ready().await;
    bed
}

/// A chat that takes about a second.
fn long(topic: &str) -> Value {
    let mut body = question(topic);
    body["max_tokens"] = json!(150);
    body["ignore_eos"] = json!(true);
    body
}

fn asks(bed: &Bed, body: &Value, headers: &[(&str, &str)]) -> JoinHandle<Answered> {
    let (to, body) = (bed.address(), body.to_string());
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    tokio::spawn(async move {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        ask(to, "POST", "/v1/chat/completions", &headers, &body).await
    })
}

async fn waiting(bed: &Bed, priority: &str) -> f64 {
    let series = format!("kvlane_queue_requests{{model=\"kvlane-small\",priority=\"{priority}\"}}");
    bed.metric(&series).await.unwrap_or_else(|| panic!("no {series}"))
}

#[tokio::test]
async fn what_no_worker_has_room_for_waits_in_the_router() {
    let flags = ["--set", "routing.overflow=0", "--set", "routing.queue_max=3"];
    let bed = bed(2, 2, &flags).await;
    let running: Vec<_> = (0..4).map(|n| asks(&bed, &long(&format!("running {n}")), &[])).collect();
    until("four running", || async { bed.in_flight().await == 4 }).await;
    for n in 0..2 {
        assert_eq!(bed.worker(n).await["load"][0]["requests"], 2, "both are full");
    }
    let mut queued: Vec<_> = (0..2).map(|n| asks(&bed, &long(&format!("queued {n}")), &[])).collect();
    queued.push(asks(&bed, &long("urgent"), &[("x-kvlane-priority", "high")]));
    until("three waiting", || async { waiting(&bed, "normal").await + waiting(&bed, "high").await == 3.0 })
        .await;
    assert_eq!((bed.in_flight().await, waiting(&bed, "high").await), (4, 1.0));
    assert!(
        bed.metric("kvlane_queue_oldest_seconds{model=\"kvlane-small\",priority=\"normal\"}").await.unwrap()
            > 0.0
    );
    // There is no place to wait any more.
    let refused = bed.chat(&long("too many")).await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("every worker for model `kvlane-small`")
            && message.contains("3 requests are waiting"),
        "{message}"
    );
    assert_eq!(bed.metric("kvlane_queue_refused_total{reason=\"full\"}").await, Some(1.0));
    // A client that goes away takes its place along.
    queued.swap_remove(0).abort();
    until("two waiting", || async { waiting(&bed, "normal").await == 1.0 }).await;
    for answered in running.into_iter().chain(queued) {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    assert!(bed.metric("kvlane_queue_wait_seconds_count{priority=\"high\"}").await.unwrap() >= 1.0);
    until("nothing left", || async { bed.in_flight().await == 0 && waiting(&bed, "normal").await == 0.0 })
        .await;
    let wrong = asks(&bed, &long("x"), &[("x-kvlane-priority", "urgent")]).await.unwrap();
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("expected high, normal or low"), "{}", wrong.body);
}

#[tokio::test]
async fn who_waits_too_long_is_told() {
    let flags = ["--set", "routing.overflow=0", "--set", "routing.queue_timeout_ms=100"];
    let bed = bed(1, 2, &flags).await;
    let running: Vec<_> = (0..2).map(|n| asks(&bed, &long(&format!("running {n}")), &[])).collect();
    until("two running", || async { bed.in_flight().await == 2 }).await;
    let refused = bed.chat(&long("impatient")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("no worker had room within 100 ms"), "{}", refused.body);
    assert_eq!(bed.metric("kvlane_queue_refused_total{reason=\"timeout\"}").await, Some(1.0));
    // An explanation says so, too.
    let decision = post(bed.admin(), "/admin/explain", &long("impatient")).await.json();
    assert_eq!((&decision["chosen"], &decision["barred"][0]["barred"]), (&Value::Null, &json!("crowded")));
    for answered in running {
        assert_eq!(answered.await.unwrap().status, 200);
    }
}

/// An adapter's only worker is full: its requests wait, and hold up nobody who can go elsewhere.
#[tokio::test]
async fn adapters_wait_by_themselves() {
    let workers = vec![
        start(WorkerOptions { lora_names: vec!["adapter".to_owned()], ..two_slots() }).await,
        start(two_slots()).await,
    ];
    let app = router(&specs(&workers, 2), &["--set", "routing.overflow=0"]).await;
    let bed = Bed { workers, app };
    bed.ready().await;
    let of = |model: &str, topic: &str| {
        let mut body = long(topic);
        body["model"] = json!(model);
        body
    };
    let running: Vec<_> = (0..3).map(|n| asks(&bed, &of("adapter", &format!("adapter {n}")), &[])).collect();
    until("one of the adapter's to wait", || async { waiting(&bed, "normal").await == 1.0 }).await;
    let mut short = of("kvlane-small", "elsewhere");
    short["max_tokens"] = json!(1);
    let elsewhere = bed.chat(&short).await;
    assert_eq!(elsewhere.status, 200);
    assert_eq!(
        bed.metric("kvlane_queue_wait_seconds_count{priority=\"normal\"}").await,
        None,
        "nobody's wait is over"
    );
    for answered in running {
        assert_eq!(answered.await.unwrap().status, 200);
    }
}

/// A full worker is passed over for one with room while nobody knows how long one waits there; unless the plain cost is
/// asked for.
#[tokio::test]
async fn full_workers_are_passed_over() {
    let bed = bed(2, 2, &["--decision-headers", "true"]).await;
    // So long that computing it anew costs more than two requests' company.
    let mut body = long("shared");
    let text = "please tell me everything about caches and routers ".repeat(140);
    body["messages"][0]["content"] = json!(text);
    let first = bed.chat(&body).await;
    let home = first.headers["x-kvlane-worker"].to_str().unwrap().to_owned();
    let overlap = first.headers["x-kvlane-overlap"].to_str().unwrap();
    assert!(overlap.starts_with("0/") && overlap.len() == 4, "{overlap}");
    until("the events", || async {
        post(bed.admin(), "/admin/explain", &body).await.json()["chosen"]["held_blocks"].as_u64().unwrap() > 5
    })
    .await;
    let running: Vec<_> = (0..2).map(|_| asks(&bed, &body, &[])).collect();
    until("two running", || async { bed.in_flight().await == 2 }).await;
    let decision = post(bed.admin(), "/admin/explain", &body).await.json();
    let last = &decision["candidates"][1];
    assert_eq!((last["id"].to_string(), &last["barred"]), (home.clone(), &json!("full")));
    assert_ne!(decision["chosen"]["id"].to_string(), home);
    post(bed.admin(), "/admin/mode", &json!({"policy": "dynamo"})).await;
    let decision = post(bed.admin(), "/admin/explain", &body).await.json();
    assert_eq!(decision["chosen"]["id"].to_string(), home);
    let mode = bed.admin_get("/admin/mode").await;
    assert_eq!((&mode["policy"], &mode["cost"]["request"]), (&json!("dynamo"), &json!(0.0)));
    for answered in running {
        assert_eq!(answered.await.unwrap().headers["x-kvlane-worker"].to_str().unwrap(), home);
    }
}

#[tokio::test]
async fn placements_of_late_are_explained() {
    let bed = Bed::new(2, &["--set", "routing.remembered_decisions=8"]).await;
    let body = question("remembered").to_string();
    let asked = [("x-request-id", "turn-1"), ("content-type", "application/json")];
    assert_eq!(ask(bed.address(), "POST", "/v1/chat/completions", &asked, &body).await.status, 200);
    let past = bed.admin_get("/admin/explain/turn-1").await;
    assert_eq!((past["candidates"].as_array().unwrap().len(), &past["mode"]), (2, &json!("kv")));
    assert!(past["chosen"]["worker"].is_string() && past["chosen"]["cost"].as_f64().unwrap() > 0.0, "{past}");
    assert!(past["at"].as_f64().unwrap() > 1e9);
    for n in 0..30 {
        bed.chat(&question(&format!("later {n}"))).await;
    }
    let gone = get(bed.admin(), "/admin/explain/turn-1").await;
    assert_eq!(gone.status, 404);
    assert!(gone.body.contains("one of the last 8 placed"), "{}", gone.body);
}

/// Its events are somebody else's: what the index says of it is not so.
#[tokio::test]
async fn a_worker_that_reports_less_than_the_index_says_is_suspect_and_asked_anew() {
    let [other, worker] = [start(engine()).await, start(engine()).await];
    let sources = get(other.address(), "/kv_event_sources").await.json();
    let source = sources["0"]["endpoint"].as_str().unwrap().replace('*', "127.0.0.1");
    let topic = sources["0"]["topic"].as_str().unwrap();
    let spec = format!("url=http://{},events={source},topic={topic}", worker.address());
    let app = router(&[spec], &[]).await;
    let bed = Bed { workers: vec![worker], app };
    bed.ready().await;
    let trust = "kvlane_overlap_trust_ratio";
    assert_eq!(bed.metric(trust).await, Some(1.0));
    for n in 0..40 {
        // Both have the beginning, once it was asked for; only the other one has the rest.
        let text = "please tell me everything about caches and routers ".repeat(20);
        let mut body = question("");
        body["messages"][0]["content"] = json!(format!("{text} number {n}: {text} {text}"));
        assert_eq!(post(other.address(), "/v1/chat/completions", &body).await.status, 200);
        until("the other's events", || async {
            let decision = post(bed.admin(), "/admin/explain", &body).await.json();
            decision["chosen"]["held_blocks"].as_u64().unwrap() > 5
        })
        .await;
        // Only a stream's first token is seen.
        body["stream"] = json!(true);
        assert_eq!(bed.chat(&body).await.status, 200);
        if bed.worker(0).await["index"]["suspect"].is_string() {
            break;
        }
    }
    until("what is known to be learnt again", || async {
        bed.metric("kvlane_overlap_resyncs_total").await == Some(1.0)
    })
    .await;
    let shown = bed.worker(0).await;
    assert_eq!((&shown["index"]["suspect"], &shown["index"]["trust"]), (&json!("events"), &json!(1.0)));
    assert_eq!(bed.metric("kvlane_overlap_suspect").await, Some(1.0));
    until("its feed", || async { bed.worker(0).await["events"]["caught_up"] == true }).await;
}

#[tokio::test]
async fn routers_tell_each_other_of_their_load() {
    let server = NatsServer::start();
    let nats_url = format!("nats://127.0.0.1:{}", server.1);
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(start(two_slots()).await);
    }
    let flags = ["--nats-url", &nats_url, "--event-plane", "auto"];
    let one = Bed { app: router(&specs(&workers, 2), &flags).await, workers };
    let two = router(&specs(&one.workers, 2), &flags).await;
    one.ready().await;
    until("a second router", || async { get(two.address, "/ready").await.status == 200 }).await;
    until("each other", || async { one.metric("kvlane_peer_routers").await == Some(1.0) }).await;
    // One worker is kept busy through the first router; the second one goes around it.
    let body = long("busy");
    let running: Vec<_> = (0..2).map(|_| asks(&one, &body, &[("x-session-id", "s")])).collect();
    until("two running", || async { one.in_flight().await == 2 }).await;
    let counts = || async {
        let decision = post(two.admin_address.unwrap(), "/admin/explain", &body).await.json();
        let count = |one: &Value| (one["id"].to_string(), one["active_requests"].as_u64().unwrap());
        let mut counts: Vec<_> = decision["candidates"].as_array().unwrap().iter().map(count).collect();
        counts.sort();
        counts
    };
    let theirs = || async {
        let shown = one.admin_get("/admin/workers").await;
        let count = |one: &Value| (one["id"].to_string(), one["load"][0]["requests"].as_u64().unwrap());
        let mut counts: Vec<_> = shown["workers"].as_array().unwrap().iter().map(count).collect();
        counts.sort();
        counts
    };
    until("the second router to know", || async { counts().await == theirs().await }).await;
    for answered in running {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    until("the second router to know", || async { counts().await.iter().all(|(_, count)| *count == 0) })
        .await;
    // A router that is gone takes its load along.
    let last = send(one.address(), "POST", "/v1/chat/completions", &[], long("last").to_string());
    let _ = rest(last.await.unwrap()).await;
    two.drain(std::future::ready(())).await;
    until("it to be forgotten", || async { one.metric("kvlane_peer_routers").await == Some(0.0) }).await;
}

/// What others ask of an engine is seen in its own counts.
#[tokio::test]
async fn engines_own_counts_tell_of_others() {
    let bed = bed(2, 2, &[]).await;
    let direct = bed.workers[0].address();
    let busy: Vec<_> = (0..2)
        .map(|n| {
            let body = long(&format!("direct {n}"));
            tokio::spawn(async move { post(direct, "/v1/chat/completions", &body).await })
        })
        .collect();
    until("the others' requests", || async { bed.worker(0).await["other_requests"] == 2 }).await;
    let decision = post(bed.admin(), "/admin/explain", &question("elsewhere")).await.json();
    assert_eq!(decision["chosen"]["worker"], json!(bed.workers[1].address().to_string()));
    assert_eq!(decision["candidates"][1]["barred"], "full");
    for answered in busy {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    until("them to be over", || async { bed.worker(0).await["other_requests"] == 0 }).await;
}
