//! Requests through the real router to simulated engines: what clients send, what engines get, what clients see.

use kvlane_engine_adapters::sim::worker::WorkerOptions;
use serde_json::{Value, json};

use crate::support::{Bed, ask, engine, get, next_part, post, question, rest, send, until};

#[tokio::test]
async fn a_chat_is_answered_whole_and_streamed() {
    let bed = Bed::new(3, &[]).await;
    let whole = bed.chat(&question("one")).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let answer = whole.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    assert!(whole.headers["x-request-id"].len() == 36);

    // Nobody asked for usage: it was asked for on the client's behalf, and taken out again.
    let mut body = question("two");
    body["stream"] = true.into();
    let streamed = bed.chat(&body).await;
    assert_eq!(streamed.headers["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(
        (&streamed.headers["cache-control"], &streamed.headers["x-accel-buffering"]),
        (&"no-cache".parse().unwrap(), &"no".parse().unwrap())
    );
    assert!(streamed.body.starts_with("data: {") && streamed.body.ends_with("data: [DONE]\n\n"));
    assert!(!streamed.body.contains("\"usage\""), "{}", streamed.body);
    body["stream_options"] = json!({"include_usage": true});
    let asked = bed.chat(&body).await;
    assert!(asked.body.contains("\"usage\"") && asked.body.contains("cached_tokens"), "{}", asked.body);

    // Even so its figures are known here.
    let model = "{model=\"kvlane-small\"}";
    assert_eq!(bed.metric(&format!("dynamo_frontend_cached_tokens_count{model}")).await, Some(3.0));
    assert_eq!(bed.metric(&format!("dynamo_frontend_output_tokens_total{model}")).await, Some(24.0));
    assert_eq!(bed.metric(&format!("dynamo_frontend_inflight_requests{model}")).await, Some(0.0));
    assert_eq!(bed.metric(&format!("dynamo_frontend_queued_requests{model}")).await, Some(0.0));
}

#[tokio::test]
async fn completions_take_texts_lists_and_token_ids() {
    let bed = Bed::new(2, &[]).await;
    let text = "once upon a time ".repeat(30);
    let ids = post(bed.address(), "/tokenize", &json!({"prompt": text})).await.json()["tokens"].clone();
    for prompt in [json!(text), json!([text]), ids.clone(), json!([ids])] {
        let body = json!({"prompt": prompt, "max_tokens": 3});
        let answer = post(bed.address(), "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["object"], "text_completion");
    }
    let back = post(bed.address(), "/detokenize", &json!({"tokens": ids})).await.json();
    assert!(back["prompt"].as_str().unwrap().contains("once upon"));
    // All four are the same prompt: the first was computed, the others found it.
    let hits = bed.metric("kvlane_overlap_reported_tokens_total").await.unwrap();
    assert!(hits > 0.0);
}

#[tokio::test]
async fn models_are_listed_and_described() {
    let options = || WorkerOptions { lora_names: vec!["adapter".into()], ..engine() };
    let bed = Bed::of(vec![options(), options()], &[]).await;
    let list = get(bed.address(), "/v1/models").await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["adapter", "kvlane-small"]));
    let one = get(bed.address(), "/v1/models/adapter").await.json();
    assert_eq!((one["object"].as_str(), one["parent"].as_str()), (Some("model"), Some("kvlane-small")));
    let mut body = question("for an adapter");
    body["model"] = "adapter".into();
    assert_eq!(bed.chat(&body).await.status, 200);
    // An adapter's blocks are its own.
    body["model"] = "kvlane-small".into();
    assert_eq!(bed.chat(&body).await.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let missing = get(bed.address(), "/v1/models/none").await;
    assert_eq!(
        (missing.status.as_u16(), missing.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
}

#[tokio::test]
async fn what_is_wrong_is_said_in_openais_form() {
    let bed = Bed::new(1, &["--body-limit-mib", "1", "--max-model-len", "600"]).await;
    let chat = "/v1/chat/completions";
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(2000)}]}).to_string();
    let over = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 590}).to_string();
    for (method, path, body, status, code, param, says) in [
        ("POST", chat, "{", 400, None, None, "not JSON"),
        ("POST", chat, "{\"messages\": 3}", 400, None, Some("messages"), "expected a sequence"),
        (
            "POST",
            chat,
            "{\"messages\": [{\"role\": \"user\"}], \"n\": \"x\"}",
            400,
            None,
            Some("n"),
            "invalid type",
        ),
        ("POST", "/v1/completions", "{}", 400, None, Some("prompt"), "missing"),
        ("POST", "/v1/embeddings", "nonsense", 400, None, None, "not JSON"),
        (
            "POST",
            chat,
            "{\"model\": \"gpt\", \"messages\": [{}]}",
            404,
            Some("model_not_found"),
            Some("model"),
            "served now: `kvlane-small`",
        ),
        ("GET", "/v1/nothing", "", 404, Some("not_found"), None, "GET /v1/nothing"),
        ("GET", chat, "", 405, Some("method_not_allowed"), None, "takes POST"),
        ("POST", "/health", "", 405, Some("method_not_allowed"), None, "takes GET"),
        ("POST", chat, &long, 400, Some("context_length_exceeded"), Some("messages"), "at most 600 tokens"),
        ("POST", chat, &over, 400, Some("context_length_exceeded"), Some("max_tokens"), "590 for its answer"),
    ] {
        let answered = ask(bed.address(), method, path, &[], body).await;
        let error = answered.json()["error"].clone();
        assert_eq!(answered.status, status, "{body}: {}", answered.body);
        assert_eq!((error["code"].as_str(), error["param"].as_str()), (code, param), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert!(error["type"].is_string());
    }
    let large = ask(bed.address(), "POST", chat, &[], &"x".repeat((1 << 20) + 1)).await;
    assert_eq!(
        (large.status.as_u16(), large.json()["error"]["code"].as_str()),
        (413, Some("body_too_large"))
    );
    // The engine's own errors pass as they are.
    let refused = bed.chat(&json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": -1})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("max_tokens"), "{}", refused.body);
    // None of that made a series of its own.
    let metrics = get(bed.address(), "/metrics").await.body;
    assert!(!metrics.contains("gpt"), "a model nobody serves is no label");
    assert!(metrics.contains("error_type=\"not_found\",model=\"\""), "{metrics}");
}

#[tokio::test]
async fn ids_and_headers_travel_with_the_request() {
    let bed = Bed::new(1, &["--decision-headers", "true"]).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("x-request-id", "mine-1"), ("traceparent", trace), ("x-session-id", "talk-7")];
    let body = question("ids").to_string();
    let answered = ask(bed.address(), "POST", "/v1/chat/completions", &headers, &body).await;
    assert_eq!(answered.headers["x-request-id"], "mine-1");
    // The engine names its answer after the request.
    assert_eq!(answered.json()["id"], "chatcmpl-mine-1");
    let named = answered.headers["x-kvlane-worker"].to_str().unwrap().to_owned();
    assert_eq!(named, bed.worker(0).await["id"].to_string());
}

