//! Keys: who is let in, to what, how much of it, and what of that others get to see.

use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use kvlane_engine_adapters::sim::worker::WorkerOptions;
use kvlane_router::access::Digest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Answered, Bed, ask, engine, free_port, get, question, router, send, start, until};

const CHAT: &str = "/v1/chat/completions";

/// A file of keys: each has a name, the key being `NAME-secret`, and more lines.
struct Keys {
    _dir: TempDir,
    path: PathBuf,
}

fn entry(name: &str, more: &str) -> String {
    let digest = Digest::of(format!("{name}-secret").as_bytes()).hex();
    format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{digest}\"\n{more}\n")
}

impl Keys {
    fn new(keys: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys_file = Self { path: dir.path().join("keys.toml"), _dir: dir };
        keys_file.write(keys);
        keys_file
    }

    fn write(&self, keys: &[(&str, &str)]) {
        let text: String = keys.iter().map(|(name, more)| entry(name, more)).collect();
        std::fs::write(&self.path, text).unwrap();
    }

    async fn bed(&self, options: Vec<WorkerOptions>, more: &[&str]) -> Bed {
        let mut flags = vec!["--api-keys", self.path.to_str().unwrap(), "--set", "workers.refresh_ms=20"];
        flags.extend(more);
        Bed::of(options, &flags).await
    }
}

/// Asks as the owner of that key.
async fn as_owner(to: SocketAddr, name: &str, method: &str, path: &str, body: &str) -> Answered {
    let bearer = format!("Bearer {name}-secret");
    ask(to, method, path, &[("authorization", &bearer)], body).await
}

async fn chat(bed: &Bed, name: &str, body: &Value) -> Answered {
    as_owner(bed.address(), name, "POST", CHAT, &body.to_string()).await
}

/// A request is counted when its connection has let go of its answer, which may be after the client had all of it.
async fn counted(bed: &Bed, series: &str, count: f64) {
    until(&format!("{series} to be {count}"), || async { bed.metric(series).await == Some(count) }).await;
}

fn number(answered: &Answered, header: &str) -> u64 {
    answered.headers[header].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn only_those_with_a_key_are_let_in() {
    let keys = Keys::new(&[("team-a", ""), ("old", "expires = '2020-01-01'")]);
    let bed = keys.bed(vec![engine()], &[]).await;
    let body = question("doors").to_string();
    for headers in [
        vec![],
        vec![("authorization", "Bearer somebody-secret")],
        vec![("authorization", "Bearer team-a")],
        vec![("authorization", "Basic team-a-secret")],
        vec![("authorization", "Bearer old-secret")],
        vec![("x-api-key", "")],
    ] {
        for (method, path) in [
            ("POST", CHAT),
            ("GET", "/v1/models"),
            ("GET", "/version"),
            ("GET", "/nothing"),
            ("POST", "/tokenize"),
        ] {
            let refused = ask(bed.address(), method, path, &headers, &body).await;
            assert_eq!(refused.status, 401, "{headers:?} {path}: {}", refused.body);
            assert_eq!(refused.headers["www-authenticate"], "Bearer");
            let error = &refused.json()["error"];
            assert_eq!(
                (error["type"].as_str(), error["code"].as_str()),
                (Some("authentication_error"), Some("invalid_api_key"))
            );
        }
    }
    assert_eq!(bed.metric("kvlane_unauthorized_total").await, Some(30.0));
    for headers in [
        [("authorization", "Bearer team-a-secret")],
        [("authorization", "bearer team-a-secret")],
        [("x-api-key", "team-a-secret")],
        [("api-key", "team-a-secret")],
    ] {
        let answered = ask(bed.address(), "POST", CHAT, &headers, &body).await;
        assert_eq!(answered.status, 200, "{headers:?}: {}", answered.body);
        assert!(!answered.headers.contains_key("x-ratelimit-limit-requests"), "it has no limits");
    }
    // A path is no way around: what is not there is not told to strangers either.
    assert_eq!(as_owner(bed.address(), "team-a", "GET", "/nothing", "").await.status, 404);
    for open in ["/health", "/live", "/ready", "/metrics"] {
        assert_eq!(get(bed.address(), open).await.status, 200, "{open}");
    }
    assert_eq!(get(bed.address(), "/health").await.json()["models"], Value::Null);
    assert!(as_owner(bed.address(), "team-a", "GET", "/health", "").await.json()["models"].is_array());
    counted(&bed, "kvlane_key_requests_total{key=\"team-a\",outcome=\"success\"}", 4.0).await;
}

#[tokio::test]
async fn metrics_can_be_closed() {
    let keys = Keys::new(&[("team-a", "")]);
    let bed = keys.bed(vec![engine()], &["--set", "access.open_metrics=false"]).await;
    assert_eq!(get(bed.address(), "/metrics").await.status, 401);
    assert_eq!(as_owner(bed.address(), "team-a", "GET", "/metrics", "").await.status, 200);
    assert_eq!(get(bed.admin(), "/metrics").await.status, 200);
}

/// Nothing of a stranger's body is waited for beyond what it takes to be heard.
#[tokio::test]
async fn a_strangers_body_is_not_read() {
    let keys = Keys::new(&[("team-a", "")]);
    let bed = keys.bed(vec![engine()], &[]).await;
    for expects in ["", "expect: 100-continue\r\n"] {
        let mut stream = TcpStream::connect(bed.address()).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 40000000\r\n{expects}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The end comes although most of the body never did.
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("invalid_api_key"), "{answer}");
    }
}

