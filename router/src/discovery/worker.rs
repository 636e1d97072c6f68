//! One worker as the router knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use kvlane_engine_adapters::engine_facts::{Engine, ServedModel, instance_of};
use kvlane_indexer::WorkerId;
use parking_lot::Mutex;
use serde::Serialize;

use super::belief::Belief;
use crate::config::WorkerSpec;
use crate::index_feed::Feeds;
use crate::metrics::{Metrics, WorkerMetrics};
use crate::proxy::Connections;
use crate::proxy::breaker::Breaker;
use crate::scheduling::{Barred, Load, Peers, SlotSense, Slots, Standing, Strangers};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It has not shown yet that it serves.
    Joining,
    Ready,
    /// It finishes what it has and gets nothing new.
    Draining,
    /// It does not answer.
    Down,
}

impl WorkerState {
    pub const ALL: [Self; 4] = [Self::Joining, Self::Ready, Self::Draining, Self::Down];

    pub fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// What is known of a worker that has answered.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub engine: Engine,
    /// What requests may ask it for, the base model first.
    pub models: Vec<ServedModel>,
    pub max_model_len: Option<usize>,
    pub block_size: Option<u32>,
    pub kv_blocks: Option<u64>,
    /// Data-parallel ranks; one of them is addressed when there are several.
    pub ranks: Vec<u32>,
}

/// What a placement has to know besides the workers.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Requests that may wait at a full worker, as a share of its slots.
    pub overflow: f64,
    /// What other routers have placed.
    pub peers: Arc<Peers>,
}

/// What the engine itself says of its load, the last time it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineLoad {
    pub running: Option<u64>,
    pub waiting: Option<u64>,
    pub kv_usage: Option<f64>,
}

/// What is inferred from the engine's counts.
#[derive(Debug, Default)]
struct Seen {
    slots: SlotSense,
    strangers: Strangers,
}

/// Written by its watcher; read by everybody.
#[derive(Debug)]
pub struct Worker {
    pub instance: u64,
    /// What people call it.
    pub name: String,
    pub url: String,
    pub spec: WorkerSpec,
    /// As requests address it.
    pub host: HeaderValue,
    scheme: Scheme,
    authority: Authority,
    prefix: String,
    state: AtomicU8,
    /// Somebody asked it to be drained.
    draining: AtomicBool,
    about: ArcSwap<About>,
    load: Mutex<EngineLoad>,
    /// Slots to go by, all ranks together, and what they are inferred from; 0 for unknown.
    slots: AtomicUsize,
    /// Requests of its engine that no router placed there.
    strangers: AtomicUsize,
    seen: Mutex<Seen>,
    /// How far the index is believed about it.
    pub belief: Belief,
    pub breaker: Breaker,
    pub connections: Connections,
    pub metrics: Arc<WorkerMetrics>,
    /// Its events' way into the index, once it has joined.
    pub feeds: Mutex<Option<Feeds>>,
    /// The base model it serves.
    group: Mutex<Option<Arc<str>>>,
    /// No source names it any more.
    gone: AtomicBool,
    /// Set when it was said that it does not report cached tokens, and when it did report some.
    unreported: AtomicBool,
    reports_cached: AtomicBool,
    /// Set when it was said that it is not used for something it serves.
    passed_over: AtomicBool,
}

impl Worker {
    /// None when its URL is none.
    pub fn new(
        spec: WorkerSpec,
        instance: Option<u64>,
        breaker: Breaker,
        connections: Connections,
        metrics: &Metrics,
    ) -> Option<Self> {
        let uri: Uri = spec.url.parse().ok()?;
        let authority = uri.authority()?.clone();
        // Without a user and a password that may be before it.
        let host = match authority.port() {
            Some(port) => format!("{}:{port}", authority.host()),
            None => authority.host().to_owned(),
        };
        let name = spec.name.clone().unwrap_or_else(|| authority.to_string());
        Some(Self {
            instance: instance.unwrap_or_else(|| instance_of(&spec.url)),
            metrics: metrics.worker(&name),
            name,
            host: HeaderValue::from_str(&host).ok()?,
            connections,
            url: spec.url.clone(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            scheme: uri.scheme()?.clone(),
            authority,
            state: AtomicU8::new(WorkerState::Joining as u8),
            draining: AtomicBool::new(false),
            about: ArcSwap::from_pointee(About { ranks: vec![0], ..About::default() }),
            load: Mutex::default(),
            slots: AtomicUsize::new(spec.slots.map_or(0, |slots| slots as usize)),
            strangers: AtomicUsize::new(0),
            seen: Mutex::default(),
            belief: Belief::default(),
            breaker,
            feeds: Mutex::default(),
            group: Mutex::default(),
            gone: AtomicBool::new(false),
            unreported: AtomicBool::new(false),
            reports_cached: AtomicBool::new(false),
            passed_over: AtomicBool::new(false),
            spec,
        })
    }

    /// Where `path` is on this worker.
    pub fn uri(&self, path: &'static str) -> Option<Uri> {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(self.path(path)?).build().ok()
    }

    /// Host and port as its URL has them.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The same without its host.
    pub fn path(&self, path: &'static str) -> Option<PathAndQuery> {
        if self.prefix.is_empty() {
            return Some(PathAndQuery::from_static(path));
        }
        format!("{}{path}", self.prefix).parse().ok()
    }

    pub fn state(&self) -> WorkerState {
        let state = WorkerState::ALL[usize::from(self.state.load(Ordering::Relaxed))];
        if state == WorkerState::Ready && self.draining.load(Ordering::Relaxed) {
            WorkerState::Draining
        } else {
            state
        }
    }

    /// Says whether that is something new.
    pub fn set_state(&self, state: WorkerState) -> bool {
        self.state.swap(state as u8, Ordering::Relaxed) != state as u8
    }

    pub fn group(&self) -> Option<Arc<str>> {
        self.group.lock().clone()
    }

    pub fn set_group(&self, name: &str) {
        *self.group.lock() = Some(name.into());
    }

    /// No source names it any more. Whoever still has it in hand finishes, and counts nothing under its name.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.connections.close();
        self.set_state(WorkerState::Down);
    }

