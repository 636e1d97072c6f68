//! The task that owns the engine: steps it when its clock says so and hands out what came of it.
//!
//! A request's answer is known when it is submitted; what the driver adds is *when*. It reports how many tokens
//! are out through a watch, so a slow reader sees several at once and nothing piles up. A reader that is gone is
//! noticed before the next step, and its request leaves the engine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashMap;
use kvlane_indexer::{BlockHasher, BlockSize, Namespace, TokenId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, LogNormal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::clock::Clock;
use super::events::{Announced, Events};
use super::faults::{Faults, Switches};
use super::metrics::{Dashboard, Metrics};
use crate::sim::{Calibration, Finished, Request, RequestId, SimEngine, SimTime, StepOutput, SubmitError};

/// A request with its answer.
#[derive(Debug)]
pub(super) struct Job {
    /// Prompt and answer.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) prompt_tokens: usize,
    pub(super) lora_name: Option<String>,
    pub(super) cache_salt: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) priority: i32,
    /// How the answer will end, for the metrics.
    pub(super) reason: &'static str,
}

/// How far an answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) generated: usize,
    /// Set at the end: prompt tokens that were cached.
    pub(super) cached_tokens: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Command {
    Submit(Job, oneshot::Sender<Result<watch::Receiver<Progress>, SubmitError>>),
    /// Empties the cache of what no request uses.
    Reset(oneshot::Sender<()>),
    /// As if the process had been killed and started again.
    Restart(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Active {
    announced: Announced,
    progress: watch::Sender<Progress>,
    reason: &'static str,
    submitted: SimTime,
    last_token: Option<SimTime>,
    /// What the ways to the engine and back add, drawn once and all of it charged to the way back.
    delay_ms: f64,
}

/// Tokens on their way to a reader.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Delivery {
    at: SimTime,
    order: u64,
    request: RequestId,
    count: usize,
    cached_tokens: Option<usize>,
}

/// How far behind its clock an engine may be and still catch up step by step.
const MAX_CATCH_UP: SimTime = SimTime(1_000_000_000);

pub(super) struct Driver {
    calibration: Calibration,
    block_size: BlockSize,
    seed: u64,
    speed: f64,
    /// Wall time at the start, in seconds since 1970, and the start.
    started: (f64, Instant),
    engine: SimEngine,
    clock: Clock,
    events: Events,
    dashboard: Arc<Dashboard>,
    metrics: Arc<Metrics>,
    switches: Arc<Switches>,
    switches_seen: u64,
    faults: Faults,
    active: HashMap<RequestId, Active>,
    deliveries: BinaryHeap<Reverse<Delivery>>,
    output: StepOutput,
    /// When the engine wants to be stepped.
    next: Option<SimTime>,
    requests: u64,
    /// Deliveries so far: those due at one moment go out in this order.
    handed: u64,
    /// How much of the time a step ran, lately.
    busy: BusyShare,
    random: StdRng,
}

/// What a driver is made of.
pub(super) struct DriverParts {
    pub(super) calibration: Calibration,
    pub(super) block_size: BlockSize,
    pub(super) seed: u64,
    pub(super) speed: f64,
    pub(super) started_s: f64,
    pub(super) events: Events,
    pub(super) dashboard: Arc<Dashboard>,
    pub(super) switches: Arc<Switches>,
}

impl Driver {
    pub(super) fn new(parts: DriverParts) -> Self {
        let DriverParts { calibration, block_size, seed, speed, started_s, events, dashboard, switches } =
            parts;
        Self {
            engine: SimEngine::new(calibration.clone(), seed),
            calibration,
            block_size,
            seed,
            speed,
            started: (started_s, Instant::now()),
            clock: Clock::new(speed),
            events,
            metrics: dashboard.current(),
            dashboard,
            switches,
            switches_seen: 0,
            faults: Faults::default(),
            active: HashMap::new(),
            deliveries: BinaryHeap::new(),
            output: StepOutput::default(),
            next: None,
            requests: 0,
            handed: 0,
            busy: BusyShare::default(),
            random: StdRng::seed_from_u64(seed ^ 0x00de_1a75),
        }
    }

    /// Runs until everyone who could command it is gone.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut wakes = self.switches.watch();
        loop {
            if self.switches.changed_since(&mut self.switches_seen) {
                self.faults = self.switches.get();
                self.clock.set_rate(self.speed / self.faults.slow);
            }
            let now = self.clock.now();
            if self.faults.hang {
                self.abandon();
            } else {
                self.deliver(now);
                if let Some(next) = self.next.filter(|next| *next <= now) {
                    // Steps begin when the last one ended, not when the timer noticed; but nobody who slept
                    // for long makes up for all of it.
                    let at = next.max(SimTime(now.0.saturating_sub(MAX_CATCH_UP.0)));
                    self.step(at, now).await;
                    // An engine that takes no time must let its readers read.
                    tokio::task::yield_now().await;
                    if commands.is_empty() {
                        continue;
                    }
                }
            }
            let next = self
                .next
                .into_iter()
                .chain(self.deliveries.peek().map(|Reverse(delivery)| delivery.at))
                .min();
            let wake = next.filter(|_| !self.faults.hang).map(|at| self.clock.real(at));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                // Only a wake-up: what changed is read at the top.
                _ = wakes.changed() => {}
                () = sleep_until(wake), if wake.is_some() => {}
            }
        }
    }

    /// Seconds since 1970.
    fn wall_seconds(&self) -> f64 {
        self.started.0 + self.started.1.elapsed().as_secs_f64()
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(job, reply) => {
                // Whoever asked may have gone meanwhile; then the next step notices.
                let _ = reply.send(self.submit(job));
            }
            Command::Reset(reply) => {
                let whole = self.engine.running_count() == 0;
                self.engine.reset_cache(&mut self.output);
                self.events.reset(&self.output, whole);
                let _ = reply.send(());
            }
            Command::Restart(reply) => {
                self.restart().await;
                let _ = reply.send(());
            }
        }
    }

    fn submit(&mut self, job: Job) -> Result<watch::Receiver<Progress>, SubmitError> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let namespace =
            Namespace { lora_name: job.lora_name.as_deref(), cache_salt: job.cache_salt.as_deref() };
        let hasher = BlockHasher::new(self.block_size, namespace);
        let request = Request {
            id,
            prompt_tokens: job.prompt_tokens,
            output_tokens: job.tokens.len().saturating_sub(job.prompt_tokens),
            blocks: hasher.blocks(&job.tokens).collect(),
            priority: job.priority,
        };
        let now = self.clock.now();
        let outside = self.calibration.outside;
        let asked_ms = if outside.enabled { outside.request_ms } else { 0.0 };
        self.engine.submit(now, request)?;
        let (progress, reader) = watch::channel(Progress::default());
        let active = Active {
            announced: Announced {
                tokens: job.tokens,
                lora_name: job.lora_name,
                cache_salt: job.cache_salt,
                session_id: job.session_id,
            },
            progress,
            reason: job.reason,
            submitted: now,
            last_token: None,
            delay_ms: asked_ms + self.way_back_ms(),
        };
        self.active.insert(id, active);
        self.metrics.inflight(self.active.len());
        // It may start at once.
        self.next = Some(self.next.map_or(now, |next| next.min(now)));
        Ok(reader)
    }

    /// The delay between engine and client, where the calibration's is switched on.
    fn way_back_ms(&mut self) -> f64 {
        let outside = self.calibration.outside;
        if !outside.enabled {
            return 0.0;
        }
        let mean = outside.response_ms + outside.response_ms_per_inflight * self.active.len() as f64;
        match LogNormal::new(0.0, outside.jitter) {
            Ok(spread) => mean * spread.sample(&mut self.random),
            Err(_) => mean,
        }
    }

    /// Steps the engine at `at` and hands out what is due by `now`.
    async fn step(&mut self, at: SimTime, now: SimTime) {
        self.abandon();
        self.engine.step(at, &mut self.output);
        self.next = self.output.next;
        self.busy.note(at, self.next.is_some());
        self.metrics.busy(if self.next.is_some() { self.busy.share } else { 0.0 });
        let seconds = self.wall_seconds();
        let active = &self.active;
        let announced = |request| active.get(&request).map(|active| &active.announced);
        self.events.tell(seconds, &self.output, announced, &self.faults).await;
        let mut finished: HashMap<RequestId, Finished> =
            self.output.finished.iter().map(|finished| (finished.request, *finished)).collect();
        for tokens in std::mem::take(&mut self.output.tokens) {
            let Some(active) = self.active.get_mut(&tokens.request) else { continue };
            let since = |from: SimTime| self.clock.real_seconds(tokens.at.ms_since(from));
            match (active.last_token.replace(tokens.at), tokens.first) {
                (Some(last), None) => self.metrics.more_tokens(tokens.count, since(last)),
                (_, first) => {
                    let first = first.map(|first| (first, self.clock.real_seconds(first.queued_ms)));
                    self.metrics.first_tokens(tokens.count, since(active.submitted), first);
                }
            }
            let done = finished.remove(&tokens.request);
            if done.is_some() {
                self.metrics.finished(active.reason, since(active.submitted));
            }
            self.handed += 1;
            self.deliveries.push(Reverse(Delivery {
                at: tokens.at.after_ms(active.delay_ms),
                order: self.handed,
                request: tokens.request,
                count: tokens.count,
                cached_tokens: done.map(|done| done.cached_tokens),
            }));
        }
        self.metrics.engine(&self.engine);
        self.deliver(now);
    }

    /// Tells readers of the tokens that are out by now.
    fn deliver(&mut self, now: SimTime) {
        while let Some(Reverse(delivery)) = self.deliveries.peek()
            && delivery.at <= now
        {
            let Some(Reverse(delivery)) = self.deliveries.pop() else { return };
            let Some(active) = self.active.get(&delivery.request) else { continue };
            active.progress.send_modify(|progress| {
                progress.generated += delivery.count;
                progress.cached_tokens = delivery.cached_tokens;
            });
            if delivery.cached_tokens.is_some() {
                self.active.remove(&delivery.request);
                self.metrics.inflight(self.active.len());
            }
        }
    }

    /// Takes requests whose readers have gone out of the engine.
    fn abandon(&mut self) {
        let (engine, metrics) = (&mut self.engine, &self.metrics);
        self.active.retain(|request, active| {
            let gone = active.progress.is_closed();
            if gone {
                engine.cancel(*request);
            }
            !gone
        });
        metrics.inflight(self.active.len());
    }

    async fn restart(&mut self) {
        // Readers find their requests gone, as they would if the process had died.
        self.active.clear();
        self.deliveries.clear();
        self.next = None;
        self.seed = self.seed.wrapping_add(1);
        self.engine = SimEngine::new(self.calibration.clone(), self.seed);
        self.busy = BusyShare::default();
        self.metrics = self.dashboard.restart(self.wall_seconds());
        self.events.restart().await;
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

/// The share of time a step was running, over about the last second.
#[derive(Debug, Default)]
struct BusyShare {
    since: SimTime,
    last: SimTime,
    was_busy: bool,
    busy_ms: f64,
    share: f64,
}

impl BusyShare {
    fn note(&mut self, now: SimTime, busy: bool) {
        if self.was_busy {
            self.busy_ms += now.ms_since(self.last);
        }
        (self.last, self.was_busy) = (now, busy);
        let span = now.ms_since(self.since);
        if span >= 1000.0 {
            self.share = self.busy_ms / span;
            (self.since, self.busy_ms) = (now, 0.0);
        }
    }
}
