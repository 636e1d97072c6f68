//! Builds every part in order, hands each only what it needs, and takes them down again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use kvlane_engine_adapters::dynamo::{Scope, Subjects};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::model::ModelError;
use kvlane_engine_adapters::nats::{
    NatsAccess, NatsConnection, NatsError, NatsFeed, NatsFeedConfig, NatsIdentity,
};
use kvlane_engine_adapters::secret;
use kvlane_engine_adapters::tls::{ClientFiles, ClientTls, Configs, KeyPair, NamedFile, TlsError};
use kvlane_indexer::{BlockSize, Index, IndexConfig};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{Access, AdminToken, Key};
use crate::config::{Config, EventPlane, Events, KvPolicy, Mode, Routing, Settings, Tls, without_passwords};
use crate::discovery::sources::{self, ServiceRef};
use crate::discovery::{
    Allow, Fleet, Found, Keeper, KeeperConfig, KeeperTools, OPERATOR, Served, Sight, WorkerState,
};
use crate::error::RouterError;
use crate::http::{Door, Edge, Listener, ServerTls};
use crate::load_exchange::LoadExchange;
use crate::memory::Memory;
use crate::metrics::{Certificate, Metrics};
use crate::preprocess::{ModelFinder, Pool, Preprocessor};
use crate::proxy::breaker::BreakerConfig;
use crate::proxy::{Body, Cut, Proxy};
use crate::scheduling::{Peers, Policy, Said, Scheduler, WaitingRules, Weights};
use crate::telemetry::{Exporter, Tracer};

