//! `kvlane-load chaos`: processes are killed while conversations run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use kvlane_loadtest::chaos::{Bench, Chaos as Run, Layout, Rhythm, Script, nats_server};

#[derive(Debug, clap::Args)]
pub(crate) struct Chaos {
    /// How long all of it takes; fractions may be given
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Mean seconds between two kills
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    kill_every: f64,
    /// Shortest and longest time a killed process is away, in seconds
    #[arg(long, value_name = "FROM..TO", default_value = "1..10", value_parser = seconds)]
    away: (f64, f64),
    /// Draws victims and times [default: one that is drawn and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// All routers, or all engines, may be dead at once
    #[arg(long)]
    merciless: bool,
    /// Routers go on with answers whose engine died (--migration-limit 3)
    #[arg(long = "continue")]
    continues: bool,
    #[command(flatten)]
    bench: BenchFlags,
}

/// What chaos and soak have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchFlags {
    /// Conversations at a time
    #[arg(long, default_value_t = 100)]
    concurrency: usize,
    /// Mean seconds between an answer and the next question
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    think: f64,
    /// Times a client tries again when nothing of an answer came; OpenAI's do twice
    #[arg(long, value_name = "TIMES", default_value_t = 2)]
    client_retries: usize,
    /// Simulated engines, half of which are behind a bridge and NATS
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// So many times the speed of the hardware they stand for
    #[arg(long, default_value_t = 2.0)]
    speed: f64,
    /// The balancer's port; all others are among the next 60
    #[arg(long, value_name = "PORT", default_value_t = 19_000)]
    first_port: u16,
    /// A NATS server [default: .tools/venv/bin/nats-server, or the path's]
    #[arg(long, value_name = "PROGRAM")]
    nats_server: Option<PathBuf>,
    /// Writes the figures there
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<(f64, f64), String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parts
        .filter(|(from, to)| (0.0..=600.0).contains(from) && (*from..=600.0).contains(to))
        .ok_or_else(|| "expected FROM..TO in seconds up to 600, such as 1..10".to_owned())
}

impl BenchFlags {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=10_000).contains(&self.concurrency),
            "--concurrency is {}, expected 1 to 10000",
            self.concurrency
        );
        ensure!((0.0..=600.0).contains(&self.think), "--think is {}, expected 0 to 600", self.think);
        ensure!(self.client_retries <= 10, "--client-retries is {}, expected 0 to 10", self.client_retries);
        if let Some(path) = &self.json {
            super::check_writable(path, "--json")?;
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> Layout {
        let base = Layout::new(self.first_port, nats_server(self.nats_server.as_deref()));
        Layout { workers: self.workers, bridged: self.workers / 2, speed: self.speed, ..base }
    }

    pub(super) fn script(&self, seed: u64) -> Script {
        let (concurrency, think_s, retries) = (self.concurrency, self.think, self.client_retries);
        Script { concurrency, think_s, retries, seed, ..Script::default() }
    }

    pub(super) fn write(&self, figures: &impl serde::Serialize) -> anyhow::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(figures)?;
        std::fs::write(path, text + "\n").with_context(|| format!("--json {}", path.display()))
    }
}

pub(crate) fn chaos(arguments: &Chaos) -> anyhow::Result<ExitCode> {
    let Chaos { minutes, kill_every, away, .. } = *arguments;
    ensure!((0.2..=1440.0).contains(&minutes), "--minutes is {minutes}, expected 0.2 to 1440");
    ensure!((0.1..=600.0).contains(&kill_every), "--kill-every is {kill_every}, expected 0.1 to 600");
    arguments.bench.check()?;
    let seed = arguments.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let mut layout = arguments.bench.layout();
    if arguments.continues {
        layout.router_flags.extend(["--migration-limit".to_owned(), "3".to_owned()]);
    }
    let of = Duration::from_secs_f64;
    let run = Run {
        script: arguments.bench.script(seed),
        rhythm: Rhythm {
            every: of(kill_every),
            away: (of(away.0), of(away.1)),
            merciless: arguments.merciless,
            seed,
        },
        how_long: of(minutes * 60.0),
        layout: layout.clone(),
    };
    super::say(&format!("seed {seed}: --seed {seed} draws the same times and turns again"));
    on_bench("chaos", layout, async |bench| {
        let report = run.run(bench, |line| super::say(&line)).await?;
        super::say(&report.text());
        arguments.bench.write(&report)?;
        Ok(if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Runs something on a bench, and leaves nothing of it behind, whether it ends or is interrupted.
pub(super) fn on_bench(
    of: &str,
    layout: Layout,
    run: impl AsyncFnOnce(&mut Bench) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    let done = runtime.block_on(async {
        let mut interrupts = super::Interrupts::new()?;
        let mut bench = Bench::new(of, layout)?;
        let done = tokio::select! {
            done = run(&mut bench) => done,
            () = interrupts.next() => Ok(ExitCode::FAILURE),
        };
        bench.stop().await;
        eprintln!("everything is stopped; the log is {}", bench.children.log().display());
        done
    });
    runtime.shutdown_background();
    done
}
