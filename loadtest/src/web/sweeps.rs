//! Sweeps that were asked for on the page: in virtual time, or with the load of the stage while that is stopped. One at a
//! time; the last ones are kept to be read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kvlane_engine_adapters::process::since_1970;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Web;
use super::problem::Problem;
use crate::arrivals::Pattern;
use crate::live::{Collector, Course};
use crate::report;
use crate::results::{Cell, Results, Set, Source};
use crate::simulate::{self, Mode, SCENARIOS, Scenario, Settings};
use crate::sweep::{News, Plan, Progress, Saturation, Sweep, Switch};

/// What is to be swept.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Wanted {
    Live {
        levels: Vec<usize>,
        modes: Vec<String>,
        #[serde(default = "one")]
        repeats: usize,
        #[serde(default = "minute")]
        warm_up_s: f64,
        #[serde(default = "window")]
        window_s: f64,
        #[serde(default = "looks")]
        snapshots: usize,
        #[serde(default = "minute")]
        fill_s: f64,
    },
    Virtual {
        #[serde(default = "reference")]
        scenario: String,
        levels: Vec<usize>,
        modes: Vec<Mode>,
        #[serde(default = "one")]
        seeds: usize,
        /// Although the load runs, and both will be slower.
        #[serde(default)]
        beside_load: bool,
    },
}

fn one() -> usize {
    1
}

fn minute() -> f64 {
    60.0
}

fn window() -> f64 {
    300.0
}

fn looks() -> usize {
    3
}

fn reference() -> String {
    "reference".to_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Running,
    Done,
    Stopped,
    Failed,
}

/// A sweep in a line.
#[derive(Clone, Debug, Serialize)]
struct Line {
    id: u64,
    kind: &'static str,
    name: String,
    state: Standing,
    started: f64,
    done: usize,
    of: usize,
    left_s: Option<f64>,
    /// What is being done.
    now: String,
    error: Option<String>,
}

struct Entry {
    line: Mutex<Line>,
    results: Mutex<Results>,
    stop: CancellationToken,
}

/// Sweeps that are kept, cells of one, seconds of one cell.
const MOST_KEPT: usize = 20;
const MOST_CELLS: usize = 500;
const MOST_SECONDS: f64 = 3600.0;
const LEVELS: [usize; 7] = [60, 80, 100, 120, 140, 160, 180];
/// Modes in which requests do not have to name their conversation.
const LIVE_MODES: [&str; 6] = ["round_robin", "random", "least_loaded", "power_of_two", "dynamo", "kvlane"];

/// What modes are called on a page.
const LABELS: [(&str, &str); 8] = [
    ("round_robin", "Round-robin"),
    ("random", "Random"),
    ("least_loaded", "Least loaded"),
    ("power_of_two", "Power of two"),
    ("session", "By session"),
    ("dynamo", "KV-aware, plain cost"),
    ("kvlane", "KV-aware"),
    ("kvlane_session", "KV-aware by session"),
];

fn words(mode: &str) -> &str {
    LABELS.iter().find(|(name, _)| *name == mode).map_or(mode, |(_, words)| words)
}

fn labels() -> Value {
    LABELS.iter().map(|(name, words)| ((*name).to_owned(), Value::from(*words))).collect()
}

#[derive(Default)]
pub(super) struct Sweeps {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    kept: VecDeque<Arc<Entry>>,
}

impl std::fmt::Debug for Sweeps {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Sweeps").field("kept", &self.inner.lock().kept.len()).finish_non_exhaustive()
    }
}

