//! `kvlane-load faults`: everything that can go wrong, in virtual time.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::ensure;
use clap::Args;
use kvlane_loadtest::faults::{Lane, Outcome, Soak, Tally, soak};
use tokio::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Runs this seed alone
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first_seed", "jobs"])]
    seed: Option<u64>,
    /// Prints what happened in it, step by step
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Runs so many seeds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Threads; as many as there are processors when not said
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Instead: so many days of events against the index's byte budget
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["seeds", "first_seed", "jobs", "trace"])]
    soak_days: Option<f64>,
}

/// Between two lines about how far it is, in seeds.
const PROGRESS: u64 = 1000;

pub(crate) fn faults(arguments: &Faults) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    if let Some(days) = arguments.soak_days {
        return soak_for(days, arguments.seed.unwrap_or(1)).map(|()| ExitCode::SUCCESS);
    }
    let (tally, broken) = match arguments.seed {
        Some(seed) => {
            let outcome = Lane::new()?.run(seed, arguments.trace, None)?;
            outcome.trace.iter().for_each(|line| println!("{line}"));
            println!("seed {seed}: digest {:016x}", outcome.digest);
            let broken = outcome.violation.is_some().then(|| outcome.clone());
            (outcome.tally, broken.into_iter().collect())
        }
        None => range(arguments)?,
    };
    print!("{tally}");
    let seconds = began.elapsed().as_secs_f64();
    println!("{:.1} s, {:.1} seeds/s", seconds, tally.seeds as f64 / seconds.max(1e-9));
    for outcome in &broken {
        println!("seed {}: {}", outcome.seed, outcome.violation.as_deref().unwrap_or_default());
        println!(
            "replay: cargo run -p kvlane-loadtest --bin kvlane-load -- faults --seed {} --trace",
            outcome.seed
        );
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All seeds of the range, on several threads, and those in which something did not hold.
fn range(arguments: &Faults) -> anyhow::Result<(Tally, Vec<Outcome>)> {
    let jobs = arguments.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let (next, end) = (AtomicU64::new(arguments.first_seed), arguments.first_seed + arguments.seeds);
    let lane = || -> anyhow::Result<(Tally, Vec<Outcome>)> {
        let lane = Lane::new()?;
        let (mut tally, mut broken) = (Tally::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok((tally, broken));
            }
            let outcome = lane.run(seed, false, None)?;
            tally.add(&outcome.tally);
            if outcome.violation.is_some() {
                broken.push(outcome);
            }
            let done = seed + 1 - arguments.first_seed;
            if done.is_multiple_of(PROGRESS) {
                eprintln!("{done} of {}", arguments.seeds);
            }
        }
    };
    let lanes: Vec<anyhow::Result<(Tally, Vec<Outcome>)>> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(lane)).collect();
        let ended = |lane: thread::ScopedJoinHandle<'_, _>| {
            lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
        };
        lanes.into_iter().map(ended).collect()
    });
    let (mut tally, mut broken) = (Tally::default(), Vec::new());
    for lane in lanes {
        let (of, found) = lane?;
        tally.add(&of);
        broken.extend(found);
    }
    broken.sort_by_key(|outcome| outcome.seed);
    Ok((tally, broken))
}

/// A line through the hours' bytes may rise or fall by so much of their mean, over all of them.
const FLAT: f64 = 0.05;

fn soak_for(days: f64, seed: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    let settings = Soak { days, seed, ..Soak::default() };
    let soaked = soak(&settings, |hour, bytes| {
        if hour.is_multiple_of(24) {
            eprintln!("day {}: {bytes} bytes", hour / 24);
        }
    })?;
    let (least, most) = (soaked.bytes.iter().min(), soaked.bytes.iter().max());
    println!(
        "{days} days of {} workers in {:.1} s: {} events, {} restarts, {} departures",
        settings.workers,
        began.elapsed().as_secs_f64(),
        soaked.events,
        soaked.restarts,
        soaked.departures
    );
    println!(
        "bytes at full hours {} to {} of {} allowed, rising by {:.2} % over all, blocks known by {:.2} %; {} blocks given up; predictions took {} bytes \
         at most",
        least.copied().unwrap_or(0),
        most.copied().unwrap_or(0),
        settings.max_bytes,
        100.0 * soaked.rise(),
        100.0 * soaked.held_rise(),
        soaked.forgotten_blocks,
        soaked.most_predicted_bytes
    );
    println!("everybody gone: {} bytes, {} when new", soaked.rest_bytes, soaked.empty_bytes);
    ensure!(soaked.rise().abs() < FLAT, "bytes are not level");
    let held = soaked.held_rise();
    ensure!(held > -FLAT, "ever fewer blocks fit in: {:.2} % over all", 100.0 * held);
    Ok(())
}
