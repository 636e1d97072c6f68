//! `kvlane-load`: so far `simulate`, whole sweeps in virtual time.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use kvlane_engine_adapters::sim::Calibration;
use kvlane_loadtest::simulate::{self, Mode, Settings};

#[derive(Debug, Parser)]
#[command(name = "kvlane-load", version, about = "Multi-turn load for KV-aware routing")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a deployment in virtual time: engines, events, index, decision. All figures are simulated.
    Simulate(Simulate),
}

#[derive(Debug, clap::Args)]
struct Simulate {
    /// How requests are placed: round_robin, least_loaded, session, dynamo (the reference's plain cost), kvlane
    #[arg(long, value_delimiter = ',', default_value = "round_robin,dynamo,kvlane")]
    modes: Vec<Mode>,
    /// Conversations at a time, one level after the other [default: 60,80,…,180]
    #[arg(long, value_delimiter = ',')]
    levels: Option<Vec<usize>>,
    /// Sweeps to average [default: 6]
    #[arg(long)]
    seeds: Option<usize>,
    /// The engines' calibration: a preset's name or a TOML file. Its delay outside the engine is used as it says
    #[arg(long, value_name = "NAME|FILE")]
    engine: Option<String>,
    /// A TOML file laid over the defaults (see --print-settings)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting laid over everything, such as router.overlap_weight=4; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the figures go, as a JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Prints all settings as TOML and stops
    #[arg(long)]
    print_settings: bool,
}

fn main() -> ExitCode {
    let Cli { command: Command::Simulate(arguments) } = Cli::parse();
    match simulate(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain of causes, in one line.
            eprintln!("kvlane-load: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn simulate(arguments: &Simulate) -> anyhow::Result<()> {
    let settings = settings(arguments)?;
    if arguments.print_settings {
        print!("{}", toml::to_string(&settings)?);
        return Ok(());
    }
    let rows = simulate::run(&settings, &arguments.modes, |done, of| {
        eprint!("\r{done} of {of} sweeps");
        let _ = std::io::stderr().flush();
    })?;
    eprintln!();
    println!("simulated, {} engines `{}`, {} seeds", settings.workers, settings.engine.name, settings.seeds);
    println!(
        "mode         level  ttft p50/p95 ms    itl p50/p95 ms  e2e p50/p95 s   tok/s   req/s  hit %  spread  queue ms"
    );
    for row in &rows {
        let figures = &row.figures;
        println!(
            "{:<12} {:>5}  {:>7.0} / {:<7.0}  {:>6.1} / {:<6.1}  {:>5.1} / {:<5.1}  {:>7.1}  {:>5.2}  {:>5.1}  {:>6.1}  {:>8.1}",
            row.mode.name(),
            row.level,
            figures.ttft_p50_ms,
            figures.ttft_p95_ms,
            figures.itl_p50_ms,
            figures.itl_p95_ms,
            figures.e2e_p50_s,
            figures.e2e_p95_s,
            figures.tops,
            figures.rps,
            figures.hit_pct,
            figures.inflight_spread_p95,
            figures.queue_ms_mean,
        );
    }
    if let Some(path) = &arguments.json {
        let file = std::fs::File::create(path).with_context(|| format!("--json {}", path.display()))?;
        serde_json::to_writer_pretty(file, &rows)?;
    }
    Ok(())
}

/// Defaults, then the engine, then the file, then single settings, then the flags of their own.
fn settings(arguments: &Simulate) -> anyhow::Result<Settings> {
    let mut settings = Settings::reference()?;
    if let Some(engine) = &arguments.engine {
        settings.engine = match std::fs::read_to_string(engine) {
            Ok(text) => Calibration::parse(engine, &text)?,
            Err(_) => Calibration::preset(engine)?,
        };
    }
    if let Some(path) = &arguments.config {
        let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
        settings = settings.overlaid(&text, &path.display().to_string())?;
    }
    for set in &arguments.set {
        anyhow::ensure!(
            set.contains('='),
            "--set {set}: expected KEY=VALUE, such as router.overlap_weight=4"
        );
        settings = settings.overlaid(set, &format!("--set {set}"))?;
    }
    if let Some(levels) = &arguments.levels {
        settings = settings.overlaid(&format!("levels = {levels:?}"), "--levels")?;
    }
    if let Some(seeds) = arguments.seeds {
        settings = settings.overlaid(&format!("seeds = {seeds}"), "--seeds")?;
    }
    settings.validate()?;
    Ok(settings)
}
