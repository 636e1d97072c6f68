//! `kvlane-load run`: load in real time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use kvlane_loadtest::client::{Endpoint, Patience};
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::live::{Arrivals, Collector, Load, Report, SelfCheck, SelfReport, Talk};
use kvlane_loadtest::measure::{Objective, Quantiles};
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The endpoint, with or without /v1
    #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL")]
    url: String,
    /// The model to ask for [default: the first the endpoint lists]
    #[arg(long)]
    model: Option<String>,
    /// The endpoint's key
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Conversations at a time: a closed loop [default: 60]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// Conversations a second: an open loop, arriving whether the last ones are over or not
    #[arg(long, value_name = "PER_S", conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// How those arrive: poisson or constant
    #[arg(long, default_value = "poisson", requires = "rate")]
    arrivals: String,
    /// The most of them at a time; more are passed over and counted
    #[arg(long, default_value_t = 2000, requires = "rate")]
    most: usize,
    /// Seconds that are measured
    #[arg(long, default_value_t = 300.0, value_name = "S")]
    duration: f64,
    /// Seconds before that, not counted
    #[arg(long, default_value_t = 60.0, value_name = "S")]
    warm_up: f64,
    /// Turns of a conversation, as FEW-MANY
    #[arg(long, default_value = "3-5")]
    turns: String,
    /// Mean seconds between an answer and the next question
    #[arg(long, default_value_t = 0.15, value_name = "S")]
    think: f64,
    /// Tokens an answer may have
    #[arg(long, default_value_t = 1024)]
    max_tokens: usize,
    /// Documents that conversations are about, and words of each as FEW-MANY
    #[arg(long, default_value_t = 10)]
    documents: usize,
    #[arg(long, default_value = "2600-2900", conflicts_with = "corpus")]
    words: String,
    /// Texts of your own (.txt, .md) instead
    #[arg(long, value_name = "DIR", conflicts_with = "documents")]
    corpus: Option<PathBuf>,
    /// Names each conversation in x-session-id
    #[arg(long)]
    session_ids: bool,
    /// What users are promised: milliseconds to the first token, and per token after it
    #[arg(long, default_value_t = 600.0, value_name = "MS")]
    ttft_slo: f64,
    #[arg(long, default_value_t = 60.0, value_name = "MS")]
    tpot_slo: f64,
    /// Equal seeds ask equal questions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where every request's own figures go, one JSON object a line
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

/// The report's form; it grows by fields only.
const SCHEMA: &str = "kvlane-load.run/1";

#[derive(Serialize)]
struct Written<'a> {
    schema: &'static str,
    url: &'a str,
    model: &'a str,
    seed: u64,
    concurrency: Option<usize>,
    rate: Option<f64>,
    turns: (usize, usize),
    think_s: f64,
    max_tokens: usize,
    generator: &'a SelfReport,
    #[serde(flatten)]
    report: &'a Report,
}

/// Fails with 2 when nothing could be measured, and says so with 1 when what was measured is worthless.
pub(crate) fn run(arguments: &Run) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    runtime.block_on(measure(arguments))
}

