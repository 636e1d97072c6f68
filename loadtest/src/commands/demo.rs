//! `kvlane-load demo`: engines, router and load in one command.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use kvlane_loadtest::http::Http;
use kvlane_loadtest::live::Report;
use kvlane_loadtest::processes::Children;
use kvlane_loadtest::web::{Web, serve};
use serde_json::json;
use tokio::time::Instant;

use super::load_flags::LoadFlags;
use super::page_flags::PageFlags;

#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Simulated engines
    #[arg(long, default_value_t = 3)]
    workers: u16,
    /// So many times the speed of the hardware they stand for
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Conversations at a time
    #[arg(long, default_value_t = 60)]
    concurrency: usize,
    /// The router's mode: kv or round_robin, which can be changed while it runs
    #[arg(long, default_value = "kv", conflicts_with = "flip")]
    mode: String,
    /// Changes between round_robin and kv every so many seconds, caches emptied, and compares
    #[arg(long, value_name = "S")]
    flip: Option<f64>,
    /// Ends after so many seconds [default: at Ctrl-C]
    #[arg(long, env = "DEMO_SECONDS", value_name = "S")]
    seconds: Option<f64>,
    /// The router's port, its administration's, the first engine's, and the page's
    #[arg(long, env = "PORT", default_value_t = 8000)]
    port: u16,
    #[arg(long, env = "ADMIN_PORT", default_value_t = 8090)]
    admin_port: u16,
    #[arg(long, env = "WORKER_PORT", default_value_t = 8101)]
    worker_port: u16,
    #[arg(long, env = "PAGE_PORT", default_value_t = 3000)]
    page_port: u16,
    /// Address the page is open on; what is not this machine's own lets others start and stop the load
    #[arg(long, env = "PAGE_HOST", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), help_heading = "Page")]
    page_host: IpAddr,
    /// Waits for the page's Start
    #[arg(long, conflicts_with = "read_only", help_heading = "Page")]
    stopped: bool,
    #[command(flatten)]
    page: PageFlags,
    /// Documents that conversations are about; with more of them first prompts are new more often
    #[arg(long, default_value_t = 10)]
    documents: usize,
    /// Engines answer as late as the reference's did, whose requests spent 120 to 200 ms outside of them
    #[arg(long)]
    outside_delay: bool,
}

/// Ports of the engines' KV events lie so far above the engines' own.
const EVENTS_ABOVE: u16 = 1000;
const REPLAY_ABOVE: u16 = 2000;
const READY: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(5);
/// Until documents are cached where they are needed, and what was asked before is answered.
const FILL_S: f64 = 40.0;
/// How long answers are, as those of the reference.
const ANSWER_TOKENS: &str = "600..1060";
/// What has to be known when live figures stand beside recorded ones.
const NOTE: &str =
    "simulated engines, without the 120 to 200 ms that the recorded requests spent outside of them";

pub(crate) fn demo(arguments: &Demo) -> anyhow::Result<ExitCode> {
    ensure!((1..=64).contains(&arguments.workers), "--workers is {}, expected 1 to 64", arguments.workers);
    ensure!(
        (0.01..=1000.0).contains(&arguments.speed),
        "--speed is {}, expected 0.01 to 1000",
        arguments.speed
    );
    for (name, value) in [("--flip", arguments.flip), ("--seconds", arguments.seconds)] {
        let value = value.unwrap_or(1.0);
        ensure!((0.1..=1e6).contains(&value), "{name} is {value}, expected 0.1 to 1000000");
    }
    ensure!(
        (1..=100_000).contains(&arguments.concurrency),
        "--concurrency is {}, expected 1 to 100000",
        arguments.concurrency
    );
    let highest = u32::from(arguments.worker_port) + u32::from(REPLAY_ABOVE) + u32::from(arguments.workers);
    ensure!(
        arguments.worker_port > 0 && highest <= u32::from(u16::MAX),
        "--worker-port is {}, expected 1 to {}: events and replays have ports above the engines'",
        arguments.worker_port,
        u16::MAX - REPLAY_ABOVE - arguments.workers
    );
    let ports = [arguments.port, arguments.admin_port, arguments.page_port];
    ensure!(
        ports.iter().all(|port| *port > 0)
            && ports[0] != ports[1]
            && ports[1] != ports[2]
            && ports[0] != ports[2],
        "ports are {ports:?}, expected three different ones above 0"
    );
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    let done = runtime.block_on(async {
        let mut interrupts = super::Interrupts::new()?;
        let mut children = Children::new("demo");
        let web = OnceCell::new();
        let done = tokio::select! {
            done = show(arguments, &mut children, &web) => done,
            () = interrupts.next() => Ok(()),
        };
        if let Some(web) = web.get() {
            Web::close(web).await;
        }
        if !children.is_empty() {
            children.stop().await;
            eprintln!("everything is stopped; the log is {}", children.log().display());
        }
        done.map(|()| ExitCode::SUCCESS)
    });
    // What is computed for a page is not waited for.
    runtime.shutdown_background();
    done
}

