//! Clients that speak TLS, those that should, and certificates that change meanwhile.

use std::net::SocketAddr;
use std::process::{Child, Command, Output};
use std::sync::Arc;

use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::sim::worker::Worker;
use kvlane_router::app::App;
use kvlane_router::cli::config_of;
use rustls::ClientConfig;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::{Authority, Files, Issued, ask, client, connect, send_http1, send_http2, shown};
use crate::support::{engine, free_port, get, next_part, question, rest, router, start, until};

/// A router that speaks TLS, before one simulated engine, and whoever signed its certificate.
struct Secured {
    authority: Authority,
    files: Files,
    served: Issued,
    app: App,
    _worker: Worker,
}

const NAMES: &[&str] = &["localhost", "127.0.0.1"];

impl Secured {
    async fn start(more: impl Fn(&Files, &Authority) -> Vec<String>) -> Self {
        let (authority, files) = (Authority::new(), Files::new());
        let served = authority.issue(NAMES);
        let cert = files.write("cert.pem", &served.cert);
        let key = files.write("key.pem", &served.key);
        let more = more(&files, &authority);
        let mut flags = vec!["--tls-cert-path", &cert, "--tls-key-path", &key, "--set", "tls.reload_ms=20"];
        flags.extend(more.iter().map(String::as_str));
        let worker = start(engine()).await;
        let app = router(&[format!("http://{}", worker.address())], &flags).await;
        let secured = Self { authority, files, served, app, _worker: worker };
        until("a ready router", || async { secured.app.router.ready().is_ok() }).await;
        secured
    }

    fn address(&self) -> SocketAddr {
        self.app.address
    }

    fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        client(&self.authority, protocols, None)
    }

    fn failed_handshakes(&self) -> u64 {
        let text = self.app.router.metrics.text();
        let line = text.lines().find(|line| line.starts_with("kvlane_tls_handshakes_failed_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// curl, with the authority's certificate.
    async fn curl(&self, arguments: &[&str]) -> Output {
        let ca = self.files.write("ca.pem", &self.authority.pem);
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--cacert", &ca]);
        command.args(arguments);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn none(_: &Files, _: &Authority) -> Vec<String> {
    Vec::new()
}

fn set(text: String) -> Vec<String> {
    vec!["--set".to_owned(), text]
}

fn stream(tokens: u64) -> String {
    let mut body = question("secret");
    body["stream"] = true.into();
    body["max_tokens"] = tokens.into();
    body.to_string()
}

#[tokio::test]
async fn both_protocols_are_spoken_and_streams_come_through() {
    let secured = Secured::start(none).await;
    let (status, body) = ask(secured.address(), &secured.client(&["http/1.1"]), "/v1/models", "").await;
    assert_eq!(status, 200, "{body}");
    // Who names no protocol speaks HTTP/1.1.
    assert_eq!(ask(secured.address(), &secured.client(&[]), "/live", "").await.0, 200);
    let tls = connect(secured.address(), &secured.client(&["h2", "http/1.1"])).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let http2 = rest(send_http2(tls, "/v1/chat/completions", &stream(20)).await.unwrap()).await;
    let tls = connect(secured.address(), &secured.client(&["http/1.1"])).await.unwrap();
    let http1 = rest(send_http1(tls, "/v1/chat/completions", &stream(20)).await.unwrap()).await;
    for text in [http1, http2] {
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("data: ").count() > 20, "{text}");
    }
    assert_eq!(secured.failed_handshakes(), 0);
    let ends = secured.app.router.metrics.text();
    assert!(ends.contains("kvlane_tls_certificate_not_after_seconds{certificate=\"server\"} "), "{ends}");
    // The admin listener is as it was.
    assert_eq!(get(secured.app.admin_address.unwrap(), "/live").await.status, 200);
}

#[tokio::test]
async fn curl_is_served_and_finds_out_who_is_not_trusted() {
    let secured = Secured::start(none).await;
    let url = format!("https://localhost:{}/v1/chat/completions", secured.address().port());
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2"), ("--tls-max", "2")] {
        let mut arguments =
            vec!["--json", "{}", "--write-out", "\n%{http_version} %{ssl_verify_result}", &url];
        // The oldest that is spoken.
        arguments.extend(if protocol == "--tls-max" { vec![protocol, "1.2"] } else { vec![protocol] });
        let question = question("curl").to_string();
        arguments[1] = &question;
        let output = secured.curl(&arguments).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, said) = text.rsplit_once('\n').unwrap();
        assert_eq!(said, format!("{version} 0"), "{protocol}: {}", String::from_utf8_lossy(&output.stderr));
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(body["choices"][0]["message"]["content"].is_string(), "{body}");
    }
    let old = secured.curl(&["--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0", &url]).await;
    assert_eq!(
        old.status.code(),
        Some(35),
        "TLS 1.1 is not spoken: {}",
        String::from_utf8_lossy(&old.stderr)
    );
    let stranger = Authority::new();
    let error = connect(secured.address(), &client(&stranger, &[], None)).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    until("both to be counted", || async { secured.failed_handshakes() == 2 }).await;
}

#[tokio::test]
async fn clients_have_to_show_a_certificate_where_they_are_asked_for_one() {
    let stranger = Authority::new();
    let secured = Secured::start(|files, authority| {
        set(format!("tls.client_ca={}", files.write("clients.pem", &authority.pem)))
    })
    .await;
    let (known, unknown) = (secured.authority.issue(&["client"]), stranger.issue(&["client"]));
    let config = client(&secured.authority, &["h2"], Some(&known));
    let tls = connect(secured.address(), &config).await.unwrap();
    assert_eq!(send_http2(tls, "/v1/models", "").await.unwrap().status(), 200);
    for own in [None, Some(&unknown)] {
        // With TLS 1.3 the client learns of it with its first read.
        let config = client(&secured.authority, &["http/1.1"], own);
        let refused = match connect(secured.address(), &config).await {
            Ok(tls) => send_http1(tls, "/v1/models", "").await.is_err(),
            Err(_) => true,
        };
        assert!(refused, "with {}", if own.is_some() { "a stranger's certificate" } else { "none" });
    }
    until("both to be counted", || async { secured.failed_handshakes() == 2 }).await;
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_broken_one_for_nobody() {
    let secured = Secured::start(none).await;
    let config = secured.client(&["http/1.1"]);
    // A stream that runs through all of it.
    let tls = connect(secured.address(), &config).await.unwrap();
    let first = secured.served.chain()[0].clone();
    assert_eq!(shown(&tls), first);
    let mut running = send_http1(tls, "/v1/chat/completions", &stream(50)).await.unwrap();
    next_part(&mut running).await.unwrap();

    let shows = |expected| {
        let (config, address) = (&config, secured.address());
        move || {
            let expected: rustls::pki_types::CertificateDer<'static> = Clone::clone(&expected);
            async move { shown(&connect(address, config).await.unwrap()) == expected }
        }
    };
    let next = secured.authority.issue(NAMES);
    // Half of the new pair is no pair.
    secured.files.write("cert.pem", &next.cert);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(shows(first.clone())().await);
    secured.files.write("key.pem", &next.key);
    until("the new certificate", shows(next.chain()[0].clone())).await;
    // What is no certificate changes nothing, and neither does a file that is gone.
    secured.files.write("cert.pem", "no certificate");
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(shows(next.chain()[0].clone())().await);
    std::fs::remove_file(secured.files.path("key.pem")).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(shows(next.chain()[0].clone())().await);
    secured.files.write("key.pem", &secured.served.key);
    secured.files.write("cert.pem", &secured.served.cert);
    until("the first certificate", shows(first)).await;
    assert!(rest(running).await.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_so_and_who_says_nothing_holds_nobody_up() {
    let secured = Secured::start(|_, _| {
        [set("tls.handshake_ms=300".to_owned()), set("server.max_connections=2".to_owned())].concat()
    })
    .await;
    let answered = get(secured.address(), "/v1/models").await;
    assert_eq!(answered.status, 400);
    assert!(answered.body.contains("speaks TLS"), "{}", answered.body);
    // Two take all places there are and say nothing, or not enough, until their time is over.
    let mut silent = TcpStream::connect(secured.address()).await.unwrap();
    let mut slow = TcpStream::connect(secured.address()).await.unwrap();
    slow.write_all(&[0x16, 3, 1]).await.unwrap();
    let (status, _) = ask(secured.address(), &secured.client(&[]), "/live", "").await;
    assert_eq!(status, 200);
    let mut nothing = Vec::new();
    let _ = silent.read_to_end(&mut nothing).await;
    let _ = slow.read_to_end(&mut nothing).await;
    assert!(nothing.is_empty());
    until("all three to be counted", || async { secured.failed_handshakes() == 3 }).await;
    // And while there is room, not even that long.
    let roomy = Secured::start(none).await;
    let _silent = TcpStream::connect(roomy.address()).await.unwrap();
    assert_eq!(ask(roomy.address(), &roomy.client(&[]), "/live", "").await.0, 200);
    assert_eq!(roomy.failed_handshakes(), 0);
}

#[tokio::test]
async fn a_drain_lets_streams_over_tls_finish() {
    let secured = Secured::start(none).await;
    let tls = connect(secured.address(), &secured.client(&["h2"])).await.unwrap();
    let mut http2 = send_http2(tls, "/v1/chat/completions", &stream(100)).await.unwrap();
    let tls = connect(secured.address(), &secured.client(&["http/1.1"])).await.unwrap();
    let mut http1 = send_http1(tls, "/v1/chat/completions", &stream(100)).await.unwrap();
    next_part(&mut http2).await.unwrap();
    next_part(&mut http1).await.unwrap();
    // Somebody in the middle of a handshake does not keep it.
    let _silent = TcpStream::connect(secured.address()).await.unwrap();
    let Secured { app, _worker, .. } = secured;
    let (texts, ()) =
        tokio::join!(async { (rest(http1).await, rest(http2).await) }, app.drain(std::future::pending()));
    assert!(texts.0.ends_with("data: [DONE]\n\n") && texts.1.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn the_admin_listener_speaks_tls_when_asked_to() {
    let secured = Secured::start(|_, _| set("tls.admin=true".to_owned())).await;
    let admin = secured.app.admin_address.unwrap();
    let (status, body) = ask(admin, &secured.client(&["http/1.1"]), "/admin/workers", "").await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(get(admin, "/admin/workers").await.status, 400);
}

#[tokio::test]
async fn what_is_wrong_with_the_files_stops_the_start() {
    let (authority, files) = (Authority::new(), Files::new());
    let (one, other) = (authority.issue(NAMES), authority.issue(NAMES));
    let cert = files.write("cert.pem", &one.cert);
    let key = files.write("key.pem", &one.key);
    let wrong = files.write("other.pem", &other.key);
    for (flags, says) in [
        (vec!["--tls-cert-path", &cert], "--tls-cert-path: `tls.cert` is"),
        (vec!["--tls-key-path", &key], "expected tls.cert (--tls-cert-path) to be given with it"),
        (vec!["--set", "tls.admin=true"], "expected tls.cert (--tls-cert-path) to be given with it"),
        (vec!["--tls-cert-path", &cert, "--tls-key-path", &wrong], "other.pem: this key does not belong to"),
        (
            vec!["--tls-cert-path", "/nowhere.pem", "--tls-key-path", &key],
            "`tls.cert`: /nowhere.pem: No such file",
        ),
        (vec!["--tls-cert-path", &key, "--tls-key-path", &key], "key.pem: expected certificates in PEM"),
    ] {
        let flags = [&["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"][..], &flags].concat();
        let error = match config_of(&flags) {
            Err(error) => error,
            Ok((config, settings)) => {
                App::start(config, &settings, since_1970()).await.unwrap_err().to_string()
            }
        };
        assert!(error.contains(says), "{error}\n  lacks: {says}");
    }
}

/// Gone with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The real binary, asked by itself.
#[tokio::test]
async fn the_health_command_believes_the_routers_own_certificate_alone() {
    let (authority, files) = (Authority::new(), Files::new());
    let (served, other) = (authority.issue(&["elsewhere"]), authority.issue(&["elsewhere"]));
    let cert = files.write("cert.pem", &served.cert);
    let key = files.write("key.pem", &served.key);
    let other = files.write("other.pem", &other.cert);
    let (port, admin) = (free_port().to_string(), free_port().to_string());
    let kvlane = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlane"));
        command.args([
            "--host",
            "127.0.0.1",
            "--port",
            &port,
            "--admin-port",
            &admin,
            "--tls-key-path",
            &key,
        ]);
        command.args(arguments);
        command
    };
    let log = std::fs::File::create(files.path("log")).unwrap();
    let ca = format!("tls.client_ca={}", files.write("ca.pem", &authority.pem));
    for (mutual, more) in [(false, vec![]), (true, vec!["--set", &ca])] {
        let mut command = kvlane(&[&["--tls-cert-path", &cert], &more[..]].concat());
        let _running = Running(command.stderr(log.try_clone().unwrap()).spawn().unwrap());
        until("the router to listen", || async {
            TcpStream::connect(format!("127.0.0.1:{port}")).await.is_ok()
        })
        .await;
        let health = |arguments: &[&str]| {
            let mut command = kvlane(arguments);
            async move {
                let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
                (output.status.success(), String::from_utf8(output.stderr).unwrap())
            }
        };
        let own = [&["--tls-cert-path", &cert], &more[..], &["health"]].concat();
        assert_eq!(health(&own).await, (true, String::new()), "mutual: {mutual}");
        if mutual {
            let own = [&["--set", "tls.admin=true"], &own[..]].concat();
            let (well, error) = health(&own).await;
            assert!(!well && error.contains("expected a plain admin listener"), "{error}");
        } else {
            let (well, error) = health(&["--tls-cert-path", &other, "health"]).await;
            assert!(!well && error.contains("invalid peer certificate"), "{error}");
        }
    }
    let log = std::fs::read_to_string(files.path("log")).unwrap();
    assert!(log.contains("kvlane on https://"), "{log}");
}
