//! `kvlane-load soak`: does anything of a router grow?

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use kvlane_loadtest::soak::{ROUTER_FLAGS, Soak as Run};

use super::chaos::{BenchFlags, on_bench};

#[derive(Debug, clap::Args)]
pub(crate) struct Soak {
    /// How long; the first fifth is a warm-up
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Seconds between two changes: an engine restarted, added or removed
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    churn_every: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    bench: BenchFlags,
}

pub(crate) fn soak(arguments: &Soak) -> anyhow::Result<ExitCode> {
    let Soak { minutes, churn_every, seed, .. } = *arguments;
    ensure!((1.0..=10_080.0).contains(&minutes), "--minutes is {minutes}, expected 1 to 10080");
    ensure!((1.0..=3600.0).contains(&churn_every), "--churn-every is {churn_every}, expected 1 to 3600");
    arguments.bench.check()?;
    let mut layout = arguments.bench.layout();
    layout.router_flags.extend(ROUTER_FLAGS.map(str::to_owned));
    let run = Run {
        script: arguments.bench.script(seed),
        how_long: Duration::from_secs_f64(minutes * 60.0),
        churn_every: Duration::from_secs_f64(churn_every),
        layout: layout.clone(),
    };
    on_bench("soak", layout, async |bench| {
        let report = run.run(bench, |line| super::say(&line)).await?;
        super::say(&report.text());
        arguments.bench.write(&report)?;
        Ok(if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}
