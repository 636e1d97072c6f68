//! `kvlane-load sweep`: levels × modes × repeats in real time.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use kvlane_loadtest::arrivals::{Arrivals, Pattern, Ramp};
use kvlane_loadtest::live::{Collector, Course, Level, Load, Phase, Shown};
use kvlane_loadtest::report;
use kvlane_loadtest::results::{Cell, shown};
use kvlane_loadtest::sweep::{News, Plan, Progress, Saturation, Sweep as Sweeping, Switch};
use kvlane_loadtest::web::{About, Web, serve};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::levels::levels;
use super::load_flags::{LoadFlags, Prepared};

#[derive(Debug, clap::Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    load: LoadFlags,
    /// Conversations at a time, one level after the other, such as 60,80 or 60..180 (in steps of 20) or 10..50:10
    /// [default: 60..180]
    #[arg(long, conflicts_with = "rates_per_minute", help_heading = "Sweep")]
    levels: Option<String>,
    /// Conversations begun a minute instead, whether others are over or not
    #[arg(long, conflicts_with = "steady_start", help_heading = "Sweep")]
    rates_per_minute: Option<String>,
    /// Modes to compare. Of our router (--admin-url): round_robin, random, least_loaded, power_of_two, session, dynamo,
    /// kvlane, kvlane_session, each with its own weights; of any other what --switch understands [default: as it is]
    #[arg(long, value_delimiter = ',', help_heading = "Sweep")]
    modes: Vec<String>,
    /// A command that brings the endpoint into the mode in $MODE, such as a redeployment; then it is waited for
    #[arg(
        long,
        value_name = "COMMAND",
        conflicts_with = "admin_url",
        requires = "modes",
        help_heading = "Sweep"
    )]
    switch: Option<String>,
    /// How often everything is done; equal repeats ask equal questions
    #[arg(long, default_value_t = 6, help_heading = "Sweep")]
    repeats: usize,
    /// Seconds before each level is measured
    #[arg(long, default_value_t = 60.0, value_name = "S", help_heading = "Sweep")]
    warm_up: f64,
    /// Seconds that are measured
    #[arg(long, default_value_t = 300.0, value_name = "S", help_heading = "Sweep")]
    window: f64,
    /// Looks at the last --snapshot-window seconds, evenly over the window, averaged
    #[arg(long, default_value_t = 3, help_heading = "Sweep")]
    snapshots: usize,
    #[arg(long, default_value_t = 60.0, value_name = "S", help_heading = "Sweep")]
    snapshot_window: f64,
    /// More warm-up after a mode is switched, when caches are empty
    #[arg(long, default_value_t = 60.0, value_name = "S", help_heading = "Sweep")]
    fill: f64,
    /// Runs all levels, however overloaded
    #[arg(long, help_heading = "Sweep")]
    no_early_stop: bool,
    /// A level is too much, and higher ones are not run, when TTFT p95 is so many times the objective
    #[arg(long, default_value_t = 10.0, value_name = "TIMES", help_heading = "Sweep")]
    saturated_ttft: f64,
    /// or so many percent fail
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", help_heading = "Sweep")]
    saturated_errors: f64,
    /// The most conversations of an open loop at a time
    #[arg(long, default_value_t = 2000, requires = "rates_per_minute", help_heading = "Sweep")]
    most: usize,
    /// Where results are kept; what is there already is not run again
    #[arg(long, default_value = "sweep.json", value_name = "FILE", help_heading = "Output")]
    out: PathBuf,
    /// Where the report goes: HTML, Markdown, CSV, JSON, reference lines
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    report: Option<PathBuf>,
    /// Serves /metrics and /api/status while it runs
    #[arg(long, value_name = "HOST:PORT", help_heading = "Output")]
    listen: Option<SocketAddr>,
    /// Begins no level that would not be over in so many seconds; the same command goes on from there
    #[arg(long, value_name = "S", help_heading = "Output")]
    within: Option<f64>,
    /// Says what would be run and how long it takes, and stops
    #[arg(long, help_heading = "Output")]
    dry_run: bool,
}

/// There is more to measure than --within allowed: try again.
const TIME_IS_UP: u8 = 75;
/// What an endpoint is called whose mode nobody sets.
const AS_IT_IS: &str = "as_it_is";

