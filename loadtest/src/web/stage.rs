//! A load that can be started, stopped and changed from outside.
//!
//! Every start counts from zero: it has a collector of its own, and another seed than the one before.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::process::since_1970;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::problem::Problem;
use crate::arrivals::{Arrivals, Ramp};
use crate::live::{Book, Collector, Level, Live, Load, Running, Shown};
use crate::measure::Objective;

/// Makes a load of a seed.
pub type MakeLoad = Box<dyn Fn(u64, Arc<Collector>) -> anyhow::Result<Load> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    Stopped,
    Starting,
    Running,
    Stopping,
}

impl Run {
    fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
        }
    }
}

/// What is played.
#[allow(missing_debug_implementations, reason = "it holds a function")]
pub struct Play {
    pub make: MakeLoad,
    pub objective: Objective,
    pub seed: u64,
    /// Conversations at a time, to begin with and at the most.
    pub concurrency: usize,
    pub most: usize,
    /// In a line, what it is aimed at.
    pub target: String,
    /// Everything it takes to do it again.
    pub conditions: Value,
}

/// Where a stage stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub run: Run,
    /// When it was started, in seconds since 1970.
    pub since: Option<f64>,
    pub concurrency: usize,
    /// Why it did not start.
    pub error: Option<String>,
}

pub struct Stage {
    play: Play,
    shown: Arc<Shown>,
    book: Arc<Book>,
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    scene: Scene,
    starts: u64,
    running: Option<Running>,
}

/// Until answers that were asked for are given up.
const PATIENCE: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Stage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Stage").field("scene", &self.scene()).finish_non_exhaustive()
    }
}

impl Stage {
    pub fn new(play: Play, shown: Arc<Shown>, book: Arc<Book>) -> Arc<Self> {
        let scene = Scene { run: Run::Stopped, since: None, concurrency: play.concurrency, error: None };
        let inner = Mutex::new(Inner { scene, starts: 0, running: None });
        Arc::new(Self { play, shown, book, inner, changed: Notify::new() })
    }

    pub(super) fn play(&self) -> &Play {
        &self.play
    }

    pub fn scene(&self) -> Scene {
        self.inner.lock().scene.clone()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.inner.lock().scene.run == Run::Stopped
    }

    /// Until something about it changes.
    pub(super) async fn changes(&self) {
        self.changed.notified().await;
    }

    fn set_scene(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.inner.lock());
        self.changed.notify_one();
    }

    /// Goes through the states one may go through, or says why not.
    fn turn(&self, from: Run, to: Run) -> Result<(), Problem> {
        let mut inner = self.inner.lock();
        let run = inner.scene.run;
        if run != from {
            return Err(Problem::not_now(format!("the load is {}, expected it {}", run.name(), from.name())));
        }
        inner.scene = Scene { run: to, error: None, ..inner.scene.clone() };
        drop(inner);
        self.changed.notify_one();
        Ok(())
    }

    /// Starts it; back when it runs. Whoever asked may leave meanwhile.
    pub(super) async fn start(self: &Arc<Self>, concurrency: Option<usize>) -> Result<(), Problem> {
        if let Some(count) = concurrency {
            self.checked(Level::Concurrency(count))?;
        }
        self.turn(Run::Stopped, Run::Starting)?;
        if let Some(count) = concurrency {
            self.set_scene(|inner| inner.scene.concurrency = count);
        }
        let stage = self.clone();
        let begun = tokio::spawn(async move { stage.begin().await }).await;
        let begun = begun.unwrap_or_else(|panic| Err(panic.into()));
        begun.map_err(|error| {
            self.set_scene(|inner| {
                inner.scene.run = Run::Stopped;
                inner.scene.error = Some(format!("{error:#}"));
            });
            Problem::broken(&error)
        })
    }

    async fn begin(self: &Arc<Self>) -> anyhow::Result<()> {
        let starts = self.inner.lock().starts;
        self.book.forget_openings();
        let book = Some(self.book.clone());
        let collector = Collector::keeping(self.play.objective, Duration::ZERO, None, book);
        let (stage, of) = (self.clone(), collector.clone());
        // Documents are made up for it, which takes a moment.
        let made = tokio::task::spawn_blocking(move || (stage.play.make)(stage.play.seed + starts, of)).await;
        let load = made??;
        self.set_scene(|inner| {
            let running = load.start(Arrivals::Closed(Ramp::flat(inner.scene.concurrency as f64)));
            let (control, target) = (running.control(), self.play.target.clone());
            self.shown.show(Arc::new(Live { collector, control, target }));
            inner.starts += 1;
            inner.running = Some(running);
            inner.scene.run = Run::Running;
            inner.scene.since = Some(since_1970().as_secs_f64());
        });
        Ok(())
    }

    /// Stops it; its last answers are waited for in the background.
    pub(super) fn stop(self: &Arc<Self>) -> Result<(), Problem> {
        self.turn(Run::Running, Run::Stopping)?;
        let running = self.inner.lock().running.take();
        let stage = self.clone();
        tokio::spawn(async move {
            if let Some(running) = running {
                running.stop(PATIENCE).await;
            }
            stage.set_scene(|inner| {
                inner.scene.run = Run::Stopped;
                inner.scene.since = None;
            });
        });
        Ok(())
    }

    /// As much load as that from now on, or from the next start on.
    pub(super) fn set(&self, level: Level) -> Result<(), Problem> {
        let concurrency = self.checked(level)?;
        let mut inner = self.inner.lock();
        if let Some(running) = &inner.running {
            running.set(level).map_err(|error| Problem::wrong(&error))?;
        }
        inner.scene.concurrency = concurrency;
        drop(inner);
        self.changed.notify_one();
        Ok(())
    }

    /// A stage keeps a number of conversations going.
    fn checked(&self, level: Level) -> Result<usize, Problem> {
        level.validate().map_err(|error| Problem::wrong(&error))?;
        match level {
            Level::Concurrency(count) if count <= self.play.most => Ok(count),
            Level::Concurrency(count) => {
                Err(Problem::wrong(format!("concurrency is {count}, expected at most {}", self.play.most)))
            }
            Level::Rate(_) => Err(Problem::wrong("rate is not for this load, expected a concurrency")),
        }
    }
}
