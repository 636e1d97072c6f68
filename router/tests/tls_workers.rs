//! Workers behind TLS: trusted, not trusted, and asking for a certificate themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvlane_router::app::App;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::field::{Field, Visit};

use crate::certificates::{Authority, Files, Issued, ask, client, connect, send_http2};
use crate::support::{engine, get, post, question, rest, router, send, start, until};

/// TLS in front of a worker, as a sidecar would have it, counting connections.
struct Terminator {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Terminator {
    /// `clients` must have signed whoever connects.
    async fn start(
        worker: SocketAddr,
        shown: &Issued,
        clients: Option<&Authority>,
        protocols: &[&str],
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder(Arc::new(authority.roots())).build().unwrap(),
            ),
        };
        let mut config = builder.with_single_cert(shown.chain(), shown.key()).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let (acceptor, connections) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), counted.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(stream).await else { return };
                    counted.fetch_add(1, Ordering::SeqCst);
                    if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
                        let service = service_fn(move |request| passed_on(worker, request));
                        let server = http2::Builder::new(TokioExecutor::new());
                        let _ = server.serve_connection(TokioIo::new(tls), service).await;
                    } else {
                        let mut plain = TcpStream::connect(worker).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                    }
                });
            }
        });
        Self { address, connections }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

const HTTP1: &[&str] = &["http/1.1"];

/// A request in HTTP/2 for a worker that speaks HTTP/1.1.
async fn passed_on(
    worker: SocketAddr,
    request: Request<Incoming>,
) -> hyper::Result<hyper::Response<Incoming>> {
    let stream = TcpStream::connect(worker).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.uri = Uri::try_from(parts.uri.path()).unwrap();
    parts.version = hyper::Version::HTTP_11;
    parts.headers.insert("host", "worker".parse().unwrap());
    client.send_request(Request::from_parts(parts, body)).await
}

async fn state(app: &App) -> String {
    let workers = get(app.admin_address.unwrap(), "/admin/workers").await.json();
    workers["workers"][0]["state"].as_str().unwrap().to_owned()
}

async fn until_state(app: &App, expected: &str) {
    until(&format!("a worker that is {expected}"), || async { state(app).await == expected }).await;
}

fn stream(tokens: u64) -> String {
    let mut body = question("secret");
    body["stream"] = true.into();
    body["max_tokens"] = tokens.into();
    body.to_string()
}

#[tokio::test]
async fn requests_and_streams_go_through_and_connections_are_used_again() {
    let (authority, files) = (Authority::new(), Files::new());
    let ca = format!("tls.worker_ca={}", files.write("ca.pem", &authority.pem));
    let worker = start(engine()).await;
    let front = Terminator::start(worker.address(), &authority.issue(&["localhost"]), None, HTTP1).await;
    let app = router(&[front.url()], &["--set", &ca, "--set", "workers.probe_interval_ms=60000"]).await;
    until_state(&app, "ready").await;
    let mut opened = 0;
    for n in 0..10 {
        let answered = post(app.address, "/v1/chat/completions", &question(&format!("{n}"))).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
        let response = send(app.address, "POST", "/v1/chat/completions", &[], stream(30)).await.unwrap();
        let text = rest(response).await;
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("data: ").count() > 30, "{text}");
        if n == 0 {
            opened = front.connections();
        }
    }
    assert_eq!(front.connections(), opened, "connections are kept");
    // A long prompt takes more than one write.
    let mut long = question("long");
    long["messages"][0]["content"] = "a word and another one ".repeat(20_000).into();
    assert_eq!(post(app.address, "/v1/chat/completions", &long).await.status, 200);
}

