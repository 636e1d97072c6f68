//! Sweeps in real time: levels × modes × repeats, each with a warm-up and snapshots, kept after every cell so that what
//! was interrupted goes on where it was.
//!
//! All levels of a mode follow each other under one load that is never let go, as in the reference: a mode is switched
//! once for each repeat, and the order of modes alternates, so that what drifts in time does not favour one of them.

mod plan;
mod saturation;
mod switch;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::plan::{Plan, Stretch};
pub use self::saturation::Saturation;
pub use self::switch::Switch;
use self::watch::Watch;
use crate::arrivals::{Arrivals, Pattern, Ramp};
use crate::http::Admin;
use crate::live::{Collector, Level, Live, Load, Phase, SelfCheck};
use crate::measure::Objective;
use crate::results::{Cell, LevelFigures, Results, Set, Source, first_difference};

/// What a sweep needs to know beside its plan.
#[allow(missing_debug_implementations, reason = "it holds a function")]
pub struct Sweep<'a> {
    pub plan: Plan,
    pub objective: Objective,
    pub switch: Switch,
    /// What is asked, with this seed, and whether requests name their conversation.
    pub load: &'a (dyn Fn(u64, bool, Arc<Collector>) -> anyhow::Result<Load> + Sync),
    /// How conversations begin when levels are rates.
    pub pattern: Pattern,
    pub most: usize,
    /// Where results are kept, and everything it takes to do it again.
    pub file: &'a Path,
    pub conditions: Value,
    pub about: String,
    /// Our router, which is watched beside.
    pub admin: Option<Admin>,
    /// No level is begun that would end later; the same sweep goes on another time.
    pub until: Option<Instant>,
}

/// Where a sweep stands.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    pub mode: &'a str,
    pub level: usize,
    pub repeat: u64,
    pub done: usize,
    pub of: usize,
    /// Until everything is done, if nothing is cut short.
    pub left: Duration,
    pub news: News<'a>,
}