impl Wanted {
    fn check(&self) -> anyhow::Result<()> {
        let (levels, modes, times) = match self {
            Self::Live { levels, modes, repeats, warm_up_s, window_s, snapshots, fill_s } => {
                let named: Vec<&str> = modes.iter().map(String::as_str).collect();
                for mode in modes {
                    ensure!(
                        LIVE_MODES.contains(&mode.as_str()),
                        "mode is {mode}, expected some of {}",
                        LIVE_MODES.join(", ")
                    );
                }
                for (name, seconds) in [("warm_up_s", warm_up_s), ("window_s", window_s), ("fill_s", fill_s)]
                {
                    ensure!(
                        (0.0..=MOST_SECONDS).contains(seconds),
                        "{name} is {seconds}, expected 0 to {MOST_SECONDS}"
                    );
                }
                ensure!(*window_s >= 1.0, "window_s is {window_s}, expected 1 or more");
                ensure!((1..=60).contains(snapshots), "snapshots is {snapshots}, expected 1 to 60");
                (levels, named, *repeats)
            }
            Self::Virtual { scenario, levels, modes, seeds, .. } => {
                ensure!(
                    !Scenario::find(scenario)?.needs_trace(),
                    "scenario {scenario} needs a file, expected another"
                );
                (levels, modes.iter().map(|mode| mode.name()).collect(), *seeds)
            }
        };
        ensure!(!modes.is_empty(), "no mode is named, expected one or more");
        let twice = |(n, mode): &(usize, &&str)| modes[..*n].contains(mode);
        if let Some((_, mode)) = modes.iter().enumerate().find(twice) {
            bail!("mode {mode} is named twice, expected each once");
        }
        ensure!(
            !levels.is_empty() && levels.iter().all(|level| (1..=10_000).contains(level)),
            "levels are {levels:?}, expected some from 1 to 10000"
        );
        ensure!(levels.is_sorted_by(|one, next| one < next), "levels are {levels:?}, expected them to rise");
        ensure!((1..=100).contains(&times), "repeats are {times}, expected 1 to 100");
        let cells = levels.len() * modes.len() * times;
        ensure!(cells <= MOST_CELLS, "these are {cells} cells, expected {MOST_CELLS} at most");
        Ok(())
    }

    fn name(&self) -> (&'static str, String) {
        match self {
            Self::Live { modes, .. } => {
                let modes: Vec<&str> = modes.iter().map(|mode| words(mode)).collect();
                ("live", modes.join(", "))
            }
            Self::Virtual { scenario, modes, .. } => {
                let modes: Vec<&str> = modes.iter().map(|mode| words(mode.name())).collect();
                ("virtual", format!("{scenario}: {}", modes.join(", ")))
            }
        }
    }
}

impl Entry {
    fn change(&self, change: impl FnOnce(&mut Line)) {
        change(&mut self.line.lock());
    }
}

impl Sweeps {
    fn running(&self) -> Option<Arc<Entry>> {
        self.inner.lock().kept.iter().find(|entry| entry.line.lock().state == Standing::Running).cloned()
    }

    /// The number of the one that has the stage.
    pub(super) fn on_stage(&self) -> Option<u64> {
        self.running()
            .map(|entry| entry.line.lock().clone())
            .filter(|line| line.kind == "live")
            .map(|line| line.id)
    }

    pub(super) fn any_runs(&self) -> bool {
        self.running().is_some()
    }

    pub(super) fn stop_all(&self) {
        if let Some(entry) = self.running() {
            entry.stop.cancel();
        }
    }

    /// What is told of the one that runs, or of the last one.
    pub(super) fn progress(&self) -> Value {
        let latest = self.inner.lock().kept.back().cloned();
        let Some(entry) = latest else { return Value::Null };
        let mut progress = serde_json::to_value(&*entry.line.lock()).unwrap_or_default();
        progress["type"] = "sweep".into();
        progress
    }

    pub(super) fn list(&self) -> Value {
        let kept: Vec<Line> =
            self.inner.lock().kept.iter().rev().map(|entry| entry.line.lock().clone()).collect();
        let modes = Mode::ALL.map(Mode::name);
        let usable = SCENARIOS.iter().filter(|scenario| !scenario.needs_trace());
        let scenarios: Vec<Value> =
            usable.map(|scenario| json!({"name": scenario.name, "about": scenario.about})).collect();
        json!({
            "sweeps": kept,
            "defaults": {
                "levels": LEVELS, "modes": {"live": LIVE_MODES, "virtual": modes}, "labels": labels(), "scenarios": scenarios,
            },
        })
    }

    fn find(&self, id: u64) -> Result<Arc<Entry>, Problem> {
        let inner = self.inner.lock();
        let found = inner.kept.iter().find(|entry| entry.line.lock().id == id).cloned();
        found.ok_or_else(|| Problem::not_found(format!("sweep {id} is not known, or forgotten")))
    }

    pub(super) fn read(&self, id: u64) -> Result<Value, Problem> {
        let entry = self.find(id)?;
        let results = entry.results.lock().clone();
        let standings: Vec<Value> = results
            .sets
            .first()
            .map(|set| {
                let told = report::standings(set, &results.objective);
                let shown = |of: &report::Standing| {
                    json!({"mode": of.mode, "holds_to": of.holds_to, "knee": of.knee, "words": of.words(set)})
                };
                told.iter().map(shown).collect()
            })
            .unwrap_or_default();
        let recorded = results.sets.first().is_some_and(|set| report::Reference::of(set).is_some());
        let mut answer = serde_json::to_value(&*entry.line.lock()).unwrap_or_default();
        answer["results"] = serde_json::to_value(&results).unwrap_or_default();
        answer["standings"] = standings.into();
        answer["recorded"] = recorded.into();
        answer["labels"] = labels();
        Ok(answer)
    }

