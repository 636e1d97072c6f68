//! A whole deployment on one virtual clock: conversations, the router's decision, the index fed by events,
//! simulated engines. Hours run in seconds, and a run is a seed: equal settings give equal figures.
//!
//! The decision is the router's own `select`, the overlap is the real index's, told by the engines' events
//! some time after they happen. What is measured follows the reference: per level a warm-up, then a window
//! with snapshots of its last minute, averaged; levels follow each other in one continuous sweep.

mod front;
mod lab;
mod mode;
mod open_load;
mod scenarios;
mod seen;
mod settings;
mod workload;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use self::lab::{Lab, Measured};
pub use self::mode::Mode;
pub use self::scenarios::{SCENARIOS, Scenario};
pub use self::settings::Settings;
use crate::results::{Cell, LevelFigures, Set, first_difference};
use crate::sweep::Saturation;
use crate::trace::Trace;

/// One mode at one level, averaged over seeds. Simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub mode: Mode,
    pub level: usize,
    pub seeds: usize,
    #[serde(flatten)]
    pub figures: LevelFigures,
}

/// Runs every mode and seed as one sweep over the levels. `progress` is told after each sweep. Errors are a trace's.
pub fn run(
    settings: &Settings,
    modes: &[Mode],
    progress: impl Fn(usize, usize) + Sync,
) -> anyhow::Result<Vec<Cell>> {
    run_until(settings, modes, || false, progress)
}

/// The same; told to stop, it leaves out the levels that are not begun yet.
pub fn run_until(
    settings: &Settings,
    modes: &[Mode],
    stop: impl Fn() -> bool + Sync,
    progress: impl Fn(usize, usize) + Sync,
) -> anyhow::Result<Vec<Cell>> {
    let trace = settings.workload.trace.as_deref().map(Trace::read).transpose()?;
    let sweeps: Vec<_> = modes.iter().flat_map(|mode| (0..settings.seeds).map(move |n| (*mode, n))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(vec![Vec::new(); sweeps.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sweeps.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some((mode, n)) = sweeps.get(place).copied() else { return };
                    let seed = settings.first_seed + n as u64;
                    let levels = Lab::new(settings, trace.as_ref(), mode, seed).sweep(&stop);
                    if let Ok(mut results) = results.lock() {
                        results[place] = levels;
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, sweeps.len());
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    let cell = |(mode, n): (Mode, usize), at: usize, measured: Measured| Cell {
        mode: mode.name().to_owned(),
        level: settings.levels[at],
        repeat: settings.first_seed + n as u64,
        figures: Some(measured.figures),
        by_turn: measured.by_turn,
        invalid: None,
        saturated: Saturation::default().of(&measured.figures, &settings.objective(), 0, 0),
        details: serde_json::Value::Null,
    };
    let of_sweep = |(sweep, levels): ((Mode, usize), Vec<Measured>)| {
        levels.into_iter().enumerate().map(move |(at, measured)| cell(sweep, at, measured))
    };
    Ok(sweeps.into_iter().zip(results).flat_map(of_sweep).collect())
}

/// Averages over seeds, mode by mode in the order of the levels.
pub fn rows(settings: &Settings, modes: &[Mode], cells: &[Cell]) -> Vec<Row> {
    let row = |mode: Mode, level: usize| {
        let of = |cell: &&Cell| cell.mode == mode.name() && cell.level == level;
        let figures: Vec<_> = cells.iter().filter(of).filter_map(|cell| cell.figures.as_ref()).collect();
        Row { mode, level, seeds: figures.len(), figures: LevelFigures::mean(&figures) }
    };
    modes.iter().flat_map(|mode| settings.levels.iter().map(|level| row(*mode, *level))).collect()
}

/// A scenario's cells as they are kept.
pub fn set(scenario: &Scenario, settings: &Settings, cells: Vec<Cell>) -> anyhow::Result<Set> {
    let trace = settings.workload.trace.as_ref().map(|path| path.display().to_string());
    let base = scenario.settings(&Settings::reference()?, trace.as_deref())?;
    let (now, base) = (serde_json::to_value(settings)?, serde_json::to_value(&base)?);
    let differs = ["workers", "slowness", "router", "workload", "engine"]
        .iter()
        .find_map(|key| first_difference(&base[key], &now[key], key));
    let other = differs.map(|path| format!(", with other settings (`{path}` first)")).unwrap_or_default();
    Ok(Set {
        name: scenario.name.to_owned(),
        about: format!("{} engines `{}`: {}{other}", settings.workers, settings.engine.name, scenario.about),
        levels_are: settings.levels_are().to_owned(),
        conditions: serde_json::to_value(settings)?,
        cells,
    })
}
