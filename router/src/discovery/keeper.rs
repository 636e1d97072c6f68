//! Keeps the workers that sources name: one watcher each, and the fleet that requests see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::HeaderValue;
use kvlane_engine_adapters::engine_facts::{
    Engine, EngineFacts, EngineProbe, EventEndpoint, ServedModel, instance_of,
};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::http_client::HttpClient;
use kvlane_engine_adapters::nats::NatsView;
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_indexer::{BlockSize, Index, WorkerId};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::allow::Allow;
use super::fleet::{Fleet, Group, Served};
use super::watch::look_after;
use super::worker::{About, Worker, WorkerState};
use crate::config::{EventPlane, EventSpec, WorkerSpec};
use crate::index_feed::{FeedPlan, Feeds, Reading};
use crate::metrics::Metrics;
use crate::preprocess::{ModelFinder, Words};
use crate::proxy::Connections;
use crate::proxy::breaker::{Breaker, BreakerConfig};
use crate::scheduling::{Peers, Scheduler, WaitingRules};

#[derive(Clone, Copy, Debug)]
pub struct KeeperConfig {
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub down_after: u32,
    pub max_workers: usize,
    pub breaker: BreakerConfig,
    /// Idle connections kept to each worker, and for how long.
    pub idle_connections: (usize, Duration),
    /// What the operator says of blocks; none for what engines say.
    pub block_size: Option<BlockSize>,
    pub kv_events: bool,
    pub plane: EventPlane,
    pub waiting: WaitingRules,
}

/// A worker as a source names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub spec: WorkerSpec,
    /// The number it goes by on NATS.
    pub instance: Option<u64>,
    /// It is about to leave.
    pub draining: bool,
    /// What its bridge says of its blocks.
    pub block_size: Option<u32>,
}

impl From<WorkerSpec> for Found {
    fn from(spec: WorkerSpec) -> Self {
        Self { spec, instance: None, draining: false, block_size: None }
    }
}