    pub(super) fn stop(&self, id: u64) -> Result<(), Problem> {
        let entry = self.find(id)?;
        if entry.line.lock().state != Standing::Running {
            return Err(Problem::not_now(format!("sweep {id} does not run any more")));
        }
        entry.stop.cancel();
        Ok(())
    }

    /// A report of it: its kind, and the bytes.
    pub(super) fn report(&self, id: u64, name: &str) -> Result<(&'static str, String), Problem> {
        let results = self.find(id)?.results.lock().clone();
        let wrong = |error: anyhow::Error| Problem::wrong(&error);
        Ok(match name {
            "report.html" => ("text/html; charset=utf-8", report::html(&results)),
            "report.md" => ("text/markdown; charset=utf-8", report::markdown(&results)),
            "report.csv" => ("text/csv; charset=utf-8", report::csv(&results).map_err(wrong)?),
            "report.json" => (
                "application/json",
                serde_json::to_string_pretty(&results).map_err(|error| wrong(error.into()))?,
            ),
            "reference-rules.yml" => ("application/yaml", report::rules(&results)),
            "reference-lines.json" => ("application/json", report::grafana(&results).to_string()),
            _ => {
                return Err(Problem::not_found(format!(
                    "{name} is no report, expected report.html, .md, .csv or .json"
                )));
            }
        })
    }

    /// Begins one; gives its number.
    pub(super) fn start(&self, web: &Arc<Web>, wanted: Wanted) -> Result<u64, Problem> {
        wanted.check().map_err(|error| Problem::wrong(&error))?;
        let live = matches!(wanted, Wanted::Live { .. });
        if live {
            web.router()?;
        }
        let beside = matches!(wanted, Wanted::Virtual { beside_load: true, .. });
        if !beside && !web.stage()?.is_stopped() {
            return Err(Problem::not_now("the load runs, expected it stopped before a sweep begins"));
        }
        let (kind, name) = wanted.name();
        let mut inner = self.inner.lock();
        if inner.kept.iter().any(|entry| entry.line.lock().state == Standing::Running) {
            return Err(Problem::not_now("a sweep runs already"));
        }
        inner.next += 1;
        let id = inner.next;
        let started = since_1970().as_secs_f64();
        let line = Line {
            id,
            kind,
            name,
            state: Standing::Running,
            started,
            done: 0,
            of: 0,
            left_s: None,
            now: String::new(),
            error: None,
        };
        let source = if live { Source::Measured } else { Source::Simulated };
        let results = Mutex::new(Results::new(source, web.about.objective, Vec::new()));
        let entry = Arc::new(Entry { line: Mutex::new(line), results, stop: CancellationToken::new() });
        if inner.kept.len() >= MOST_KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back(entry.clone());
        drop(inner);
        let web = web.clone();
        tokio::spawn(async move {
            let (of, to) = (entry.clone(), web.clone());
            // In a task of its own: one that breaks off is over like any other.
            let swept = tokio::spawn(async move {
                match wanted {
                    Wanted::Virtual { scenario, levels, modes, seeds, .. } => {
                        imagine(&of, &scenario, &levels, &modes, seeds).await
                    }
                    Wanted::Live { .. } => measure(&of, &to, wanted, id).await,
                }
            });
            let swept = swept.await.unwrap_or_else(|broken| Err(broken.into()));
            entry.change(|line| {
                line.left_s = None;
                line.state = match &swept {
                    Err(_) => Standing::Failed,
                    Ok(()) if entry.stop.is_cancelled() => Standing::Stopped,
                    Ok(()) => Standing::Done,
                };
                line.error = swept.as_ref().err().map(|error| format!("{error:#}"));
            });
            web.feed.tell_sweep(&web);
            web.feed.tell_state(&web);
        });
        Ok(id)
    }
}

