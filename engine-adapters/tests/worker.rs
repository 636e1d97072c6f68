//! The simulated worker through its front door: HTTP in, HTTP and KV events out.

use http_body_util::BodyExt;
use hyper::StatusCode;
use kvlane_engine_adapters::model::Model;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::WorkerOptions;
use serde_json::{Value, json};

use crate::support::{ask, get, metric, options, post, send, start, until};

/// Chunks of a stream, the end marker left out.
fn chunks(body: &str) -> Vec<Value> {
    let data: Vec<&str> = body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"), "{body}");
    data[..data.len() - 1].iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn an_answer_sent_back_as_history_is_found_in_the_cache_token_for_token() {
    let worker = start(options()).await;
    let mut messages = vec![json!({"role": "user", "content": "Tell me of caches. ".repeat(40)})];
    let mut known: Vec<Value> = Vec::new();
    for turn in 0..6 {
        let limit = if turn % 2 == 0 { 77 } else { 5000 };
        let body = json!({"messages": messages, "max_tokens": limit, "return_token_ids": true});
        let answer = post(worker.address(), "/v1/chat/completions", &body).await.json();
        let prompt = answer["prompt_token_ids"].as_array().unwrap().clone();
        let said = answer["choices"][0]["token_ids"].as_array().unwrap().clone();
        let finish = if limit == 77 { "length" } else { "stop" };
        assert_eq!(answer["choices"][0]["finish_reason"], finish);
        assert!(prompt.starts_with(&known), "turn {turn}: history was tokenized differently");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
        assert_eq!(
            cached,
            known.len().saturating_sub(1) / 32 * 32,
            "turn {turn}: everything said before is cached, in whole blocks"
        );
        known = [prompt, said].concat();
        messages.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
        messages.push(json!({"role": "user", "content": format!("And then? ({turn})")}));
    }
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_whole_answer_and_counts_alike() {
    let worker = start(options()).await;
    let ask_for = |stream: bool| {
        json!({
            "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "stream": stream,
            "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
        })
    };
    let whole = post(worker.address(), "/v1/chat/completions", &ask_for(false)).await.json();
    let stream = post(worker.address(), "/v1/chat/completions", &ask_for(true)).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream; charset=utf-8");
    let chunks = chunks(&stream.body);
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    let usage = &chunks.last().unwrap()["usage"];
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage[count], whole["usage"][count]);
    }
    assert_eq!(usage["completion_tokens"], 50);
}

#[tokio::test]
async fn several_choices_and_prompts_come_under_their_index() {
    let worker = start(options()).await;
    let body = json!({"prompt": ["One", "Two"], "n": 2, "max_tokens": 5, "stream": true});
    let chunks = chunks(&post(worker.address(), "/v1/completions", &body).await.body);
    let text = |index: u64| -> String {
        let own = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
        own.map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect()
    };
    let texts: std::collections::HashSet<String> = (0..4).map(text).collect();
    let whole = json!({"prompt": [[5, 6, 7], [8, 9]], "n": 2, "max_tokens": 5});
    let usage = post(worker.address(), "/v1/completions", &whole).await.json()["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(5), &json!(20)),
        "a prompt counts once"
    );
    assert_eq!(texts.len(), 4, "{texts:?}");
}

