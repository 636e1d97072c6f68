//! Answers that break off and are gone on with by another worker.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::scripted::{Scripted, ready_router};
use crate::support::{Bed, engine, paced, post, question};

const ON: [&str; 4] = ["--migration-limit", "5", "--set", "proxy.breaker_failures=1000"];

/// A stream, taken apart.
#[derive(Debug, Default, PartialEq)]
struct Told {
    text: String,
    identities: Vec<String>,
    roles: usize,
    finish: Vec<String>,
    usage: Option<(u64, u64, u64)>,
    errors: Vec<String>,
    done: bool,
}

fn told(stream: &str) -> Told {
    let mut told = Told::default();
    for data in stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        assert!(!told.done, "nothing behind the end: {stream}");
        if data == "[DONE]" {
            told.done = true;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        if let Some(error) = event.get("error") {
            told.errors.push(error["message"].as_str().unwrap().to_owned());
            continue;
        }
        let identity = format!("{} {} {}", event["id"], event["created"], event["model"]);
        if !told.identities.contains(&identity) {
            told.identities.push(identity);
        }
        for choice in event["choices"].as_array().unwrap() {
            told.roles += usize::from(choice["delta"]["role"].is_string());
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            told.text.push_str(text.unwrap_or_default());
            told.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage[name].as_u64().unwrap();
            told.usage = Some((count("prompt_tokens"), count("completion_tokens"), count("total_tokens")));
        }
    }
    told
}

fn streamed(mut body: Value, tokens: u64) -> Value {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    body["max_tokens"] = tokens.into();
    body
}

/// The same whoever gives it, and however often it breaks off: chats, texts and tokens.
#[tokio::test]
async fn an_answer_that_breaks_off_is_gone_on_with_and_its_client_sees_one_stream() {
    let bed = Bed::of((0..4).map(|_| paced(50.0)).collect(), &ON).await;
    let chat = streamed(question("lighthouses"), 60);
    let text = streamed(json!({"prompt": "Once upon a time there was a cache"}), 60);
    let ids = streamed(json!({"prompt": (100..180).collect::<Vec<u32>>()}), 60);
    let stopped = {
        let mut body = streamed(question("storms"), 200);
        body["min_tokens"] = 20.into();
        body["stop"] = json!([" the"]);
        body
    };
    let cases = [
        ("/v1/chat/completions", chat),
        ("/v1/completions", text),
        ("/v1/completions", ids),
        ("/v1/chat/completions", stopped),
    ];
    for (path, body) in cases {
        for n in 0..4 {
            bed.faults(n, json!({})).await;
        }
        let whole = told(&post(bed.workers[0].address(), path, &body).await.body);
        assert!(whole.done && whole.errors.is_empty() && whole.text.len() > 20, "{whole:?}");
        let before = bed.metric("dynamo_frontend_model_migration_total").await.unwrap();
        // One worker is well; the others cut every stream after a few chunks.
        for n in 0..3 {
            bed.faults(n, json!({"close_after_chunks": 4 + 3 * n})).await;
        }
        let mut broke = 0.0;
        for _ in 0..8 {
            let seen = told(&post(bed.address(), path, &body).await.body);
            assert_eq!(seen.identities.len(), 1, "{path}: {:?}", seen.identities);
            let expected = Told { identities: seen.identities.clone(), ..told_like(&whole) };
            assert_eq!(seen, expected, "{path}");
            broke = bed.metric("dynamo_frontend_model_migration_total").await.unwrap() - before;
            if broke >= 3.0 {
                break;
            }
        }
        assert!(broke > 0.0, "{path}: no answer broke off");
    }
    assert_eq!(bed.in_flight().await, 0);
    assert_eq!(bed.metric("kvlane_not_continued_total").await, Some(0.0));
}

fn told_like(told: &Told) -> Told {
    Told {
        text: told.text.clone(),
        roles: told.roles,
        finish: told.finish.clone(),
        usage: told.usage,
        errors: Vec::new(),
        done: told.done,
        identities: Vec::new(),
    }
}

#[tokio::test]
async fn what_cannot_be_gone_on_with_ends_with_a_clear_error() {
    let bed = Bed::of((0..2).map(|_| engine()).collect(), &ON).await;
    for n in 0..2 {
        bed.faults(n, json!({"close_after_chunks": 2})).await;
    }
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]);
    for (field, value, says) in [
        ("tools", tool, "asks for tools"),
        ("logprobs", true.into(), "log-probabilities"),
        ("n", 2.into(), "several choices"),
        ("response_format", json!({"type": "json_object"}), "form is prescribed"),
    ] {
        let mut body = streamed(question("tools"), 64);
        body[field] = value;
        let seen = told(&bed.chat(&body).await.body);
        let [error] = &seen.errors[..] else { panic!("{field}: {seen:?}") };
        assert!(error.contains("broke off") && error.contains(says), "{field}: {error}");
        assert!(!seen.done);
    }
    // Where it can, and everybody fails: that is said, too.
    let seen = told(&bed.chat(&streamed(question("everybody"), 64)).await.body);
    assert!(seen.errors[0].contains("no other worker could go on"), "{seen:?}");
    assert!(bed.metric("kvlane_not_continued_total").await.unwrap() >= 5.0);
    assert_eq!(bed.in_flight().await, 0);
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn chunk(id: &str, delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":\"kvlane-small\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n",
        id.len()
    )
}