#[tokio::test]
async fn requests_a_minute_are_counted() {
    let keys = Keys::new(&[("team-a", "requests_per_minute = 2"), ("team-b", "requests_per_minute = 2")]);
    let bed = keys.bed(vec![engine()], &[]).await;
    for left in [1, 0] {
        let answered = chat(&bed, "team-a", &question("twice")).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
        assert_eq!(number(&answered, "x-ratelimit-limit-requests"), 2);
        assert_eq!(number(&answered, "x-ratelimit-remaining-requests"), left);
        assert!(answered.headers["x-ratelimit-reset-requests"].to_str().unwrap().ends_with('s'));
    }
    let refused = chat(&bed, "team-a", &question("twice")).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    let error = &refused.json()["error"];
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("rate_limit_error"), Some("rate_limit_exceeded"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("2 requests_per_minute"), "{message}");
    assert!((1..=30).contains(&number(&refused, "retry-after")), "{:?}", refused.headers);
    assert!(message.contains(&format!("in {} s", number(&refused, "retry-after"))), "{message}");
    assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 0);
    // Looking is free, others have their own, and all of it is told.
    assert_eq!(as_owner(bed.address(), "team-a", "GET", "/v1/models", "").await.status, 200);
    assert_eq!(chat(&bed, "team-b", &question("twice")).await.status, 200);
    assert_eq!(bed.metric("kvlane_key_refused_total{key=\"team-a\",limit=\"requests\"}").await, Some(1.0));
    counted(&bed, "kvlane_key_requests_total{key=\"team-a\"", 2.0).await;
    let told = bed.admin_get("/admin/keys").await;
    let a = &told["keys"][0];
    assert_eq!((a["name"].as_str(), a["limits"]["requests_per_minute"].as_u64()), (Some("team-a"), Some(2)));
    assert_eq!((a["remaining"]["requests"].as_u64(), a["used"]["refused"].as_u64()), (Some(0), Some(1)));
    assert!(!told.to_string().contains(&Digest::of(b"team-a-secret").hex()));
}

