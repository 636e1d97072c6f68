//! One file for each command.

mod bench_proxy;
mod calibrate;
mod chaos;
mod compare;
mod demo;
mod faults;
mod levels;
mod load_flags;
mod page_flags;
mod report;
mod run;
mod serve;
mod simulate;
mod soak;
mod sweep;
mod trace;

use std::path::Path;

use anyhow::{Context, ensure};
use kvlane_loadtest::arrivals::Arrivals;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) use self::bench_proxy::{BenchProxy, bench_proxy};
pub(crate) use self::calibrate::{Calibrate, calibrate};
pub(crate) use self::chaos::{Chaos, chaos};
pub(crate) use self::compare::{Compare, compare};
pub(crate) use self::demo::{Demo, demo};
pub(crate) use self::faults::{Faults, faults};
pub(crate) use self::report::{Report, report};
pub(crate) use self::run::{Run, run};
pub(crate) use self::serve::{Serve, serve};
pub(crate) use self::simulate::{Simulate, simulate};
pub(crate) use self::soak::{Soak, soak};
pub(crate) use self::sweep::{Sweep, sweep};
pub(crate) use self::trace::{TraceCommand, trace};

/// What somebody at a terminal, or an orchestrator, sends to have it end.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> anyhow::Result<Self> {
        let of = |kind: SignalKind| signal(kind).context("signals");
        Ok(Self { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Finds out before anything is measured. What is in the file stays.
fn check_writable(path: &Path, name: &str) -> anyhow::Result<()> {
    let there = path.exists();
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("{name} {} cannot be written", path.display()))?;
    if !there {
        std::fs::remove_file(path).with_context(|| format!("{name} {}", path.display()))?;
    }
    Ok(())
}

/// Connections this process may open, some files kept for itself; none where nobody tells.
fn open_files() -> Option<usize> {
    const OURS: usize = 64;
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some(line.split_whitespace().next()?.parse::<usize>().ok()?.saturating_sub(OURS))
}

/// A process that runs out of files would take its own limit for the endpoint's failure.
fn check_open_files(arrivals: &Arrivals) -> anyhow::Result<()> {
    let wanted = match arrivals {
        Arrivals::Closed(ramp) => ramp.from.max(ramp.to) as usize,
        Arrivals::Open { most, .. } | Arrivals::Scheduled { most, .. } => *most,
    };
    if let Some(files) = open_files() {
        ensure!(
            wanted <= files,
            "{wanted} conversations at a time need more files than this process may open, expected at most {files}, or a \
             higher `ulimit -n`"
        );
    }
    Ok(())
}

/// To standard output; whoever listened may be gone, which is no reason to fail.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}
