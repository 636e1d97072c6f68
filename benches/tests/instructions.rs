//! What a request's decision and a chunk's relay cost, in instructions: they may become fewer, never more.
//!
//! Counted by callgrind, which sees the same on every run whatever else the machine does. Programs here are built as tests
//! are; what is released takes about half as many. Whoever makes one cheaper lowers its ceiling.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::process::Command;

/// What is done, how often at most, and how many instructions one may take.
const CEILINGS: [(&str, u64, u64); 4] =
    [("decision", 40, 360_000), ("relay", 4000, 750), ("tokenize", 8, 6_500_000), ("read", 8, 500_000)];

/// Instructions of a whole run.
fn counted(what: &str, times: u64) -> u64 {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env!("CARGO_BIN_EXE_kvlane-instructions"))
        .args([what, &times.to_string()])
        .output()
        .expect("valgrind, which `make test` installs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{what}: {said}");
    let line =
        said.lines().find_map(|line| line.split_once("Collected : ")).unwrap_or_else(|| panic!("{said}"));
    line.1.trim().parse().unwrap()
}

#[test]
fn nothing_became_dearer() {
    let mut over = Vec::new();
    for (what, times, ceiling) in CEILINGS {
        // What it takes to get ready is in both.
        let each = (counted(what, 2 * times) - counted(what, times)) / times;
        println!("{what}: {each} instructions, at most {ceiling}");
        if each > ceiling {
            over.push(format!("{what}: {each} instructions, at most {ceiling} so far"));
        }
        assert!(each > 0, "{what} was counted");
    }
    assert!(over.is_empty(), "{}", over.join("; "));
}