#[tokio::test]
async fn tokens_a_minute_are_those_of_prompts_and_answers() {
    let keys = Keys::new(&[
        ("prompts", "tokens_per_minute = 100"),
        ("answers", "tokens_per_minute = 100"),
        ("errors", "tokens_per_minute = 100000"),
    ]);
    let bed = keys.bed(vec![engine()], &[]).await;
    // Longer than a minute's worth: it takes all there is, and what is beyond that afterwards.
    let answered = chat(&bed, "prompts", &question("long")).await;
    assert_eq!(answered.status, 200, "{}", answered.body);
    assert_eq!(number(&answered, "x-ratelimit-limit-tokens"), 100);
    assert_eq!(number(&answered, "x-ratelimit-remaining-tokens"), 0);
    let refused = chat(&bed, "prompts", &question("long")).await;
    assert_eq!(refused.status, 429);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("100 tokens_per_minute"));
    let prompt = answered.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 200);
    // Two thirds of a second for each token beyond the hundred, and a short prompt waits for those first.
    assert!(number(&refused, "retry-after") > (prompt - 200) * 6 / 10, "{:?}", refused.headers);

    // A short prompt, and an answer that is long.
    let short =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "ignore_eos": true});
    let answered = chat(&bed, "answers", &short).await;
    assert_eq!(answered.json()["usage"]["completion_tokens"], 300, "{}", answered.body);
    until("the answer to be charged", || async { chat(&bed, "answers", &short).await.status == 429 }).await;
    counted(&bed, "kvlane_key_tokens_total{key=\"answers\",kind=\"answer\"}", 300.0).await;

    // Nobody pays for an error.
    let wrong = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": -1});
    assert_eq!(chat(&bed, "errors", &wrong).await.status, 400);
    until("what was taken to be back", || async {
        let told = bed.admin_get("/admin/keys").await;
        let key =
            told["keys"].as_array().unwrap().iter().find(|key| key["name"] == "errors").unwrap().clone();
        key["remaining"]["tokens"] == 100_000 && key["running"] == 0
    })
    .await;
}

#[tokio::test]
async fn requests_at_a_time_are_counted() {
    let keys = Keys::new(&[("team-a", "concurrent_requests = 1")]);
    let bed = keys.bed(vec![engine()], &[]).await;
    bed.faults(0, json!({"hang": true})).await;
    let headers = [("authorization", "Bearer team-a-secret")];
    let body = question("one at a time").to_string();
    let (to, running) = (bed.address(), body.clone());
    let first = tokio::spawn(async move { send(to, "POST", CHAT, &headers, running).await });
    until("the first to run", || async { bed.in_flight().await == 1 }).await;
    let refused = ask(bed.address(), "POST", CHAT, &headers, &body).await;
    assert_eq!((refused.status.as_u16(), number(&refused, "retry-after")), (429, 1), "{}", refused.body);
    assert!(refused.body.contains("1 concurrent_requests"), "{}", refused.body);
    first.abort();
    bed.faults(0, json!({"hang": false})).await;
    until("its place to be free", || async {
        ask(bed.address(), "POST", CHAT, &headers, &body).await.status == 200
    })
    .await;
    counted(&bed, "kvlane_key_requests_total{key=\"team-a\",outcome=\"cancelled\"}", 1.0).await;
}

