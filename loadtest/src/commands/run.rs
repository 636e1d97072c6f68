//! `kvlane-load run`: load in real time.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kvlane_loadtest::arrivals::{Arrivals, Pattern, Ramp};
use kvlane_loadtest::live::{
    Book, Collector, Course, Level, Live, Phase, RUN_SCHEMA, SelfCheck, Shown, TurnRecord, Written,
};
use kvlane_loadtest::results::write_whole;
use kvlane_loadtest::view::{self, Look, View};
use kvlane_loadtest::web::{About, Administration, Web, serve};

use super::load_flags::{LoadFlags, Prepared};

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    load: LoadFlags,
    /// Conversations at a time: a closed loop; FROM..TO with --ramp [default: 60]
    #[arg(long, value_name = "N|FROM..TO", conflicts_with_all = ["rate", "trace"], help_heading = "Load")]
    concurrency: Option<String>,
    /// Conversations a second: an open loop, arriving whether the last ones are over or not; FROM..TO with --ramp
    #[arg(long, value_name = "PER_S|FROM..TO", conflicts_with_all = ["trace", "steady_start"], help_heading = "Load")]
    rate: Option<String>,
    /// Seconds in which it goes from FROM to TO
    #[arg(long, value_name = "S", conflicts_with = "trace", help_heading = "Load")]
    ramp: Option<f64>,
    /// How conversations arrive: poisson, constant or gamma [default: poisson]
    #[arg(long, requires = "rate", help_heading = "Load")]
    arrivals: Option<String>,
    /// The shape of gamma arrivals: below 1 in bunches, above 1 more evenly [default: 0.5]
    #[arg(long, requires = "arrivals", help_heading = "Load")]
    burstiness: Option<f64>,
    /// The most conversations of an open loop or a trace at a time; more are passed over and counted [default: 2000]
    #[arg(long, conflicts_with = "concurrency", help_heading = "Load")]
    most: Option<usize>,
    /// Seconds that are measured [default: 300; of a trace all of it]
    #[arg(long, value_name = "S", help_heading = "Load")]
    duration: Option<f64>,
    /// Seconds before that, not counted [default: 60; of a trace 0]
    #[arg(long, value_name = "S", help_heading = "Load")]
    warm_up: Option<f64>,
    /// Where the report goes, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Where every request's own figures go, one JSON object a line
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    records: Option<PathBuf>,
    /// Serves the page, /metrics for Prometheus, /api/status, and POST /api/load to change the load, such as
    /// 127.0.0.1:9400; conversations with their texts on an address of this machine only
    #[arg(long, value_name = "HOST:PORT", help_heading = "Output")]
    listen: Option<SocketAddr>,
    /// How it is shown while it runs [default: tui on a terminal, plain when piped]
    #[arg(long, value_enum, help_heading = "Output")]
    view: Option<Look>,
    /// Says what would be asked, with an example, and starts no load
    #[arg(long, help_heading = "Output")]
    dry_run: bool,
}

/// Parts that a run is kept in, to be compared by.
const PARTS: usize = 10;
/// Records on their way to the disk.
const RECORDS_QUEUE: usize = 10_000;

/// Fails with 2 when nothing could be begun, with 1 when what was measured is worthless, with 130 when interrupted.
pub(crate) fn run(arguments: &Run) -> anyhow::Result<ExitCode> {
    arguments.load.check()?;
    let arrivals = arrivals(arguments)?;
    let course = course(arguments)?;
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    runtime.block_on(measure(arguments, arrivals, course))
}

