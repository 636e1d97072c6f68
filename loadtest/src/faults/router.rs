//! The router: real index, scheduler, waiting room, workers, breakers and feeds; how it looks after its workers and
//! places a request is as `discovery/watch.rs` and `http/completions.rs` have it.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::dynamo::{Scope, Subjects};
use kvlane_engine_adapters::feed::{CopyRule, FeedClock, FeedHealth, IndexTarget, Sink};
use kvlane_engine_adapters::nats::{Ask, Listener, NatsFeedConfig, Parts};
use kvlane_engine_adapters::vllm::track::Track;
use kvlane_indexer::{Index, IndexConfig, Overlap, Tick};
use kvlane_router::config::WorkerSpec;
use kvlane_router::discovery::{EngineLoad, Group, Served, Sight, Worker, WorkerState};
use kvlane_router::preprocess::Words;
use kvlane_router::proxy::Connections;
use kvlane_router::proxy::breaker::Breaker;
use kvlane_router::scheduling::{Demand, Peers, Scheduler, Standing};
use tokio::time::Instant;

use super::bridge::block_size;
use super::host::Condition;
use super::link::{Ear, Link};
use super::script::{BLOCK_TOKENS, MODELS, Plane};
use super::tally::End;
use super::world::{Happening, World, worker_id};

/// How a worker is looked after.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// The process it was when it last joined.
    known: Option<u64>,
    looks: u32,
    failures: u32,
    pub(super) fed: bool,
    /// Its bridge is to be asked anew, as soon as the listener cleans up.
    pub(super) resyncing: bool,
}

#[derive(Debug)]
pub(super) struct Router {
    pub(super) epoch: u64,
    pub(super) index: Arc<Index>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) clock: FeedClock,
    pub(super) group: Arc<Group>,
    /// By model.
    pub(super) served: Vec<Arc<Served>>,
    pub(super) workers: Vec<Arc<Worker>>,
    pub(super) watches: Vec<Watch>,
    pub(super) links: Vec<Option<Link>>,
    pub(super) listener: Listener,
    pub(super) asks: Vec<(Ask, Parts)>,
    pub(super) sight: Sight,
    pub(super) tick_offset: i64,
    started: Instant,
}

const ASK_AGAIN: u32 = 10;
const CLEAN_UP_MS: f64 = 1_000.0;
/// More than a scenario has sessions.
const SESSIONS: usize = 1 << 12;

impl Router {
    /// The tick as the index is given it, jumps and all.
    pub(super) fn tick(&self) -> Tick {
        Tick((i64::from(self.clock.tick().0) + self.tick_offset).max(0) as u32)
    }

    pub(super) fn overlap(&self, demand: &Demand) -> Overlap {
        self.index.overlap(&demand.blocks, self.tick())
    }

    pub(super) fn standings(&self, model: usize) -> Vec<Standing> {
        self.served[model].standings(&self.sight, &self.scheduler.policy(), &self.index)
    }

    pub(super) fn now(&self) -> Duration {
        self.scheduler.time(Instant::now())
    }

    fn age(&self) -> Duration {
        self.started.elapsed()
    }
}

