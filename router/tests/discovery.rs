//! Workers that come and go, however they are named.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::bridge::{Sidecar, SidecarConfig};
use kvlane_engine_adapters::dynamo::{Scope, Subjects};
use kvlane_engine_adapters::engine_facts::{Engine, instance_of};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::nats;
use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::secret::bearer_in;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_router::app::App;
use kvlane_router::config::WorkerScheme;
use kvlane_router::discovery::sources::{ServiceRef, follow_service};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::support::{NatsServer, engine, get, post, question, router, start, until};

fn url(worker: &Worker) -> String {
    format!("http://{}", worker.address())
}

/// URLs of workers that are ready, sorted.
async fn ready(app: &App) -> Vec<String> {
    let workers = get(app.admin_address.unwrap(), "/admin/workers").await.json();
    let workers = workers["workers"].as_array().unwrap();
    let ready = workers.iter().filter(|worker| worker["state"] == "ready");
    let mut urls: Vec<String> = ready.map(|worker| worker["url"].as_str().unwrap().to_owned()).collect();
    urls.sort();
    urls
}

async fn until_ready(app: &App, workers: &[&Worker]) {
    let mut expected: Vec<String> = workers.iter().map(|worker| url(worker)).collect();
    expected.sort();
    until("the workers that are there", || async { ready(app).await == expected }).await;
}

#[tokio::test]
async fn a_workers_file_is_followed_and_a_broken_one_changes_nothing() {
    let (a, b) = (start(engine()).await, start(engine()).await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.toml");
    std::fs::write(&path, format!("workers = ['{}']", url(&a))).unwrap();
    let app =
        router(&[], &["--workers-file", path.to_str().unwrap(), "--set", "workers.refresh_ms=50"]).await;
    until_ready(&app, &[&a]).await;
    std::fs::write(&path, format!("workers = ['url={},slots=64', '{}']", url(&a), url(&b))).unwrap();
    until_ready(&app, &[&a, &b]).await;
    std::fs::write(&path, "workers = [").unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    until_ready(&app, &[&a, &b]).await;
    std::fs::write(&path, format!("workers = ['{}']", url(&b))).unwrap();
    until_ready(&app, &[&b]).await;
    assert_eq!(post(app.address, "/v1/chat/completions", &question("b")).await.status, 200);
    // What is gone is gone from the metrics and the index too.
    let metrics = get(app.address, "/metrics").await.body;
    assert!(!metrics.contains(&a.address().to_string()));
}

#[tokio::test]
async fn every_address_of_a_name_is_a_worker() {
    let worker = start(engine()).await;
    let name = format!("localhost:{}", worker.address().port());
    let app = router(&[], &["--worker-dns", &name, "--set", "workers.refresh_ms=50"]).await;
    until("the worker", || async { ready(&app).await.contains(&url(&worker)) }).await;
}

/// Two models behind one router, and an adapter that only one worker has.
#[tokio::test]
async fn models_have_workers_of_their_own() {
    let named = |name: &str| WorkerOptions { model_name: Some(name.to_owned()), ..engine() };
    let a = start(named("model-a")).await;
    let b = start(WorkerOptions { lora_names: vec!["adapter".into()], ..named("model-b") }).await;
    let app = router(&[url(&a), url(&b)], &["--decision-headers", "true"]).await;
    until_ready(&app, &[&a, &b]).await;
    for (model, worker) in [("model-a", &a), ("model-b", &b), ("adapter", &b)] {
        let mut body = question("who are you");
        body["model"] = model.into();
        let answered = post(app.address, "/v1/chat/completions", &body).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
        assert_eq!(answered.headers["x-kvlane-worker"], instance_of(&url(worker)).to_string());
    }
    let nameless = post(app.address, "/v1/chat/completions", &question("no model")).await;
    assert_eq!(nameless.status, 400);
    assert!(nameless.body.contains("expected one of `adapter`, `model-a`, `model-b`"), "{}", nameless.body);
}

/// A model whose tokenizer is nowhere to be had here: engines tokenize, and where they cannot, text stands in.
#[tokio::test]
async fn without_a_tokenizer_directory_engines_are_asked() {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-adapters/models/kvlane-small");
    let hidden = dir.path().join("model");
    std::fs::create_dir(&hidden).unwrap();
    for file in std::fs::read_dir(model).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), hidden.join(file.file_name())).unwrap();
    }
    let worker = start(WorkerOptions {
        model_path: Some(hidden.clone()),
        model_name: Some("private".into()),
        ..engine()
    })
    .await;
    // The engine has it in memory; the router cannot see the directory.
    std::fs::remove_dir_all(&hidden).unwrap();
    let app = router(&[url(&worker)], &[]).await;
    until_ready(&app, &[&worker]).await;
    let index = get(app.admin_address.unwrap(), "/admin/index").await.json();
    assert_eq!(index["models"]["private"]["prompts_known_by"], "engine");
    let body = question("asked");
    post(app.address, "/v1/chat/completions", &body).await;
    until("the events", || async {
        let decision = post(app.admin_address.unwrap(), "/admin/explain", &body).await.json();
        decision["chosen"]["held_blocks"].as_u64().unwrap() > 5
    })
    .await;
}

