//! `kvlane-load bench-proxy`: what routers cost by themselves, side by side.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kvlane_engine_adapters::model::Model;
use kvlane_loadtest::overhead::{
    Catalogue, Client, EngineSettings, Engines, Round, Running, Scenario, Stage, Subject, named, pin_self,
    tables,
};
use kvlane_loadtest::processes::beside;
use kvlane_loadtest::report::Table;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchProxy {
    /// NAME=PROGRAM [FLAGS] (a kvlane), NAME=URL[,PID] (anything), NAME=sh:COMMAND (told by $PORT, $WORKERS, …), or none;
    /// the first is compared with each other [default: kvlane=kvlane beside this program]
    #[arg(long = "of", value_name = "SUBJECT", value_parser = Subject::parse)]
    subjects: Vec<Subject>,
    /// a, cold, paced, burst, ttft, quickack, fair, connections, lengths, workers, rates
    #[arg(long, value_delimiter = ',', default_value = "a,cold,paced,burst,ttft")]
    scenario: Vec<String>,
    /// Directory with tokenizer and chat template [default: the small built-in model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Rounds; in each, every subject is measured once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// So many times the usual requests
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Core of the subjects, and of engines and client
    #[arg(long, value_name = "CORE,CORE", default_value = "1,0", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Prints Markdown
    #[arg(long)]
    markdown: bool,
}

const MODEL: &str = "bench";
const BLOCK: usize = 16;

pub(crate) fn bench_proxy(arguments: &BenchProxy) -> anyhow::Result<()> {
    ensure!((1..=200).contains(&arguments.rounds), "--rounds is {}, expected 1 to 200", arguments.rounds);
    ensure!(
        (0.01..=100.0).contains(&arguments.scale),
        "--scale is {}, expected 0.01 to 100",
        arguments.scale
    );
    let mut scenarios = Vec::new();
    for name in &arguments.scenario {
        let Some(found) = named(name) else {
            bail!(
                "--scenario is {name}, expected some of a, cold, paced, burst, ttft, quickack, fair, connections, lengths, \
                 workers, rates"
            )
        };
        scenarios.extend(found);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("a thread")?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut interrupts = super::Interrupts::new()?;
        tokio::select! {
            done = measure(arguments, scenarios) => done,
            () = interrupts.next() => bail!("interrupted"),
        }
    })
}

async fn measure(arguments: &BenchProxy, scenarios: Vec<Scenario>) -> anyhow::Result<()> {
    let several = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let [subject_core, own_core] = arguments.cores[..] else { bail!("--cores wants two, CORE,CORE") };
    if several {
        pin_self(own_core).await?;
    }
    let mut subjects = arguments.subjects.clone();
    if subjects.is_empty() {
        let program = beside(Path::new("kvlane"));
        subjects.push(Subject::parse(&format!("kvlane={}", program.display())).map_err(anyhow::Error::msg)?);
    }
    let scratch = std::env::temp_dir().join(format!("kvlane-overhead-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let (model, model_dir) = match &arguments.model {
        Some(dir) => (Model::load(dir)?, dir.clone()),
        None => {
            let dir = scratch.join("model");
            Model::write_embedded(&dir).with_context(|| dir.display().to_string())?;
            (Model::embedded()?, dir)
        }
    };
    for scenario in scenarios {
        let requests = ((scenario.requests as f64 * arguments.scale) as usize).max(1);
        let scenario = Scenario { requests, ..scenario };
        eprintln!("{}: {requests} requests a round, {} rounds", scenario.name, arguments.rounds);
        let stage = Stage {
            core: several.then_some(subject_core),
            own_core,
            workers: scenario.workers as u32,
            model_name: MODEL.to_owned(),
            model_dir: model_dir.clone(),
            block: BLOCK,
            pace: scenario.pace,
            log: scratch.join("subjects.log"),
        };
        for table in run(arguments.rounds, &scenario, &model, &stage, &subjects).await? {
            print!("{}", if arguments.markdown { table.markdown() } else { table.terminal() });
        }
    }
    Ok(())
}

const SETTLE: Duration = Duration::from_millis(500);
/// Requests before the first round, so that documents are where they are needed.
const WARM_UP: usize = 120;

async fn run(
    rounds: usize,
    scenario: &Scenario,
    model: &Model,
    stage: &Stage,
    subjects: &[Subject],
) -> anyhow::Result<Vec<Table>> {
    // A round's texts are new; its subjects get the same ones.
    let catalogue = |n: usize, requests: usize| {
        Catalogue::make(model, MODEL, scenario, requests, 1 << 32 | (n as u64) << 24).map(Rc::new)
    };
    let warm = catalogue(0, WARM_UP.min(scenario.requests))?;
    let settings = EngineSettings {
        model: MODEL.to_owned(),
        root: stage.model_dir.display().to_string(),
        count: scenario.workers,
        chunks: scenario.chunks,
        pace: scenario.pace,
    };
    let mut running = Vec::new();
    let mut all: Vec<(String, Vec<Round>)> = Vec::new();
    for subject in subjects {
        // Each has engines of its own, whose caches are what it made of them.
        let engines = Engines::start(settings.clone(), warm.clone()).await?;
        let subject = Running::start(subject, stage, &engines).await?;
        all.push((subject.name.clone(), Vec::new()));
        running.push((subject, engines));
    }
    for n in 0..=rounds {
        let texts = if n == 0 { warm.clone() } else { catalogue(n, scenario.requests)? };
        // Making texts kept everybody waiting; and nobody is always the first.
        tokio::time::sleep(SETTLE).await;
        for turn in 0..running.len() {
            let at = (turn + n) % running.len();
            let (subject, engines) = &running[at];
            engines.expect(texts.clone());
            let (address, host) = (subject.address, subject.host.clone());
            let client = Client { address, host, quick_ack: scenario.quick_ack };
            let before = subject.cpu_s();
            let sent = client.ask(scenario, &texts, texts.asked()).await;
            let cpu_s = before.and_then(|before| Some(subject.cpu_s()? - before));
            if let Some(why) = &sent.why {
                eprintln!(
                    "{}: {} of {} failed: {why}",
                    subject.name,
                    sent.failed,
                    sent.failed + sent.answered
                );
            }
            if sent.failed_beside > 0 {
                eprintln!("{}: {} long prompts besides were not answered", subject.name, sent.failed_beside);
            }
            ensure!(n > 0 || sent.failed == 0, "{} does not answer all of its warm-up", subject.name);
            if n > 0 {
                let (held, asked) = engines.overlap();
                all[at].1.push(Round {
                    cpu_s,
                    resident_mb: subject.resident_mb(),
                    sent,
                    held,
                    asked,
                    chunks: scenario.chunks,
                });
            }
        }
    }
    for (subject, _) in running {
        subject.stop().await;
    }
    let title = format!(
        "{} ({} tokens, {} chunks, {} connections, {} workers)",
        scenario.name, scenario.tokens, scenario.chunks, scenario.connections, scenario.workers
    );
    Ok(tables(&title, &all))
}