#[tokio::test]
async fn a_model_that_is_not_allowed_is_as_if_it_were_not_served() {
    let keys = Keys::new(&[("team-a", "models = ['adap*']"), ("team-b", "models = []"), ("team-c", "")]);
    let options = WorkerOptions { lora_names: vec!["adapter".into()], ..engine() };
    let bed = keys.bed(vec![options], &[]).await;
    let models = async |name: &str| {
        let list = as_owner(bed.address(), name, "GET", "/v1/models", "").await.json();
        let names =
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(models("team-a").await, ["adapter"]);
    assert_eq!(models("team-b").await, Vec::<String>::new());
    assert_eq!(models("team-c").await, ["adapter", "kvlane-small"]);
    let mut body = question("which model");
    body["model"] = "adapter".into();
    assert_eq!(chat(&bed, "team-a", &body).await.status, 200);
    body["model"] = "kvlane-small".into();
    let refused = chat(&bed, "team-a", &body).await;
    body["model"] = "nobody-has-this".into();
    let unknown = chat(&bed, "team-a", &body).await;
    let (refused, unknown) = (refused.body, unknown.body);
    assert_eq!(
        refused.replace("kvlane-small", "nobody-has-this"),
        unknown,
        "not told from one that is not there"
    );
    assert!(refused.contains("model_not_found") && refused.contains("served now: `adapter`"), "{refused}");
    for path in ["/tokenize", "/v1/embeddings", "/v1/responses", "/v1/completions"] {
        let body = json!({"model": "kvlane-small", "prompt": "a", "input": "a"}).to_string();
        assert_eq!(as_owner(bed.address(), "team-a", "POST", path, &body).await.status, 404, "{path}");
    }
    let named = as_owner(bed.address(), "team-a", "GET", "/v1/models/kvlane-small", "").await;
    assert_eq!(named.status, 404, "{}", named.body);
}

#[tokio::test]
async fn the_file_is_read_again_and_a_broken_one_changes_nothing() {
    let keys = Keys::new(&[("team-a", "requests_per_minute = 2"), ("leaving", "")]);
    let bed = keys.bed(vec![engine()], &[]).await;
    assert_eq!(chat(&bed, "team-a", &question("before")).await.status, 200);
    assert_eq!(chat(&bed, "leaving", &question("before")).await.status, 200);
    assert_eq!(chat(&bed, "coming", &question("before")).await.status, 401);
    std::fs::write(&keys.path, "[[keys]]\nname = 'team-a'\nsha256 = 'team-a-secret'\n").unwrap();
    let models =
        async |name: &str| as_owner(bed.address(), name, "GET", "/v1/models", "").await.status.as_u16();
    // Some looks at the broken file later.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!((models("team-a").await, models("leaving").await), (200, 200));
    keys.write(&[("team-a", "requests_per_minute = 2"), ("coming", "")]);
    until("the new key", || async { models("coming").await == 200 }).await;
    assert_eq!(models("leaving").await, 401);
    // What is gone has no series, and what stayed has not forgotten what it used.
    assert_eq!(bed.metric("kvlane_key_requests_total{key=\"leaving\"").await, None);
    let answered = chat(&bed, "team-a", &question("before")).await;
    assert_eq!(number(&answered, "x-ratelimit-remaining-requests"), 0);
    counted(&bed, "kvlane_key_requests_total{key=\"team-a\",outcome=\"success\"}", 2.0).await;
}

#[tokio::test]
async fn a_broken_file_stops_the_start() {
    let keys = Keys::new(&[]);
    std::fs::write(&keys.path, "[[keys]]\nname = 'team-a'\nsha256 = 'kvl_this-is-the-key-itself'\n").unwrap();
    let out = kvlane().args(["--api-keys", keys.path.to_str().unwrap(), "--port", "0"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success());
    assert!(
        said.contains("key team-a: expected `sha256` to be the SHA-256") && said.contains("kvlane key hash")
    );
    assert!(!said.contains("kvl_this"), "{said}");
}

/// An engine that answers just enough, and keeps what it was shown.
async fn recorder() -> (SocketAddr, Arc<Mutex<Vec<(String, HeaderMap)>>>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (socket.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let record = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let record = record.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let path = request.uri().path().to_owned();
                record.lock().unwrap().push((path.clone(), request.headers().clone()));
                let body = match path.as_str() {
                    "/v1/models" => json!({"data": [{"id": "m"}]}).to_string(),
                    CHAT => json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
                        .to_string(),
                    _ => String::new(),
                };
                async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body)))) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, seen)
}