/// Nobody names a worker: its bridge announces it, and its events come the same way.
#[tokio::test]
async fn workers_are_announced_and_fed_over_nats() {
    let server = NatsServer::start();
    let nats_url = format!("nats://127.0.0.1:{}", server.1);
    // The engine asks for its own key, whoever wants to know about it.
    let own = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(own.path(), "engine-secret\n").unwrap();
    let own_setting = format!("proxy.worker_api_key_file={}", own.path().display());
    let worker = start(WorkerOptions { api_key: Some("engine-secret".to_owned()), ..engine() }).await;
    assert_eq!(get(worker.address(), "/v1/models").await.status, 401);
    let app = router(&[], &["--nats-url", &nats_url, "--set", &own_setting]).await;
    let stop = CancellationToken::new();
    let (client, connected) = nats::connect(&nats_url, "bridge").await.unwrap();
    let config = SidecarConfig {
        engine: Engine::Vllm,
        worker_id: 4711,
        url: url(&worker),
        advertised_url: url(&worker),
        events: Vec::new(),
        block_size: None,
        slots: Some(64),
        outbox: 1000,
        publisher: 1,
        tls: ClientTls::system(),
        authorization: Some(bearer_in(own.path()).unwrap()),
    };
    let (subjects, clock) = (Subjects::new(&Scope::default()), FeedClock::starting(since_1970()));
    let sidecar = Sidecar { config, client, connected, subjects, clock };
    let running = tokio::spawn(sidecar.run(stop.clone()));
    until_ready(&app, &[&worker]).await;
    let body = question("over NATS");
    assert_eq!(post(app.address, "/v1/chat/completions", &body).await.status, 200);
    let admin = app.admin_address.unwrap();
    until("events over NATS", || async {
        let decision = post(admin, "/admin/explain", &body).await.json();
        decision["chosen"]["held_blocks"].as_u64().unwrap() > 5
    })
    .await;
    let workers = get(admin, "/admin/workers").await.json();
    let shown = &workers["workers"][0];
    assert_eq!(
        (&shown["id"], &shown["slots"], &shown["events"]["source"]),
        (&json!(4711), &json!(64), &json!("nats"))
    );
    // Not before others had their time to answer the roll call.
    until("a ready router", || async { get(app.address, "/ready").await.status == 200 }).await;
    // Its bridge says goodbye.
    stop.cancel();
    running.await.unwrap().unwrap();
    until_ready(&app, &[]).await;
}

/// As much of Kubernetes' API as a watch of EndpointSlices needs: a list, and a stream of changes.
struct FakeCluster {
    address: std::net::SocketAddr,
    slices: Arc<Mutex<Vec<Value>>>,
    changes: broadcast::Sender<Option<Value>>,
    lists: Arc<Mutex<u32>>,
}