    pub fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// True once: somebody should be told that this worker is not used for something it serves.
    pub fn first_passed_over(&self) -> bool {
        !self.passed_over.swap(true, Ordering::Relaxed)
    }

    pub fn drain(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    pub fn about(&self) -> Arc<About> {
        self.about.load_full()
    }

    pub fn set_about(&self, about: About) {
        self.about.store(Arc::new(about));
    }

    pub fn engine_load(&self) -> EngineLoad {
        *self.load.lock()
    }

    /// The engine's counts were read, `known` of its requests having been placed by routers.
    pub fn set_engine_load(&self, load: EngineLoad, known: usize, now: Duration) {
        *self.load.lock() = load;
        let mut seen = self.seen.lock();
        match (load.running, load.waiting) {
            (Some(running), Some(waiting)) => {
                let (running, waiting) = (running as usize, waiting as usize);
                seen.slots.observe(running, waiting, now);
                seen.strangers.observe(running.saturating_add(waiting), known);
            }
            _ => seen.strangers.forget(),
        }
        self.show(&seen, now);
    }

    /// It is another process than before, or will be when it is back.
    pub fn restarted(&self, now: Duration) {
        let mut seen = self.seen.lock();
        *seen = Seen::default();
        self.show(&seen, now);
        self.reports_cached.store(false, Ordering::Relaxed);
        self.belief.forget();
    }

    fn show(&self, seen: &Seen, now: Duration) {
        let said = self.spec.slots.map(|slots| slots as usize);
        self.slots.store(seen.slots.slots(said, now).unwrap_or(0), Ordering::Relaxed);
        self.strangers.store(seen.strangers.requests(), Ordering::Relaxed);
    }

    /// Requests it runs at a time, as far as that was said or seen.
    pub fn slots(&self) -> Option<usize> {
        Some(self.slots.load(Ordering::Relaxed)).filter(|slots| *slots > 0)
    }

    /// Requests its engine has that no router placed there.
    pub fn strangers(&self) -> usize {
        self.strangers.load(Ordering::Relaxed)
    }

    /// Whether it may be chosen.
    pub fn barred(&self) -> Option<Barred> {
        match self.state() {
            WorkerState::Joining => Some(Barred::Joining),
            WorkerState::Draining => Some(Barred::Draining),
            WorkerState::Down => Some(Barred::Down),
            WorkerState::Ready => (!self.breaker.admits()).then_some(Barred::Breaker),
        }
    }

    /// One for each of its ranks.
    pub fn standings(&self, sight: &Sight) -> impl Iterator<Item = Standing> + use<'_> {
        let (instance, barred, about) = (self.instance, self.barred(), self.about());
        let ranks = about.ranks.len().max(1);
        // Slots are the engine's; its ranks share them evenly, and so they do what others have there.
        let said = self.spec.slots.map_or(0, |slots| slots as usize);
        let slots = self.slots().map(|slots| {
            // Who runs fewer than it could for a while takes as many as ever.
            let most = slots.max(said).div_ceil(ranks) as f64 * (1.0 + sight.overflow);
            let run = slots.div_ceil(ranks);
            Slots { run, wait: (most.ceil() as usize).saturating_sub(run) }
        });
        let strangers = self.strangers().div_ceil(ranks);
        let (trust, peers) = (self.belief.trust(), sight.peers.clone());
        (0..about.ranks.len()).map(move |n| {
            let worker = WorkerId::new(instance, about.ranks[n]);
            let told = peers.load(worker);
            let others = Load { requests: told.requests.saturating_add(strangers), ..told };
            Standing { barred, slots, others, trust, ..Standing::of(worker) }
        })
    }

    /// True once: somebody should be told that this worker does not report cached tokens.
    pub fn first_unreported(&self) -> bool {
        !self.unreported.swap(true, Ordering::Relaxed)
    }

    /// Cached tokens an answer tells of. Some engines leave a zero out, so from one that has told of some before, nothing
    /// is none.
    pub fn cached_tokens(&self, reported: Option<u64>) -> Option<u64> {
        if reported.is_some() {
            self.reports_cached.store(true, Ordering::Relaxed);
        }
        reported.or_else(|| self.reports_cached.load(Ordering::Relaxed).then_some(0))
    }
}