#[tokio::test]
async fn engines_are_shown_their_own_key_and_never_a_clients() {
    let keys = Keys::new(&[("team-a", "priority = 'normal'")]);
    let own = keys.path.with_file_name("engine-key");
    std::fs::write(&own, "engine-secret\n").unwrap();
    let (address, seen) = recorder().await;
    let flags = ["--api-keys", keys.path.to_str().unwrap(), "--set"];
    let own = format!("proxy.worker_api_key_file={}", own.display());
    let app = router(&[format!("http://{address}")], &[&flags[..], &[own.as_str()]].concat()).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "priority": -9}).to_string();
    let headers = [
        ("authorization", "Bearer team-a-secret"),
        ("x-api-key", "team-a-secret"),
        ("api-key", "team-a-secret"),
        ("x-request-id", "mine"),
        ("x-vllm-priority", "-9"),
        ("x-other", "stays"),
    ];
    until("an answer", || async { ask(app.address, "POST", CHAT, &headers, &body).await.status == 200 })
        .await;
    let seen = seen.lock().unwrap();
    for path in ["/health", "/v1/models", "/kv_event_sources", CHAT] {
        let of_path = seen.iter().filter(|(seen, _)| seen == path);
        let shown: Vec<_> = of_path.map(|(_, headers)| headers).collect();
        assert!(!shown.is_empty(), "{path}");
        for headers in shown {
            assert_eq!(headers["authorization"], "Bearer engine-secret", "{path}");
            assert!(
                headers.values().all(|value| !value.as_bytes().starts_with(b"team-a-secret")),
                "{headers:?}"
            );
        }
    }
    let (_, sent) = seen.iter().rfind(|(path, _)| path == CHAT).unwrap();
    assert!(!sent.contains_key("x-api-key") && !sent.contains_key("api-key"));
    assert_eq!(sent["x-other"], "stays");
    assert_eq!(sent["x-request-id"], "team-a:mine");
    assert_eq!(sent["x-vllm-priority"], "0", "no client of this key comes before others");
}

#[tokio::test]
async fn what_leads_around_a_key_is_refused() {
    let keys = Keys::new(&[("team-a", "priority = 'normal'\ncache_salt = 'team-1'\nmodels = ['*']")]);
    let (address, seen) = recorder().await;
    let flags = ["--api-keys", keys.path.to_str().unwrap()];
    let app = router(&[format!("http://{address}")], &flags).await;
    let ask_with = async |path: &str, priority: &str, more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "input": "hi"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let headers = [("authorization", "Bearer team-a-secret"), ("x-vllm-priority", priority)];
        ask(app.address, "POST", path, &headers, &body.to_string()).await
    };
    until("an answer", || async { ask_with(CHAT, "0", json!({})).await.status == 200 }).await;
    for path in [CHAT, "/v1/responses", "/v1/embeddings"] {
        for (field, value) in [
            ("extra_key", json!("0")),
            ("lora_path", json!("secret-adapter")),
            ("rid", json!("another's")),
            ("session_params", json!({"id": "another's"})),
            ("kv_transfer_params", json!({"do_remote_prefill": true})),
        ] {
            let refused = ask_with(path, "0", json!({field: value})).await;
            assert_eq!(
                (refused.status.as_u16(), refused.json()["error"]["param"].as_str()),
                (400, Some(field))
            );
            assert_eq!(ask_with(path, "0", json!({field: null})).await.status, 200, "{path} {field}");
        }
    }
    // Numbers that only an engine would understand do not come before others either.
    for urgent in ["-3000000000", "-1.5", "-2"] {
        assert_eq!(ask_with(CHAT, urgent, json!({})).await.status, 200);
        let seen = seen.lock().unwrap();
        let (_, sent) = seen.iter().rfind(|(path, _)| path == CHAT).unwrap();
        assert_eq!(sent["x-vllm-priority"], "0", "{urgent}");
    }
}

#[tokio::test]
async fn without_keys_a_clients_own_key_travels_on() {
    let (address, seen) = recorder().await;
    let app = router(&[format!("http://{address}")], &[]).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    let headers = [("authorization", "Bearer theirs"), ("x-request-id", "mine")];
    until("an answer", || async { ask(app.address, "POST", CHAT, &headers, &body).await.status == 200 })
        .await;
    let seen = seen.lock().unwrap();
    let (_, sent) = seen.iter().rfind(|(path, _)| path == CHAT).unwrap();
    assert_eq!(sent["authorization"], "Bearer theirs");
    assert_eq!(sent["x-request-id"], "mine");
    assert!(!sent.contains_key("x-vllm-priority"));
}