async fn show(arguments: &Demo, children: &mut Children, opened: &OnceCell<Arc<Web>>) -> anyhow::Result<()> {
    let Demo { workers, speed, port, admin_port, worker_port, page_port, .. } = *arguments;
    let began = Instant::now();
    let text = |value: &dyn ToString| value.to_string();
    let flags = [
        ("--workers", text(&workers)),
        ("--port", text(&worker_port)),
        ("--events-port", text(&(worker_port + EVENTS_ABOVE))),
        ("--replay-port", text(&(worker_port + REPLAY_ABOVE))),
        ("--speed", text(&speed)),
        ("--answer-tokens", ANSWER_TOKENS.to_owned()),
    ];
    let mut flags: Vec<String> =
        flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    flags.extend(arguments.outside_delay.then(|| "--outside-delay".to_owned()));
    children.start("kvlane-worker", Path::new("kvlane-worker"), &flags)?;
    let mut flags: Vec<String> = vec![
        format!("--port={port}"),
        format!("--admin-port={admin_port}"),
        "--decision-headers=true".to_owned(),
        format!("--router-mode={}", arguments.mode),
        "--set=server.drain_wait_s=0".to_owned(),
        "--set=server.drain_timeout_s=1".to_owned(),
    ];
    flags.extend((0..workers).map(|n| format!("--worker=http://127.0.0.1:{}", worker_port + n)));
    children.start("kvlane", Path::new("kvlane"), &flags)?;
    let (router, admin) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{admin_port}"));
    let http = Http::new(Duration::from_secs(10))?;
    while http.get(&format!("{router}/ready"), 1 << 16).await.is_err() {
        children.check()?;
        ensure!(
            began.elapsed() < READY,
            "the router is not ready after {READY:?}; see {}",
            children.log().display()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "router ready on port {port} after {} ms, {workers} simulated H200 engines on ports {worker_port} to {} at {speed} times their speed",
        began.elapsed().as_millis(),
        worker_port + workers - 1
    );
    let prepared = endpoint_flags(&router, &admin, arguments)?.prepare().await?;
    let note = (!arguments.outside_delay).then_some(NOTE);
    let mut web =
        arguments.page.page(prepared, Some(admin.as_str().into()), arguments.concurrency, speed, note)?;
    web.mode_is_theirs = arguments.flip.is_some();
    let web = opened.get_or_init(|| Arc::new(web)).clone();
    let page = SocketAddr::new(arguments.page_host, page_port);
    let (page, _server) = serve(page, web.clone()).await.context("--page-port")?;
    println!("{}", advice(arguments, page, &router, &admin));
    if !arguments.stopped {
        web.start().await?;
    }
    let ends = arguments.seconds.map(|seconds| began + Duration::from_secs_f64(seconds));
    let watching = watch(arguments, &web, &http, &admin, children);
    match ends {
        Some(end) => tokio::time::timeout_at(end, watching).await.unwrap_or(Ok(())),
        None => watching.await,
    }
}

/// The flags of a run, for what the demo sets.
fn endpoint_flags(router: &str, admin: &str, arguments: &Demo) -> anyhow::Result<LoadFlags> {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        load: LoadFlags,
    }
    // What is promised shrinks as the engines speed up.
    let (ttft, tpot) = (600.0 / arguments.speed, 60.0 / arguments.speed);
    let (ttft, tpot, think) = (ttft.to_string(), tpot.to_string(), (0.15 / arguments.speed).to_string());
    let documents = arguments.documents.to_string();
    let aims = ["demo", "--url", router, "--admin-url", admin, "--ttft-slo", &ttft, "--tpot-slo", &tpot];
    let words = aims.into_iter().chain(["--think", &think, "--documents", &documents]);
    Ok(Flags::try_parse_from(words)?.load)
}

