//! What must not be seen is not: in the log at its most talkative, in settings as they are shown, in errors.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::certificates::{Authority, Files};
use crate::support::{free_port, get, until};

/// Gone with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nats_server(files: &Files, port: u16, config: &str) -> Running {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/nats-server");
    assert!(binary.exists(), "{} is missing, expected it from `make setup-clients`", binary.display());
    let config = files.write("nats.conf", &format!("listen: 127.0.0.1:{port}\n{config}"));
    let quiet = || Stdio::null();
    Running(Command::new(binary).args(["-c", &config]).stdout(quiet()).stderr(quiet()).spawn().unwrap())
}

/// The body of a PEM file, in lines.
fn lines(pem: &str) -> Vec<String> {
    pem.lines().filter(|line| !line.starts_with("---")).map(str::to_owned).collect()
}

/// Runs the router until it has said something about NATS, and everything it wrote and showed.
async fn everything_said(
    files: &Files,
    flags: &[&str],
    env: (&str, &str),
    until_logged: &str,
) -> (String, String) {
    let (port, admin) = (free_port(), free_port());
    let log = files.path("log");
    let command = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlane"));
        command.args([
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--admin-port",
            &admin.to_string(),
        ]);
        command.args(["--log-level", "debug", "--worker", "http://127.0.0.1:9"]);
        command.args(flags).args(more).env(env.0, env.1);
        command
    };
    let file = std::fs::File::create(&log).unwrap();
    let _running = Running(command(&[]).stderr(file.try_clone().unwrap()).stdout(file).spawn().unwrap());
    let read = || std::fs::read_to_string(&log).unwrap();
    until(until_logged, || async { read().contains(until_logged) }).await;
    let admin = SocketAddr::from(([127, 0, 0, 1], admin));
    let ready = get(admin, "/ready").await.body;
    let mut said = get(admin, "/admin/config").await.body + &get(admin, "/admin/workers").await.body;
    let printed = command(&["config", "--print"]).output().unwrap();
    said += &String::from_utf8(printed.stdout).unwrap();
    (read() + &said + &ready, ready)
}

#[tokio::test]
async fn no_secret_is_ever_written_down() {
    let (authority, files) = (Authority::new(), Files::new());
    let own = authority.issue(&["localhost"]);
    let (cert, key) = (files.write("cert.pem", &own.cert), files.write("key.pem", &own.key));
    let user = nkeys::KeyPair::new_user();
    let seed = user.seed().unwrap();
    let seed_file = format!("events.nats_nkey={}", files.write("user.nk", &seed));
    let port = free_port();
    let _server = nats_server(
        &files,
        port,
        &format!(
            "authorization {{ users: [ {{ user: me, password: right }}, {{ nkey: {} }} ] }}",
            user.public_key()
        ),
    );
    let wrong = format!("nats://me:nats-password@127.0.0.1:{port}");
    let plain = format!("nats://127.0.0.1:{port}");
    let tls = ["--tls-cert-path", &cert, "--tls-key-path", &key];
    let mut secrets = vec![seed.clone(), "nats-password".to_owned()];
    secrets.extend(lines(&own.key));

    let run = async |flags: &[&str], env: (&str, &str), logged: &str| {
        let (said, ready) = everything_said(&files, &[&tls[..], flags].concat(), env, logged).await;
        for secret in &secrets {
            assert!(!said.contains(secret.as_str()), "{secret} in {said}");
        }
        (said, ready)
    };
    let none = ("A", "");
    let (said, ready) = run(&["--nats-url", &wrong], none, "does not let us in").await;
    assert!(said.contains(&format!("127.0.0.1:{port}: authorization violation")), "{said}");
    assert_eq!(said.matches("does not let us in, trying again").count(), 1, "{said}");
    assert!(ready.contains("NATS does not let us in"), "{ready}");
    let (_, ready) = run(&["--nats-url", &plain, "--set", &seed_file], none, "NATS is connected").await;
    assert!(!ready.contains("NATS"), "{ready}");
    // Dynamo's variable holds the seed itself.
    run(&["--nats-url", &plain], ("NATS_AUTH_NKEY", &seed), "NATS is connected").await;
}

#[test]
fn errors_about_secrets_do_not_quote_them() {
    let user = nkeys::KeyPair::new_user();
    let (seed, other) = (user.seed().unwrap(), nkeys::KeyPair::new_user().seed().unwrap());
    let run = |env: &[(&str, &str)], flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlane"));
        command.args(["--admin-port", "0", "--port", "0", "--nats-url", "nats://127.0.0.1:9"]).args(flags);
        let output = command.envs(env.iter().copied()).output().unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!error.contains(&seed) && !error.contains(&other), "{error}");
        error
    };
    let contradiction = run(&[("NATS_AUTH_NKEY", &seed), ("KVLANE_EVENTS_NATS_NKEY", &other)], &[]);
    assert!(contradiction.contains("they are the same setting"), "{contradiction}");
    let both = run(&[("NATS_AUTH_NKEY", &seed)], &["--set", "events.nats_creds=/nowhere.creds"]);
    assert!(both.contains("nothing, because events.nats_creds is given"), "{both}");
    let missing = run(&[], &["--set", "events.nats_creds=/nowhere.creds"]);
    assert!(missing.contains("`events.nats_creds`: /nowhere.creds: No such file"), "{missing}");
    let half = run(&[("NATS_TLS_CERT", "c.pem")], &[]);
    assert!(half.contains("expected events.nats_tls_key to be given with it"), "{half}");
}