/// Two clients that call their conversations and requests the same do not meet.
#[tokio::test]
async fn names_that_clients_give_are_their_own() {
    let keys = Keys::new(&[("team-a", ""), ("team-b", "")]);
    let bed = keys.bed(vec![engine(), engine()], &[]).await;
    let ask_as = async |name: &str, topic: &str| {
        let bearer = format!("Bearer {name}-secret");
        let headers =
            [("authorization", bearer.as_str()), ("x-session-id", "talk"), ("x-request-id", "mine")];
        let answered = ask(bed.address(), "POST", CHAT, &headers, &question(topic).to_string()).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
    };
    ask_as("team-a", "a").await;
    ask_as("team-b", "b").await;
    let remembered = |key: &'static str| {
        let bed = &bed;
        async move { bed.admin_get(&format!("/admin/explain/mine?key={key}")).await }
    };
    assert_eq!(remembered("team-a").await["key"], "team-a");
    assert_eq!(remembered("team-b").await["key"], "team-b");
    assert_eq!(bed.admin_get("/admin/explain/mine").await["key"], "team-b", "the last one");
    assert_eq!(get(bed.admin(), "/admin/explain/mine?key=team-x").await.status, 404);
    // Neither is at home where the other is: a home would be a credit of its decision.
    let home = |decision: &Value| decision["chosen"]["home_credit"].as_f64().unwrap();
    assert_eq!(home(&remembered("team-b").await), 0.0);
    ask_as("team-b", "b").await;
    assert!(home(&remembered("team-b").await) != 0.0, "it is at home with itself");
}

fn kvlane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlane"));
    let ours = |name: &str| {
        ["KVLANE_", "DYN_", "NATS_", "ROUTER_", "OTEL_", "RUST_LOG"].iter().any(|p| name.starts_with(p))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command
}

#[test]
fn keys_are_made_and_hashed_on_the_command_line() {
    let out = kvlane().args(["key", "new", "team-a"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let (key, entry) = text.split_once("\n\n").unwrap();
    assert!(out.status.success() && key.starts_with("kvl_") && key.len() == 47, "{text}");
    let digest = Digest::of(key.as_bytes()).hex();
    assert_eq!(entry, format!("[[keys]]\nname = \"team-a\"\nsha256 = \"{digest}\"\n"));
    let mut child =
        kvlane().args(["key", "hash"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{key}\n").as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{digest}\n"));
    let wrong = kvlane().args(["key", "new", "no spaces"]).output().unwrap();
    assert!(!wrong.status.success() && wrong.stdout.is_empty());
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("`name` of 1 to 64"));
}

/// Whatever is logged, and at whatever length: no secret is in it.
#[tokio::test]
async fn no_secret_is_ever_written_down() {
    let keys = Keys::new(&[("team-a", "requests_per_minute = 3")]);
    let near = |name: &str| keys.path.with_file_name(name).to_str().unwrap().to_owned();
    std::fs::write(near("engine-key"), "engine-secret").unwrap();
    std::fs::write(near("token"), "admin-secret").unwrap();
    let worker = start(engine()).await;
    let (port, admin) = (free_port(), free_port());
    let mut child = kvlane()
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--admin-port", &admin.to_string()])
        .args([
            "--worker",
            &format!("http://{}", worker.address()),
            "--api-keys",
            keys.path.to_str().unwrap(),
        ])
        .args(["--set", &format!("proxy.worker_api_key_file={}", near("engine-key"))])
        .args(["--set", &format!("admin.token_file={}", near("token"))])
        .args(["--set", "workers.refresh_ms=20", "--set", "server.drain_wait_s=0"])
        .args(["--log-level", "trace", "--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let written = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).unwrap();
        text
    });
    let (public, admin) =
        (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], admin)));
    until("a router", || async { TcpStream::connect(public).await.is_ok() }).await;
    until("a ready router", || async { get(public, "/ready").await.status == 200 }).await;
    let body = question("secrets").to_string();
    for _ in 0..4 {
        as_owner(public, "team-a", "POST", CHAT, &body).await;
    }
    as_owner(public, "unknown", "POST", CHAT, &body).await;
    std::fs::write(&keys.path, entry("team-a", "colour = 'x'") + "sha256_of = 'team-z-secret'").unwrap();
    let mut told = String::new();
    for path in ["/admin/config", "/admin/keys", "/admin/workers", "/metrics"] {
        let answered = as_owner(admin, "admin", "GET", path, "").await;
        assert_eq!(answered.status, 200, "{path}: {}", answered.body);
        told += &answered.body;
        as_owner(admin, "not-admin", "GET", path, "").await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let printed = kvlane()
        .args(["config", "--print", "--api-keys", keys.path.to_str().unwrap()])
        .args(["--set", &format!("proxy.worker_api_key_file={}", near("engine-key"))])
        .output()
        .unwrap();
    told += &String::from_utf8(printed.stdout).unwrap();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    let written = written.join().unwrap();
    assert!(written.contains("\"key\":\"team-a\""), "lines speak of keys by name: {written}");
    assert!(written.contains("keys' file cannot be used"), "{written}");
    for secret in ["team-a-secret", "unknown-secret", "team-z-secret", "engine-secret", "admin-secret"] {
        for text in [secret.to_owned(), Digest::of(secret.as_bytes()).hex()] {
            assert!(!written.contains(&text), "{text} is in the log");
            assert!(!told.contains(&text), "{text} is told");
        }
    }
}