async fn measure(arguments: &Run, arrivals: Arrivals, course: Course) -> anyhow::Result<ExitCode> {
    let prepared = arguments.load.clone().prepare().await?;
    let (arrivals, course) = scheduled(arguments, &prepared, arrivals, course)?;
    if arguments.dry_run {
        return dry_run(&prepared, arguments.load.seed);
    }
    if let Some(path) = &arguments.json {
        super::check_writable(path, "--json")?;
    }
    super::check_open_files(&arrivals)?;
    let (sender, records) = arguments.records.as_deref().map(recorder).transpose()?.unzip();
    let shown = Arc::new(Shown::default());
    let about = About { objective: prepared.objective, ..About::default() };
    let mut web = Web::watching(shown.clone(), about)?;
    // What is said is not for everybody who can reach the figures.
    web.book = Book::new(arguments.listen.is_some_and(|address| address.ip().is_loopback()));
    web.router = arguments.load.admin()?.map(Administration::new).transpose()?;
    let web = Arc::new(web);
    let collector = Collector::keeping(
        prepared.objective,
        course.look_back,
        sender,
        arguments.listen.map(|_| web.book.clone()),
    );
    let load = prepared.load(arguments.load.seed, false, collector.clone())?;
    let _server = match arguments.listen {
        Some(address) => {
            let (bound, server) = serve(address, web).await.context("--listen")?;
            eprintln!("figures at http://{bound}/, metrics at http://{bound}/metrics");
            Some(server)
        }
        None => None,
    };
    eprintln!("{}", prepared.about());
    let scheduled = matches!(arrivals, Arrivals::Scheduled { .. });
    let running = load.start(arrivals);
    let live =
        Arc::new(Live { collector: collector.clone(), control: running.control(), target: prepared.about() });
    shown.show(live.clone());
    let first_level = live.control.level().filter(|_| arguments.ramp.is_none());
    let mut interrupts = super::Interrupts::new()?;
    let check = SelfCheck::start(arguments.load.lag_limit());
    let look = arguments.view.unwrap_or_else(Look::of_terminal);
    let mut view = View::open(look, live.clone(), course)?;
    let (mut parts, mut measuring, mut quit) = (Vec::new(), false, false);
    let interrupted = {
        let timed = course.run(&collector, &mut parts, |phase| {
            if let Phase::Measuring { .. } = phase
                && !measuring
            {
                measuring = true;
                check.reset();
            }
            quit = !view.tell(phase);
            !quit
        });
        tokio::select! {
            () = timed => quit,
            () = running.over() => false,
            () = interrupts.next() => true,
        }
    };
    drop(view);
    if interrupted {
        eprintln!("stopped early; the report is of what there is");
    }
    let report = collector.report();
    let generator = check.report(report.all.send_lag_s.p99);
    let broker = running.broker();
    collector.close_records();
    let answered = report.all.requests - report.all.errors.values().sum::<u64>();
    let nothing = (answered == 0).then(|| "not one request was answered".to_owned());
    running.stop(Duration::from_secs(1)).await;
    let written = Written {
        schema: RUN_SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        conditions: conditions(arguments, &prepared, &course),
        level: first_level,
        changes: live.control.changes(),
        interrupted,
        invalid: nothing.or(generator.invalid.clone()),
        generator,
        broker,
        report,
        parts: if scheduled || interrupted { Vec::new() } else { parts },
    };
    if let Some(path) = &arguments.json {
        write_whole(path, &serde_json::to_vec_pretty(&written)?)?;
    }
    if let Some(writer) = records {
        writer.join().map_err(|_| anyhow::anyhow!("--records could not be written"))??;
    }
    super::say(&view::report(&written));
    Ok(match (&written.invalid, interrupted) {
        (Some(_), _) => ExitCode::from(1),
        (None, true) => ExitCode::from(130),
        (None, false) => ExitCode::SUCCESS,
    })
}

fn course(arguments: &Run) -> anyhow::Result<Course> {
    let of_trace = arguments.load.trace.is_some();
    let duration = arguments.duration.unwrap_or(300.0);
    let warm_up = arguments.warm_up.unwrap_or(if of_trace { 0.0 } else { 60.0 });
    ensure!(
        duration > 0.0 && duration <= 1e6,
        "--duration is {duration}, expected more than 0, at most 1000000"
    );
    ensure!((0.0..=1e6).contains(&warm_up), "--warm-up is {warm_up}, expected 0 to 1000000");
    let window = Duration::from_secs_f64(duration);
    Ok(Course {
        warm_up: Duration::from_secs_f64(warm_up),
        window,
        looks: PARTS,
        look_back: window / PARTS as u32,
    })
}

/// A trace has its own times.
fn scheduled(
    arguments: &Run,
    prepared: &Prepared,
    arrivals: Arrivals,
    course: Course,
) -> anyhow::Result<(Arrivals, Course)> {
    if arguments.load.trace.is_none() {
        return Ok((arrivals, course));
    }
    let moments = prepared.replay()?.moments(prepared.trace_speed());
    let last = moments.last().copied().unwrap_or_default();
    // Answers to the last ones are waited for, as long as a request may take.
    let window = if arguments.duration.is_some() { course.window } else { last + arguments.load.timeout() };
    let course = Course { window, look_back: window / PARTS as u32, ..course };
    Ok((Arrivals::Scheduled { moments, most: most(arguments) }, course))
}