#[derive(Clone, Debug)]
pub enum News<'a> {
    /// A load has begun, and can be looked at.
    Begins(&'a Arc<Live>),
    Phase(Phase),
    /// A cell is done: its early result.
    Cell(&'a Cell),
    /// Something worth saying.
    Note(String),
}

/// How long answers are waited for when a mode ends; no longer than a warm-up, for an overloaded endpoint would take for ever.
const PATIENCE: Duration = Duration::from_secs(120);

impl Sweep<'_> {
    /// Runs what is not in the file yet. Stopped early, it keeps what there is.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        mut told: impl FnMut(Progress<'_>),
    ) -> anyhow::Result<Results> {
        let mut results = self.resume()?;
        results.write(self.file)?;
        let run = self.stretches(&mut results, stop, &mut told).await;
        // Whatever happened, the router is put back as it was.
        self.switch.back().await?;
        run.map(|()| results)
    }

    async fn stretches(
        &self,
        results: &mut Results,
        stop: &CancellationToken,
        told: &mut impl FnMut(Progress<'_>),
    ) -> anyhow::Result<()> {
        'stretches: for stretch in self.plan.stretches() {
            if stop.is_cancelled() {
                break;
            }
            let done = stretch.done(&results.sets[0]);
            let open: Vec<usize> =
                stretch.levels.iter().copied().filter(|level| !done.contains(level)).collect();
            let mut too_much = stretch.too_much(&results.sets[0]).filter(|_| self.plan.saturation.enabled);
            // Nobody is switched and loaded for levels that are not run.
            let runs = |level: &&usize| too_much.as_ref().is_none_or(|(at, _)| *at > **level);
            let Some(first) = open.iter().find(runs).copied() else {
                self.not_run(results, &stretch, &open, too_much.as_ref())?;
                continue;
            };
            if !self.fits(self.plan.fill + self.plan.course.length()) {
                break;
            }
            let switched = stop.run_until_cancelled(self.switch.to(&stretch.mode, self.plan.mode_given));
            let Some(notes) = switched.await.transpose()? else { break };
            for note in &notes {
                told(self.progress(&stretch, results, first, Duration::ZERO, News::Note(note.clone())));
            }
            let look_back = self.plan.course.look_back;
            let collector = Collector::new(self.objective, look_back);
            let load = (self.load)(stretch.repeat, Switch::names_session(&stretch.mode), collector.clone())?;
            let target = format!("{}, {}", stretch.mode, self.about);
            let running = load.start(self.arrivals(stretch.before(first).unwrap_or(first)));
            let control = running.control();
            let live = Arc::new(Live { collector: collector.clone(), control: control.fixed(), target });
            told(self.progress(&stretch, results, first, Duration::ZERO, News::Begins(&live)));
            let mut fresh = true;
            for (n, level) in open.iter().copied().enumerate() {
                if too_much.as_ref().is_some_and(|(at, _)| *at < level) {
                    self.not_run(results, &stretch, &open[n..], too_much.as_ref())?;
                    break;
                }
                let fill = if fresh { self.plan.fill } else { Duration::ZERO };
                if !self.fits(fill + self.plan.course.length()) {
                    running.stop(Duration::from_secs(1)).await;
                    break 'stretches;
                }
                // After a break caches are filled at the level before, so that this one comes from there as it would have.
                let before = stretch.before(level).filter(|_| fresh);
                control.set(self.level(before.unwrap_or(level)))?;
                let mut reached = before.is_none();
                let cell = self.cell(&stretch, level, fresh, &collector, stop, |phase, left| {
                    if !reached && phase.left() <= self.plan.course.warm_up {
                        reached = control.set(self.level(level)).is_ok();
                    }
                    told(self.progress(&stretch, results, level, left, News::Phase(phase)));
                });
                let Some(mut cell) = cell.await else {
                    running.stop(Duration::from_secs(1)).await;
                    break 'stretches;
                };
                cell.details["notes"] = notes.clone().into();
                fresh = false;
                let saturated = cell.saturated.clone().filter(|_| cell.invalid.is_none());
                too_much = saturated.map(|why| (level, why)).or(too_much);
                results.sets[0].cells.push(cell.clone());
                results.write(self.file)?;
                told(self.progress(&stretch, results, level, Duration::ZERO, News::Cell(&cell)));
            }
            let patience = PATIENCE.min(self.plan.course.warm_up.max(Duration::from_secs(5)));
            stop.run_until_cancelled(running.stop(patience)).await;
        }
        Ok(())
    }

    fn fits(&self, length: Duration) -> bool {
        self.until.is_none_or(|until| Instant::now() + length <= until)
    }

    /// Levels above one that was too much.
    fn not_run(
        &self,
        results: &mut Results,
        stretch: &Stretch,
        levels: &[usize],
        too_much: Option<&(usize, String)>,
    ) -> anyhow::Result<()> {
        let Some((at_level, why)) = too_much else { return Ok(()) };
        let cell = |level: &usize| Cell {
            mode: stretch.mode.clone(),
            level: *level,
            repeat: stretch.repeat,
            figures: None,
            by_turn: Vec::new(),
            invalid: None,
            saturated: Some(format!("not run: at {at_level} already {why}")),
            details: Value::Null,
        };
        results.sets[0].cells.extend(levels.iter().filter(|level| *level > at_level).map(cell));
        results.write(self.file)
    }

    fn progress<'a>(
        &self,
        stretch: &'a Stretch,
        results: &Results,
        level: usize,
        left: Duration,
        news: News<'a>,
    ) -> Progress<'a> {
        let set = &results.sets[0];
        let left = left + self.plan.left_after(set, stretch);
        let (mode, repeat, done, of) = (&stretch.mode, stretch.repeat, set.cells.len(), self.plan.cells());
        Progress { mode, level, repeat, done, of, left, news }
    }

    fn level(&self, level: usize) -> Level {
        if self.plan.per_minute { Level::Rate(level as f64 / 60.0) } else { Level::Concurrency(level) }
    }

    fn arrivals(&self, level: usize) -> Arrivals {
        if self.plan.per_minute {
            let rate = Ramp::flat(level as f64 / 60.0);
            Arrivals::Open { rate, pattern: self.pattern, most: self.most }
        } else {
            Arrivals::Closed(Ramp::flat(level as f64))
        }
    }

    /// None when it was stopped.
    async fn cell(
        &self,
        stretch: &Stretch,
        level: usize,
        fresh: bool,
        collector: &Collector,
        stop: &CancellationToken,
        mut told: impl FnMut(Phase, Duration),
    ) -> Option<Cell> {
        let mut course = self.plan.course;
        // An empty cache is filled before anything is measured.
        course.warm_up += if fresh { self.plan.fill } else { Duration::ZERO };
        let check = SelfCheck::start(self.plan.lag_limit);
        let (mut seen, mut measuring, mut watch) = (Vec::new(), false, None);
        course
            .run(collector, &mut seen, |phase| {
                if let Phase::Measuring { .. } = phase
                    && !measuring
                {
                    measuring = true;
                    check.reset();
                    watch = self.admin.as_ref().and_then(|admin| Watch::start(admin).ok());
                }
                let after = if let Phase::WarmingUp { .. } = phase { course.window } else { Duration::ZERO };
                told(phase, phase.left() + after);
                !stop.is_cancelled()
            })
            .await;
        if stop.is_cancelled() {
            return None;
        }
        let report = collector.report();
        let generator = check.report(report.all.send_lag_s.p99);
        let (whole, by_turn) = collector.level();
        let goodput_pct = Some(report.all.goodput_share * 100.0);
        let by_cache = Switch::places_by_cache(&stretch.mode);
        let watched = watch.map(|watch| watch.figures(by_cache)).unwrap_or_default();
        let figures = averaged(&seen, LevelFigures { goodput_pct, ..whole }).or(watched);
        let (passed_over, late) = (report.conversations.passed_over, report.unfinished.late);
        let saturated = self.plan.saturation.of(&figures, &self.objective, passed_over, late);
        let answered = report.all.requests - report.all.errors.values().sum::<u64>();
        let mut details = serde_json::to_value(&report).unwrap_or_default();
        details["generator"] = serde_json::to_value(&generator).unwrap_or_default();
        Some(Cell {
            mode: stretch.mode.clone(),
            level,
            repeat: stretch.repeat,
            figures: (report.all.requests > 0).then_some(figures),
            by_turn,
            invalid: if answered == 0 { Some(nothing(&report.complaints)) } else { generator.invalid },
            saturated,
            details,
        })
    }

    /// What the file has, when it is of the same sweep.
    fn resume(&self) -> anyhow::Result<Results> {
        if !self.file.exists() {
            let set = Set {
                name: "sweep".to_owned(),
                about: self.about.clone(),
                levels_are: self.plan.levels_are().to_owned(),
                conditions: self.conditions.clone(),
                cells: Vec::new(),
            };
            return Ok(Results::new(Source::Measured, self.objective, vec![set]));
        }
        let results = Results::read(self.file)?;
        let [set] = &results.sets[..] else {
            anyhow::bail!("{}: expected the one workload of a sweep", self.file.display())
        };
        if let Some(path) = first_difference(&set.conditions, &self.conditions, "") {
            anyhow::bail!(
                "{} is of another sweep: `{path}` differs, expected the same settings to go on with it, or another --out",
                self.file.display()
            );
        }
        ensure!(results.objective == self.objective, "{}: the objective differs", self.file.display());
        // What is worth nothing, and what was not run because of it, is run again.
        let counts = |cell: &Cell| cell.figures.is_some() && cell.invalid.is_none();
        let mut results = results.clone();
        results.sets[0].cells.retain(counts);
        Ok(results)
    }
}