/// In virtual time, one mode after the other, so that there is something to see early.
async fn imagine(
    entry: &Arc<Entry>,
    scenario: &str,
    levels: &[usize],
    modes: &[Mode],
    seeds: usize,
) -> anyhow::Result<()> {
    let scenario = Scenario::find(scenario)?;
    let settings =
        Settings { levels: levels.to_vec(), seeds, ..scenario.settings(&Settings::reference()?, None)? };
    settings.validate()?;
    let of = modes.len() * seeds;
    entry.change(|line| line.of = of * levels.len());
    let begun = Instant::now();
    let mut cells: Vec<Cell> = Vec::new();
    for (n, mode) in modes.iter().copied().enumerate() {
        entry.change(|line| line.now = words(mode.name()).to_owned());
        let (one, of_entry, each) = (settings.clone(), entry.clone(), levels.len());
        let swept = tokio::task::spawn_blocking(move || {
            simulate::run_until(
                &one,
                &[mode],
                || of_entry.stop.is_cancelled(),
                |done, _| {
                    let done = n * one.seeds + done;
                    let left = begun.elapsed().as_secs_f64() / done as f64 * (of - done) as f64;
                    of_entry.change(|line| (line.done, line.left_s) = (done * each, Some(left)));
                },
            )
        });
        cells.extend(swept.await.context("a simulation")??);
        let set = simulate::set(&scenario, &settings, cells.clone())?;
        *entry.results.lock() = Results::new(Source::Simulated, settings.objective(), vec![set]);
        if entry.stop.is_cancelled() {
            entry.change(|line| line.done = cells.len());
            break;
        }
    }
    Ok(())
}

/// With the stage's load, at the router.
async fn measure(entry: &Arc<Entry>, web: &Arc<Web>, wanted: Wanted, id: u64) -> anyhow::Result<()> {
    let Wanted::Live { levels, modes, repeats, warm_up_s, window_s, snapshots, fill_s } = wanted else {
        return Ok(());
    };
    let (stage, router) =
        web.stage.as_ref().zip(web.router.as_ref()).context("there is no load, or no router, to sweep")?;
    let span = Duration::from_secs_f64;
    let plan = Plan {
        modes,
        mode_given: true,
        levels,
        per_minute: false,
        repeats,
        first_seed: 1,
        course: Course {
            warm_up: span(warm_up_s),
            window: span(window_s),
            looks: snapshots,
            look_back: span(window_s.min(60.0)),
        },
        fill: span(fill_s),
        saturation: Saturation::default(),
        lag_limit: crate::live::LAG_LIMIT,
    };
    let play = stage.play();
    let folder = web.sweeps_dir.clone().unwrap_or_else(std::env::temp_dir);
    let file = folder.join(format!("kvlane-sweep-{}-{id}.json", web.instance));
    let make = |seed: u64, _names: bool, collector: Arc<Collector>| {
        // Documents are made up for it, which takes a moment.
        tokio::task::block_in_place(|| (play.make)(seed, collector))
    };
    let mut conditions = play.conditions.clone();
    conditions["sweep"] = json!({"repeats": repeats, "warm_up_s": warm_up_s, "window_s": window_s, "snapshots": snapshots,
        "fill_s": fill_s});
    let begun = Results::new(
        Source::Measured,
        web.about.objective,
        vec![Set {
            name: "sweep".to_owned(),
            about: play.target.clone(),
            levels_are: plan.levels_are().to_owned(),
            conditions: conditions.clone(),
            cells: Vec::new(),
        }],
    );
    *entry.results.lock() = begun;
    let sweep = Sweep {
        conditions,
        plan,
        objective: web.about.objective,
        switch: Switch::router(router.admin().clone()),
        load: &make,
        pattern: Pattern::Poisson,
        most: 10_000,
        file: &file,
        about: play.target.clone(),
        admin: Some(router.admin().clone()),
        until: None,
    };
    web.feed.tell_state(web);
    let told = |progress: Progress<'_>| {
        if let News::Begins(live) = &progress.news {
            web.shown.show((*live).clone());
        }
        let phase = match &progress.news {
            News::Phase(phase) => phase.name().to_owned(),
            News::Note(note) => note.clone(),
            News::Begins(_) => "begins".to_owned(),
            News::Cell(cell) => {
                entry.results.lock().sets[0].cells.push(shortened((*cell).clone()));
                "done".to_owned()
            }
        };
        entry.change(|line| {
            (line.done, line.of, line.left_s) =
                (progress.done, progress.of, Some(progress.left.as_secs_f64()));
            line.now = format!(
                "{} at {}, repeat {}: {phase}",
                words(progress.mode),
                progress.level,
                progress.repeat
            );
        });
    };
    let swept = sweep.run(&entry.stop, told).await;
    // What a sweep came to is on the page; where nobody named a folder, that is the only place.
    if web.sweeps_dir.is_none() {
        let _ = std::fs::remove_file(&file);
    }
    let mut results = swept?;
    for set in &mut results.sets {
        set.cells = std::mem::take(&mut set.cells).into_iter().map(shortened).collect();
    }
    *entry.results.lock() = results;
    Ok(())
}

/// A cell without what only its file is read for.
fn shortened(cell: Cell) -> Cell {
    Cell { details: Value::Null, ..cell }
}