#[tokio::test]
async fn every_mode_places_as_it_says() {
    let bed = Bed::new(3, &["--router-mode", "round-robin"]).await;
    let counts = async |bed: &Bed| {
        let mut counts = Vec::new();
        for worker in &bed.workers {
            let name = format!("kvlane_placements_total{{worker=\"{}\"}}", worker.address());
            counts.push(bed.metric(&name).await.unwrap_or(0.0) as u64);
        }
        counts
    };
    for n in 0..6 {
        bed.chat(&question(&format!("turn {n}"))).await;
    }
    assert_eq!(counts(&bed).await, [2, 2, 2], "one after another");
    let switch = async |body: Value| post(bed.admin(), "/admin/mode", &body).await;
    assert_eq!(switch(json!({"mode": "session"})).await.json()["mode"], "session");
    let before = counts(&bed).await;
    for n in 0..4 {
        let body = question(&format!("session {n}")).to_string();
        ask(bed.address(), "POST", "/v1/chat/completions", &[("x-session-id", "s")], &body).await;
    }
    let gained: Vec<u64> = counts(&bed).await.iter().zip(before).map(|(now, before)| now - before).collect();
    assert!(gained.contains(&4), "a session stays where it is: {gained:?}");
    for mode in ["random", "least-loaded", "power_of_two", "kv"] {
        assert_eq!(switch(json!({"mode": mode})).await.status, 200);
        assert_eq!(bed.chat(&question(mode)).await.status, 200);
    }
    let wrong = switch(json!({"mode": "best"})).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("one of kv, round_robin"), "{}", wrong.body);
    let wrong = switch(json!({"mode": "kv", "overlap_weight": -1})).await;
    assert!(wrong.body.contains("`overlap_weight` is -1, expected 0 to 1000000"), "{}", wrong.body);
    let wrong = switch(json!(["round_robin"])).await;
    assert!(wrong.status == 400 && wrong.body.contains("no JSON object, expected such as"), "{}", wrong.body);
    assert_eq!(get(bed.admin(), "/admin/mode").await.json()["mode"], "kv");
}