fn plan(arguments: &Sweep) -> anyhow::Result<Plan> {
    for (name, value, least) in [
        ("--warm-up", arguments.warm_up, 0.0),
        ("--window", arguments.window, 0.001),
        ("--snapshot-window", arguments.snapshot_window, 0.001),
        ("--fill", arguments.fill, 0.0),
        ("--saturated-ttft", arguments.saturated_ttft, 1.0),
        ("--saturated-errors", arguments.saturated_errors, 0.0),
        ("--within", arguments.within.unwrap_or(0.0), 0.0),
    ] {
        ensure!((least..=1e6).contains(&value), "{name} is {value}, expected {least} to 1000000");
    }
    for (name, value) in
        [("--repeats", arguments.repeats), ("--snapshots", arguments.snapshots), ("--most", arguments.most)]
    {
        ensure!((1..=100_000).contains(&value), "{name} is {value}, expected 1 to 100000");
    }
    ensure!(
        arguments.load.trace.is_none(),
        "a trace has its own times, expected `run --trace` or `simulate --scenario trace`"
    );
    let (mut levels, per_minute) = match &arguments.rates_per_minute {
        Some(rates) => (levels(rates, "--rates-per-minute")?, true),
        None => (levels(arguments.levels.as_deref().unwrap_or("60..180"), "--levels")?, false),
    };
    // Upwards: too much at one level is too much at the next.
    levels.sort_unstable();
    let mode_given = !arguments.modes.is_empty();
    let modes = if mode_given { arguments.modes.clone() } else { vec![AS_IT_IS.to_owned()] };
    let distinct: std::collections::BTreeSet<&String> = modes.iter().collect();
    ensure!(distinct.len() == modes.len(), "--modes has one of them twice");
    for level in &levels {
        let level = if per_minute { Level::Rate(*level as f64 / 60.0) } else { Level::Concurrency(*level) };
        level.validate().context("a level")?;
    }
    Ok(Plan {
        modes,
        mode_given,
        levels,
        per_minute,
        repeats: arguments.repeats,
        first_seed: arguments.load.seed,
        course: Course {
            warm_up: Duration::from_secs_f64(arguments.warm_up),
            window: Duration::from_secs_f64(arguments.window),
            looks: arguments.snapshots,
            look_back: Duration::from_secs_f64(arguments.snapshot_window),
        },
        fill: Duration::from_secs_f64(arguments.fill),
        saturation: Saturation {
            ttft_times: arguments.saturated_ttft,
            error_pct: arguments.saturated_errors,
            enabled: !arguments.no_early_stop,
        },
        lag_limit: arguments.load.lag_limit(),
    })
}

