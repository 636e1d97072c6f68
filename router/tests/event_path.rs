//! What engines say of their caches, and what becomes of the next decision.

use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, WorkerOptions};
use serde_json::{Value, json};

use crate::support::{Bed, engine, follow_up, get, post, question, until};

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// What `/admin/explain` says about a chat.
async fn explained(bed: &Bed, body: &Value) -> Value {
    let answered = post(bed.admin(), "/admin/explain", body).await;
    assert_eq!(answered.status, 200, "{}", answered.body);
    answered.json()
}

/// Blocks the index knows somebody to hold of this prompt.
async fn held(bed: &Bed, body: &Value) -> u64 {
    let decision = explained(bed, body).await;
    decision["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["held_blocks"].as_u64().unwrap())
        .max()
        .unwrap()
}

#[tokio::test]
async fn follow_up_turns_go_where_their_prompt_is_cached() {
    let bed = Bed::new(3, &["--decision-headers", "true"]).await;
    for topic in ["alpha", "beta", "gamma", "delta"] {
        let mut body = question(topic);
        let mut home = None;
        for turn in 1..=4 {
            let answered = bed.chat(&body).await;
            let answer = answered.json();
            let worker = answered.headers["x-kvlane-worker"].to_str().unwrap().to_owned();
            let (prompt, hit) = (answer["usage"]["prompt_tokens"].as_u64().unwrap(), cached(&answer));
            if turn > 1 {
                assert_eq!(home.as_ref(), Some(&worker), "turn {turn} of {topic}");
                // All but the last answer, the new question and the tail of a block.
                assert!(hit + 64 + 32 > prompt, "turn {turn}: {hit} of {prompt} cached");
            }
            home = Some(worker);
            // Predictions alone would do for this; the events are waited for so that they are what is tested.
            until("the events", || async { held(&bed, &body).await >= prompt / 32 - 1 }).await;
            body = follow_up(&body, &answer);
        }
    }
    // What was said and what was then found agree.
    let sum = async |name: &str| -> f64 {
        let text = get(bed.address(), "/metrics").await.body;
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let predicted = sum("kvlane_overlap_predicted_tokens_total{").await;
    assert_eq!(predicted, sum("kvlane_overlap_reported_tokens_total{").await);
    assert!(predicted > 3000.0);
    assert_eq!(sum("kvlane_overlap_disagreements_total{").await, 0.0);
    assert!(sum("dynamo_component_router_kv_hit_rate_count").await >= 16.0);
    assert!(sum("dynamo_component_kv_cache_events_applied{").await > 0.0);
}

#[tokio::test]
async fn an_explanation_has_every_term_and_places_nothing() {
    let bed = Bed::new(3, &["--kv-overlap-score-weight", "2", "--policy", "dynamo"]).await;
    let body = question("explain");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    let decision = explained(&bed, &body).await;
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!((candidates.len(), &decision["chosen"]), (3, &candidates[0]));
    let (best, next) = (&candidates[0], &candidates[1]);
    let number = |value: &Value| value.as_f64().unwrap();
    let tokens = number(&decision["prompt_tokens"]);
    for candidate in candidates {
        let expected = 2.0 * (tokens - 32.0 * number(&candidate["held_blocks"])) / 32.0;
        assert!((number(&candidate["prefill_cost"]) - expected).abs() < 1e-9, "{candidate}");
        assert_eq!(number(&candidate["decode_cost"]), number(&decision["blocks"]));
        assert_eq!(
            number(&candidate["cost"]),
            number(&candidate["prefill_cost"]) + number(&candidate["decode_cost"])
        );
    }
    assert!(number(&best["cost"]) < number(&next["cost"]));
    assert_eq!((bed.in_flight().await, decision["prompts_known_by"].as_str()), (0, Some("tokenizer")));
    // Drained by an operator, it is not chosen any more, and that is said.
    let name = bed
        .workers
        .iter()
        .map(|worker| worker.address().to_string())
        .find(|name| best["worker"] == *name)
        .unwrap();
    let drained = post(bed.admin(), &format!("/admin/drain/{name}"), &json!({})).await;
    assert_eq!(drained.json()["state"], "draining");
    let decision = explained(&bed, &body).await;
    assert_eq!(
        (&decision["barred"][0]["worker"], &decision["barred"][0]["barred"]),
        (&json!(name), &json!("draining"))
    );
    assert_ne!(decision["chosen"]["worker"], json!(name));
    post(bed.admin(), &format!("/admin/drain/{name}"), &json!({"draining": false})).await;
    assert_eq!(explained(&bed, &body).await["chosen"]["worker"], json!(name));
    let unknown = post(bed.admin(), "/admin/drain/nobody", &json!({})).await;
    assert_eq!(unknown.status, 400);
}

#[tokio::test]
async fn what_is_evicted_is_not_counted_any_more() {
    let small = Calibration { kv_blocks: 60, block_tokens: 32, ..Calibration::preset("instant").unwrap() };
    let bed = Bed::of(vec![WorkerOptions { calibration: small, ..engine() }], &[]).await;
    let body = question("old");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    for n in 0..12 {
        bed.chat(&question(&format!("new {n}"))).await;
    }
    until("the eviction", || async { held(&bed, &body).await == 0 }).await;
}

#[tokio::test]
async fn the_tree_can_be_looked_at() {
    let bed = Bed::new(2, &[]).await;
    let body = question("seen");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    let explained = post(bed.admin(), "/admin/explain?hashes=true", &body).await.json();
    let tree = bed.admin_get("/admin/tree").await;
    let root = &tree["nodes"][0];
    assert_eq!((&root["first"], &root["parent"]), (&explained["block_hashes"][0], &json!(null)), "{tree}");
    assert_eq!(root["holders"][0]["worker"], explained["chosen"]["worker"]);
    let blocks = explained["block_hashes"].as_array().unwrap().len();
    assert_eq!((blocks as u64, tree["left_out"].as_u64()), (explained["blocks"].as_u64().unwrap(), Some(0)));
    assert!(bed.worker(0).await["load"][0]["held_blocks"].is_u64());
    let one = bed.admin_get("/admin/tree?most=1").await;
    assert_eq!(one["nodes"].as_array().unwrap().len(), 1);
    let wrong = get(bed.admin(), "/admin/tree?most=0").await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("query is \\\"most=0\\\", expected most=1 to most=1000"), "{}", wrong.body);
}

/// A comparison of two modes starts with empty caches on both sides.
#[tokio::test]
async fn switching_modes_can_empty_every_cache() {
    let bed = Bed::new(2, &[]).await;
    let body = question("reset");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    let answer =
        post(bed.admin(), "/admin/mode", &json!({"mode": "round_robin", "reset": true})).await.json();
    assert_eq!(answer["mode"], "round_robin");
    assert!(answer["reset"].as_object().unwrap().values().all(|said| said == "emptied"), "{answer}");
    let index = bed.admin_get("/admin/index").await;
    assert_eq!(
        (&index["distinct_blocks"], &index["models"]["kvlane-small"]["block_size"]),
        (&json!(0), &json!(32))
    );
    post(bed.admin(), "/admin/mode", &json!({"mode": "kv"})).await;
    assert_eq!(held(&bed, &body).await, 0);
    assert_eq!(cached(&bed.chat(&body).await.json()), 0, "the engines' caches were emptied too");
    // And it goes on from there.
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    assert!(cached(&bed.chat(&body).await.json()) > 150);
}

#[tokio::test]
async fn a_wrong_block_size_is_refused_with_a_sentence() {
    let bed = Bed::new(1, &["--kv-cache-block-size", "64"]).await;
    assert_eq!(bed.chat(&question("still served")).await.status, 200);
    let worker = bed.worker(0).await;
    let refused = worker["events"]["refused"].as_str().unwrap();
    assert_eq!(
        refused,
        "its blocks have 32 tokens, the router was told 64 (--kv-cache-block-size); expected the same"
    );
    assert_eq!(bed.admin_get("/admin/index").await["distinct_blocks"], 0);
}

/// Without events, what was placed is remembered: `--kv-events false`, or an engine that publishes none.
#[tokio::test]
async fn without_events_placements_are_remembered() {
    let silent = || WorkerOptions { events: EventOptions::default(), ..engine() };
    for (options, flags) in [
        (vec![engine(), engine(), engine()], vec!["--kv-events", "false"]),
        (vec![silent(), silent(), silent()], vec!["--set", "index.predicted_ttl_s=60"]),
    ] {
        let bed = Bed::of(options, &flags).await;
        for topic in ["one", "two"] {
            let mut body = question(topic);
            let answer = bed.chat(&body).await.json();
            body = follow_up(&body, &answer);
            assert!(cached(&bed.chat(&body).await.json()) > 150);
        }
        assert_eq!(bed.worker(0).await["events"]["source"], "none");
    }
}

/// An engine that starts anew holds nothing, and that is known before it is asked anything.
#[tokio::test]
async fn a_restarted_engine_is_known_to_hold_nothing() {
    let bed = Bed::new(1, &[]).await;
    let body = question("restart");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    post(bed.workers[0].address(), "/faults/restart", &json!({})).await;
    until("the restart to be noticed", || async { held(&bed, &body).await == 0 }).await;
    bed.chat(&body).await;
    until("new events", || async { held(&bed, &body).await > 5 }).await;
    assert!(bed.metric("kvlane_feed_state").await.is_some());
}

/// Events get lost, come twice, come late: the answer may be too low for a while, and is right in the end.
#[tokio::test]
async fn a_bad_event_plane_never_makes_promises() {
    let bed = Bed::new(2, &[]).await;
    for worker in 0..2 {
        bed.faults(worker, json!({"drop_events": 0.2, "duplicate_events": 0.2, "reorder_events": 0.2})).await;
    }
    for n in 0..60 {
        let body = question(&format!("topic {}", n % 7));
        assert_eq!(bed.chat(&body).await.status, 200);
    }
    for worker in &bed.workers {
        let series = format!("kvlane_overlap_disagreements_total{{worker=\"{}\"}}", worker.address());
        assert_eq!(bed.metric(&series).await.unwrap_or(0.0), 0.0);
    }
    for worker in 0..2 {
        bed.faults(worker, json!({})).await;
    }
    until("the feeds to be right again", || async {
        bed.chat(&question("topic 1")).await;
        held(&bed, &question("topic 1")).await > 5
    })
    .await;
}

/// TensorRT-LLM's events are polled, over its own queue.
#[tokio::test]
async fn polled_events_feed_the_index_too() {
    let polled = WorkerOptions {
        events: EventOptions { trtllm_buffer: Some(10_000), ..EventOptions::default() },
        ..engine()
    };
    let worker = crate::support::start(polled).await;
    let url = format!("url=http://{},engine=trtllm", worker.address());
    let app = crate::support::router(&[url], &[]).await;
    let bed = Bed { workers: vec![worker], app };
    bed.ready().await;
    let body = question("polled");
    bed.chat(&body).await;
    until("the events", || async { held(&bed, &body).await > 5 }).await;
    assert_eq!(bed.worker(0).await["events"]["source"], "poll");
}
