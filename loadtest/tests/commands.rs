//! The program as it is used: every command, its files, and what it refuses.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{engine, nowhere, router, saying};
use kvlane_loadtest::live::Written;
use kvlane_loadtest::results::Results;
use serde_json::Value;

const LOAD: &str = env!("CARGO_BIN_EXE_kvlane-load");

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvlane-commands-{}-{name}", std::process::id()))
}

fn run(arguments: &[&str]) -> Output {
    Command::new(LOAD).args(arguments).stdin(Stdio::null()).env_remove("OPENAI_API_KEY").output().unwrap()
}

/// From within a runtime whose engines have to go on answering.
async fn run_beside(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    tokio::task::spawn_blocking(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
        .await
        .unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (flags, says) in [
        (&["run", "--concurrency", "5", "--rate", "1"][..], "cannot be used with"),
        (&["run", "--prompts", "x", "--turns", "3"], "cannot be used with"),
        (&["run", "--trace", "x", "--concurrency", "3"], "cannot be used with"),
        (&["run", "--trace", "x", "--think", "3"], "cannot be used with"),
        (&["run", "--prefix-groups", "3", "--documents", "5"], "cannot be used with"),
        (&["run", "--prefix-ratio", "0.5"], "required"),
        (&["run", "--arrivals", "gamma"], "required"),
        (&["run", "--broker-model", "m"], "required"),
        (&["run", "--rate", "1", "--arrivals", "poisson", "--burstiness", "2"], "expected --arrivals gamma"),
        (&["run", "--rate", "1", "--arrivals", "sometimes"], "expected poisson, constant or gamma"),
        (&["run", "--concurrency", "5..50"], "expected --ramp SECONDS"),
        (&["run", "--concurrency", "5", "--ramp", "10"], "expected --concurrency FROM..TO"),
        (&["run", "--concurrency", "1.5"], "expected a whole number"),
        (&["run", "--concurrency", "0"], "expected 1 to"),
        (&["run", "--duration", "0"], "expected more than 0"),
        (&["run", "--think", "often"], "expected a mean in seconds"),
        (&["run", "--turns", "5-3"], "expected FEW-MANY"),
        (&["run", "--body", "[1]"], "expected a JSON object"),
        (&["run", "--url", "localhost:8000", "--model", "m"], "expected http://HOST:PORT"),
        (&["sweep", "--modes", "round_robin,kv"], "expected --admin-url"),
        (&["sweep", "--levels", "60..", "--dry-run"], "expected numbers such as 60,80"),
        (&["sweep", "--trace", "x"], "a trace has its own times"),
        (&["sweep", "--modes", "kvlane,kvlane", "--admin-url", "http://127.0.0.1:1"], "twice"),
        (&["simulate", "--phases", "--modes", "kvlane"], "cannot be used with"),
        (&["simulate", "--levels", "ten"], "expected numbers such as 60,80"),
        (&["compare", "/nowhere.json"], "/nowhere.json"),
        (&["report", "/nowhere.json"], "/nowhere.json"),
        (&["trace", "stats", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (&["trace", "make", "/tmp/x", "--ratio", "2"], "--ratio is 2, expected 0 to 1"),
        (&["demo", "--workers", "0"], "--workers is 0, expected 1 to 64"),
        (&["demo", "--worker-port", "64000"], "--worker-port is 64000, expected 1 to 63532"),
        (&["demo", "--page-port", "8000"], "expected three different ones"),
        (&["demo", "--read-only", "--stopped"], "cannot be used with"),
        (&["chaos", "--minutes", "0"], "--minutes is 0, expected 0.2 to 1440"),
        (&["chaos", "--away", "5..1"], "expected FROM..TO in seconds"),
        (&["chaos", "--workers", "1"], "workers are 1, 0 of them bridged, expected 2 to 9"),
        (&["soak", "--churn-every", "0"], "--churn-every is 0, expected 1 to 3600"),
        (&["serve", "--trace", "x"], "a trace has times of its own"),
        (&["serve", "--concurrency", "0"], "--concurrency is 0, expected 1 to 100000"),
        (&["serve", "--read-only"], "--read-only needs --start"),
        (&["run", "--body", "{\"stream\": false}"], "the generator's own"),
        (&["run", "--steady-start", "--rate", "1"], "cannot be used with"),
        (&["sweep", "--levels", "60,1000000000", "--dry-run"], "expected 1 to 100000"),
        (&["run", "--most", "5"], "expected --rate or --trace with it"),
        (&["simulate", "--trace", "/nowhere.jsonl"], "expected --scenario trace or all"),
        (&["bench-proxy", "--scenario", "x"], "--scenario is x, expected some of a, cold"),
        (&["bench-proxy", "--of", "x"], "NAME=URL[,PID], NAME=PROGRAM [FLAGS], NAME=sh:COMMAND or none"),
        (&["bench-proxy", "--rounds", "0"], "--rounds is 0, expected 1 to 200"),
    ] {
        let output = run(flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", text(&output));
        assert!(text(&output).contains(says), "{flags:?}: {}", text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_measured_kept_and_compared() {
    let workers = [engine(20.0).await, engine(20.0).await];
    let app = router(&workers).await;
    let (url, admin) = (format!("http://{}", app.address), format!("http://{}", app.admin_address.unwrap()));
    let files = [place("one.json"), place("other.json")];
    let records = place("records.jsonl");
    let base = [
        "run",
        "--url",
        &url,
        "--admin-url",
        &admin,
        "--concurrency",
        "6",
        "--duration",
        "3",
        "--warm-up",
        "1",
    ];
    let shape = [
        "--lag-limit",
        "60000",
        "--document-tokens",
        "400-500",
        "--max-tokens",
        "24",
        "--think",
        "fixed:0.01",
        "--records",
    ];
    for file in &files {
        let arguments =
            [&base[..], &shape[..], &[records.to_str().unwrap(), "--json", file.to_str().unwrap()]].concat();
        let output = run_beside(&arguments).await;
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        for part in [
            "time to first token",
            "between chunks, raw gaps",
            "first token, turn 2",
            "goodput",
            "decisions joined",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let written = Written::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!((written.parts.len(), written.report.by_worker.len()), (10, 2));
        assert!(written.report.decisions.unwrap().joined > 0);
        assert_eq!(written.conditions["workload"]["kind"], "conversations");
        let lines = std::fs::read_to_string(&records).unwrap();
        let read = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let joined = |of: &Value| of["decision"]["held_tokens"].is_u64() && of["ttft_s"].is_f64();
        assert!(lines.lines().map(read).any(|of| joined(&of)), "{lines}");
        assert!(lines.lines().map(read).any(|of| of["warm_up"] == true));
    }
    let output = run(&[
        "compare",
        files[0].to_str().unwrap(),
        files[1].to_str().unwrap(),
        "--figures",
        "ttft_p50_ms,rps",
    ]);
    assert!(output.status.success() && text(&output).contains("unpaired"), "{}", text(&output));
    let dry = run_beside(&["run", "--url", &url, "--dry-run"]).await;
    assert!(text(&dry).contains("the first conversation, on"), "{}", text(&dry));
    files.iter().chain([&records]).for_each(|path| std::fs::remove_file(path).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_endpoints_are_classified_and_reported() {
    let list = "HTTP/1.1 200 OK\r\ncontent-length: 29\r\nconnection: close\r\n\r\n{\"data\": [{\"id\": \"a-model\"}]}";
    for (url, model, says, code) in [
        (nowhere().await, None, "the endpoint", 2),
        (nowhere().await, Some("m"), "failed: connect", 1),
        (saying(list, true).await, Some("m"), "failed: broken_off", 1),
        (saying("", false).await, Some("m"), "failed: timeout", 1),
    ] {
        let mut arguments =
            vec!["run", "--url", &url, "--concurrency", "2", "--duration", "2", "--warm-up", "0"];
        arguments.extend(["--silence", "0.3", "--tokens-per-word", "1.3"]);
        model.iter().for_each(|model| arguments.extend(["--model", model]));
        let output = tokio::time::timeout(Duration::from_secs(60), run_beside(&arguments))
            .await
            .expect("never a hang");
        let said = text(&output);
        assert!(said.contains(says), "{url}: {said}");
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(code == 2 || said.contains("INVALID: not one request was answered"), "{said}");
    }
}

/// A terminal is drawn on, and given back: `script` makes one.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_there_is_a_screen() {
    let worker = engine(20.0).await;
    let command = format!(
        "{LOAD} run --url http://{} --concurrency 2 --duration 2 --warm-up 0 --document-tokens 300-300 --max-tokens 8",
        worker.address()
    );
    let output = tokio::task::spawn_blocking(move || {
        Command::new("script")
            .args(["-qec", &format!("stty rows 40 cols 140; {command}"), "/dev/null"])
            .env("TERM", "xterm-256color")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    let drawn = text(&output);
    assert!(
        drawn.contains("\x1b[?1049h") && drawn.contains("\x1b[?1049l"),
        "an alternate screen, entered and left"
    );
    // Blanks are skipped, not drawn.
    assert!(
        drawn.contains("TTFT") && drawn.contains("┌by") && drawn.contains("2 conversations at a time"),
        "{drawn}"
    );
    assert!(drawn.contains("time to first token"), "the report follows");
}

#[test]
fn simulated_sweeps_are_reported_and_compared() {
    let (file, dir) = (place("simulated.json"), place("report"));
    let output = run(&[
        "simulate",
        "--modes",
        "round_robin,dynamo,kvlane",
        "--levels",
        "60..80",
        "--seeds",
        "2",
        "--set",
        "window_s=120",
        "--json",
        file.to_str().unwrap(),
        "--report",
        dir.to_str().unwrap(),
    ]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    // Simulated beside recorded: round robin at 60 took 274 ms (p50), 2,146.9 tokens/s.
    assert!(
        said.contains(" / 274") && said.contains(" / 2146.9") && said.contains("simulated / recorded"),
        "{said}"
    );
    let results = Results::read(&file).unwrap();
    assert_eq!(results.sets[0].cells.len(), 3 * 2 * 2);
    for name in [
        "report.html",
        "report.md",
        "report.csv",
        "report.json",
        "reference-rules.yml",
        "reference-lines.json",
    ] {
        assert!(dir.join(name).metadata().unwrap().len() > 500, "{name}");
    }
    let output = run(&["compare", file.to_str().unwrap()]);
    let said = text(&output);
    assert!(
        said.contains("round_robin (") && said.contains("better") && said.contains("not distinguishable"),
        "{said}"
    );
    let output = run(&["compare", file.to_str().unwrap(), "--modes", "kvlane,nobody"]);
    assert!(text(&output).contains("expected one of round_robin, dynamo, kvlane"), "{}", text(&output));
    let output = run(&["report", file.to_str().unwrap(), "--markdown"]);
    assert!(text(&output).contains("### Time to first token"), "{}", text(&output));
    std::fs::remove_file(file).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_engine_is_calibrated_by_its_log_and_simulated() {
    let (log, calibration) = (place("steps.jsonl"), place("engine.toml"));
    let line = |n: usize| {
        let (batch, prefill) = (n % 33, if n.is_multiple_of(5) { 40 + n % 1900 } else { 0 });
        let ms = 11.0_f64.max(0.07 * (prefill + batch) as f64)
            + batch as f64 * 0.3
            + if prefill > 0 { 4.0 } else { 0.0 };
        let context = batch * 4000;
        format!(
            "{{\"batch\":{batch},\"context_tokens\":{context},\"prefill_tokens\":{prefill},\"ms\":{ms}}}\n"
        )
    };
    std::fs::write(&log, (1..3000).map(line).collect::<String>()).unwrap();
    let (log, calibration) = (log.display().to_string(), calibration.display().to_string());
    let sizes = ["--name", "ours", "--slots", "32", "--step-tokens", "2048", "--kv-blocks", "5300"];
    let output =
        run(&[&["calibrate", &log][..], &sizes, &["--outside", "3,1", "--out", &calibration]].concat());
    let said = text(&output);
    assert!(output.status.success() && said.contains("the linear form would be off by"), "{said}");
    assert!(said.contains("1025 to 2048 tokens prefilled"), "{said}");
    let written = std::fs::read_to_string(&calibration).unwrap();
    assert!(
        written.starts_with("# Fitted to 2927 steps") && written.contains("roofline = true"),
        "{written}"
    );
    let output = run(&[
        "simulate",
        "--engine",
        &calibration,
        "--levels",
        "20",
        "--seeds",
        "1",
        "--modes",
        "round_robin,kvlane",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    for (arguments, says) in [
        (vec!["calibrate", "/nowhere", "--name", "a", "--kv-blocks", "9"], "/nowhere: No such file"),
        (vec!["calibrate", &log, "--name", "a", "--kv-blocks", "0"], "`kv_blocks` is 0, expected 1 or more"),
        (
            vec!["calibrate", &log, "--name", "a", "--kv-blocks", "9", "--outside", "3"],
            "--outside is \"3\", expected two",
        ),
    ] {
        let output = run(&arguments);
        assert!(!output.status.success() && text(&output).contains(says), "{}", text(&output));
    }
    [log, calibration].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_trace_is_made_described_and_simulated() {
    let file = place("made.jsonl");
    let path = file.to_str().unwrap();
    assert!(run(&["trace", "make", path, "--requests", "300", "--rate", "2"]).status.success());
    let output = run(&["trace", "stats", path, "--json"]);
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(stats["requests"] == 300 && stats["cacheable_pct"].as_f64().unwrap() > 50.0, "{stats}");
    assert!(text(&run(&["trace", "stats", path])).contains("could be found in one endless cache"));
    let output = run(&[
        "simulate",
        "--scenario",
        "trace",
        "--trace",
        path,
        "--modes",
        "round_robin,kvlane",
        "--set",
        "workers=3",
    ]);
    assert!(output.status.success() && text(&output).contains("kvlane"), "{}", text(&output));
    std::fs::remove_file(file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_switches_our_router_and_writes_its_report() {
    let workers = [engine(20.0).await, engine(20.0).await];
    let app = router(&workers).await;
    let (url, admin) = (format!("http://{}", app.address), format!("http://{}", app.admin_address.unwrap()));
    let (file, dir) = (place("sweep.json"), place("sweep-report"));
    let arguments = [
        "sweep",
        "--url",
        &url,
        "--admin-url",
        &admin,
        "--modes",
        "round_robin,kvlane",
        "--levels",
        "2,4",
        "--repeats",
        "2",
        "--lag-limit",
        "60000",
        "--warm-up",
        "0.3",
        "--fill",
        "0.2",
        "--window",
        "1.2",
        "--snapshot-window",
        "0.4",
        "--document-tokens",
        "400-500",
        "--max-tokens",
        "16",
        "--out",
        file.to_str().unwrap(),
        "--report",
        dir.to_str().unwrap(),
    ];
    let output = run_beside(&arguments).await;
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("[8/8]") && said.contains("bends at"), "{said}");
    assert!(dir.join("report.html").exists());
    let dry = run(&["sweep", "--levels", "60..180", "--dry-run"]);
    assert!(text(&dry).contains("42 cells, 4 h 18 min"), "{}", text(&dry));
    let compared = run(&["compare", file.to_str().unwrap()]);
    assert!(compared.status.success(), "{}", text(&compared));
    std::fs::remove_file(file).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

/// The measuring kit on the real router and on no router at all: everything is answered, and what the router says its
/// workers hold is what they hold, or less.
#[tokio::test]
async fn routers_are_measured_side_by_side() {
    let kvlane = PathBuf::from(LOAD).with_file_name("kvlane");
    assert!(kvlane.exists(), "kvlane is not built, expected `cargo build --workspace --bins` first");
    let subject = format!("kvlane={} --set routing.decision_headers=true", kvlane.display());
    let flags = ["bench-proxy", "--of", &subject, "--of", "none", "--scenario", "a,burst,fair"];
    let output =
        run_beside(&[&flags[..], &["--rounds", "1", "--scale", "0.05", "--markdown"]].concat()).await;
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let rows: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.starts_with("| kvlane |") || line.starts_with("| no router |"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 6, "{said}");
    for row in &rows {
        assert_eq!(row[12], "0", "none failed: {row:?}");
    }
    let shares: Vec<f64> = rows[0][13].split(['%', ' ']).filter_map(|word| word.parse().ok()).collect();
    assert!(matches!(shares[..], [held, known] if known <= held && known > 20.0), "{:?}", rows[0]);
    assert!(!said.contains("not answered"), "{said}");
}

/// The page over a router that somebody else runs; interrupted in the middle of a sweep it leaves the router as it was.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_for_a_router_that_is_there() {
    use tokio::io::AsyncBufReadExt;
    let workers = [engine(20.0).await, engine(20.0).await];
    let app = router(&workers).await;
    let (url, admin) = (format!("http://{}", app.address), format!("http://{}", app.admin_address.unwrap()));
    let http = kvlane_loadtest::http::Http::new(Duration::from_secs(5)).unwrap();
    // What is computed in virtual time cannot be waited for, and a live sweep must be.
    for sweep in [
        serde_json::json!({"kind": "virtual", "levels": (60..260).collect::<Vec<_>>(), "modes": ["kvlane"]}),
        serde_json::json!({"kind": "live", "levels": [2], "modes": ["round_robin"], "window_s": 600}),
    ] {
        let flags = ["--url", &url, "--admin-url", &admin, "--listen", "127.0.0.1:0", "--concurrency", "3"];
        let mut child = tokio::process::Command::new(LOAD)
            .arg("serve")
            .args(flags)
            .args(["--title", "Ours", "--tokens-per-word", "1.3"])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = tokio::io::BufReader::new(child.stderr.take().unwrap()).lines();
        let said =
            tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await.unwrap().unwrap().unwrap();
        let page = said.strip_prefix("the page is at ").and_then(|rest| rest.split('/').nth(2)).unwrap();
        let page = format!("http://{page}");
        let begun = http.post(&format!("{page}/api/sweeps"), &sweep).await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&begun).unwrap()["id"], 1);
        if sweep["kind"] == "live" {
            let mode = async || {
                let answer = http.get(&format!("{admin}/admin/mode"), 1 << 16).await.unwrap();
                serde_json::from_slice::<Value>(&answer).unwrap()["mode"].clone()
            };
            while mode().await != "round_robin" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let id = child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let status =
            tokio::time::timeout(Duration::from_secs(15), child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}");
        let answer = http.get(&format!("{admin}/admin/mode"), 1 << 16).await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap()["mode"], "kv");
    }
    app.drain(std::future::ready(())).await;
}

/// Everything in one command, and nothing left of it: the programs are those of this workspace.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_runs_and_stops_what_it_started() {
    use tokio::io::AsyncBufReadExt;
    let beside = PathBuf::from(LOAD).parent().unwrap().to_path_buf();
    for name in ["kvlane", "kvlane-worker"] {
        assert!(
            beside.join(name).exists(),
            "{name} is not built, expected `cargo build --workspace --bins` first"
        );
    }
    // All at once, or two might be one.
    let held: Vec<std::net::TcpListener> =
        (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    drop(held);
    let flags = ["--port", "--admin-port", "--page-port"].into_iter().zip(&ports);
    let mut child = tokio::process::Command::new(LOAD)
        .args(["demo", "--speed", "20", "--concurrency", "6", "--worker-port", "18311"])
        .args(flags.flat_map(|(name, port)| [name.to_owned(), port.to_string()]))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    let turns = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let over = line.contains("turn 2: ");
            seen.push(line);
            if over {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), turns).await.expect("a demo that gets going");
    let said = seen.join("\n");
    assert!(said.contains("router ready on port") && said.contains("Open:  http://127.0.0.1:"), "{said}");
    let http = kvlane_loadtest::http::Http::new(Duration::from_secs(5)).unwrap();
    let [router, _, page] = ports[..] else { panic!("three ports") };
    let metrics = http.get(&format!("http://127.0.0.1:{page}/metrics"), 1 << 20).await.unwrap();
    assert!(String::from_utf8_lossy(&metrics).contains("loadgen_active_conversations "));
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.expect("it ends").unwrap();
    assert!(status.success(), "{status}");
    for port in [router, 18311, 18312, 18313] {
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "port {port} is still served");
    }
}