async fn measure(arguments: &Run) -> anyhow::Result<ExitCode> {
    let turns = range(&arguments.turns, "--turns")?;
    let words = range(&arguments.words, "--words")?;
    let arrivals = arrivals(arguments)?;
    for (name, value) in [
        ("--duration", arguments.duration),
        ("--ttft-slo", arguments.ttft_slo),
        ("--tpot-slo", arguments.tpot_slo),
    ] {
        ensure!(value > 0.0 && value <= 1e6, "{name} is {value}, expected more than 0, at most 1000000");
    }
    for (name, value) in [("--think", arguments.think), ("--warm-up", arguments.warm_up)] {
        ensure!((0.0..=1e6).contains(&value), "{name} is {value}, expected 0 to 1000000");
    }
    ensure!(
        arguments.documents > 0 && arguments.max_tokens > 0,
        "--documents and --max-tokens are 1 or more"
    );
    let corpus = match &arguments.corpus {
        Some(dir) => Corpus::read(dir)?,
        None => Corpus::synthetic(arguments.seed, arguments.documents, words),
    };
    let mut endpoint = Endpoint::new(
        &arguments.url,
        arguments.model.as_deref().unwrap_or_default(),
        arguments.key.as_deref(),
        Patience::default(),
    )?;
    if arguments.model.is_none() {
        endpoint.model = endpoint.first_model().await?;
    }
    let model = endpoint.model.clone();
    let objective = Objective { ttft_s: arguments.ttft_slo / 1e3, tpot_s: arguments.tpot_slo / 1e3 };
    let collector = Collector::new(objective);
    let talk = Talk {
        turns,
        max_tokens: arguments.max_tokens,
        think_s: arguments.think,
        names_session: arguments.session_ids,
    };
    let load = Load { endpoint, corpus, talk, seed: arguments.seed, collector: collector.clone() };
    eprintln!(
        "{model} at {}: {arrivals:?}, {} to {} turns, think {} s",
        arguments.url, turns.0, turns.1, arguments.think
    );
    let running = load.start(arrivals);
    let interrupted = tokio::signal::ctrl_c();
    let check = SelfCheck::start();
    let timed = async {
        watch(&collector, arguments.warm_up, "warming up").await;
        collector.reset();
        watch(&collector, arguments.duration, "measuring").await;
    };
    tokio::select! {
        () = timed => {}
        _ = interrupted => eprintln!("stopped early; the report is of what there is"),
    }
    let report = collector.report();
    let generator = check.report(report.all.send_lag_s.p99);
    running.stop(Duration::from_secs(1)).await;
    print(&report, &generator);
    if let Some(path) = &arguments.json {
        let written = Written {
            schema: SCHEMA,
            url: &arguments.url,
            model: &model,
            seed: arguments.seed,
            concurrency: if let Arrivals::Closed(count) = arrivals { Some(count) } else { None },
            rate: arguments.rate,
            turns,
            think_s: arguments.think,
            max_tokens: arguments.max_tokens,
            generator: &generator,
            report: &report,
        };
        let file = std::fs::File::create(path).with_context(|| format!("--json {}", path.display()))?;
        serde_json::to_writer_pretty(file, &written)?;
    }
    if let Some(path) = &arguments.records {
        let lines: Vec<String> =
            collector.records().iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        std::fs::write(path, lines.join("\n") + "\n")
            .with_context(|| format!("--records {}", path.display()))?;
    }
    ensure!(report.all.requests > 0, "no request was over within the measured time");
    Ok(if generator.invalid.is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn arrivals(arguments: &Run) -> anyhow::Result<Arrivals> {
    let Some(per_second) = arguments.rate else {
        let count = arguments.concurrency.unwrap_or(60);
        ensure!((1..=100_000).contains(&count), "--concurrency is {count}, expected 1 to 100000");
        return Ok(Arrivals::Closed(count));
    };
    ensure!(
        per_second > 0.0 && per_second <= 1e5,
        "--rate is {per_second}, expected more than 0, at most 100000"
    );
    let most = arguments.most;
    match arguments.arrivals.as_str() {
        "poisson" => Ok(Arrivals::Poisson { per_second, most }),
        "constant" => Ok(Arrivals::Constant { per_second, most }),
        other => anyhow::bail!("--arrivals is {other}, expected poisson or constant"),
    }
}

fn range(text: &str, name: &str) -> anyhow::Result<(usize, usize)> {
    let expected = || format!("{name} is {text:?}, expected FEW-MANY such as 3-5");
    let (few, many) = text.split_once('-').unwrap_or((text, text));
    let few: usize = few.trim().parse().with_context(expected)?;
    let many: usize = many.trim().parse().with_context(expected)?;
    ensure!(few > 0 && few <= many && many <= 1_000_000, expected());
    Ok((few, many))
}

/// Says how it goes every few seconds.
async fn watch(collector: &Collector, seconds: f64, what: &str) {
    const EVERY: f64 = 5.0;
    let mut left = seconds;
    while left > 0.0 {
        let step = left.min(EVERY);
        tokio::time::sleep(Duration::from_secs_f64(step)).await;
        left -= step;
        let report = collector.report();
        let (ttft, tpot) = collector.last_minute(&[0.5, 0.95]);
        let ms = |of: &[(f64, Option<f64>)], n: usize| {
            of.get(n)
                .and_then(|(_, value)| *value)
                .map_or_else(|| "-".to_owned(), |value| format!("{:.0}", value * 1e3))
        };
        eprintln!(
            "{what}, {left:.0} s left: {} conversations, {} requests, last minute TTFT p50/p95 {}/{} ms, TPOT {}/{} ms, {} errors",
            report.conversations_active,
            report.all.requests,
            ms(&ttft.quantiles, 0),
            ms(&ttft.quantiles, 1),
            ms(&tpot.quantiles, 0),
            ms(&tpot.quantiles, 1),
            report.all.errors.values().sum::<u64>(),
        );
    }
}

fn print(report: &Report, generator: &SelfReport) {
    let all = &report.all;
    println!(
        "{} requests in {:.0} s, {:.2}/s, {:.1} tokens/s",
        all.requests, all.seconds, all.requests_per_s, all.output_tokens_per_s
    );
    println!("{:<28} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}", "ms", "count", "p50", "p90", "p95", "p99", "max");
    let line = |name: &str, of: &Quantiles| {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        println!(
            "{name:<28} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}",
            of.count,
            ms(of.p50),
            ms(of.p90),
            ms(of.p95),
            ms(of.p99),
            ms(of.max)
        );
    };
    line("time to first token", &all.ttft_s);
    line("time per token after it", &all.tpot_s);
    line("inter-token, raw gaps", &all.itl_gap_s);
    line("inter-token, request means", &all.itl_mean_s);
    line("end to end", &all.e2e_s);
    for (turn, of) in &report.by_turn {
        line(&format!("first token, turn {turn}"), &of.ttft_s);
    }
    for (worker, of) in &report.by_worker {
        line(&format!("first token, worker {worker}"), &of.ttft_s);
    }
    println!(
        "goodput {:.2}/s, {:.1} % of requests (first token within {:.0} ms, {:.0} ms per token)",
        all.goodput_per_s,
        all.goodput_share * 100.0,
        report.objective.ttft_s * 1e3,
        report.objective.tpot_s * 1e3
    );
    if let Some(share) = all.cached_share {
        println!("{:.1} % of prompt tokens were cached", share * 100.0);
    }
    for (class, count) in &all.errors {
        println!("{count} failed: {}", class.name());
    }
    for (complaint, count) in report.complaints.iter().take(5) {
        println!("  {count} times: {complaint}");
    }
    if report.conversations_passed_over > 0 {
        println!("{} conversations were passed over: too many at a time", report.conversations_passed_over);
    }
    println!(
        "generator: {:.2} cores, timers {:.1} ms late (p99), requests {:.1} ms",
        generator.cpu_cores,
        generator.timer_lag_p99_s * 1e3,
        generator.send_lag_p99_s * 1e3
    );
    if let Some(why) = &generator.invalid {
        println!("INVALID: {why}");
    }
}