fn answer(parts: &[String]) -> &'static str {
    format!("{HEAD}{}", parts.concat()).leak()
}

/// Byte for byte: what two engines said, as if one had.
#[tokio::test]
async fn the_seam_cannot_be_seen() {
    let role = |id: &str| chunk(id, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
    let says = |id: &str, text: &str| chunk(id, &format!("{{\"content\":{}}}", Value::from(text)), "null");
    let end = |id: &str| chunk(id, "{\"content\":\"\"}", "\"stop\"");
    let usage = "data: {\"id\":\"second-one\",\"created\":10,\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"total_tokens\":32,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":29}}}\n\n";
    let half = "data: {\"id\":\"first\",\"choices\":[{\"ind";
    let gave_up = "data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\ndata: [DONE]\n\n";
    // It is cut in the middle of an event, or says itself that it cannot go on.
    for break_off in [half, gave_up] {
        let first = Scripted::start(answer(&[
            role("first"),
            says("first", "Caf\u{e9}s \"are\""),
            says("first", " ni"),
            break_off.to_owned(),
        ]))
        .await;
        let second = Scripted::start(answer(&[
            role("second-one"),
            says("second-one", "ce"),
            says("second-one", ", too."),
            end("second-one"),
            usage.to_owned(),
            "data: [DONE]\n\n".to_owned(),
        ]))
        .await;
        let flags = [&ON[..], &["--router-mode", "round_robin"]].concat();
        let app = ready_router(&[first.url(), second.url()], &flags).await;
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 20, "min_tokens": 3});
        let mut seen = String::new();
        for _ in 0..4 {
            let asked = first.asked.load(Ordering::SeqCst);
            seen = post(app.address, "/v1/chat/completions", &body).await.body;
            if first.asked.load(Ordering::SeqCst) > asked {
                break;
            }
        }
        let whole = [
            role("first"),
            says("first", "Caf\u{e9}s \"are\""),
            says("first", " ni"),
            says("first", "ce"),
            says("first", ", too."),
            end("first"),
            "data: [DONE]\n\n".to_owned(),
        ];
        assert_eq!(seen, whole.concat());
        let asked = second.bodies.lock().last().unwrap().clone();
        let asked: Value = serde_json::from_str(asked.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(
            asked["messages"],
            json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Caf\u{e9}s \"are\" ni"}])
        );
        assert_eq!(
            (&asked["continue_final_message"], &asked["add_generation_prompt"]),
            (&json!(true), &json!(false))
        );
        // As many fewer as the text has tokens.
        let before = 20 - asked["max_tokens"].as_i64().unwrap();
        assert!((2..20).contains(&before), "{asked}");
        assert_eq!(asked["min_tokens"].as_i64().unwrap(), (3 - before).max(0));
    }
}

/// Nothing was missing but its end.
#[tokio::test]
async fn an_answer_that_has_all_its_tokens_is_ended_here() {
    let says = |text: &str| chunk("x", &format!("{{\"content\":{}}}", Value::from(text)), "null");
    let limited = Scripted::start(answer(&[says("The"), says(" lamp")])).await;
    let app = ready_router(&[limited.url()], &ON).await;
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 2});
    let seen = told(&post(app.address, "/v1/chat/completions", &body).await.body);
    assert_eq!(
        (seen.text.as_str(), &seen.finish[..], seen.done),
        ("The lamp", &["length".to_owned()][..], true)
    );
    body["stream_options"] = json!({"include_usage": true});
    let seen = told(&post(app.address, "/v1/chat/completions", &body).await.body);
    assert_eq!(seen.usage.unwrap().1, 2);
    // And one whose choice has ended lacks nothing.
    let ended =
        Scripted::start(answer(&[says("The"), chunk("x", "{}", "\"stop\""), "data: {\"ch".to_owned()])).await;
    let app = ready_router(&[ended.url()], &ON).await;
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true});
    let seen = told(&post(app.address, "/v1/chat/completions", &body).await.body);
    assert_eq!((seen.finish, seen.errors.len(), seen.text), (vec!["stop".to_owned()], 0, "The".to_owned()));
    // Nor does one whose engine dies behind its last word: its client misses the usage, and nobody speaks on.
    let gave_up = "data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\n".to_owned();
    let late = answer(&[says("The"), chunk("x", "{}", "\"stop\""), gave_up]);
    let (one, other) = (Scripted::start(late).await, Scripted::start(late).await);
    let app = ready_router(&[one.url(), other.url()], &ON).await;
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "stream_options": {"include_usage": true}});
    let seen = told(&post(app.address, "/v1/chat/completions", &body).await.body);
    assert_eq!((seen.finish, seen.errors.len(), seen.text), (vec!["stop".to_owned()], 1, "The".to_owned()));
    assert_eq!(one.asked.load(Ordering::SeqCst) + other.asked.load(Ordering::SeqCst), 1);
}
