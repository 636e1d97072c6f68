//! Runs the tests of real clients (OpenAI's Python client, LangChain, curl, schemathesis) against the real binaries.
//!
//! They need a Python with the packages `make setup-clients` installs, and `kvlane-worker` beside `kvlane`.

use std::path::Path;
use std::process::Command;

#[test]
fn real_clients_are_served() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = crate_dir.join("../.tools/venv/bin/python");
    assert!(python.exists(), "{} is missing, expected it from `make setup-clients`", python.display());
    let kvlane = Path::new(env!("CARGO_BIN_EXE_kvlane"));
    let worker = kvlane.with_file_name("kvlane-worker");
    assert!(
        worker.exists(),
        "{} is missing, expected it from `cargo build --workspace --bins`",
        worker.display()
    );
    let status = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(crate_dir.join("tests/clients"))
        .env("KVLANE", kvlane)
        .env("KVLANE_WORKER", worker)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "pytest failed, see its output above");
}