/// The client goes away: the engine stops at once, before the first token and in the middle of a stream.
#[tokio::test]
async fn a_client_that_leaves_frees_its_place_at_once() {
    let slow = || WorkerOptions {
        speed: 0.02,
        calibration: kvlane_engine_adapters::sim::Calibration {
            block_tokens: 32,
            ..kvlane_engine_adapters::sim::Calibration::preset("h200-llama70b-fp8").unwrap()
        },
        ..engine()
    };
    let bed = Bed::of(vec![slow()], &[]).await;
    let mut body = question("leave");
    body["stream"] = true.into();
    body["max_tokens"] = 400.into();
    let running = async |count: u64| {
        until("the engine to notice", || async {
            let text = get(bed.workers[0].address(), "/metrics").await.body;
            let of = |name: &str| -> f64 {
                let line = text.lines().find(|line| line.starts_with(name)).unwrap();
                line.rsplit(' ').next().unwrap().parse().unwrap()
            };
            (of("vllm:num_requests_running") + of("vllm:num_requests_waiting")) as u64 == count
        })
        .await;
    };
    // Before the first token: nothing has been sent back yet.
    let address = bed.address();
    let sent = body.to_string();
    let waiting = tokio::spawn(async move { send(address, "POST", "/v1/chat/completions", &[], sent).await });
    running(1).await;
    waiting.abort();
    running(0).await;
    until("the reservation to be given back", || async { bed.in_flight().await == 0 }).await;
    // In mid-stream.
    let mut response =
        send(bed.address(), "POST", "/v1/chat/completions", &[], body.to_string()).await.unwrap();
    next_part(&mut response).await.unwrap();
    assert_eq!(bed.in_flight().await, 1);
    drop(response);
    running(0).await;
    until("the reservation to be given back", || async { bed.in_flight().await == 0 }).await;
    assert_eq!(bed.metric("dynamo_frontend_disconnected_clients").await, Some(2.0));
    let cancelled = "dynamo_frontend_requests_total{endpoint=\"chat_completions\",error_type=\"cancelled\"";
    assert_eq!(bed.metric(cancelled).await, Some(2.0));
}

#[tokio::test]
async fn without_workers_nobody_is_lied_to() {
    let app = crate::support::router(&[], &[]).await;
    assert_eq!(get(app.address, "/live").await.status, 200);
    let ready = get(app.address, "/ready").await;
    assert_eq!((ready.status.as_u16(), ready.body.as_str()), (503, "no worker has told its model yet"));
    assert_eq!(get(app.address, "/v1/models").await.json(), json!({"object": "list", "data": []}));
    let refused = post(app.address, "/v1/chat/completions", &question("nobody")).await;
    assert_eq!((refused.status.as_u16(), &refused.headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(refused.json()["error"]["type"], "overloaded_error");
    assert_eq!(get(app.address, "/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(get(app.address, "/openapi.json").await.json()["openapi"], "3.1.0");
}

/// Streams of others go on while one is long, and each gets its own.
#[tokio::test]
async fn many_streams_at_once_stay_apart() {
    let bed = Bed::new(3, &[]).await;
    let streams = (0..40).map(|n| {
        let (address, id) = (bed.address(), format!("stream-{n}"));
        async move {
            let mut body = question(&format!("topic {n}"));
            body["stream"] = true.into();
            let headers = [("x-request-id", id.as_str())];
            let response =
                send(address, "POST", "/v1/chat/completions", &headers, body.to_string()).await.unwrap();
            (id.clone(), rest(response).await)
        }
    });
    for (id, text) in futures_util::future::join_all(streams).await {
        let events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.last(), Some(&"data: [DONE]"));
        assert!(
            events[..events.len() - 1].iter().all(|event| event.contains(&format!("chatcmpl-{id}\""))),
            "{text}"
        );
    }
    until("everything to be settled", || async { bed.in_flight().await == 0 }).await;
}