/// Counts are of the whole window, latencies the mean of its snapshots, or of the window where those saw nothing.
fn averaged(seen: &[LevelFigures], whole: LevelFigures) -> LevelFigures {
    let looks = LevelFigures::mean(&seen.iter().collect::<Vec<_>>());
    LevelFigures {
        tops: whole.tops,
        rps: whole.rps,
        hit_pct: whole.hit_pct,
        goodput_pct: whole.goodput_pct,
        error_pct: whole.error_pct,
        requests: whole.requests,
        ..looks
    }
    .or(whole)
}

fn nothing(complaints: &std::collections::BTreeMap<String, u64>) -> String {
    let worst = complaints.iter().max_by_key(|(_, count)| **count);
    worst.map_or_else(
        || "nothing came back within the window".to_owned(),
        |(complaint, _)| format!("nothing came back: {complaint}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn latencies_are_of_snapshots_and_counts_of_the_window() {
        let look =
            |ms: f64| LevelFigures { ttft_p95_ms: Some(ms), tops: Some(1.0), ..LevelFigures::default() };
        let whole = LevelFigures {
            ttft_p95_ms: Some(900.0),
            tops: Some(7.0),
            e2e_p50_s: Some(3.0),
            ..LevelFigures::default()
        };
        let figures = averaged(&[look(100.0), look(300.0)], whole);
        assert_eq!(
            (figures.ttft_p95_ms, figures.tops, figures.e2e_p50_s),
            (Some(200.0), Some(7.0), Some(3.0))
        );
        assert_eq!(averaged(&[], whole), whole);
    }
}
