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
pub mod report;
mod scenarios;
mod settings;
mod stats;
mod workload;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use self::lab::Lab;
pub use self::mode::Mode;
use self::open_load::read_trace;
pub use self::scenarios::{SCENARIOS, Scenario};
pub use self::settings::Settings;
use self::stats::Level;

/// One mode at one level, averaged over seeds. Simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub mode: Mode,
    pub level: usize,
    pub seeds: usize,
    #[serde(flatten)]
    pub figures: Level,
}

/// Runs every mode and seed as one sweep over the levels. `progress` is told after each sweep. Errors are a trace's.
pub fn run(
    settings: &Settings,
    modes: &[Mode],
    progress: impl Fn(usize, usize) + Sync,
) -> anyhow::Result<Vec<Row>> {
    let trace = settings.workload.trace.as_deref().map(read_trace).transpose()?.unwrap_or_default();
    let sweeps: Vec<_> = modes.iter().flat_map(|mode| (0..settings.seeds).map(move |n| (*mode, n))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(vec![Vec::new(); sweeps.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sweeps.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((mode, n)) = sweeps.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    let levels = Lab::new(settings, &trace, mode, settings.first_seed + n as u64).sweep();
                    let place = sweeps.iter().position(|sweep| *sweep == (mode, n)).unwrap_or(0);
                    if let Ok(mut results) = results.lock() {
                        results[place] = levels;
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, sweeps.len());
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    let row = |mode: Mode, at: usize| {
        let of_mode = sweeps.iter().zip(&results).filter(|((of, _), _)| *of == mode);
        let figures: Vec<_> = of_mode.filter_map(|(_, levels)| levels.get(at)).collect();
        Row { mode, level: settings.levels[at], seeds: settings.seeds, figures: Level::mean(&figures) }
    };
    Ok(modes.iter().flat_map(|mode| (0..settings.levels.len()).map(|at| row(*mode, at))).collect())
}