/// TLS from the client to the worker, HTTP/2 all the way.
#[tokio::test]
async fn http2_is_spoken_on_both_sides() {
    let (authority, files) = (Authority::new(), Files::new());
    let (own, shown) = (authority.issue(&["localhost"]), authority.issue(&["worker.test"]));
    let worker = start(engine()).await;
    let front = Terminator::start(worker.address(), &shown, None, &["h2", "http/1.1"]).await;
    let spec = format!("url=https://{},server_name=worker.test,http2=true", front.address);
    let flags: Vec<String> = [
        ("tls.worker_ca", files.write("ca.pem", &authority.pem)),
        ("tls.cert", files.write("cert.pem", &own.cert)),
        ("tls.key", files.write("key.pem", &own.key)),
    ]
    .into_iter()
    .flat_map(|(name, path)| ["--set".to_owned(), format!("{name}={path}")])
    .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let app = router(&[spec], &flags).await;
    until_state(&app, "ready").await;
    let config = client(&authority, &["h2"], None);
    for _ in 0..3 {
        let tls = connect(app.address, &config).await.unwrap();
        let text = rest(send_http2(tls, "/v1/chat/completions", &stream(30)).await.unwrap()).await;
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("data: ").count() > 30, "{text}");
    }
    let (status, body) = ask(app.address, &client(&authority, &["http/1.1"], None), "/v1/models", "").await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn a_worker_that_asks_for_a_certificate_is_shown_one() {
    let (authority, files) = (Authority::new(), Files::new());
    let (own, shown) = (authority.issue(&["router"]), authority.issue(&["localhost"]));
    let ca = format!("tls.worker_ca={}", files.write("ca.pem", &authority.pem));
    let cert = format!("tls.worker_cert={}", files.write("cert.pem", &own.cert));
    let key = format!("tls.worker_key={}", files.write("key.pem", &own.key));
    let worker = start(engine()).await;
    let front = Terminator::start(worker.address(), &shown, Some(&authority), HTTP1).await;
    let app = router(&[front.url()], &["--set", &ca, "--set", &cert, "--set", &key]).await;
    until_state(&app, "ready").await;
    assert_eq!(post(app.address, "/v1/chat/completions", &question("mutual")).await.status, 200);
    let text = app.router.metrics.text();
    assert!(text.contains("kvlane_tls_certificate_not_after_seconds{certificate=\"worker\"} "), "{text}");
    let without = router(&[front.url()], &["--set", &ca]).await;
    until_state(&without, "down").await;
}

/// What is logged, as text.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<String>>);

impl Visit for Logged {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        write!(self.0.lock(), "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
        self.0.lock().push('\n');
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn who_cannot_be_trusted_is_down_until_it_can_and_the_log_says_why() {
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    let (authority, stranger, files) = (Authority::new(), Authority::new(), Files::new());
    let ca = format!("tls.worker_ca={}", files.write("ca.pem", &stranger.pem));
    let worker = start(engine()).await;
    let front = Terminator::start(worker.address(), &authority.issue(&["localhost"]), None, HTTP1).await;
    let app = router(&[front.url()], &["--set", &ca, "--set", "tls.reload_ms=20"]).await;
    until_state(&app, "down").await;
    let said = logged.0.lock().clone();
    assert!(said.contains("UnknownIssuer") && said.contains("TLS with this worker fails"), "{said}");
    let answered = post(app.address, "/v1/chat/completions", &question("nobody")).await;
    assert_eq!(answered.status, 503, "{}", answered.body);
    // The right file comes later.
    files.write("ca.pem", &authority.pem);
    until_state(&app, "ready").await;
    assert_eq!(post(app.address, "/v1/chat/completions", &question("now")).await.status, 200);

    // A certificate for somebody else will not do, unless he is who is meant.
    let other = Terminator::start(worker.address(), &authority.issue(&["pod.test"]), None, HTTP1).await;
    let app = router(&[other.url()], &["--set", &ca]).await;
    until_state(&app, "down").await;
    let said = logged.0.lock().clone();
    assert!(said.contains("not valid for name"), "{said}");
    let app = router(&[format!("url={},server_name=pod.test", other.url())], &["--set", &ca]).await;
    until_state(&app, "ready").await;
    let workers: Value = get(app.admin_address.unwrap(), "/admin/workers").await.json();
    assert_eq!(workers["workers"][0]["state"], "ready");
}