/// What a keeper works with.
#[derive(Debug)]
pub struct KeeperTools {
    pub index: Arc<Index>,
    pub clock: FeedClock,
    pub finder: ModelFinder,
    pub metrics: Arc<Metrics>,
    pub scheduler: Arc<Scheduler>,
    pub peers: Arc<Peers>,
    /// What engines want to be shown.
    pub authorization: Option<HeaderValue>,
    /// Where workers may be that others than the operator name.
    pub allow: Allow,
    pub tls: Arc<ClientTls>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Keeper {
    pub(super) config: KeeperConfig,
    pub(super) probe: EngineProbe,
    pub(super) index: Arc<Index>,
    clock: FeedClock,
    finder: Arc<ModelFinder>,
    metrics: Arc<Metrics>,
    scheduler: Arc<Scheduler>,
    peers: Arc<Peers>,
    tokenize: HttpClient,
    authorization: Option<HeaderValue>,
    allow: Allow,
    tls: Arc<ClientTls>,
    nats: OnceLock<NatsView>,
    fleet: ArcSwap<Fleet>,
    changed: watch::Sender<u64>,
    inner: Mutex<Inner>,
    /// The feeds had caught up once.
    warm: AtomicBool,
    started: Instant,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    sources: BTreeMap<&'static str, Vec<Found>>,
    kept: BTreeMap<u64, Kept>,
    groups: BTreeMap<String, Arc<Group>>,
    /// Workers that may not be any, by their sources: said once.
    refused: BTreeSet<(&'static str, String)>,
}

#[derive(Debug)]
struct Kept {
    found: Found,
    worker: Arc<Worker>,
    stop: CancellationToken,
}

impl Inner {
    /// The group that stands for its model from now on: the one there is if it will do, else this one.
    fn adopt(&mut self, group: &Arc<Group>, will_do: impl Fn(&Arc<Group>) -> bool) -> Arc<Group> {
        match self.groups.get(&group.name) {
            Some(known) if will_do(known) && known.words.rank() >= group.words.rank() => known.clone(),
            _ => {
                match &group.words {
                    Words::Local { .. } => {}
                    Words::Engine => tracing::warn!(
                        model = group.name,
                        "no tokenizer directory for this model: engines are asked to tokenize each prompt, which is \
                         slow; --model-path DIR would avoid that"
                    ),
                    Words::Text => tracing::warn!(
                        model = group.name,
                        "no tokenizer for this model here or at its engines: prompts are known by their text, KV \
                         events are not used, hits are guessed; --model-path DIR would do better"
                    ),
                }
                self.groups.insert(group.name.clone(), group.clone());
                group.clone()
            }
        }
    }
}

/// The source that may name any worker.
pub const OPERATOR: &str = "config";
/// Workers that were left out are remembered up to this many; more are left out in silence.
const MOST_REFUSED: usize = 4096;
/// A feed that has not caught up after this long is not waited for.
const FEED_GRACE: Duration = Duration::from_secs(10);
/// Whoever is on NATS answers a roll call at the start, and says that it is there once a second anyway.
const ROLL_CALL: Duration = Duration::from_secs(1);

impl Keeper {
    pub fn new(config: KeeperConfig, tools: KeeperTools, stop: CancellationToken) -> Arc<Self> {
        let KeeperTools { index, clock, finder, metrics, scheduler, peers, authorization, allow, tls } =
            tools;
        let client = HttpClient::new(config.probe_timeout, 1 << 16, tls.clone());
        Arc::new(Self {
            probe: EngineProbe::new(config.probe_timeout, tls.clone()).bearing(authorization.clone()),
            tokenize: client.bearing(authorization.clone()),
            authorization,
            allow,
            tls,
            config,
            index,
            clock,
            finder: Arc::new(finder),
            metrics,
            scheduler,
            peers,
            nats: OnceLock::new(),
            fleet: ArcSwap::default(),
            changed: watch::Sender::new(0),
            inner: Mutex::default(),
            warm: AtomicBool::new(false),
            started: Instant::now(),
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Events and announcements come over NATS from now on.
    pub fn use_nats(&self, view: NatsView) {
        let _ = self.nats.set(view);
    }

    pub fn nats(&self) -> Option<&NatsView> {
        self.nats.get()
    }

    /// How workers are spoken to where their URL says https.
    pub fn tls(&self) -> &Arc<ClientTls> {
        &self.tls
    }

    pub fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    /// Told whenever the fleet is another one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Those a source may name.
    fn allowed(&self, inner: &mut Inner, source: &'static str, mut found: Vec<Found>) -> Vec<Found> {
        if source == OPERATOR {
            return found;
        }
        found.retain(|found| {
            let Err(why) = self.allow.judge(&found.spec) else { return true };
            let url = &found.spec.url;
            if inner.refused.len() < MOST_REFUSED && inner.refused.insert((source, url.clone())) {
                self.metrics.worker_refused(source);
                // Not with the user and password that may be in it.
                let host = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host);
                tracing::warn!(worker = host, source, "worker is left out: {why}");
            }
            false
        });
        found
    }

    /// A source's workers are these now.
    pub fn update(self: &Arc<Self>, source: &'static str, found: Vec<Found>) {
        let mut inner = self.inner.lock();
        let found = self.allowed(&mut inner, source, found);
        if inner.sources.get(source) == Some(&found) {
            return;
        }
        inner.sources.insert(source, found);
        // Named by several sources, a worker is as the first says; all of them draining it are heard.
        let mut wanted: BTreeMap<u64, Found> = BTreeMap::new();
        for found in inner.sources.values().flatten() {
            let instance = found.instance.unwrap_or_else(|| instance_of(&found.spec.url));
            let known = wanted.entry(instance).or_insert_with(|| found.clone());
            known.draining |= found.draining;
            known.block_size = known.block_size.or(found.block_size);
        }
        let gone: Vec<u64> = inner
            .kept
            .iter()
            .filter(|(instance, kept)| {
                wanted.get(*instance).is_none_or(|found| found.spec != kept.found.spec)
            })
            .map(|(instance, _)| *instance)
            .collect();
        for instance in gone {
            if let Some(kept) = inner.kept.remove(&instance) {
                tracing::info!(worker = kept.worker.name, source, "worker left");
                kept.stop.cancel();
                // Whoever still has it in hand must not send it anything new.
                kept.worker.leave();
                self.unfeed(&kept.worker);
                self.metrics.forget_worker(&kept.worker.metrics);
                self.tls.forget(kept.worker.authority());
                if let Some(nats) = self.nats.get() {
                    nats.leave_alone(instance, false);
                }
            }
        }
        for (instance, found) in wanted {
            if let Some(kept) = inner.kept.get_mut(&instance) {
                if kept.found.draining != found.draining {
                    kept.worker.drain(found.draining);
                }
                kept.found = found;
                continue;
            }
            if inner.kept.len() >= self.config.max_workers {
                tracing::warn!(
                    url = found.spec.url,
                    max = self.config.max_workers,
                    "too many workers; left out"
                );
                continue;
            }
            let (most, kept) = self.config.idle_connections;
            let (breaker, connections) = (Breaker::new(self.config.breaker), Connections::new(most, kept));
            let worker = Worker::new(found.spec.clone(), found.instance, breaker, connections, &self.metrics);
            let Some(worker) = worker else { continue };
            tracing::info!(worker = worker.name, id = worker.instance, source, "worker found");
            worker.drain(found.draining);
            if let Some(name) = &found.spec.server_name {
                self.tls.expect(worker.authority(), name);
            }
            let (worker, stop) = (Arc::new(worker), self.stop.child_token());
            self.tasks.spawn(look_after(self.clone(), worker.clone(), stop.clone()));
            inner.kept.insert(instance, Kept { found, worker, stop });
        }
        self.rebuild(&mut inner);
    }

    /// A worker has answered: what it is, and where its events are. Errors say why it cannot be used.
    pub(super) async fn joined(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        facts: EngineFacts,
    ) -> Result<(), String> {
        let bases: Vec<&ServedModel> = facts.models.iter().filter(|model| model.parent.is_none()).collect();
        let Some(base) = bases.first().copied().or(facts.models.first()).cloned() else {
            return Err("it lists no model".to_owned());
        };
        let announced = self.inner.lock().kept.get(&worker.instance).and_then(|kept| kept.found.block_size);
        let said = facts.block_size.or(announced).and_then(BlockSize::new);
        let engine = worker.spec.engine.or(facts.engine).unwrap_or_default();
        let known = self.known_group(worker, &bases, said);
        let group = match known {
            Some(group) => group,
            None => self.make_group(worker, &base, said).await,
        };
        let ranks: Vec<u32> = facts.events.iter().map(|endpoint| endpoint.rank).collect();
        let about = About {
            engine,
            max_model_len: facts.max_model_len,
            block_size: said.map(|size| size.tokens() as u32),
            kv_blocks: facts.kv_blocks,
            ranks: if ranks.is_empty() { vec![0] } else { ranks },
            models: facts.models,
        };

        // From here on nothing waits, and nobody can send the worker away meanwhile.
        let mut inner = self.inner.lock();
        if !inner.kept.get(&worker.instance).is_some_and(|kept| Arc::ptr_eq(&kept.worker, worker)) {
            return Err("it has left".to_owned());
        }
        let group =
            inner.adopt(&group, |other| Arc::ptr_eq(other, &group) || other.block_size == group.block_size);
        let plan = self.feed_plan(worker, &about, &group, facts.events);
        let reading = Reading { instance: worker.instance, engine, block_size: group.block_size };
        worker.set_about(about);
        worker.set_group(&group.name);
        self.feed(worker, plan, reading);
        if worker.set_state(WorkerState::Ready) {
            tracing::info!(
                worker = worker.name,
                model = base.name,
                engine = engine.name(),
                "worker is ready"
            );
        }
        self.rebuild(&mut inner);
        Ok(())
    }

    /// Starts its feed, unless the one that runs will do.
    fn feed(&self, worker: &Worker, plan: FeedPlan, reading: Reading) {
        let mut feeds = worker.feeds.lock();
        if feeds.as_ref().is_some_and(|feeds| feeds.suits(&plan, reading)) {
            return;
        }
        match &plan {
            FeedPlan::Refused(why) => tracing::error!(worker = worker.name, "KV events are not used: {why}"),
            FeedPlan::None(Some(why)) => {
                tracing::warn!(worker = worker.name, "{why}: placements are remembered instead");
            }
            _ => {}
        }
        // What the old one knew goes with it, before the new one begins.
        *feeds = None;
        if let Some(nats) = self.nats.get() {
            nats.leave_alone(worker.instance, !matches!(plan, FeedPlan::Nats(_)));
        }
        for rank in &worker.about().ranks {
            // Full is full: then nothing is expected of it.
            let _ = self.index.register(WorkerId::new(worker.instance, *rank));
        }
        let (url, index) = (&worker.url, &self.index);
        let authorization = self.authorization.clone();
        *feeds = Some(Feeds::start(plan, reading, url, index, self.clock, authorization, &self.tls));
    }

    /// The group of those who serve the same base model, if the worker fits in: where all who are ready have blocks of
    /// another size, a new one is made, because the model's engines were set up anew.
    fn known_group(
        &self,
        worker: &Worker,
        bases: &[&ServedModel],
        said: Option<BlockSize>,
    ) -> Option<Arc<Group>> {
        let fleet = self.fleet();
        let served = bases
            .iter()
            .find_map(|base| fleet.models.get(&base.name).filter(|served| served.lora_name.is_none()))?;
        let group = &served.group;
        let fits = said.is_none_or(|said| said == group.block_size) || self.config.block_size.is_some();
        let others = served.ready().filter(|other| other.instance != worker.instance);
        let agreed = others.into_iter().any(|other| {
            other.about().block_size.is_some_and(|size| size as usize == group.block_size.tokens())
        });
        // Text in place of tokens is a last resort, to be left as soon as there is something better.
        let settled = !matches!(group.words, Words::Text);
        ((fits || agreed) && settled).then(|| group.clone())
    }

    /// A group for the base model, made when its first worker joins.
    async fn make_group(&self, worker: &Worker, base: &ServedModel, said: Option<BlockSize>) -> Arc<Group> {
        let (finder, model) = (self.finder.clone(), base.clone());
        let found = tokio::task::spawn_blocking(move || finder.find(&model)).await.ok().flatten();
        let words = match found {
            Some(words) => words,
            None if self.tokenizes(worker, &base.name).await => Words::Engine,
            None => Words::Text,
        };
        let block_size = self.config.block_size.or(said).unwrap_or(BlockSize::USUAL);
        Arc::new(Group::new(base.name.clone(), words, block_size, self.config.waiting))
    }

    /// Whether the engine tokenizes for others.
    async fn tokenizes(&self, worker: &Worker, model: &str) -> bool {
        let question = json!({ "model": model, "prompt": "a" }).to_string();
        self.tokenize.post_json(&format!("{}/tokenize", worker.url), question.into()).await.is_ok()
    }

    fn feed_plan(
        &self,
        worker: &Worker,
        about: &About,
        group: &Group,
        asked: Vec<EventEndpoint>,
    ) -> FeedPlan {
        if !self.config.kv_events || matches!(group.words, Words::Text) {
            return FeedPlan::None(None);
        }
        let ours = group.block_size.tokens();
        if let Some(theirs) = about.block_size.filter(|theirs| *theirs as usize != ours) {
            let told = self.config.block_size.is_some();
            let whose = if told { "the router was told" } else { "the model's other workers have" };
            return FeedPlan::Refused(format!(
                "its blocks have {theirs} tokens, {whose} {ours} (--kv-cache-block-size); expected the same"
            ));
        }
        let nats = || match self.nats.get() {
            Some(view) => FeedPlan::Nats(view.clone()),
            None => FeedPlan::Refused("they are to come over NATS, expected --nats-url".to_owned()),
        };
        match &worker.spec.events {
            EventSpec::Off => FeedPlan::None(None),
            EventSpec::Nats => nats(),
            EventSpec::Poll => FeedPlan::Poll,
            EventSpec::Zmq { events, replay, topic } => FeedPlan::Zmq(vec![EventEndpoint {
                rank: about.ranks.first().copied().unwrap_or(0),
                events: events.clone(),
                replay: replay.clone(),
                topic: topic.clone(),
            }]),
            EventSpec::Asked => {
                let announced = || {
                    let announced = self.nats.get().map(NatsView::announced).unwrap_or_default();
                    announced.iter().any(|announcement| announcement.worker_id == worker.instance)
                };
                match self.config.plane {
                    EventPlane::Nats => nats(),
                    EventPlane::Auto if announced() => nats(),
                    _ if self.allow.refuses_events(&worker.url, &asked) => FeedPlan::Refused(
                        "it says they are at a host that is not its own and matches none of workers.allow"
                            .to_owned(),
                    ),
                    _ if !asked.is_empty() => FeedPlan::Zmq(asked),
                    _ => {
                        let hint = match about.engine {
                            Engine::Vllm | Engine::Sglang => {
                                "--kv-events-config at the engine, or events=tcp://…"
                            }
                            Engine::Trtllm => {
                                "engine=trtllm at --worker, and event_buffer_max_size at the engine"
                            }
                        };
                        FeedPlan::None(Some(format!("worker does not say where its KV events are ({hint})")))
                    }
                }
            }
        }
    }

    /// Requests a worker has, all ranks together, that we placed there, or others who told us.
    pub(super) fn known(&self, worker: &Worker) -> usize {
        let of = |rank: &u32| {
            let id = WorkerId::new(worker.instance, *rank);
            self.scheduler.load(id).requests.saturating_add(self.peers.load(id).requests)
        };
        worker.about().ranks.iter().map(of).fold(0, usize::saturating_add)
    }

    /// How long this has been running.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// What is known of the worker's cache proved wrong: it is forgotten, and learnt again.
    pub(super) fn resync(&self, worker: &Worker) {
        let over_nats = worker.feeds.lock().as_ref().is_some_and(|feeds| feeds.kind() == "nats");
        tracing::warn!(worker = worker.name, "what is known of the worker's cache is learnt again");
        match self.nats.get().filter(|_| over_nats) {
            Some(nats) => {
                nats.resync(worker.instance);
                // It is asked soon; until then nothing of it is to be believed.
                for rank in &worker.about().ranks {
                    self.index.forget(WorkerId::new(worker.instance, *rank));
                }
            }
            // Started again by whoever looks after it.
            None => self.unfeed(worker),
        }
    }

    /// Nothing is known of its cache any more. What comes over NATS is kept right there.
    pub(super) fn unfeed(&self, worker: &Worker) {
        let mut feeds = worker.feeds.lock();
        let over_nats = feeds.as_ref().is_some_and(|feeds| feeds.kind() == "nats");
        *feeds = None;
        if !over_nats {
            for rank in &worker.about().ranks {
                self.index.forget(WorkerId::new(worker.instance, *rank));
            }
        }
    }

    fn rebuild(&self, inner: &mut Inner) {
        let mut fleet = Fleet::default();
        let mut models: BTreeMap<String, Served> = BTreeMap::new();
        // Those who serve now have a say before those who did, and base models before adapters.
        let mut order: Vec<&Kept> = inner.kept.values().collect();
        order.sort_by_key(|kept| kept.worker.state() != WorkerState::Ready);
        fleet.workers = inner.kept.values().map(|kept| kept.worker.clone()).collect();
        let bases = order.iter().map(|kept| (kept, false));
        for (kept, adapters) in bases.chain(order.iter().map(|kept| (kept, true))) {
            let about = kept.worker.about();
            let Some(group) = about.models.first().and_then(|base| inner.groups.get(&base.name)) else {
                continue;
            };
            for model in about.models.iter().filter(|model| model.parent.is_some() == adapters) {
                let served = models.entry(model.name.clone()).or_insert_with(|| Served {
                    name: model.name.clone(),
                    group: group.clone(),
                    lora_name: model.parent.is_some().then(|| model.name.clone()),
                    root: model.root.clone(),
                    max_len: None,
                    workers: Vec::new(),
                    metrics: self.metrics.model(&model.name),
                });
                // One name, one model.
                if Arc::ptr_eq(&served.group, group) && served.lora_name.is_some() == adapters {
                    served.max_len = served.max_len.max(about.max_model_len);
                    served.workers.push(kept.worker.clone());
                } else if kept.worker.first_passed_over() {
                    tracing::warn!(
                        worker = kept.worker.name,
                        model = model.name,
                        "another model has this name already; the worker is not used for it"
                    );
                }
            }
        }
        fleet.models = models.into_iter().map(|(name, served)| (name, Arc::new(served))).collect();
        inner.groups.retain(|_, group| fleet.models.values().any(|served| Arc::ptr_eq(&served.group, group)));
        self.fleet.store(Arc::new(fleet));
        // Somebody may have come whom those who wait could go to.
        inner.groups.values().for_each(|group| group.room.call_next());
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Whether there is somebody to route to, and whether what they hold is known.
    pub fn ready(&self) -> Result<(), &'static str> {
        let fleet = self.fleet();
        if fleet.models.is_empty() {
            return Err("no worker has told its model yet");
        }
        let mut ready = fleet.workers.iter().filter(|worker| worker.state() == WorkerState::Ready).peekable();
        if ready.peek().is_none() {
            return Err("no worker is ready");
        }
        if self.warm.load(Ordering::Relaxed) {
            return Ok(());
        }
        // At the start everybody is waited for a while, so that the first requests see all there is.
        if self.nats.get().is_some() && self.started.elapsed() < ROLL_CALL {
            return Err("workers on NATS are still being heard of");
        }
        let joining = |worker: &Arc<Worker>| worker.state() == WorkerState::Joining;
        if fleet.workers.iter().any(joining) && self.started.elapsed() < FEED_GRACE {
            return Err("workers are still joining");
        }
        let waits = |worker: &Arc<Worker>| {
            let feeds = worker.feeds.lock();
            feeds.as_ref().is_none_or(|feeds| !feeds.caught_up() && feeds.age() < FEED_GRACE)
        };
        if ready.any(waits) {
            return Err("KV events have not caught up yet");
        }
        self.warm.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Until every watcher has stopped.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
