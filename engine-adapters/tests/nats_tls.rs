//! Real NATS servers that want TLS, an nkey, credentials or a token, and what is said when they do not get them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt;
use kvlane_engine_adapters::nats::{NatsAccess, NatsConnection, NatsIdentity, Trouble};
use kvlane_engine_adapters::tls::{ClientFiles, KeyPair, NamedFile};
use serde_json::{Value, json};

use crate::certificates::{Authority, Files};
use crate::support::until;

/// A server with this configuration, gone with its value.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(files: &Files, config: &str) -> Self {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/nats-server");
        assert!(binary.exists(), "{} is missing, expected it from `make setup-clients`", binary.display());
        let port = crate::ports::free_port();
        let config = files.write("server.conf", &format!("listen: 127.0.0.1:{port}\n{config}"));
        let quiet = || Stdio::null();
        let child =
            Command::new(binary).args(["-c", &config]).stdout(quiet()).stderr(quiet()).spawn().unwrap();
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(path: &str) -> NamedFile {
    NamedFile::new("test", path)
}

/// A message goes there and comes back.
async fn echo(connection: &NatsConnection) {
    until("a connection", || async { *connection.connected.borrow() > 0 }).await;
    let client = &connection.client;
    let mut heard = client.subscribe("echo").await.unwrap();
    client.publish("echo", "hello".into()).await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(heard.next().await.unwrap().payload, "hello");
    assert_eq!((connection.trouble.borrow().clone(), connection.is_refused()), (None, false));
}

/// What the server has against us.
async fn refused(connection: &NatsConnection, says: &str) -> Trouble {
    let mut trouble = connection.trouble.clone();
    let found =
        trouble.wait_for(|trouble| trouble.as_ref().is_some_and(|trouble| trouble.why.contains(says)));
    let found = tokio::time::timeout(std::time::Duration::from_secs(20), found).await;
    let found =
        found.unwrap_or_else(|_| panic!("{:?}", connection.trouble.borrow())).unwrap().clone().unwrap();
    assert!(found.refused && connection.is_refused(), "{found:?}");
    found
}

#[tokio::test]
async fn tls_both_ways_and_an_nkey() {
    let (authority, stranger, files) = (Authority::new(), Authority::new(), Files::new());
    let (shown, own) = (authority.issue(&["localhost"]), authority.issue(&["router"]));
    let user = nkeys::KeyPair::new_user();
    let ca = files.write("ca.pem", &authority.pem);
    let config = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {ca:?}, verify: true }}\n\
         authorization {{ users: [ {{ nkey: {} }} ] }}",
        files.write("cert.pem", &shown.cert),
        files.write("key.pem", &shown.key),
        user.public_key(),
    );
    let server = Server::start(&files, &config);
    let pair = KeyPair {
        certificate: file(&files.write("own.pem", &own.cert)),
        key: file(&files.write("own-key.pem", &own.key)),
    };
    let seed = files.write("user.nk", &user.seed().unwrap());
    let access = NatsAccess {
        tls: ClientFiles { ca: Some(file(&ca)), own: Some(pair.clone()) },
        identity: Some(NatsIdentity::nkey("test", &seed)),
    };
    for scheme in ["nats", "tls"] {
        let url = format!("{scheme}://localhost:{}", server.port);
        echo(&access.connect(&url, "test").await.unwrap()).await;
    }
    let url = format!("nats://localhost:{}", server.port);
    let other = nkeys::KeyPair::new_user().seed().unwrap();
    let wrong = NatsAccess { identity: Some(NatsIdentity::nkey("test", &other)), ..access.clone() };
    let trouble = refused(&wrong.connect(&url, "test").await.unwrap(), "authorization violation").await;
    assert!(trouble.why.starts_with(&format!("localhost:{}: ", server.port)), "{trouble:?}");
    let ca = Some(file(&files.write("stranger.pem", &stranger.pem)));
    let wrong = NatsAccess { tls: ClientFiles { ca, own: Some(pair) }, ..access.clone() };
    refused(&wrong.connect(&url, "test").await.unwrap(), "UnknownIssuer").await;
    // What cannot be right is said at once.
    let missing = NatsAccess { identity: Some(NatsIdentity::Credentials(file("/nowhere.creds"))), ..access };
    let error = missing.connect(&url, "test").await.unwrap_err().to_string();
    assert!(error.contains("`test`: /nowhere.creds: No such file"), "{error}");
}

/// A claim as NATS signs them.
fn jwt(issuer: &nkeys::KeyPair, subject: &nkeys::KeyPair, nats: &Value) -> String {
    let claims = json!({
        "jti": "test", "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": "test",
        "nats": nats,
    });
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encoded(&json!({"typ": "JWT", "alg": "ed25519-nkey"})), encoded(&claims));
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(issuer.sign(text.as_bytes()).unwrap()))
}

#[tokio::test]
async fn credentials_of_a_user_whose_account_an_operator_signed() {
    use nkeys::KeyPair;
    let files = Files::new();
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let all = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let config = format!(
        "operator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {} }}",
        jwt(&operator, &operator, &json!({"type": "operator", "version": 2})),
        account.public_key(),
        jwt(&operator, &account, &json!({"type": "account", "version": 2, "limits": all})),
    );
    let server = Server::start(&files, &config);
    let user_jwt = jwt(
        &account,
        &user,
        &json!({"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}),
    );
    let creds = |seed: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    };
    let path = files.write("user.creds", &creds(&user.seed().unwrap()));
    let access =
        NatsAccess { identity: Some(NatsIdentity::Credentials(file(&path))), ..NatsAccess::default() };
    let url = format!("nats://127.0.0.1:{}", server.port);
    echo(&access.connect(&url, "test").await.unwrap()).await;
    files.write("user.creds", &creds(&KeyPair::new_user().seed().unwrap()));
    refused(&access.connect(&url, "test").await.unwrap(), "authorization violation").await;
}

#[tokio::test]
async fn users_in_urls_and_tokens_that_change() {
    let files = Files::new();
    let server = Server::start(&files, "authorization { user: me, password: \"s@cret\" }");
    let url = |password: &str| format!("nats://me:{password}@127.0.0.1:{}", server.port);
    let plain = NatsAccess::default();
    echo(&plain.connect(&url("s%40cret"), "test").await.unwrap()).await;
    let trouble = refused(&plain.connect(&url("wrong-secret"), "test").await.unwrap(), "authorization").await;
    assert!(!trouble.why.contains("wrong-secret") && !trouble.why.contains("me:"), "{trouble:?}");

    let server = Server::start(&files, "authorization { token: right }");
    let path = files.write("token", "wrong\n");
    let access = NatsAccess { identity: Some(NatsIdentity::Token(file(&path))), ..NatsAccess::default() };
    let connection = access.connect(&format!("nats://127.0.0.1:{}", server.port), "test").await.unwrap();
    refused(&connection, "authorization").await;
    files.write("token", "right\n");
    echo(&connection).await;
}