impl World {
    pub(super) fn router_starts(&mut self) {
        self.epochs += 1;
        let (epoch, script, rules) = (self.epochs, self.script.clone(), self.script.rules);
        // What is given up for want of bytes depends on a secret of the process, so there is no want of them here.
        let mut config = IndexConfig { shards: 4, ..IndexConfig::default() };
        config.predicted.life = rules.predicted_ttl_s;
        config.predicted.resolution = (rules.predicted_ttl_s / 2).max(1);
        let index = Arc::new(Index::new(config));
        let clock = FeedClock::starting(self.wall());
        let worker = |(n, plan): (usize, &super::script::WorkerPlan)| {
            let url = format!("http://127.0.0.1:{}", 20_000 + n);
            let spec = WorkerSpec { name: Some(format!("w{n}")), slots: plan.said, ..WorkerSpec::at(url) };
            let connections = Connections::new(1, Duration::from_secs(1));
            let breaker = Breaker::new(rules.breaker);
            Worker::new(spec, Some(worker_id(n).instance), breaker, connections, &self.metrics).map(Arc::new)
        };
        let workers: Vec<Arc<Worker>> = script.workers.iter().enumerate().filter_map(worker).collect();
        let group = Arc::new(Group::new(MODELS[0].to_owned(), Words::Engine, block_size(), rules.waiting));
        let serves = |model: usize| {
            let has = |(n, _): &(usize, &Arc<Worker>)| model == 0 || script.workers[*n].adapter;
            Arc::new(Served {
                name: MODELS[model].to_owned(),
                group: group.clone(),
                lora_name: (model == 1).then(|| MODELS[1].to_owned()),
                root: None,
                max_len: None,
                workers: workers.iter().enumerate().filter(has).map(|(_, worker)| worker.clone()).collect(),
                metrics: self.metrics.model(MODELS[model]),
            })
        };
        let scope = Scope { namespace: "n".to_owned(), component: "c".to_owned(), endpoint: "e".to_owned() };
        let feed =
            NatsFeedConfig { max_waiting: 8, ..NatsFeedConfig::new(Subjects::new(&scope), block_size()) };
        self.router = Some(Router {
            epoch,
            served: (0..MODELS.len()).map(serves).collect(),
            watches: vec![Watch::default(); workers.len()],
            links: workers.iter().map(|_| None).collect(),
            listener: Listener::new(feed, index.clone(), clock),
            scheduler: Scheduler::new(rules.policy, SESSIONS, 0.0),
            asks: Vec::new(),
            sight: Sight { overflow: rules.overflow, peers: Arc::new(Peers::new(1, 1)) },
            tick_offset: 0,
            started: Instant::now(),
            workers,
            group,
            index,
            clock,
        });
        self.note(format_args!("router starts"));
        for worker in 0..script.workers.len() {
            self.plan(worker as f64, Happening::Probes { epoch, worker });
        }
        self.plan(CLEAN_UP_MS, Happening::CleansUp { epoch });
        self.plan(2.0, Happening::RollCall);
    }

    /// It is gone with all it had. Whoever it had is told by the connection.
    pub(super) fn router_dies(&mut self, down_ms: f64) -> bool {
        if self.router.take().is_none() {
            return false;
        }
        for n in 0..self.clients.len() {
            if self.clients[n].is_on_its_way() {
                self.ends(n, End::RouterGone);
                self.kill.push(n);
            }
        }
        self.plan(down_ms, Happening::RouterStarts);
        true
    }

    pub(super) fn cleans_up(&mut self, epoch: u64) {
        let connected = self.cuts[self.hosts.len()].is_none();
        let Some(router) = self.router.as_mut().filter(|router| router.epoch == epoch) else { return };
        router.listener.clean_up(connected);
        if connected {
            router.watches.iter_mut().for_each(|watch| watch.resyncing = false);
        }
        self.asks_bridges();
        self.plan(CLEAN_UP_MS, Happening::CleansUp { epoch });
    }

    /// One look at a worker.
    pub(super) fn probes(&mut self, epoch: u64, n: usize) {
        let Some(router) = self.router.as_mut().filter(|router| router.epoch == epoch) else { return };
        let worker = router.workers[n].clone();
        if worker.belief.takes_resync() {
            self.resyncs(n);
        }
        let up = self.hosts[n].condition == Condition::Up;
        let process = self.hosts[n].process;
        let Some(router) = &mut self.router else { return };
        let watch = &mut router.watches[n];
        let asks = watch.known != Some(process) || !watch.fed || watch.looks.is_multiple_of(ASK_AGAIN);
        watch.looks = watch.looks.wrapping_add(1);
        if up {
            watch.failures = 0;
            self.looks(n, asks);
        } else {
            self.look_failed(n);
        }
        // One that does not answer is waited for.
        let pause = self.script.rules.probe_ms + if up { 0.0 } else { 200.0 };
        self.plan(pause, Happening::Probes { epoch, worker: n });
    }