fn arrivals(arguments: &Run) -> anyhow::Result<Arrivals> {
    let most = most(arguments);
    ensure!((1..=100_000).contains(&most), "--most is {most}, expected 1 to 100000");
    ensure!(
        arguments.most.is_none() || arguments.rate.is_some() || arguments.load.trace.is_some(),
        "--most is of an open loop or a trace, expected --rate or --trace with it"
    );
    let Some(rate) = &arguments.rate else {
        let said = arguments.concurrency.as_deref().unwrap_or("60");
        let ramp = ramp(said, "--concurrency", arguments.ramp)?;
        for end in [ramp.from, ramp.to] {
            ensure!(end.fract() == 0.0, "--concurrency is {said}, expected a whole number");
            Level::Concurrency(end as usize).validate().context("--concurrency")?;
        }
        return Ok(Arrivals::Closed(ramp));
    };
    let rate = ramp(rate, "--rate", arguments.ramp)?;
    for end in [rate.from, rate.to] {
        Level::Rate(end).validate().context("--rate")?;
    }
    let shape = arguments.burstiness.unwrap_or(0.5);
    ensure!((0.01..=1000.0).contains(&shape), "--burstiness is {shape}, expected 0.01 to 1000");
    let pattern = match arguments.arrivals.as_deref().unwrap_or("poisson") {
        "gamma" => Pattern::Gamma { shape },
        other if arguments.burstiness.is_some() => {
            bail!("--burstiness is the shape of gamma arrivals, expected --arrivals gamma and not {other}")
        }
        "poisson" => Pattern::Poisson,
        "constant" => Pattern::Constant,
        other => bail!("--arrivals is {other}, expected poisson, constant or gamma"),
    };
    Ok(Arrivals::Open { rate, pattern, most })
}

/// As many as this process may open files for, when nobody says.
fn most(arguments: &Run) -> usize {
    arguments.most.unwrap_or_else(|| super::open_files().map_or(2000, |files| files.min(2000)))
}

/// `60`, or `20..180` with --ramp.
fn ramp(text: &str, name: &str, over_s: Option<f64>) -> anyhow::Result<Ramp> {
    let expected = || format!("{name} is {text:?}, expected a number, or FROM..TO with --ramp SECONDS");
    let number = |text: &str| text.trim().parse::<f64>().with_context(expected);
    match (text.split_once(".."), over_s) {
        (Some((from, to)), Some(over_s)) => {
            ensure!(
                over_s > 0.0 && over_s <= 1e6,
                "--ramp is {over_s}, expected more than 0, at most 1000000"
            );
            Ok(Ramp { from: number(from)?, to: number(to)?, over_s })
        }
        (Some(_), None) => {
            bail!("{name} is {text}, and nobody says how fast: expected --ramp SECONDS with it")
        }
        (None, Some(_)) => bail!("--ramp goes from one number to another, expected {name} FROM..TO with it"),
        (None, None) => Ok(Ramp::flat(number(text)?)),
    }
}

fn conditions(arguments: &Run, prepared: &Prepared, course: &Course) -> serde_json::Value {
    let mut conditions = prepared.conditions();
    for (key, value) in [
        ("first_seed", arguments.load.seed.into()),
        ("concurrency", arguments.concurrency.clone().into()),
        ("rate", arguments.rate.clone().into()),
        ("arrivals", arguments.arrivals.clone().into()),
        ("burstiness", arguments.burstiness.into()),
        ("ramp_s", arguments.ramp.into()),
        ("most", most(arguments).into()),
        ("warm_up_s", course.warm_up.as_secs_f64().into()),
        ("window_s", course.window.as_secs_f64().into()),
    ] {
        conditions[key] = value;
    }
    conditions
}

fn dry_run(prepared: &Prepared, seed: u64) -> anyhow::Result<ExitCode> {
    use rand::SeedableRng;
    let script = prepared.workload(seed)?.script(0, false, &mut rand::rngs::StdRng::seed_from_u64(seed));
    println!("{}", serde_json::to_string_pretty(&prepared.conditions())?);
    println!(
        "the first conversation, on {}, {} turns, answers of at most {} tokens:",
        script.topic, script.turns, script.max_tokens
    );
    for message in &script.messages {
        let words = message.content.split_whitespace().count();
        let begin: String = message.content.chars().take(200).collect();
        println!("  {:?}, {words} words: {begin}…", message.role);
    }
    Ok(ExitCode::SUCCESS)
}

type Writer = std::thread::JoinHandle<anyhow::Result<()>>;

/// Writes records as they come, on a thread of its own.
fn recorder(path: &Path) -> anyhow::Result<(mpsc::SyncSender<TurnRecord>, Writer)> {
    let name = format!("--records {}", path.display());
    let file = std::fs::File::create(path).with_context(|| name.clone())?;
    let (sender, records) = mpsc::sync_channel::<TurnRecord>(RECORDS_QUEUE);
    let writer = std::thread::spawn(move || {
        let mut file = std::io::BufWriter::new(file);
        for record in records {
            serde_json::to_writer(&mut file, &record).context(name.clone())?;
            file.write_all(b"\n").context(name.clone())?;
        }
        file.flush().context(name)
    });
    Ok((sender, writer))
}
