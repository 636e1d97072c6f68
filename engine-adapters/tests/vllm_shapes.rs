//! The simulated worker beside captures of a real vLLM 0.32: every recorded exchange is repeated, and status,
//! headers, fields, their order and their types must be the same.

use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::wire::Encoder;
use serde_json::{Value, json};

use crate::support::{ask, publishing, start};

/// As the captured engine was started.
async fn worker() -> Worker {
    let options = publishing(Encoder::default());
    let calibration = Calibration { kv_blocks: 40, ..options.calibration };
    start(WorkerOptions {
        calibration,
        model_name: Some("vllm-tiny".to_owned()),
        max_model_len: Some(1024),
        answer_tokens: 2000..=2000,
        ..options
    })
    .await
}

/// A value with everything taken out but its form: fields in order, and what kind of thing is in them.
fn form(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "bool".into(),
        Value::Number(number) if number.is_f64() => "float".into(),
        Value::Number(_) => "int".into(),
        Value::String(_) => "text".into(),
        // A list of scalars is of one kind; a list of objects is given item by item.
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            items.first().map_or(json!([]), |item| json!([form(item)]))
        }
        Value::Array(items) => items.iter().map(form).collect(),
        // As a list, so that the order counts. Alternatives are keyed by tokens, and theirs are not ours.
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value.get(0).and_then(Value::as_object) {
                Some(first) if name == "top_logprobs" => {
                    json!([name, first.values().map(form).collect::<Value>()])
                }
                _ => json!([name, form(value)]),
            })
            .collect(),
    }
}

#[tokio::test]
async fn every_recorded_exchange_has_the_same_form() {
    let worker = worker().await;
    let mut compared = 0;
    for line in include_str!("fixtures/vllm/http-request-plane.jsonl").lines() {
        let capture: Value = serde_json::from_str(line).unwrap();
        let name = capture["name"].as_str().unwrap();
        // Sleeping, pausing, scale-out and aborting by id are vLLM's own business; disconnects are tested elsewhere.
        let not_ours = [
            "is_sleeping",
            "is_paused",
            "inference-generate",
            "render-chat",
            "abort-unknown",
            "client-disconnect",
        ];
        if not_ours.iter().any(|other| name.contains(other)) {
            continue;
        }
        let body = match &capture["request_body"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        let headers: Vec<(&str, &str)> = capture["request_headers"]
            .as_object()
            .map(|headers| {
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect()
            })
            .unwrap_or_default();
        let (method, path) = (capture["method"].as_str().unwrap(), capture["path"].as_str().unwrap());
        let ours = ask(worker.address(), method, path, &headers, &body).await;
        assert_eq!(ours.status.as_u16(), capture["status"].as_u64().unwrap() as u16, "{name}: {}", ours.body);
        for header in ["content-type", "allow"] {
            let found = ours.headers.get(header).map(|value| value.to_str().unwrap());
            assert_eq!(found, capture["headers"][header].as_str(), "{name}: header {header}");
        }
        assert!(ours.headers.contains_key("x-request-id"), "{name}");
        if let Some((_, id)) = headers.iter().find(|(name, _)| *name == "X-Request-Id") {
            assert_eq!(ours.headers["x-request-id"], id);
            assert_eq!(ours.json()["id"], format!("cmpl-{id}"));
        }
        compared += 1;
        let theirs = capture["body"].as_str().unwrap();
        if theirs.is_empty() {
            assert_eq!(ours.body, "", "{name}");
            continue;
        }
        let (ours, theirs) = (ours.json(), serde_json::from_str::<Value>(theirs).unwrap());
        assert_eq!(form(&ours), form(&theirs), "{name}:\n{ours}\n{theirs}");
        let error = |value: &Value| value["error"].as_object().cloned();
        if let (Some(ours), Some(theirs)) = (error(&ours), error(&theirs)) {
            for field in ["type", "param", "code"] {
                assert_eq!(ours[field], theirs[field], "{name}");
            }
            // What the validator of the framework says is its own; everything else is word for word.
            if theirs["type"] != "Bad Request" {
                assert_eq!(ours["message"], theirs["message"], "{name}");
            }
        }
    }
    assert_eq!(compared, 31, "recorded exchanges");
}

fn data(stream: &str) -> Vec<&str> {
    stream
        .split("\n\n")
        .filter(|event| !event.is_empty())
        .map(|event| event.strip_prefix("data: ").unwrap())
        .collect()
}

#[tokio::test]
async fn streams_are_cut_into_the_same_chunks() {
    let worker = worker().await;
    let chat = |extra: Value| {
        let mut body = json!({"model": "vllm-tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4,
            "temperature": 0, "stream": true, "stream_options": {"include_usage": true}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let completion = json!({"model": "vllm-tiny", "prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "temperature": 0, "logprobs": 1,
        "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true});
    let continuous = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    for (path, body, capture) in [
        (
            "/v1/chat/completions",
            chat(json!({"return_token_ids": true})),
            include_str!("fixtures/vllm/http-chat-stream-usage-tokenids.sse"),
        ),
        (
            "/v1/chat/completions",
            chat(continuous),
            include_str!("fixtures/vllm/http-chat-stream-continuous-usage.sse"),
        ),
        ("/v1/completions", completion, include_str!("fixtures/vllm/http-completion-stream-tokenids.sse")),
    ] {
        let answer =
            ask(worker.address(), "POST", path, &[("X-Request-Id", "rt-1")], &body.to_string()).await;
        let recorded = include_str!("fixtures/vllm/http-chat-stream.headers");
        for header in ["content-type", "x-request-id"] {
            let line = format!("{header}: {}", answer.headers[header].to_str().unwrap());
            assert!(recorded.contains(&line), "{line}");
        }
        let (ours, theirs) = (data(&answer.body), data(capture));
        assert_eq!((ours.last(), theirs.last()), (Some(&"[DONE]"), Some(&"[DONE]")));
        let parse = |events: Vec<&str>| -> Vec<Value> {
            events
                .iter()
                .filter(|data| **data != "[DONE]")
                .map(|data| serde_json::from_str(data).unwrap())
                .collect()
        };
        let (ours, theirs) = (parse(ours), parse(theirs));
        // Chunks may join tokens, in vLLM as here: what must agree is each kind of chunk there is.
        let finished = |chunk: &&Value| chunk["choices"][0]["finish_reason"].is_string();
        let kinds = |chunks: &[Value]| {
            let last = chunks.iter().find(finished).map(form);
            [chunks.first().map(form), last, chunks.last().map(form)]
        };
        assert_eq!(kinds(&ours), kinds(&theirs), "{path}\n{ours:?}\n{theirs:?}");
        let middle = |chunks: &[Value]| chunks.iter().skip(1).find(|chunk| !finished(chunk)).map(form);
        if path == "/v1/chat/completions" {
            assert_eq!(middle(&ours), middle(&theirs));
        }
        let tokens: usize =
            ours.iter().filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array()).map(Vec::len).sum();
        assert!(tokens == 4 || body["return_token_ids"].is_null(), "{tokens}");
    }
}
