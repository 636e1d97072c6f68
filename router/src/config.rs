//! Every setting of the router, declared once: its name, meaning, default, flag and environment variables.
//!
//! Values come from flags, the environment, a TOML file and the defaults, in this order; [`sources`] lays them over
//! each other and remembers where each came from. What is wrong stops the start with a sentence.

mod mode;
mod sources;
mod worker_spec;

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::discovery::Allow;
use crate::threads;

pub use self::mode::{EventPlane, KvPolicy, LogFormat, Mode, WorkerScheme};
pub use self::sources::{ConfigError, Origin, Settings, Sources, without_passwords};
pub(crate) use self::worker_spec::checked_url;
pub use self::worker_spec::{EventSpec, WorkerSpec};

/// One setting as people see it.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    pub room: &'static str,
    pub name: &'static str,
    pub doc: &'static str,
    /// As TOML.
    pub default: &'static str,
    /// The flag, without dashes; settings without one are set by `--set`, the file or the environment.
    pub flag: Option<&'static str>,
    /// What the flag's value is called in the help.
    pub value: &'static str,
    /// Environment variables besides the setting's own.
    pub env: &'static [&'static str],
}

impl Knob {
    /// `room.name`, as in the file.
    pub fn key(&self) -> String {
        format!("{}.{}", self.room, self.name)
    }

    /// The environment variable that every setting has.
    pub fn own_env(&self) -> String {
        format!("KVLANE_{}_{}", self.room, self.name).to_uppercase()
    }
}

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! or_empty {
    () => {
        ""
    };
    ($value:literal) => {
        $value
    };
}

