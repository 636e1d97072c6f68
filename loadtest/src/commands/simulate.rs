//! `kvlane-load simulate`: whole sweeps in virtual time.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_loadtest::simulate::{self, Mode, SCENARIOS, Scenario, Settings, report};

#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// How requests are placed: round_robin, least_loaded, session, dynamo (the reference's plain cost), kvlane
    #[arg(long, value_delimiter = ',', default_value = "round_robin,dynamo,kvlane")]
    modes: Vec<Mode>,
    /// A named deployment and workload, several, or all; see --list-scenarios
    #[arg(long, value_delimiter = ',', default_value = "reference")]
    scenario: Vec<String>,
    /// Names the scenarios and stops
    #[arg(long)]
    list_scenarios: bool,
    /// A trace in Mooncake's form, for the scenario `trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// Prints Markdown
    #[arg(long)]
    markdown: bool,
    /// Conversations at a time, one level after the other [default: the scenario's]
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
    let mut all = Vec::new();
    for scenario in scenarios {
        let settings = settings(arguments, scenario)?;
        if arguments.print_settings {
            print!("{}", toml::to_string(&settings)?);
            continue;
        }
        let rows = simulate::run(&settings, &arguments.modes, |done, of| {
            eprint!("\r{}: {done} of {of} sweeps ", scenario.name);
            let _ = std::io::stderr().flush();
        })?;
        eprintln!();
        if arguments.markdown {
            print!("{}", report::markdown(&scenario, &settings, &rows));
        } else {
            print!("{}", report::table(&scenario, &settings, &rows));
        }
        all.extend(rows.into_iter().map(|row| report::Named { scenario: scenario.name, row }));
    }
    if let Some(path) = &arguments.json {
        let file = std::fs::File::create(path).with_context(|| format!("--json {}", path.display()))?;
        serde_json::to_writer_pretty(file, &all)?;
    }
    Ok(())
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
    if let Some(levels) = &arguments.levels {
        settings = settings.overlaid(&format!("levels = {levels:?}"), "--levels")?;
    }
    if let Some(seeds) = arguments.seeds {
        settings = settings.overlaid(&format!("seeds = {seeds}"), "--seeds")?;
    }
    settings.validate()?;
    Ok(settings)
}
