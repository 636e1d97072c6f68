//! `kvlane-load simulate`: whole sweeps in virtual time.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_loadtest::report;
use kvlane_loadtest::results::{Cell, Results, Set, Source};
use kvlane_loadtest::simulate::{self, Mode, SCENARIOS, Scenario, Settings};

use super::levels::levels;

#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// How requests are placed: round_robin, least_loaded, session, dynamo (the reference's plain cost), kvlane,
    /// kvlane_session
    #[arg(long, value_delimiter = ',', default_value = "round_robin,dynamo,kvlane")]
    modes: Vec<Mode>,
    /// A named deployment and workload, several, or all; see --list-scenarios
    #[arg(long, value_delimiter = ',', default_value = "reference")]
    scenario: Vec<String>,
    /// Names the scenarios and stops
    #[arg(long)]
    list_scenarios: bool,
    /// Round robin, kvlane, and kvlane with each kind of speculative decoding, under one load
    #[arg(long, conflicts_with_all = ["modes", "engine"])]
    phases: bool,
    /// A trace in Mooncake's form, for the scenario `trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// Prints Markdown
    #[arg(long)]
    markdown: bool,
    /// What is simulated, one level after the other, such as 60,80 or 60..180 (in steps of 20) or 10..50:10 [default: the
    /// scenario's]
    #[arg(long)]
    levels: Option<String>,
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
    /// Where every sweep's figures go, as JSON that `report` and `compare` read
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the report goes: HTML, Markdown, CSV, JSON, reference lines
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Prints all settings as TOML and stops
    #[arg(long)]
    print_settings: bool,
}

pub(crate) fn simulate(arguments: &Simulate) -> anyhow::Result<()> {
    if arguments.list_scenarios {
        SCENARIOS.iter().for_each(|scenario| println!("{:<18} {}", scenario.name, scenario.about));
        return Ok(());
    }
    let scenarios: Vec<Scenario> = if arguments.scenario.iter().any(|name| name == "all") {
        // Without its file a trace cannot be replayed, and everything else can.
        let usable = |scenario: &&Scenario| !scenario.needs_trace() || arguments.trace.is_some();
        SCENARIOS.iter().filter(usable).copied().collect()
    } else {
        arguments.scenario.iter().map(|name| Scenario::find(name)).collect::<anyhow::Result<_>>()?
    };
    for (names, what) in [
        (arguments.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>(), "--modes"),
        (scenarios.iter().map(|scenario| scenario.name).collect(), "--scenario"),
    ] {
        let distinct: std::collections::BTreeSet<&&str> = names.iter().collect();
        anyhow::ensure!(distinct.len() == names.len(), "{what} has one of them twice");
    }
    anyhow::ensure!(
        arguments.trace.is_none() || scenarios.iter().any(Scenario::needs_trace),
        "--trace is for the scenario `trace`, expected --scenario trace or all"
    );
    // Everything that can be wrong is found before anything is run.
    let scenarios: Vec<(Scenario, Settings)> = scenarios
        .into_iter()
        .map(|scenario| Ok((scenario, settings(arguments, scenario)?)))
        .collect::<anyhow::Result<_>>()?;
    if let Some(path) = &arguments.json {
        super::check_writable(path, "--json")?;
    }
    let mut all = Results::new(Source::Simulated, Settings::reference()?.objective(), Vec::new());
    for (scenario, settings) in scenarios {
        if arguments.print_settings {
            print!("{}", toml::to_string(&settings)?);
            continue;
        }
        let set = run(arguments, &scenario, &settings)?;
        all.objective = settings.objective();
        let shown = Results { sets: vec![set.clone()], ..all.clone() };
        super::say(&if arguments.markdown { report::markdown(&shown) } else { report::text(&shown) });
        all.sets.push(set);
    }
    if let Some(path) = &arguments.json {
        all.write(path)?;
    }
    if let Some(dir) = &arguments.report {
        report::write_all(&all, dir)?.iter().for_each(|path| eprintln!("wrote {}", path.display()));
    }
    Ok(())
}

fn run(arguments: &Simulate, scenario: &Scenario, settings: &Settings) -> anyhow::Result<Set> {
    let progress = |what: &str, done: usize, of: usize| {
        eprint!("\r{}{what}: {done} of {of} sweeps ", scenario.name);
        let _ = std::io::stderr().flush();
    };
    let mut cells = Vec::new();
    if arguments.phases {
        let own =
            Calibration { outside: settings.engine.outside, ..Calibration::preset(Calibration::DEFAULT)? };
        anyhow::ensure!(
            settings.engine == own,
            "--phases brings engines of its own, expected no setting of engine.* but engine.outside"
        );
        for (name, mode, engine) in Mode::PHASES {
            let mut phase = settings.clone();
            let outside = phase.engine.outside;
            phase.engine = Calibration { outside, ..Calibration::preset(engine)? };
            let of_phase = simulate::run(&phase, &[mode], |done, of| progress(name, done, of))?;
            cells.extend(of_phase.into_iter().map(|cell| Cell { mode: name.to_owned(), ..cell }));
        }
    } else {
        cells = simulate::run(settings, &arguments.modes, |done, of| progress("", done, of))?;
    }
    eprintln!();
    simulate::set(scenario, settings, cells)
}

/// The scenario's, then the engine, then the file, then single settings, then the flags of their own.
fn settings(arguments: &Simulate, scenario: Scenario) -> anyhow::Result<Settings> {
    let mut settings = scenario.settings(&Settings::reference()?, arguments.trace.as_deref())?;
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
    if let Some(text) = &arguments.levels {
        settings = settings.overlaid(&format!("levels = {:?}", levels(text, "--levels")?), "--levels")?;
    }
    if let Some(seeds) = arguments.seeds {
        settings = settings.overlaid(&format!("seeds = {seeds}"), "--seeds")?;
    }
    settings.validate()?;
    Ok(settings)
}