/// Everything a request may need.
#[derive(Debug)]
pub struct Router {
    pub config: Config,
    /// Every setting with its origin, for people.
    pub settings: Value,
    pub metrics: Arc<Metrics>,
    pub access: Arc<Access>,
    pub admin_token: Arc<AdminToken>,
    /// What engines want to be shown.
    pub worker_authorization: Option<HeaderValue>,
    pub index: Arc<Index>,
    pub clock: FeedClock,
    pub keeper: Arc<Keeper>,
    pub preprocessor: Preprocessor,
    pub scheduler: Arc<Scheduler>,
    /// What a placement has to know besides the workers.
    pub sight: Sight,
    /// Placements of late, for those who ask why.
    pub memory: Memory,
    pub proxy: Proxy,
    pub tracer: Tracer,
    routing: Mutex<Routing>,
    draining: AtomicBool,
    /// The connection to NATS, where it is used.
    nats: OnceLock<NatsConnection>,
    /// Seconds since 1970 when it was started.
    started: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: std::io::Error },
    #[error("{0}")]
    Model(#[from] ModelError),
    #[error("{0}")]
    Workers(String),
    #[error("{0}")]
    Access(String),
    #[error("{0}")]
    Nats(#[from] NatsError),
    #[error("Kubernetes: {0}")]
    Kubernetes(String),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The policy's own weights, and what was said instead.
fn weights(routing: &Routing) -> Weights {
    let preset = match routing.policy {
        KvPolicy::Kvlane => Weights::KVLANE,
        KvPolicy::Dynamo => Weights::DYNAMO,
    };
    preset.but(Said {
        overlap: routing.overlap_weight,
        request: routing.request_weight,
        waiting: routing.waiting_weight,
        home: routing.home_weight,
        temperature: routing.temperature,
        slot_guard: routing.slot_guard,
    })
}

/// How requests are placed, as the settings say it.
fn policy(routing: &Routing) -> Policy {
    match routing.mode {
        Mode::Kv => Policy::Kv(weights(routing)),
        Mode::RoundRobin => Policy::RoundRobin,
        Mode::Random => Policy::Random,
        Mode::LeastLoaded => Policy::LeastLoaded,
        Mode::PowerOfTwo => Policy::PowerOfTwo,
        Mode::Session => Policy::Session,
    }
}

impl Router {
    pub fn routing(&self) -> Routing {
        self.routing.lock().clone()
    }

    /// What a cost is made of now.
    pub fn weights(&self) -> Weights {
        weights(&self.routing.lock())
    }

    pub fn mode(&self) -> Mode {
        self.routing.lock().mode
    }

    pub fn set_routing(&self, routing: Routing) {
        self.scheduler.set_policy(policy(&routing));
        *self.routing.lock() = routing;
    }

    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether requests should be sent here.
    pub fn ready(&self) -> Result<(), &'static str> {
        if self.draining() {
            return Err("shutting down");
        }
        // A server that is away may come back; one that never let us in is a mistake somewhere.
        if self.nats.get().is_some_and(NatsConnection::is_refused) {
            return Err("NATS does not let us in; the log says why");
        }
        self.keeper.ready()
    }

    /// The model a request asks for, if it is there and whoever asks may use it.
    pub fn served(&self, name: Option<&str>, key: Option<&Key>) -> Result<Arc<Served>, RouterError> {
        let fleet = self.fleet_of(key);
        if let Some(served) = fleet.model(name) {
            return Ok(served.clone());
        }
        if self.keeper.fleet().models.is_empty() {
            let why =
                if fleet.workers.is_empty() { "no worker is known" } else { "none has told its model yet" };
            return Err(RouterError::NoWorker {
                model: name.unwrap_or("any").to_owned(),
                why: why.to_owned(),
            });
        }
        Err(match name {
            Some(name) => RouterError::UnknownModel { model: name.to_owned(), served: fleet.names() },
            None => RouterError::BadRequest {
                message: format!("`model` is missing, expected one of {}", fleet.names()),
                param: Some("model".to_owned()),
                code: None,
            },
        })
    }

    /// What there is for whoever asks: models it may not use are as if they were not served.
    fn fleet_of(&self, key: Option<&Key>) -> Arc<Fleet> {
        let fleet = self.keeper.fleet();
        match key.filter(|key| key.rules.models.is_some()) {
            None => fleet,
            Some(key) => {
                let mut fleet = (*fleet).clone();
                fleet.models.retain(|name, _| key.rules.allows(name));
                Arc::new(fleet)
            }
        }
    }

    /// `/v1/models`.
    pub fn models(&self, key: Option<&Key>) -> Value {
        let fleet = self.fleet_of(key);
        let data: Vec<Value> = fleet.models.values().map(|served| self.shown(served)).collect();
        json!({ "object": "list", "data": data })
    }

    pub fn model(&self, name: &str, key: Option<&Key>) -> Result<Value, RouterError> {
        let fleet = self.fleet_of(key);
        let served = fleet.models.get(name);
        let unknown = || RouterError::UnknownModel { model: name.to_owned(), served: fleet.names() };
        served.map(|served| self.shown(served)).ok_or_else(unknown)
    }

    fn shown(&self, served: &Served) -> Value {
        json!({
            "id": served.name,
            "object": "model",
            "created": self.started,
            "owned_by": "kvlane",
            "root": served.root.as_ref().unwrap_or(&served.name),
            "parent": served.lora_name.is_some().then_some(&served.group.name),
            "max_model_len": served.max_len,
        })
    }

    /// `/health`: how everything is, and 200 as long as the process works. Which models there are is not everybody's
    /// business once there are keys.
    pub fn health(&self, models: bool) -> Response<Body> {
        let fleet = self.keeper.fleet();
        let count =
            |state: WorkerState| fleet.workers.iter().filter(|worker| worker.state() == state).count();
        let workers: serde_json::Map<String, Value> =
            WorkerState::ALL.iter().map(|state| (state.name().to_owned(), count(*state).into())).collect();
        let ready = self.ready();
        let health = json!({
            "status": match &ready {
                Ok(()) => "healthy",
                Err(_) if self.draining() => "draining",
                Err(_) => "starting",
            },
            "ready": ready.is_ok(),
            "why_not_ready": ready.err(),
            "mode": self.mode(),
            "models": models.then(|| fleet.models.keys().collect::<Vec<_>>()),
            "workers": workers,
            "version": env!("CARGO_PKG_VERSION"),
        });
        let mut response = Response::new(Body::Whole(Bytes::from(health.to_string())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A router that runs.
#[derive(Debug)]
pub struct App {
    pub router: Arc<Router>,
    pub address: SocketAddr,
    pub admin_address: Option<SocketAddr>,
    listeners: TaskTracker,
    background: TaskTracker,
    /// No more connections.
    close: Cut,
    /// Streams that are still running end.
    cut: Cut,
    /// Everything else stops.
    stop: CancellationToken,
}

impl App {
    pub async fn start(
        config: Config,
        settings: &Settings,
        since_1970: Duration,
    ) -> Result<Self, StartError> {
        let (close, cut, stop) = (Cut::default(), Cut::default(), CancellationToken::new());
        let (listeners, background) = (TaskTracker::new(), TaskTracker::new());
        let metrics = Metrics::register()?;
        let tls = ServerTls::load(&config.tls, metrics.clone())?;
        let towards_workers = ClientTls::load(client_files(&config.tls))?;
        // Bound first: a port that is taken is the likeliest mistake.
        let address_of = SocketAddr::new(config.server.host, config.server.port);
        let public = bind(address_of, Door::Public, &config, tls.clone()).await?;
        let admin = match config.admin.port {
            0 => None,
            port => {
                let tls = tls.clone().filter(|_| config.tls.admin);
                Some(bind(SocketAddr::new(config.admin.host, port), Door::Admin, &config, tls).await?)
            }
        };
        if let Some(tls) = &tls {
            background.spawn(tls.follow(Duration::from_millis(config.tls.reload_ms), stop.clone()));
        }
        let told = metrics.clone();
        let changed = move |made: &Configs| told.certificate_ends(Certificate::Worker, made.not_after);
        let every = Duration::from_millis(config.tls.reload_ms);
        if let Some(following) = towards_workers.follow(every, stop.clone(), changed) {
            background.spawn(following);
        }

        let access = Access::open(&config.access, metrics.clone()).map_err(StartError::Access)?;
        let access = Arc::new(access);
        let admin_token = AdminToken::open(config.admin.token_file.clone()).map_err(StartError::Access)?;
        if admin.is_some() && !config.admin.host.is_loopback() && !admin_token.on() {
            tracing::warn!(
                host = %config.admin.host,
                "the admin listener can be reached from other machines and asks nobody for a token; \
                 admin.token_file would change that"
            );
        }
        let worker_key = config.proxy.worker_api_key_file.as_deref().map(secret::bearer_in).transpose();
        let worker_authorization = worker_key.map_err(StartError::Access)?;
        let clock = FeedClock::starting(since_1970);
        let index = Arc::new(Index::new(index_config(&config)));
        let finder = ModelFinder::new(&config.model)?;
        let routing = &config.routing;
        let scheduler = Scheduler::new(policy(routing), routing.max_sessions, routing.holdout);
        let peers = Arc::new(Peers::new(config.events.max_routers, config.workers.max.saturating_mul(8)));
        let tools = KeeperTools {
            index: index.clone(),
            clock,
            finder,
            metrics: metrics.clone(),
            scheduler: scheduler.clone(),
            peers: peers.clone(),
            authorization: worker_authorization.clone(),
            allow: Allow::parse(&config.workers.allow).map_err(StartError::Workers)?,
            tls: towards_workers.clone(),
        };
        let keeper = Keeper::new(keeper_config(&config), tools, stop.clone());
        let tokenizer = &config.tokenizer;
        let pool = Pool::new(tokenizer.threads, tokenizer.long_bytes, tokenizer.max_waiting);
        let exporter = config.log.otlp_endpoint.as_ref().map(|endpoint| {
            let (exporter, sending) = Exporter::start(endpoint, stop.clone());
            background.spawn(sending);
            exporter
        });
        let proxy = Proxy::new(
            &config.proxy,
            metrics.clone(),
            scheduler.clone(),
            index.clone(),
            keeper.clone(),
            clock,
            cut.clone(),
        );
        let router = Arc::new(Router {
            settings: shown(settings),
            metrics,
            access,
            admin_token: Arc::new(admin_token),
            index,
            clock,
            keeper: keeper.clone(),
            preprocessor: Preprocessor::new(pool, tokenizer.cache_bytes, towards_workers)
                .bearing(worker_authorization.clone()),
            worker_authorization,
            proxy,
            scheduler,
            sight: Sight { overflow: routing.overflow, peers },
            memory: Memory::new(routing.remembered_decisions),
            tracer: Tracer::new(exporter, config.log.trace_ratio),
            routing: Mutex::new(config.routing.clone()),
            draining: AtomicBool::new(false),
            nats: OnceLock::new(),
            started: since_1970.as_secs(),
            config,
        });
        let app = Self {
            address: address(&public)?,
            admin_address: admin.as_ref().map(address).transpose()?,
            router: router.clone(),
            listeners,
            background,
            close,
            cut,
            stop,
        };
        let every = Duration::from_millis(router.config.workers.refresh_ms);
        app.background.spawn(router.access.clone().follow(every, app.stop.clone()));
        app.background.spawn(router.admin_token.clone().follow(every, app.stop.clone()));
        app.follow_sources().await?;
        for listener in [Some(public), admin].into_iter().flatten() {
            app.listeners.spawn(listener.serve(router.clone(), app.close.clone()));
        }
        Ok(app)
    }

    /// Begins to follow whoever names workers.
    async fn follow_sources(&self) -> Result<(), StartError> {
        let (keeper, stop) = (&self.router.keeper, &self.stop);
        let (workers, events) = (&self.router.config.workers, &self.router.config.events);
        let every = Duration::from_millis(workers.refresh_ms);
        if let Some(url) = &events.nats_url
            && events.plane != EventPlane::Zmq
        {
            let connection = nats_access(events).connect(url, "kvlane").await?;
            let NatsConnection { client, connected, .. } = connection.clone();
            let _ = self.router.nats.set(connection);
            let scope = Scope {
                namespace: events.namespace.clone(),
                component: events.component.clone(),
                endpoint: events.endpoint.clone(),
            };
            let subjects = Subjects::new(&scope);
            if events.share_load {
                let exchange = LoadExchange {
                    client: client.clone(),
                    subject: subjects.router_loads(),
                    every: Duration::from_millis(events.share_load_ms),
                    scheduler: self.router.scheduler.clone(),
                    peers: self.router.sight.peers.clone(),
                };
                let stop = stop.clone();
                self.background.spawn(async move {
                    let _ = stop.run_until_cancelled(exchange.run()).await;
                });
            }
            // Blocks come hashed over NATS, so their size does not matter here.
            let config = NatsFeedConfig::new(subjects, BlockSize::USUAL);
            let feed = NatsFeed::new(client, connected, config, self.router.index.clone(), self.router.clock);
            keeper.use_nats(feed.view());
            let (keeper, stop) = (keeper.clone(), stop.clone());
            self.background.spawn(async move {
                let announcements = sources::follow_announcements(keeper, stop.clone());
                let listening = async { tokio::join!(feed.run(), announcements) };
                if let Some((Err(error), ())) = stop.run_until_cancelled(listening).await {
                    tracing::error!(%error, "NATS cannot be listened to");
                }
            });
        }
        if let Some(path) = workers.file.clone() {
            let listed = sources::read_file(&path).map_err(StartError::Workers)?;
            keeper.update("file", listed.into_iter().map(Found::from).collect());
            self.background.spawn(sources::follow_file(keeper.clone(), path, every, stop.clone()));
        }
        if !workers.dns.is_empty() {
            let names = workers.dns.clone();
            let scheme = workers.scheme;
            self.background.spawn(sources::follow_dns(keeper.clone(), names, scheme, every, stop.clone()));
        }
        if let Some(service) = &workers.kubernetes {
            let wrong = |expected| StartError::Workers(format!("`workers.kubernetes`: expected {expected}"));
            let service = ServiceRef::parse(service).map_err(wrong)?;
            let client = kube::Client::try_default().await;
            let client = client.map_err(|error| StartError::Kubernetes(error.to_string()))?;
            let followed =
                sources::follow_service(keeper.clone(), client, service, workers.scheme, stop.clone());
            self.background.spawn(followed);
        }
        keeper.update(OPERATOR, workers.list.iter().cloned().map(Found::from).collect());
        Ok(())
    }

    /// Stops as Kubernetes expects it: not ready any more, a pause for that to be noticed, no new connections, time for
    /// answers that are being given, an error for those that take longer. `hurry` ends the waiting.
    pub async fn drain(self, hurry: impl Future<Output = ()>) {
        let server = &self.router.config.server;
        let (wait, patience) =
            (Duration::from_secs(server.drain_wait_s), Duration::from_secs(server.drain_timeout_s));
        let orderly = async {
            self.router.draining.store(true, Ordering::Relaxed);
            tokio::time::sleep(wait).await;
            self.close.make();
            self.listeners.close();
            if tokio::time::timeout(patience, self.listeners.wait()).await.is_err() {
                tracing::warn!(seconds = patience.as_secs(), "answers are still running; they are cut off");
                self.cut.make();
                let _ = tokio::time::timeout(CUT_PATIENCE, self.listeners.wait()).await;
            }
        };
        tokio::select! {
            () = orderly => {}
            () = hurry => tracing::warn!("asked again to stop; stopping at once"),
        }
        self.close.make();
        self.cut.make();
        self.listeners.close();
        // Long enough for those who are cut off to be told.
        let _ = tokio::time::timeout(LAST_WORDS, self.listeners.wait()).await;
        self.stop.cancel();
        self.background.close();
        let last = async {
            self.router.keeper.stopped().await;
            self.background.wait().await;
        };
        let _ = tokio::time::timeout(CUT_PATIENCE, last).await;
    }
}

const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the last things may take.
const CUT_PATIENCE: Duration = Duration::from_secs(3);

async fn bind(
    address: SocketAddr,
    door: Door,
    config: &Config,
    tls: Option<Arc<ServerTls>>,
) -> Result<Listener, StartError> {
    let edge = Edge {
        door,
        max_connections: config.server.max_connections,
        per_address: config.server.max_connections_per_address,
        max_head: config.server.max_head_kib << 10,
        head: Duration::from_millis(config.server.head_timeout_ms),
        idle: Duration::from_millis(config.server.idle_connection_ms),
        stalled: Duration::from_millis(config.server.stalled_client_ms),
        cors_origins: if door == Door::Public { config.server.cors_origins.clone() } else { Vec::new() },
        tls,
    };
    Listener::bind(address, edge).await.map_err(|error| StartError::Listen { address, error })
}

fn address(listener: &Listener) -> Result<SocketAddr, StartError> {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    listener.address().map_err(|error| StartError::Listen { address: unknown, error })
}

/// How to get into NATS.
fn nats_access(events: &Events) -> NatsAccess {
    let file = NamedFile::of;
    let own = file("events.nats_tls_cert", events.nats_tls_cert.as_ref())
        .zip(file("events.nats_tls_key", events.nats_tls_key.as_ref()))
        .map(|(certificate, key)| KeyPair { certificate, key });
    let creds = file("events.nats_creds", events.nats_creds.as_ref()).map(NatsIdentity::Credentials);
    let nkey = events.nats_nkey.as_ref().map(|nkey| NatsIdentity::nkey("events.nats_nkey", nkey));
    let token = file("events.nats_token_file", events.nats_token_file.as_ref()).map(NatsIdentity::Token);
    NatsAccess {
        tls: ClientFiles { ca: file("events.nats_tls_ca", events.nats_tls_ca.as_ref()), own },
        identity: creds.or(nkey).or(token),
    }
}

/// Whom to trust among workers, and what to show them.
fn client_files(tls: &Tls) -> ClientFiles {
    let own = NamedFile::of("tls.worker_cert", tls.worker_cert.as_ref())
        .zip(NamedFile::of("tls.worker_key", tls.worker_key.as_ref()))
        .map(|(certificate, key)| KeyPair { certificate, key });
    ClientFiles { ca: NamedFile::of("tls.worker_ca", tls.worker_ca.as_ref()), own }
}

fn index_config(config: &Config) -> IndexConfig {
    let mut built = IndexConfig {
        max_bytes: config.index.max_mib << 20,
        // Ranks count each.
        max_workers: config.workers.max.saturating_mul(8).max(64),
        shards: config.index.shards,
        ..IndexConfig::default()
    };
    let life =
        if config.routing.kv_events { config.index.predicted_ttl_s } else { config.index.approximate_ttl_s };
    built.predicted.life = life;
    // The clock ticks once a second.
    built.predicted.resolution = (life / 2).max(1);
    built.predicted.max_blocks = config.index.max_predicted_blocks;
    built
}

fn keeper_config(config: &Config) -> KeeperConfig {
    let (workers, proxy) = (&config.workers, &config.proxy);
    KeeperConfig {
        probe_interval: Duration::from_millis(workers.probe_interval_ms),
        probe_timeout: Duration::from_millis(workers.probe_timeout_ms),
        down_after: workers.down_after,
        max_workers: workers.max,
        idle_connections: (
            config.proxy.max_idle_per_worker,
            Duration::from_millis(config.proxy.idle_connection_ms),
        ),
        breaker: BreakerConfig {
            failures: proxy.breaker_failures,
            share: proxy.breaker_share,
            open_for: Duration::from_millis(proxy.breaker_open_ms),
        },
        block_size: BlockSize::new(config.index.block_size),
        kv_events: config.routing.kv_events,
        plane: config.events.plane,
        waiting: WaitingRules {
            most: config.routing.queue_max,
            patience: Duration::from_millis(config.routing.queue_timeout_ms),
            weights: config.routing.priority_weights,
        },
    }
}

/// Every setting: its value and where that came from.
fn shown(settings: &Settings) -> Value {
    let all = settings.all().map(|(knob, value, origin)| {
        (knob.key(), json!({ "value": without_passwords(value), "origin": origin.to_string() }))
    });
    Value::Object(all.collect())
}