pub(crate) fn sweep(arguments: &Sweep) -> anyhow::Result<ExitCode> {
    arguments.load.check()?;
    let plan = plan(arguments)?;
    ensure!(
        !plan.mode_given || arguments.load.admin_url.is_some() || arguments.switch.is_some(),
        "nobody switches between --modes, expected --admin-url of our router, or --switch COMMAND"
    );
    if arguments.dry_run {
        for stretch in plan.stretches() {
            println!("repeat {}, mode {}: levels {:?}", stretch.repeat, stretch.mode, stretch.levels);
        }
        println!("{} cells, {}", plan.cells(), clock(plan.length()));
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    runtime.block_on(measure(arguments, plan))
}

async fn measure(arguments: &Sweep, plan: Plan) -> anyhow::Result<ExitCode> {
    let prepared = arguments.load.clone().prepare().await?;
    let switch = match (arguments.load.admin()?, &arguments.switch) {
        (Some(admin), _) if plan.mode_given => Switch::router(admin),
        (_, Some(command)) => {
            Switch::Command { command: command.clone(), endpoint: Box::new(prepared.endpoint.clone()) }
        }
        _ => Switch::Nothing,
    };
    switch.check(&plan.modes)?;
    super::check_writable(&arguments.out, "--out")?;
    if !plan.per_minute {
        let most = plan.levels.iter().max().copied().unwrap_or(0);
        super::check_open_files(&Arrivals::Closed(Ramp::flat(most as f64)))?;
    }
    let shown = Arc::new(Shown::default());
    let _server = match arguments.listen {
        Some(address) => {
            let about = About { objective: prepared.objective, ..About::default() };
            let web = Arc::new(Web::watching(shown.clone(), about)?);
            let (bound, server) = serve(address, web).await?;
            eprintln!("figures at http://{bound}/, metrics at http://{bound}/metrics");
            Some(server)
        }
        None => None,
    };
    eprintln!("{}; {} cells, {}", prepared.about(), plan.cells(), clock(plan.length()));
    let load = |seed: u64, names_session: bool, collector: Arc<Collector>| -> anyhow::Result<Load> {
        prepared.load(seed, names_session, collector)
    };
    let cells = plan.cells();
    let sweeping = Sweeping {
        conditions: conditions(arguments, &prepared, &plan),
        plan,
        objective: prepared.objective,
        switch,
        load: &load,
        pattern: Pattern::Poisson,
        most: arguments.most,
        file: &arguments.out,
        about: prepared.about(),
        admin: arguments.load.admin()?,
        until: arguments.within.map(|seconds| tokio::time::Instant::now() + Duration::from_secs_f64(seconds)),
    };
    let (stop, mut interrupts) = (CancellationToken::new(), super::Interrupts::new()?);
    let mut teller = Teller::new();
    let results = {
        let running = sweeping.run(&stop, |progress| {
            if let News::Begins(live) = &progress.news {
                shown.show((*live).clone());
            }
            teller.tell(&progress);
        });
        tokio::pin!(running);
        tokio::select! {
            results = &mut running => results?,
            () = interrupts.next() => {
                stop.cancel();
                tokio::select! {
                    results = &mut running => results?,
                    // Whoever asks twice does not want to wait.
                    () = interrupts.next() => return Ok(ExitCode::from(130)),
                }
            }
        }
    };
    teller.close();
    if let Some(dir) = &arguments.report {
        report::write_all(&results, dir)?.iter().for_each(|path| eprintln!("wrote {}", path.display()));
    }
    super::say(&report::text(&results));
    if stop.is_cancelled() {
        eprintln!("stopped early: the same command goes on from {}", arguments.out.display());
        return Ok(ExitCode::from(130));
    }
    let set = &results.sets[0];
    if set.cells.len() < cells {
        eprintln!("time is up: {} of {cells} cells are in {}", set.cells.len(), arguments.out.display());
        return Ok(ExitCode::from(TIME_IS_UP));
    }
    let measured = set.cells.iter().any(|cell| cell.figures.is_some() && cell.invalid.is_none());
    if !measured {
        let why = set.cells.iter().find_map(|cell| cell.invalid.clone()).unwrap_or_default();
        eprintln!("nothing was measured: {why}");
    }
    let worthless = set.cells.iter().any(|cell| cell.invalid.is_some());
    Ok(if worthless { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn conditions(arguments: &Sweep, prepared: &Prepared, plan: &Plan) -> serde_json::Value {
    let mut conditions = prepared.conditions();
    let course = &plan.course;
    for (key, value) in [
        ("modes", json!(plan.modes)),
        ("levels", json!(plan.levels)),
        ("per_minute", json!(plan.per_minute)),
        ("repeats", json!(plan.repeats)),
        ("first_seed", json!(plan.first_seed)),
        ("fill_s", json!(plan.fill.as_secs_f64())),
        ("warm_up_s", json!(course.warm_up.as_secs_f64())),
        ("window_s", json!(course.window.as_secs_f64())),
        ("snapshots", json!(course.looks)),
        ("snapshot_s", json!(course.look_back.as_secs_f64())),
        ("most", json!(plan.per_minute.then_some(arguments.most))),
        ("switch", json!(arguments.switch)),
    ] {
        conditions[key] = value;
    }
    conditions
}

/// "1 h 12 min", for people who wait.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// A bar on a terminal, lines elsewhere.
struct Teller {
    bar: Option<ProgressBar>,
    last: tokio::time::Instant,
}

const EVERY: Duration = Duration::from_secs(15);

impl Teller {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, last: tokio::time::Instant::now() }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn tell(&mut self, progress: &Progress<'_>) {
        let Progress { mode, level, repeat, done, of, left, news } = progress;
        match news {
            News::Begins(_) => {}
            News::Note(note) => self.say(&format!("note: {note}")),
            News::Cell(cell) => self.say(&format!("[{done}/{of}] {}", early(cell))),
            News::Phase(phase) => {
                let line = format!(
                    "{mode} at {level}, repeat {repeat}: {}, {} left of it, {} of all",
                    phase.name(),
                    clock(phase.left()),
                    clock(*left)
                );
                match &self.bar {
                    Some(bar) => {
                        bar.set_length(*of as u64);
                        bar.set_position(*done as u64);
                        bar.set_message(line);
                    }
                    None if self.last.elapsed() >= EVERY
                        || matches!(phase, Phase::Measuring { left } if left.is_zero()) =>
                    {
                        self.last = tokio::time::Instant::now();
                        eprintln!("{line}");
                    }
                    None => {}
                }
            }
        }
    }

    fn close(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// A cell's result, as soon as it is there.
fn early(cell: &Cell) -> String {
    let figures = cell.figures.unwrap_or_default();
    let mut line = format!(
        "{} at {}, repeat {}: TTFT p50/p95 {}/{} ms, ITL {}/{} ms, {} tokens/s, cached {} %",
        cell.mode,
        cell.level,
        cell.repeat,
        shown(figures.ttft_p50_ms, 0),
        shown(figures.ttft_p95_ms, 0),
        shown(figures.itl_p50_ms, 1),
        shown(figures.itl_p95_ms, 1),
        shown(figures.tops, 0),
        shown(figures.hit_pct, 1),
    );
    for (what, why) in [("INVALID", &cell.invalid), ("too much", &cell.saturated)] {
        if let Some(why) = why {
            line += &format!("; {what}: {why}");
        }
    }
    line
}