/// What one tenant has cached helps no other, and the time an answer takes tells nothing.
#[tokio::test]
async fn tenants_with_salts_share_no_cache() {
    let salted = [("team-a", "cache_salt = 'a'"), ("team-b", "cache_salt = 'b'"), ("plain", "")];
    let keys = Keys::new(&salted);
    let bed = keys.bed(vec![engine()], &["--decision-headers", "true"]).await;
    let body = question("the same for all");
    let cached = |answered: &Answered| {
        assert_eq!(answered.status, 200, "{}", answered.body);
        answered.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let held = |answered: &Answered| {
        answered.headers["x-kvlane-overlap"].to_str().unwrap().split_once('/').unwrap().0.to_owned()
    };
    let mut own = body.clone();
    own["cache_salt"] = "mine".into();
    let mut theirs = body.clone();
    theirs["cache_salt"] = "a".into();
    for (name, body) in
        [("team-a", &body), ("team-b", &body), ("team-a", &own), ("plain", &body), ("plain", &theirs)]
    {
        let first = chat(&bed, name, body).await;
        assert_eq!((cached(&first), held(&first).as_str()), (0, "0"), "{name}: {body}");
        // The same again finds what was its own, in the engine's cache and in the index.
        until("its own blocks", || async {
            let again = chat(&bed, name, body).await;
            cached(&again) > 0 && held(&again) != "0"
        })
        .await;
    }
    // Operators see with a tenant's eyes.
    let told = async |query: &str| {
        let answered =
            ask(bed.admin(), "POST", &format!("/admin/explain{query}"), &[], &body.to_string()).await;
        answered.json()["chosen"]["held_blocks"].as_u64().unwrap()
    };
    assert!(told("?key=team-a").await > 0);
    keys.write(&[("team-a", "cache_salt = 'a'"), ("team-b", "cache_salt = 'c'"), ("plain", "")]);
    until("another salt", || async { told("?key=team-b").await == 0 }).await;
}

#[tokio::test]
async fn what_is_passed_through_is_salted_as_well() {
    let keys = Keys::new(&[("team-a", "cache_salt = 'a'")]);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = bodies.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let seen = seen.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let seen = seen.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    let body =
                        http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
                    seen.lock().unwrap().push((path, String::from_utf8(body.to_vec()).unwrap()));
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(
                        "{\"data\": [{\"id\": \"m\"}]}",
                    ))))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let app = router(&[format!("http://{address}")], &["--api-keys", keys.path.to_str().unwrap()]).await;
    for (path, expected) in [
        ("/v1/responses", r#"{"cache_salt":"a","input":"x"}"#),
        ("/v1/embeddings", r#"{"cache_salt":"a","input":"x"}"#),
        ("/tokenize", r#"{"input":"x"}"#),
    ] {
        until("an answer", || async {
            as_owner(app.address, "team-a", "POST", path, r#"{"input":"x"}"#).await.status == 200
        })
        .await;
        let seen = bodies.lock().unwrap();
        let (_, sent) = seen.iter().rfind(|(seen, _)| seen == path).unwrap();
        assert_eq!(sent, expected, "{path}");
    }
}