impl FakeCluster {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = Self {
            address: listener.local_addr().unwrap(),
            slices: Arc::default(),
            changes: broadcast::channel(64).0,
            lists: Arc::default(),
        };
        let (slices, changes, lists) =
            (cluster.slices.clone(), cluster.changes.clone(), cluster.lists.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Self::serve(stream, slices.clone(), changes.clone(), lists.clone()));
            }
        });
        cluster
    }

    async fn serve(
        mut stream: TcpStream,
        slices: Arc<Mutex<Vec<Value>>>,
        changes: broadcast::Sender<Option<Value>>,
        lists: Arc<Mutex<u32>>,
    ) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                return;
            }
            request.push(byte[0]);
        }
        let request = String::from_utf8(request).unwrap();
        assert!(request.contains("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"), "{request}");
        assert!(request.contains("labelSelector=kubernetes.io%2Fservice-name%3Dvllm"), "{request}");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        if !request.contains("watch=true") {
            let mut changed = changes.subscribe();
            *lists.lock() += 1;
            let list = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
                "metadata": {"resourceVersion": "1"}, "items": slices.lock().clone(),
            });
            let _ = changed.try_recv();
            let _ = stream.write_all(list.to_string().as_bytes()).await;
            return;
        }
        let mut changed = changes.subscribe();
        // Nothing more to say ends the stream, as clusters do after some minutes.
        while let Ok(Some(change)) = changed.recv().await {
            if stream.write_all(format!("{change}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn slice(workers: &[(&Worker, bool)]) -> Value {
        let port = workers.first().map_or(1, |(worker, _)| worker.address().port());
        let endpoints: Vec<Value> = workers
            .iter()
            .map(|(worker, terminating)| {
                json!({
                    "addresses": [worker.address().ip().to_string()],
                    "conditions": {"ready": !terminating, "serving": true, "terminating": terminating},
                    "targetRef": {"kind": "Pod", "name": format!("pod-{}", worker.address().port())},
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("vllm-{port}"), "namespace": "llm", "resourceVersion": "2"},
            "ports": [{"name": "http", "port": port}], "endpoints": endpoints,
        })
    }

    fn tell(&self, kind: &str, slice: &Value) {
        let _ = self.changes.send(Some(json!({"type": kind, "object": slice})));
    }
}

#[tokio::test]
async fn a_kubernetes_service_is_followed_and_listed_anew_after_every_break() {
    let (a, b, c) = (start(engine()).await, start(engine()).await, start(engine()).await);
    let cluster = FakeCluster::start().await;
    cluster.slices.lock().push(FakeCluster::slice(&[(&a, false)]));
    let app = router(&[], &[]).await;
    let config = kube::Config::new(format!("http://{}", cluster.address).parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let service = ServiceRef::parse("llm/vllm:http").unwrap();
    let stop = CancellationToken::new();
    let keeper = app.router.keeper.clone();
    let following = tokio::spawn(follow_service(keeper, client, service, WorkerScheme::Http, stop.clone()));
    until_ready(&app, &[&a]).await;
    let name = get(app.admin_address.unwrap(), "/admin/workers").await.json()["workers"][0]["name"].clone();
    assert_eq!(name, json!(format!("pod-{}", a.address().port())));
    // Somebody watches by now, or will be told again.
    until("a second worker", || async {
        cluster.tell("ADDED", &FakeCluster::slice(&[(&b, false)]));
        ready(&app).await.len() == 2
    })
    .await;
    // A pod is being terminated: it gets nothing new.
    cluster.tell("MODIFIED", &FakeCluster::slice(&[(&b, true)]));
    until("the drain", || async {
        let workers = get(app.admin_address.unwrap(), "/admin/workers").await.json();
        workers["workers"].as_array().unwrap().iter().any(|worker| worker["state"] == "draining")
    })
    .await;
    cluster.tell("DELETED", &FakeCluster::slice(&[(&b, true)]));
    until_ready(&app, &[&a]).await;
    // The watch breaks, and meanwhile everything has changed: what is listed then counts.
    let lists = *cluster.lists.lock();
    *cluster.slices.lock() = vec![FakeCluster::slice(&[(&c, false)])];
    let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
    cluster.tell("ERROR", &gone);
    let _ = cluster.changes.send(None);
    until_ready(&app, &[&c]).await;
    assert!(*cluster.lists.lock() > lists);
    stop.cancel();
    following.await.unwrap();
}