macro_rules! settings {
    ($(
        $(#[doc = $room_doc:literal])* $room:ident: $Room:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $type:ty = $default:literal
                    $(, flag $flag:literal)? $(, value $value:literal)? $(, env $env:literal)*;
            )*
        }
    )*) => {
        $(
            $(#[doc = $room_doc])*
            #[derive(Clone, Debug, Serialize)]
            pub struct $Room {
                $($(#[doc = $doc])+ pub $name: $type,)*
            }
        )*

        /// Every setting, by room.
        #[derive(Clone, Debug, Serialize)]
        pub struct Config {
            $(pub $room: $Room,)*
        }

        /// Every setting as people see it.
        pub const KNOBS: &[Knob] = &[$($(
            Knob {
                room: stringify!($room),
                name: stringify!($name),
                doc: concat!($($doc),+),
                default: $default,
                flag: optional!($($flag)?),
                value: or_empty!($($value)?),
                env: &[$($env),*],
            },
        )*)*];

        impl Config {
            fn read(settings: &Settings) -> Result<Self, ConfigError> {
                Ok(Self {
                    $($room: $Room {
                        $($name: settings.get(stringify!($room), stringify!($name))?,)*
                    },)*
                })
            }
        }
    };
}

settings! {
    /// The listener clients talk to.
    server: Server {
        /// Address to listen on
        host: IpAddr = "'0.0.0.0'", flag "host", value "ADDRESS", env "DYN_HTTP_HOST";
        /// Port of the OpenAI-compatible API
        port: u16 = "8000", flag "port", value "PORT", env "DYN_HTTP_PORT";
        /// Threads that serve requests; 0 for one per core
        threads: usize = "0", flag "threads", value "N";
        /// Cores they are tied to, one after the other; without, the system decides
        cores: Vec<usize> = "[]";
        /// Largest request body, in MiB
        body_limit_mib: usize = "45", flag "body-limit-mib", value "MIB", env "DYN_HTTP_BODY_LIMIT_MB";
        /// Connections at a time; more wait to be accepted
        max_connections: usize = "20000";
        /// Connections an address may have at a time, 0 for as many as it likes; gateways are one address
        max_connections_per_address: usize = "0";
        /// Largest head of a request: its first line and headers, in KiB
        max_head_kib: usize = "64";
        /// How long a request's head may take from its first byte on
        head_timeout_ms: u64 = "10000";
        /// How long a connection may be idle
        idle_connection_ms: u64 = "75000";
        /// How long a client may leave what it was sent unread
        stalled_client_ms: u64 = "120000";
        /// How long a client may take to send a request's body
        body_timeout_ms: u64 = "60000";
        /// Origins whose pages may call the API; `*` for all
        cors_origins: Vec<String> = "[]";
        /// After SIGTERM: seconds that /ready says no before connections are refused
        drain_wait_s: u64 = "5";
        /// After that: seconds that running answers may take to finish
        drain_timeout_s: u64 = "30", flag "drain-timeout-s", value "S", env "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS";
    }
    /// The listener operators talk to.
    admin: Admin {
        /// Address of the admin listener
        host: IpAddr = "'127.0.0.1'", flag "admin-host", value "ADDRESS";
        /// Its port; 0 for none
        port: u16 = "8090", flag "admin-port", value "PORT";
        /// File with the token, or `sha256:` and its SHA-256, that /admin/… then asks for; read again when it changes
        token_file: Option<PathBuf> = "''";
    }
    /// Who may ask for what.
    access: AccessSettings {
        /// TOML file with API keys and their limits, read again when it changes; without it everything is open
        keys_file: Option<PathBuf> = "''", flag "api-keys", value "FILE";
        /// Keys it may have
        max_keys: usize = "10000";
        /// Whether /metrics of the API's own port needs no key
        open_metrics: bool = "true";
    }
    /// TLS, towards clients and towards workers. Files are read again when they change.
    tls: Tls {
        /// PEM file with the certificate clients are shown, and those that vouch for it; without it, plain HTTP
        cert: Option<PathBuf> = "''", flag "tls-cert-path", value "FILE", env "DYN_TLS_CERT_PATH";
        /// PEM file with its private key
        key: Option<PathBuf> = "''", flag "tls-key-path", value "FILE", env "DYN_TLS_KEY_PATH";
        /// PEM file with who must have signed clients' certificates; without it clients need none
        client_ca: Option<PathBuf> = "''", env "DYN_TLS_CLIENT_CA_CERT_PATH";
        /// Whether the admin listener speaks TLS as well
        admin: bool = "false";
        /// PEM file with who must have signed workers' certificates; without it, whom the system trusts
        worker_ca: Option<PathBuf> = "''";
        /// PEM file with the certificate that workers are shown, if they ask for one
        worker_cert: Option<PathBuf> = "''";
        /// PEM file with its private key
        worker_key: Option<PathBuf> = "''";
        /// How long a client's handshake may take
        handshake_ms: u64 = "10000";
        /// Between two looks at the files
        reload_ms: u64 = "5000";
    }
    /// What turns requests into tokens.
    model: ModelSettings {
        /// Directory with tokenizer.json and chat template; without it, what engines say of their model is looked for
        path: Option<PathBuf> = "''", flag "model-path", value "DIR", env "DYN_MODEL_PATH";
        /// The model that directory belongs to, when the engines call it something else
        name: Option<String> = "''", flag "model-name", value "NAME", env "DYN_MODEL_NAME";
        /// More directories, as NAME=DIR
        dirs: Vec<String> = "[]";
        /// Tokens a prompt and its answer may have; 0 for what the engines say
        max_len: usize = "0", flag "max-model-len", value "TOKENS";
    }
    /// How requests are placed.
    routing: Routing {
        /// kv, round_robin, random, least_loaded, power_of_two or session
        mode: Mode = "'kv'", flag "router-mode", value "MODE", env "ROUTER_MODE", env "DYN_ROUTER_MODE";
        /// How mode kv weighs: kvlane (slots, requests, blocks) or dynamo (the plain cost of Dynamo 0.9)
        policy: KvPolicy = "'kvlane'", flag "policy", value "POLICY";
        /// Weight of blocks to compute against everything else, times the policy's own
        overlap_weight: f64 = "1.0", flag "kv-overlap-score-weight", value "W",
            env "DYN_KV_OVERLAP_SCORE_WEIGHT", env "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT";
        /// Blocks a request counts for, whatever its prompt; the policy's own when not given (360 and 0)
        request_weight: Option<f64> = "''";
        /// Blocks each request that waits for a slot counts for besides; the policy's own when not given (240 and 0)
        waiting_weight: Option<f64> = "''";
        /// Blocks the worker of a session's last request is ahead by; the policy's own when not given (1200 and 0)
        home_weight: Option<f64> = "''";
        /// Whether full workers not worth waiting for are passed over while another has room; the policy's own when not given
        slot_guard: Option<bool> = "''";
        /// Requests that may wait at a full worker, as a share of its slots; more wait in the router
        overflow: f64 = "1.0";
        /// Requests that may wait in the router; more are refused
        queue_max: usize = "1024";
        /// How long one may
        queue_timeout_ms: u64 = "30000";
        /// What high, normal and low priority get of what comes free
        priority_weights: [f64; 3] = "[4.0, 2.0, 1.0]";
        /// Share of requests placed by load alone, to see whether placing by cache pays; 0 for none
        holdout: f64 = "0.0", flag "holdout", value "SHARE";
        /// Sessions whose last worker is remembered
        max_sessions: usize = "65536";
        /// Placements that /admin/explain remembers
        remembered_decisions: usize = "1024";
        /// Above 0, placements are drawn among workers, the cheaper the likelier
        temperature: f64 = "0.0", flag "router-temperature", value "T", env "DYN_ROUTER_TEMPERATURE";
        /// Whether engines are asked for KV events; without, placements are remembered instead
        kv_events: bool = "true", flag "kv-events", value "BOOL", env "DYN_ROUTER_USE_KV_EVENTS";
        /// Names the chosen worker in the answer's headers
        decision_headers: bool = "false", flag "decision-headers", value "BOOL";
    }
    /// What is known of the workers' caches.
    index: IndexSettings {
        /// Tokens in a KV block; 0 for what the engines say
        block_size: u32 = "0", flag "kv-cache-block-size", value "TOKENS", env "DYN_KV_CACHE_BLOCK_SIZE";
        /// Memory of the index
        max_mib: usize = "1024", flag "index-mib", value "MIB";
        /// Locks that lookups and events spread over
        shards: usize = "256";
        /// Seconds a placement counts as cached before events confirm it; 0 for not at all
        predicted_ttl_s: u32 = "0", env "DYN_ROUTER_PREDICTED_TTL_SECS";
        /// The same where no events come
        approximate_ttl_s: u32 = "120", env "DYN_ROUTER_TTL_SECS";
        /// Whether workers that report fewer cached tokens than they should are believed less and asked anew
        audit: bool = "true";
        /// Blocks expected that way at a time
        max_predicted_blocks: usize = "1048576";
    }
    /// Where workers come from, and how they are watched.
    workers: Workers {
        /// A worker: a URL, or url=…,events=…,replay=…,slots=…,engine=vllm|sglang|trtllm,name=…,http2=true,server_name=…; may be repeated
        list: Vec<WorkerSpec> = "[]", flag "worker", value "SPEC";
        /// TOML file with workers = ['…'], read again when it changes
        file: Option<PathBuf> = "''", flag "workers-file", value "FILE";
        /// NAME:PORT of a headless service whose addresses are all workers; may be repeated
        dns: Vec<String> = "[]", flag "worker-dns", value "NAME";
        /// Kubernetes service, as NAMESPACE/NAME[:PORT], whose endpoints are workers
        kubernetes: Option<String> = "''", flag "worker-service", value "NS/NAME";
        /// Hosts (* for anything) and networks where workers that a file, DNS, NATS or Kubernetes names may be; all when empty
        allow: Vec<String> = "[]";
        /// How workers found by DNS or Kubernetes are spoken to: http or https
        scheme: WorkerScheme = "'http'";
        /// Workers at a time
        max: usize = "1024";
        /// Between two looks at a worker
        probe_interval_ms: u64 = "1000";
        /// How long an answer to such a look may take
        probe_timeout_ms: u64 = "2000";
        /// Looks in a row that fail until a worker counts as down
        down_after: u32 = "3";
        /// Between two looks at DNS and the workers' file
        refresh_ms: u64 = "2000";
    }
    /// How KV events and announcements come in.
    events: Events {
        /// zmq: straight from engines; nats: through bridges; auto: what is there
        plane: EventPlane = "'auto'", flag "event-plane", value "PLANE", env "DYN_EVENT_PLANE";
        /// NATS server; without it NATS is not used
        nats_url: Option<String> = "''", flag "nats-url", value "URL", env "NATS_SERVER";
        /// PEM file with who must have signed the NATS server's certificate; without it, whom the system trusts
        nats_tls_ca: Option<PathBuf> = "''", env "NATS_TLS_CA", env "NATS_TLS_CA_CERT_PATH";
        /// PEM file with the certificate the NATS server is shown
        nats_tls_cert: Option<PathBuf> = "''", env "NATS_TLS_CERT";
        /// PEM file with its private key
        nats_tls_key: Option<PathBuf> = "''", env "NATS_TLS_KEY";
        /// Credentials file (JWT and seed) for NATS
        nats_creds: Option<PathBuf> = "''", env "NATS_AUTH_CREDENTIALS_FILE";
        /// File with the seed of a NATS user's nkey, or the seed itself
        nats_nkey: Option<String> = "''", env "NATS_AUTH_NKEY";
        /// File with a token for NATS
        nats_token_file: Option<PathBuf> = "''";
        /// Dynamo's namespace, for NATS subjects and metric labels
        namespace: String = "'dynamo'", env "DYN_NAMESPACE";
        /// Its component
        component: String = "'backend'", env "DYN_COMPONENT";
        /// Its endpoint
        endpoint: String = "'generate'", env "DYN_ENDPOINT";
        /// Whether routers tell each other of their load over NATS
        share_load: bool = "true", env "DYN_ROUTER_REPLICA_SYNC";
        /// How often they do, when it changed
        share_load_ms: u64 = "50";
        /// Routers that are listened to
        max_routers: usize = "64";
    }
    /// Tokenizing.
    tokenizer: TokenizerSettings {
        /// Memory for tokens of texts seen before
        cache_bytes: usize = "67108864", env "DYN_TOKENIZER_CACHE_BYTES";
        /// Threads for short requests, and half as many for long ones; 0 for one per core
        threads: usize = "0";
        /// Bodies from this size on are long
        long_bytes: usize = "131072";
        /// Requests that may wait for a thread
        max_waiting: usize = "4096";
    }
    /// Talking to workers.
    proxy: Proxy {
        /// How requests travel: http is the only way
        request_plane: String = "'http'", env "DYN_REQUEST_PLANE";
        /// File with the engines' own API key (vLLM's --api-key), sent to every worker
        worker_api_key_file: Option<PathBuf> = "''";
        /// How long connecting to a worker may take
        connect_timeout_ms: u64 = "2000";
        /// How long a streamed answer may take to begin
        first_byte_timeout_ms: u64 = "120000";
        /// How long an answer that is not streamed may take to begin
        answer_timeout_ms: u64 = "600000";
        /// How long a stream may pause
        idle_timeout_ms: u64 = "60000";
        /// Other workers tried when one fails before its first byte
        retries: usize = "2", flag "retries", value "TIMES";
        /// Times another worker goes on with a streamed answer that broke off; 0 for never
        continuations: usize = "0", flag "migration-limit", value "TIMES", env "DYN_MIGRATION_LIMIT";
        /// Longer answers than this, in KiB of text, are not gone on with
        continued_kib: usize = "256";
        /// Retries there may be, as a percentage of requests
        retry_budget_percent: u32 = "20";
        /// Retries a second that are always allowed
        retry_budget_min: u32 = "10";
        /// Idle connections kept to each worker
        max_idle_per_worker: usize = "256";
        /// How long they are kept; engines close theirs after 5 s
        idle_connection_ms: u64 = "4000";
        /// Failures in a row that take a worker out
        breaker_failures: u32 = "5";
        /// Share of failed requests, of at least 20 in 10 s, that takes a worker out
        breaker_share: f64 = "0.5";
        /// How long it is out at first; doubled each time up to a minute
        breaker_open_ms: u64 = "1000";
    }
    /// What is written about all this.
    log: Log {
        /// error, warn, info, debug, trace, or filters by module
        level: String = "'info'", flag "log-level", value "FILTER", env "DYN_LOG", env "RUST_LOG";
        /// text, json, or auto: text on a terminal, JSON lines elsewhere
        format: LogFormat = "'auto'", flag "log-format", value "FORMAT";
        /// One line per request
        access: bool = "true";
        /// Where traces go (OTLP over HTTP), such as http://collector:4318; without it none are made
        otlp_endpoint: Option<String> = "''", env "OTEL_EXPORTER_OTLP_ENDPOINT";
        /// Share of requests that are traced when the client has not decided
        trace_ratio: f64 = "1.0", env "OTEL_TRACES_SAMPLE_RATIO";
    }
}

impl Config {
    /// Lays all sources over each other.
    pub fn load(sources: &Sources) -> Result<(Self, Settings), ConfigError> {
        let settings = Settings::merge(sources)?;
        let config = Self::read(&settings)?;
        config.validate(&settings)?;
        Ok((config, settings))
    }

    /// Nothing but defaults.
    pub fn defaults() -> Result<Self, ConfigError> {
        Self::load(&Sources::default()).map(|(config, _)| config)
    }

    fn validate(&self, settings: &Settings) -> Result<(), ConfigError> {
        let refuse = |room, name, expected: &str| Err(settings.refuse(room, name, expected));
        for (name, weight) in [
            ("overlap_weight", Some(self.routing.overlap_weight)),
            ("request_weight", self.routing.request_weight),
            ("waiting_weight", self.routing.waiting_weight),
            ("home_weight", self.routing.home_weight),
            ("overflow", Some(self.routing.overflow)),
        ] {
            if weight.is_some_and(|weight| !(0.0..=1e6).contains(&weight)) {
                return refuse("routing", name, "0 to 1000000");
            }
        }
        if !(self.routing.temperature.is_finite() && self.routing.temperature >= 0.0) {
            return refuse("routing", "temperature", "0 or more");
        }
        for (name, value) in [
            ("queue_max", self.routing.queue_max),
            ("max_sessions", self.routing.max_sessions),
            ("remembered_decisions", self.routing.remembered_decisions),
        ] {
            if value > 1 << 24 {
                return refuse("routing", name, "at most 16777216");
            }
        }
        if self.events.share_load_ms > 1000 {
            return refuse("events", "share_load_ms", "1 to 1000");
        }
        if !(0.0..=0.5).contains(&self.routing.holdout) {
            return refuse("routing", "holdout", "a share between 0 and 0.5");
        }
        if !self.routing.priority_weights.iter().all(|weight| (1e-3..=1e3).contains(weight)) {
            return refuse("routing", "priority_weights", "three numbers from 0.001 to 1000");
        }
        if !(0.0..=1.0).contains(&self.log.trace_ratio) {
            return refuse("log", "trace_ratio", "a share between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.proxy.breaker_share) {
            return refuse("proxy", "breaker_share", "a share between 0 and 1");
        }
        if !(1..=1024).contains(&self.server.max_head_kib) {
            return refuse("server", "max_head_kib", "1 to 1024");
        }
        if let Err(expected) = Allow::parse(&self.workers.allow) {
            return refuse("workers", "allow", &expected);
        }
        if self.access.max_keys > 1 << 20 {
            return refuse("access", "max_keys", "at most 1048576");
        }
        for (room, name, value) in [
            ("server", "body_limit_mib", self.server.body_limit_mib as u64),
            ("server", "max_connections", self.server.max_connections as u64),
            ("server", "idle_connection_ms", self.server.idle_connection_ms),
            ("server", "stalled_client_ms", self.server.stalled_client_ms),
            ("server", "head_timeout_ms", self.server.head_timeout_ms),
            ("server", "body_timeout_ms", self.server.body_timeout_ms),
            ("tls", "handshake_ms", self.tls.handshake_ms),
            ("tls", "reload_ms", self.tls.reload_ms),
            ("routing", "queue_timeout_ms", self.routing.queue_timeout_ms),
            ("routing", "max_sessions", self.routing.max_sessions as u64),
            ("events", "share_load_ms", self.events.share_load_ms),
            ("events", "max_routers", self.events.max_routers as u64),
            ("index", "max_mib", self.index.max_mib as u64),
            ("index", "shards", self.index.shards as u64),
            ("workers", "max", self.workers.max as u64),
            ("workers", "probe_interval_ms", self.workers.probe_interval_ms),
            ("workers", "probe_timeout_ms", self.workers.probe_timeout_ms),
            ("workers", "down_after", u64::from(self.workers.down_after)),
            ("workers", "refresh_ms", self.workers.refresh_ms),
            ("tokenizer", "max_waiting", self.tokenizer.max_waiting as u64),
            ("proxy", "connect_timeout_ms", self.proxy.connect_timeout_ms),
            ("proxy", "first_byte_timeout_ms", self.proxy.first_byte_timeout_ms),
            ("proxy", "answer_timeout_ms", self.proxy.answer_timeout_ms),
            ("proxy", "idle_timeout_ms", self.proxy.idle_timeout_ms),
            ("proxy", "breaker_failures", u64::from(self.proxy.breaker_failures)),
            ("proxy", "breaker_open_ms", self.proxy.breaker_open_ms),
        ] {
            if value == 0 {
                return refuse(room, name, "1 or more");
            }
        }
        if self.proxy.continuations > 100 {
            return refuse("proxy", "continuations", "0 to 100");
        }
        if self.proxy.continued_kib > 1 << 20 {
            return refuse("proxy", "continued_kib", "at most 1048576");
        }
        for (room, name, mib) in [
            ("server", "body_limit_mib", self.server.body_limit_mib),
            ("index", "max_mib", self.index.max_mib),
        ] {
            if mib > 1 << 24 {
                return refuse(room, name, "at most 16777216 MiB");
            }
        }
        if self.server.threads > 1024 {
            return refuse("server", "threads", "at most 1024");
        }
        if let Some(core) = self.server.cores.iter().find(|core| **core >= threads::MOST_CORES) {
            let most = threads::MOST_CORES - 1;
            return refuse("server", "cores", &format!("cores of 0 to {most} instead of {core}"));
        }
        if self.tokenizer.threads > 1024 {
            return refuse("tokenizer", "threads", "at most 1024");
        }
        self.validate_tls(settings)?;
        let port = |name: &str| name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if let Some(wrong) = self.workers.dns.iter().find(|name| !port(name)) {
            return refuse("workers", "dns", &format!("NAME:PORT instead of {wrong:?}"));
        }
        let wrong = |origin: &&String| {
            !(*origin == "*" || origin.starts_with("http://") || origin.starts_with("https://"))
                || hyper::header::HeaderValue::from_str(origin).is_err()
        };
        if let Some(wrong) = self.server.cors_origins.iter().find(wrong) {
            return refuse("server", "cors_origins", &format!("* or http(s)://HOST instead of {wrong:?}"));
        }
        // An empty index takes 128 bytes a shard.
        if self.index.shards > 1 << 16 || self.index.shards * 128 > self.index.max_mib << 19 {
            return refuse("index", "shards", "at most 65536, taking at most half of index.max_mib");
        }
        match self.proxy.request_plane.as_str() {
            "http" => {}
            "tcp" | "nats" => {
                return refuse(
                    "proxy",
                    "request_plane",
                    "http: engines are spoken to as they are, over their own HTTP API, without Dynamo's runtime",
                );
            }
            _ => return refuse("proxy", "request_plane", "http"),
        }
        if self.events.plane == EventPlane::Nats && self.events.nats_url.is_none() {
            return refuse(
                "events",
                "plane",
                "events.nats_url (--nats-url, NATS_SERVER) to be given with nats",
            );
        }
        if let Some(bad) = self.model.dirs.iter().find(|dir| !dir.contains('=')) {
            return refuse("model", "dirs", &format!("NAME=DIR instead of {bad:?}"));
        }
        if let Some(url) = &self.log.otlp_endpoint
            && !url.starts_with("http://")
        {
            return refuse("log", "otlp_endpoint", "http://HOST:PORT");
        }
        Ok(())
    }

    /// Files that are nothing without each other.
    fn validate_tls(&self, settings: &Settings) -> Result<(), ConfigError> {
        let tls = &self.tls;
        for (name, given, needed, there) in [
            ("cert", tls.cert.is_some(), "tls.key (--tls-key-path)", tls.key.is_some()),
            ("key", tls.key.is_some(), "tls.cert (--tls-cert-path)", tls.cert.is_some()),
            ("client_ca", tls.client_ca.is_some(), "tls.cert (--tls-cert-path)", tls.cert.is_some()),
            ("worker_cert", tls.worker_cert.is_some(), "tls.worker_key", tls.worker_key.is_some()),
            ("worker_key", tls.worker_key.is_some(), "tls.worker_cert", tls.worker_cert.is_some()),
            ("admin", tls.admin, "tls.cert (--tls-cert-path)", tls.cert.is_some()),
        ] {
            if given && !there {
                return Err(settings.refuse("tls", name, &format!("{needed} to be given with it")));
            }
        }
        let events = &self.events;
        for (name, given, needed, there) in [
            (
                "nats_tls_cert",
                events.nats_tls_cert.is_some(),
                "events.nats_tls_key",
                events.nats_tls_key.is_some(),
            ),
            (
                "nats_tls_key",
                events.nats_tls_key.is_some(),
                "events.nats_tls_cert",
                events.nats_tls_cert.is_some(),
            ),
        ] {
            if given && !there {
                return Err(settings.refuse("events", name, &format!("{needed} to be given with it")));
            }
        }
        let identities = [
            ("nats_creds", events.nats_creds.is_some()),
            ("nats_nkey", events.nats_nkey.is_some()),
            ("nats_token_file", events.nats_token_file.is_some()),
        ];
        let mut given = identities.iter().filter(|(_, given)| *given);
        if let (Some((one, _)), Some((other, _))) = (given.next(), given.next()) {
            return Err(settings.refuse("events", other, &format!("nothing, because events.{one} is given")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