#[tokio::test]
async fn stop_texts_tools_and_logprobs() {
    let worker = start(options()).await;
    let chat = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        async move { body }
    };
    let plain = post(worker.address(), "/v1/chat/completions", &chat(json!({})).await).await.json();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stop = &text[5..9];
    let stopped =
        post(worker.address(), "/v1/chat/completions", &chat(json!({"stop": stop})).await).await.json();
    assert_eq!(stopped["choices"][0]["message"]["content"], text[..text.find(stop).unwrap()]);
    assert_eq!(
        (&stopped["choices"][0]["finish_reason"], &stopped["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!(stop))
    );

    let tools = json!({"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]});
    let called = post(worker.address(), "/v1/chat/completions", &chat(tools.clone()).await).await.json();
    let call = &called["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (&called["choices"][0]["finish_reason"], &call["name"]),
        (&json!("tool_calls"), &json!("weather"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "cache", "days": 1}));
    let mut streamed = tools;
    streamed["stream"] = true.into();
    let pieces = chunks(&post(worker.address(), "/v1/chat/completions", &chat(streamed).await).await.body);
    let function = |chunk: &Value| chunk["choices"][0]["delta"]["tool_calls"][0]["function"].clone();
    let joined: String =
        pieces.iter().filter_map(|chunk| function(chunk)["arguments"].as_str().map(str::to_owned)).collect();
    assert_eq!(serde_json::from_str::<Value>(&joined).unwrap(), arguments);

    let asked = chat(json!({"logprobs": true, "top_logprobs": 1})).await;
    let logprobs = post(worker.address(), "/v1/chat/completions", &asked).await.json();
    let content = logprobs["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 60);
    assert!(content.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0
        && token["top_logprobs"][0]["token"] == token["token"]));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot() {
    // Steps of 50 ms, so that there is an answer to leave.
    let calibration = Calibration { weights_ms: 50.0, ..options().calibration };
    let worker = start(WorkerOptions { calibration, ..options() }).await;
    let running = || async { metric(worker.address(), "vllm:num_requests_running").await };
    for stream in [true, false] {
        let body =
            json!({"prompt": "Hi", "max_tokens": 100_000, "ignore_eos": true, "stream": stream}).to_string();
        let to = worker.address();
        let request = tokio::spawn(async move {
            let mut response = send(to, "POST", "/v1/completions", &[], body).await.unwrap();
            while response.frame().await.is_some() {}
        });
        until("the request to run", || async { running().await == 1.0 }).await;
        request.abort();
        until("the slot to be free", || async { running().await == 0.0 }).await;
    }
    assert_eq!(metric(worker.address(), "dynamo_component_inflight_requests").await, 0.0);
}

#[tokio::test]
async fn salts_and_adapters_keep_prompts_apart() {
    let worker = start(WorkerOptions { lora_names: vec!["ad1".to_owned()], ..options() }).await;
    let prompt: Vec<u32> = (100..200).collect();
    let cached = async |extra: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = post(worker.address(), "/v1/completions", &body).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    for extra in [
        json!({}),
        json!({"cache_salt": "a"}),
        json!({"model": "ad1"}),
        json!({"model": "ad1", "cache_salt": "a"}),
    ] {
        assert_eq!((cached(extra.clone()).await, cached(extra.clone()).await), (0, 96), "{extra}");
    }
    let models = get(worker.address(), "/v1/models").await.json();
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("ad1"), &json!(Model::EMBEDDED))
    );
    post(worker.address(), "/reset_prefix_cache", &Value::Null).await;
    assert_eq!(cached(json!({})).await, 0);
}

#[tokio::test]
async fn bad_requests_are_told_what_would_be_right() {
    let worker =
        start(WorkerOptions { max_model_len: Some(1024), max_body_bytes: 100_000, ..options() }).await;
    let refused = async |path: &str, body: &str| {
        let answer = ask(worker.address(), "POST", path, &[], body).await;
        (answer.status.as_u16(), answer.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    for (path, body, status, message) in [
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            400,
            "messages[0].content[0] has type `image_url`, expected `text`",
        ),
        ("/v1/completions", r#"{"prompt": "x", "n": 0}"#, 400, "n must be between 1 and"),
        (
            "/v1/completions",
            r#"{"prompt": {"x": 1}}"#,
            400,
            "expected a text, a list of texts, a list of token ids, or a list of such lists",
        ),
        ("/v1/completions", r#"{"prompt": "x", "echo": true}"#, 400, "does not echo"),
        (
            "/v1/completions",
            r#"{"prompt": "x", "n": 16384, "max_tokens": 1000, "ignore_eos": true}"#,
            400,
            "all choices together",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "x", "max_tokens": 1024}"#,
            400,
            "you requested 1024 output tokens",
        ),
        ("/v1/completions", "", 400, "EOF"),
        ("/detokenize", r#"{"tokens": [9999999]}"#, 400, "Token id 9999999 is out of vocabulary"),
        (
            "/v1/chat/completions",
            r#"{"messages": [], "tools": [], "tool_choice": "required"}"#,
            400,
            "not among `tools`",
        ),
    ] {
        let (found, text) = refused(path, body).await;
        assert!(found == status && text.contains(message), "{path} {body}: {found} {text}");
    }
    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(100_000));
    assert_eq!(refused("/v1/completions", &large).await.0, 413);
    assert_eq!(ask(worker.address(), "GET", "/faults", &[], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(post(worker.address(), "/kv_cache_events", &Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn faults_do_what_they_say_and_can_be_taken_back() {
    let worker = start(WorkerOptions { fault_switches: true, ..options() }).await;
    let to = worker.address();
    let body = json!({"prompt": "Hi", "max_tokens": 20, "stream": true});
    let status = async || post(to, "/v1/completions", &body).await.status.as_u16();
    assert_eq!(post(to, "/faults", &json!({"status": 503})).await.json()["status"], 503);
    assert_eq!((status().await, get(to, "/health").await.status), (503, StatusCode::OK));

    post(to, "/faults", &json!({"close_after_chunks": 3})).await;
    let mut response = send(to, "POST", "/v1/completions", &[], body.to_string()).await.unwrap();
    let mut frames = Vec::new();
    let ended = loop {
        match response.frame().await {
            Some(Ok(frame)) => frames.extend(frame.into_data().unwrap()),
            Some(Err(_)) => break "cut",
            None => break "whole",
        }
    };
    assert_eq!((ended, String::from_utf8(frames).unwrap().matches("data: ").count()), ("cut", 3));

    post(to, "/faults", &json!({"hang": true})).await;
    let hung = tokio::spawn({
        let body = body.to_string();
        async move { ask(to, "POST", "/v1/completions", &[], &body).await.status.as_u16() }
    });
    until("the request to be taken", || async {
        metric(to, "dynamo_component_inflight_requests").await == 1.0
    })
    .await;
    assert!(!hung.is_finished());
    post(to, "/faults", &json!({})).await;
    assert_eq!(hung.await.unwrap(), 200);

    for (wrong, message) in [
        (json!({"slow": 0}), "`slow` is 0, expected a factor between 0.001 and 1000000"),
        (json!({"status": 200}), "`status` is 200, expected an HTTP error between 400 and 599"),
        (json!({"drop_events": 2}), "`drop_events` is 2, expected a share between 0 and 1"),
        (json!({"hangs": true}), "unknown field `hangs`"),
    ] {
        let refused = post(to, "/faults", &wrong).await;
        let text = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(refused.status == StatusCode::BAD_REQUEST && text.contains(message), "{text}");
    }

    assert!(send(to, "POST", "/faults/die", &[], "").await.is_err(), "dead workers do not answer");
    worker.stopped().await;
    assert!(tokio::net::TcpStream::connect(to).await.is_err());
}

#[tokio::test]
async fn a_restart_loses_the_cache_and_what_was_running() {
    let calibration = Calibration { weights_ms: 20.0, ..options().calibration };
    let worker = start(WorkerOptions { calibration, fault_switches: true, ..options() }).await;
    let to = worker.address();
    let prompt: Vec<u32> = (100..200).collect();
    let short = json!({"prompt": prompt, "max_tokens": 1});
    post(to, "/v1/completions", &short).await;
    let before = metric(to, "process_start_time_seconds").await;
    let long =
        json!({"prompt": prompt, "max_tokens": 100_000, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = send(to, "POST", "/v1/completions", &[], long).await.unwrap();
    assert!(stream.frame().await.unwrap().is_ok());
    post(to, "/faults/restart", &Value::Null).await;
    let broken = loop {
        match stream.frame().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken, "what was running is cut off");
    assert!(metric(to, "process_start_time_seconds").await > before);
    let again = post(to, "/v1/completions", &short).await.json();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn the_clock_runs_as_fast_as_it_is_told() {
    // A step of an hour; at this speed it takes a third of a millisecond.
    let calibration = Calibration { weights_ms: 3_600_000.0, ..options().calibration };
    let worker = start(WorkerOptions { calibration, speed: 1e7, ..options() }).await;
    let answer = post(worker.address(), "/v1/completions", &json!({"prompt": "Hi", "max_tokens": 5})).await;
    assert_eq!(answer.status, StatusCode::OK);
}