fn advice(arguments: &Demo, page: SocketAddr, router: &str, admin: &str) -> String {
    format!(
        "{} conversations of 3 to 5 turns about {} long documents; all times are simulated\n\n\
         Open:  http://{page}/            the page (metrics for Prometheus: /metrics)\n\
         Try:   curl {admin}/admin/mode -d '{{\"mode\":\"round_robin\",\"reset\":true}}'     and watch TTFT rise\n\
         \x20      curl {admin}/admin/mode -d '{{\"mode\":\"kv\",\"reset\":true}}'              and fall\n\
         \x20      curl -H 'content-type: application/json' http://{page}/api/load -d '{{\"concurrency\":120}}'\n\
         \x20      curl {router}/v1/chat/completions -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n\
         \x20      curl {admin}/admin/explain -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n\
         Ctrl-C stops everything.\n",
        arguments.concurrency, arguments.documents
    )
}

/// Says how it goes, and changes modes when asked to.
async fn watch(
    arguments: &Demo,
    web: &Web,
    http: &Http,
    admin: &str,
    children: &mut Children,
) -> anyhow::Result<()> {
    let mut modes = ["round_robin", "kv"].into_iter().cycle();
    let own = || web.shown.live().filter(|live| !live.control.is_fixed());
    let told = || match own() {
        Some(live) => println!("{}", by_turn(&live.collector.report())),
        None if web.is_swept() => println!("a sweep runs: the page has its figures"),
        None => println!("nothing runs yet: the page has a Start"),
    };
    let mut empty = true;
    loop {
        if arguments.flip.is_some() && !web.is_swept() {
            let mode = modes.next().unwrap_or("kv");
            http.post(&format!("{admin}/admin/mode"), &json!({"mode": mode, "reset": true})).await?;
            println!("--- {mode}");
            empty = true;
        }
        if empty {
            let fill = Duration::from_secs_f64(FILL_S / arguments.speed);
            println!("caches are empty; the next {:.0} s fill them", fill.as_secs_f64());
            lines(fill, children, told).await?;
            empty = false;
            println!("caches are filled");
        }
        // A minute at a time, so that a change is seen.
        if let Some(live) = own() {
            live.collector.reset();
        }
        lines(Duration::from_secs_f64(arguments.flip.unwrap_or(60.0)), children, told).await?;
    }
}

/// Tells every few seconds, for so long; fails when something that was started is gone.
async fn lines(how_long: Duration, children: &mut Children, tell: impl Fn()) -> anyhow::Result<()> {
    let until = Instant::now() + how_long;
    while Instant::now() < until {
        tokio::time::sleep(until.saturating_duration_since(Instant::now()).min(EVERY)).await;
        children.check()?;
        tell();
    }
    Ok(())
}

/// First tokens by turn: warm caches show from the second on.
fn by_turn(report: &Report) -> String {
    if report.all.requests == 0 {
        return format!("{} conversations, no answer is whole yet", report.conversations.active);
    }
    let turns = report.by_turn.iter().map(|(turn, of)| format!("turn {turn}: {:.0} ms", of.ttft_s.p50 * 1e3));
    let cached =
        report.all.cached_share.map_or_else(|| "—".to_owned(), |share| format!("{:.1}", share * 100.0));
    format!(
        "{} conversations, {} requests, {:.0} tokens/s, cached {cached} %, first token p95 {:.0} ms, p50 of {}",
        report.conversations.active,
        report.all.requests,
        report.all.output_tokens_per_s,
        report.all.ttft_s.p95 * 1e3,
        turns.collect::<Vec<_>>().join(", ")
    )
}