    fn looks(&mut self, n: usize, asks: bool) {
        let host = &self.hosts[n];
        let load = EngineLoad {
            running: Some(host.engine.running_count() as u64),
            waiting: Some(host.engine.waiting_count() as u64),
            kv_usage: None,
        };
        let process = host.process;
        let Some(router) = &mut self.router else { return };
        let worker = router.workers[n].clone();
        let known = router.scheduler.load(worker_id(n)).requests;
        worker.set_engine_load(load, known, router.age());
        if !asks {
            return;
        }
        let before = router.watches[n].known.replace(process);
        let restarted = before.is_some_and(|before| before != process);
        if restarted {
            worker.restarted(router.age());
        }
        if restarted {
            self.engine_restarted(Ear::Router, n);
        }
        self.feeds(n);
        if worker.set_state(WorkerState::Ready) {
            self.note(format_args!("w{n} is ready"));
        }
        self.router.iter().for_each(|router| router.group.room.call_next());
    }

    fn look_failed(&mut self, n: usize) {
        let down_after = self.script.rules.down_after;
        let Some(router) = &mut self.router else { return };
        let (worker, age) = (router.workers[n].clone(), router.age());
        let watch = &mut router.watches[n];
        watch.failures += 1;
        if watch.known.is_some() && watch.failures >= down_after && worker.set_state(WorkerState::Down) {
            watch.known = None;
            worker.restarted(age);
            self.unfeeds(n);
            self.note(format_args!("w{n} is down"));
        }
    }

    /// Starts a worker's feed, unless there is one.
    fn feeds(&mut self, n: usize) {
        let plane = self.script.workers[n].plane;
        let Some(router) = &mut self.router else { return };
        if std::mem::replace(&mut router.watches[n].fed, true) {
            return;
        }
        router.listener.view().leave_alone(worker_id(n).instance, !matches!(plane, Plane::Bridged { .. }));
        // There is room for as many as a scenario has.
        let _ = router.index.register(worker_id(n));
        if matches!(plane, Plane::Straight { .. }) {
            let target = Box::new(IndexTarget::new(router.index.clone(), worker_id(n)));
            let health = Arc::new(FeedHealth::new(worker_id(n)));
            let sink = Sink::new(target, block_size(), CopyRule::Counted, router.clock, health);
            router.links[n] = Some(Link::new(Track::new(sink)));
            self.connects_after(Ear::Router, n, 1.0);
        }
    }

    fn unfeeds(&mut self, n: usize) {
        let bridged = matches!(self.script.workers[n].plane, Plane::Bridged { .. });
        let Some(router) = &mut self.router else { return };
        router.watches[n].fed = false;
        router.links[n] = None;
        if !bridged {
            router.index.forget(worker_id(n));
        }
    }

    fn resyncs(&mut self, n: usize) {
        self.tally.see("resyncs");
        self.note(format_args!("what is known of w{n} is learnt again"));
        let bridged = matches!(self.script.workers[n].plane, Plane::Bridged { .. });
        let Some(router) = &mut self.router else { return };
        if bridged && router.watches[n].fed {
            router.listener.view().resync(worker_id(n).instance);
            router.watches[n].resyncing = true;
            router.index.forget(worker_id(n));
        } else {
            self.unfeeds(n);
        }
    }

    /// What a request asks for.
    pub(super) fn demand(&self, n: usize) -> Option<Demand> {
        let (ask, router) = (&self.script.asks[n], self.router.as_ref()?);
        let loses_calls = self.mutant == Some(super::Mutant::LosesCalls);
        Some(Demand {
            blocks: ask.prompt.clone(),
            prompt_tokens: ask.prompt_tokens,
            block_tokens: BLOCK_TOKENS,
            session: ask.session,
            room: (!loses_calls).then(|| router.group.room.clone()),
            streamed: true,
            arrived: router.now(),
        })
    }
}
