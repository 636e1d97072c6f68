//! Every metric, once: its name, meaning, labels and buckets.
//!
//! Names that begin with `dynamo_` are Dynamo's, with its labels, so that its dashboards keep working; ours begin with
//! `kvlane_`. Label values come from what is served and known here, never from what a request says.

mod meter;
#[cfg(target_os = "linux")]
mod process;
mod snapshot;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::access::LimitKind;
use crate::openai::Endpoint;

pub use self::meter::{Meter, Outcome, Phase};
pub use self::snapshot::{Exposition, Kind};

/// Resolves 600 ms, where most people's objective for the first token lies.
const TTFT_S: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0,
    20.0, 30.0, 60.0, 120.0, 300.0,
];
/// Resolves 60 ms, where most people's objective between tokens lies.
const ITL_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2, 0.3,
    0.5, 1.0, 2.0, 5.0,
];
const DURATION_S: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 130.0, 260.0, 510.0];
const TOKENS: &[f64] =
    &[0.0, 32.0, 100.0, 210.0, 430.0, 870.0, 1800.0, 3600.0, 7400.0, 15000.0, 31000.0, 63000.0, 130_000.0];
const SHARE: &[f64] = &[0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];
const OVERHEAD_MS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0,
    256.0,
];
const PHASE_S: &[f64] = &[
    0.000_001, 0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
];

/// Endpoints, each with answers that are streamed and others.
const KINDS: usize = 2 * Endpoint::ALL.len();

/// One model's metrics, resolved once.
#[derive(Debug)]
pub struct ModelMetrics {
    pub name: String,
    /// Requests begun and those that succeeded, by endpoint and kind, as far as there were any.
    started: [OnceLock<IntCounter>; KINDS],
    succeeded: [OnceLock<IntCounter>; KINDS],
    inflight: IntGauge,
    active: IntGauge,
    queued: IntGauge,
    output_tokens: IntCounter,
    duration: Histogram,
    ttft: Histogram,
    itl: Histogram,
    input_tokens: Histogram,
    output_sequence: Histogram,
    cached_tokens: Histogram,
    migrations: [IntCounter; 2],
    not_continued: IntCounter,
}

/// What another worker took over, by Dynamo's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// A request nobody had answered yet.
    NewRequest,
    /// An answer that had begun.
    OngoingRequest,
}

/// One worker's metrics. Whoever still has them when it is gone counts into the void.
#[derive(Debug)]
pub struct WorkerMetrics {
    name: String,
    gone: AtomicBool,
    placements: IntCounter,
    predicted_tokens: IntCounter,
    reported_tokens: IntCounter,
    disagreements: IntCounter,
    unreported: IntCounter,
    malformed: IntCounter,
}

impl WorkerMetrics {
    /// What was expected of the worker's cache, and what it said.
    pub fn audited(&self, predicted: usize, reported: Option<usize>, block_tokens: usize) {
        self.predicted_tokens.inc_by(predicted as u64);
        match reported {
            Some(reported) => {
                self.reported_tokens.inc_by(reported as u64);
                if reported + block_tokens < predicted {
                    self.disagreements.inc();
                }
            }
            None if predicted > 0 => self.unreported.inc(),
            None => {}
        }
    }

    pub fn malformed(&self, frames: u64) {
        self.malformed.inc_by(frames);
    }
}

/// One key's metrics. Whoever still has them when it is gone counts into the void.
#[derive(Debug)]
pub struct KeyMetrics {
    name: String,
    /// Requests that succeeded, failed and were left by their client.
    requests: [IntCounter; 3],
    prompt_tokens: IntCounter,
    answer_tokens: IntCounter,
    refused: [IntCounter; LimitKind::ALL.len()],
}

/// How a key's requests end.
const KEY_OUTCOMES: [&str; 3] = ["success", "error", "cancelled"];
const TOKEN_KINDS: [&str; 2] = ["prompt", "answer"];

impl KeyMetrics {
    pub fn ended(&self, outcome: Outcome, prompt: u64, answer: u64) {
        let at = match outcome {
            Outcome::Success => 0,
            Outcome::Error(_) => 1,
            Outcome::Cancelled => 2,
        };
        self.requests[at].inc();
        self.prompt_tokens.inc_by(prompt);
        self.answer_tokens.inc_by(answer);
    }

    pub fn refused(&self, limit: LimitKind) {
        self.refused[limit as usize].inc();
    }

    /// All of it, for people.
    pub fn used(&self) -> serde_json::Value {
        let refused: u64 = self.refused.iter().map(IntCounter::get).sum();
        serde_json::json!({
            "requests": self.requests.iter().map(IntCounter::get).sum::<u64>(),
            "prompt_tokens": self.prompt_tokens.get(),
            "answer_tokens": self.answer_tokens.get(),
            "refused": refused,
        })
    }
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    declared: Vec<Declared>,
    models: RwLock<HashMap<String, Arc<ModelMetrics>>>,
    /// With how many go by each name.
    workers: Mutex<HashMap<String, (Arc<WorkerMetrics>, usize)>>,
    requests: IntCounterVec,
    started: IntCounterVec,
    inflight: IntGaugeVec,
    active: IntGaugeVec,
    queued: IntGaugeVec,
    output_tokens: IntCounterVec,
    duration: HistogramVec,
    ttft: HistogramVec,
    itl: HistogramVec,
    input_tokens: HistogramVec,
    output_sequence: HistogramVec,
    cached_tokens: HistogramVec,
    disconnected: IntGauge,
    phases: [Histogram; Phase::ALL.len()],
    overhead: [Histogram; 4],
    template: Histogram,
    tokenize: Histogram,
    hit_rate: Histogram,
    retries: IntCounterVec,
    migrations: IntCounterVec,
    not_continued: IntCounterVec,
    failures: IntCounterVec,
    placements: IntCounterVec,
    predicted_tokens: IntCounterVec,
    reported_tokens: IntCounterVec,
    disagreements: IntCounterVec,
    unreported: IntCounterVec,
    malformed: IntCounterVec,
    queue_wait: HistogramVec,
    queue_refused: IntCounterVec,
    key_requests: IntCounterVec,
    key_tokens: IntCounterVec,
    key_refused: IntCounterVec,
    unauthorized: IntCounter,
    workers_refused: IntCounterVec,
    connections_refused: IntCounter,
    handshakes_failed: IntCounter,
    certificate_ends: IntGaugeVec,
}

/// Certificates that are shown to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// To clients.
    Server,
    /// To workers.
    Worker,
}

impl Certificate {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "worker",
        }
    }
}

/// Where a placement's time goes, by Dynamo's names.
const OVERHEADS: [(&str, &str); 4] = [
    ("dynamo_router_overhead_block_hashing_ms", "Hashing a prompt into blocks and sequences."),
    ("dynamo_router_overhead_indexer_find_matches_ms", "Asking the index who holds how much of a prompt."),
    ("dynamo_router_overhead_scheduling_ms", "Choosing a worker and reserving its load."),
    ("dynamo_router_overhead_total_ms", "From the request's read body to its worker, tokenizing included."),
];

/// A metric as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    /// Prometheus' word for it.
    pub kind: String,
    pub help: String,
    pub labels: Vec<String>,
}

/// Declares and registers.
struct Maker<'a> {
    registry: &'a Registry,
    declared: RefCell<Vec<Declared>>,
}

impl Maker<'_> {
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> prometheus::Result<C> {
        let made = made?;
        self.register(made.clone())?;
        Ok(made)
    }

    fn register(&self, made: impl Collector + 'static) -> prometheus::Result<()> {
        let families = made.collect();
        self.declared.borrow_mut().extend(made.desc().iter().map(|desc| {
            let family = families.iter().find(|family| family.name() == desc.fq_name).or(families.first());
            Declared {
                name: desc.fq_name.clone(),
                kind: family
                    .map(|family| format!("{:?}", family.get_field_type()).to_lowercase())
                    .unwrap_or_default(),
                help: desc.help.clone(),
                labels: desc.variable_labels.clone(),
            }
        }));
        self.registry.register(Box::new(made))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> prometheus::Result<HistogramVec> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }
}

impl Metrics {
    /// The only place where a metric has a name, besides what is written from snapshots.
    pub fn register() -> prometheus::Result<Arc<Self>> {
        let registry = Registry::new();
        let make = Maker { registry: &registry, declared: RefCell::default() };
        let phase_seconds = make.histograms(
            "kvlane_phase_seconds",
            "Time a request spends in each phase before it is sent to a worker.",
            PHASE_S,
            &["phase"],
        )?;
        let overhead = |(name, help): (&str, &str)| make.histogram(name, help, OVERHEAD_MS);
        let [hashing, matches, scheduling, total] = OVERHEADS;
        #[cfg(target_os = "linux")]
        make.register(process::Process::new())?;
        let metrics = Self {
            models: RwLock::default(),
            workers: Mutex::default(),
            requests: make.counters(
                "dynamo_frontend_requests_total",
                "Requests that are over. A model is named only when it is served here.",
                &["model", "endpoint", "request_type", "status", "error_type"],
            )?,
            started: make.counters(
                "dynamo_frontend_requests_started_total",
                "Requests that were begun.",
                &["model", "endpoint", "request_type"],
            )?,
            inflight: make.gauges("dynamo_frontend_inflight_requests", "Requests being answered.", &["model"])?,
            active: make.gauges("dynamo_frontend_active_requests", "Requests being answered.", &["model"])?,
            queued: make.gauges(
                "dynamo_frontend_queued_requests",
                "Requests that have not had their first token, as Dynamo counts them.",
                &["model"],
            )?,
            output_tokens: make.counters("dynamo_frontend_output_tokens_total", "Tokens of answers.", &["model"])?,
            duration: make.histograms(
                "dynamo_frontend_request_duration_seconds",
                "From a request's arrival to the end of its answer.",
                DURATION_S,
                &["model"],
            )?,
            ttft: make.histograms(
                "dynamo_frontend_time_to_first_token_seconds",
                "From a request's arrival to the first token of its answer.",
                TTFT_S,
                &["model"],
            )?,
            itl: make.histograms(
                "dynamo_frontend_inter_token_latency_seconds",
                "Between two tokens of a streamed answer.",
                ITL_S,
                &["model"],
            )?,
            input_tokens: make.histograms(
                "dynamo_frontend_input_sequence_tokens",
                "Tokens of a prompt.",
                TOKENS,
                &["model"],
            )?,
            output_sequence: make.histograms(
                "dynamo_frontend_output_sequence_tokens",
                "Tokens of an answer.",
                TOKENS,
                &["model"],
            )?,
            cached_tokens: make.histograms(
                "dynamo_frontend_cached_tokens",
                "Tokens of a prompt that its worker had cached, as the worker reports it; 0 when it had none.",
                TOKENS,
                &["model"],
            )?,
            disconnected: make.add(IntGauge::new(
                "dynamo_frontend_disconnected_clients",
                "Clients that went away before their answer was over.",
            ))?,
            phases: Phase::ALL.map(|phase| phase_seconds.with_label_values(&[phase.name()])),
            overhead: [overhead(hashing)?, overhead(matches)?, overhead(scheduling)?, overhead(total)?],
            template: make.histogram(
                "dynamo_frontend_template_seconds",
                "Rendering a chat template.",
                PHASE_S,
            )?,
            tokenize: make.histogram("dynamo_frontend_tokenize_seconds", "Tokenizing a prompt.", PHASE_S)?,
            hit_rate: make.histogram(
                "dynamo_component_router_kv_hit_rate",
                "Share of a prompt's blocks that the chosen worker was known to hold.",
                SHARE,
            )?,
            migrations: make.counters(
                "dynamo_frontend_model_migration_total",
                "Requests and answers under way that another worker took over.",
                &["model", "migration_type"],
            )?,
            not_continued: make.counters(
                "kvlane_not_continued_total",
                "Answers that broke off and were to be continued, but could not be.",
                &["model"],
            )?,
            retries: make.counters(
                "kvlane_retries_total",
                "Requests sent to another worker, by what the one before did.",
                &["reason"],
            )?,
            failures: make.counters(
                "kvlane_worker_failures_total",
                "Requests a worker failed to answer.",
                &["worker", "reason"],
            )?,
            placements: make.counters("kvlane_placements_total", "Requests placed on a worker.", &["worker"])?,
            predicted_tokens: make.counters(
                "kvlane_overlap_predicted_tokens_total",
                "Prompt tokens the index said the chosen worker holds.",
                &["worker"],
            )?,
            reported_tokens: make.counters(
                "kvlane_overlap_reported_tokens_total",
                "Prompt tokens the worker then reported as cached.",
                &["worker"],
            )?,
            disagreements: make.counters(
                "kvlane_overlap_disagreements_total",
                "Answers whose cached tokens were more than a block below what the index had said.",
                &["worker"],
            )?,
            unreported: make.counters(
                "kvlane_overlap_unreported_total",
                "Answers without a word about cached tokens where some were expected.",
                &["worker"],
            )?,
            malformed: make.counters(
                "kvlane_malformed_frames_total",
                "Events of streamed answers that were not understood, passed on as they came.",
                &["worker"],
            )?,
            queue_wait: make.histograms(
                "kvlane_queue_wait_seconds",
                "Time requests waited in the router for a worker with room, of those that did.",
                TTFT_S,
                &["priority"],
            )?,
            queue_refused: make.counters(
                "kvlane_queue_refused_total",
                "Requests refused because too many waited, or because they had waited too long.",
                &["reason"],
            )?,
            key_requests: make.counters(
                "kvlane_key_requests_total",
                "Requests of an API key that are over, by how they ended.",
                &["key", "outcome"],
            )?,
            key_tokens: make.counters(
                "kvlane_key_tokens_total",
                "Tokens of an API key's prompts and answers.",
                &["key", "kind"],
            )?,
            key_refused: make.counters(
                "kvlane_key_refused_total",
                "Requests of an API key that were refused because a limit was reached.",
                &["key", "limit"],
            )?,
            unauthorized: make.add(IntCounter::new(
                "kvlane_unauthorized_total",
                "Requests without an API key that is known and has not expired, where one was needed.",
            ))?,
            workers_refused: make.counters(
                "kvlane_workers_refused_total",
                "Workers left out because workers.allow does not have them, by who named them; each counted once.",
                &["source"],
            )?,
            connections_refused: make.add(IntCounter::new(
                "kvlane_connections_refused_total",
                "Connections closed at once because their address had as many as it may.",
            ))?,
            handshakes_failed: make.add(IntCounter::new(
                "kvlane_tls_handshakes_failed_total",
                "Connections of clients that ended before TLS was agreed on.",
            ))?,
            certificate_ends: make.gauges(
                "kvlane_tls_certificate_not_after_seconds",
                "When a certificate in use ends, in seconds since 1970: the one clients are shown, the one workers are.",
                &["certificate"],
            )?,
            declared: Vec::new(),
            registry: registry.clone(),
        };
        Ok(Arc::new(Self { declared: make.declared.into_inner(), ..metrics }))
    }

    /// Everything that is counted here, whether there is any of it yet or not.
    pub fn declared(&self) -> &[Declared] {
        &self.declared
    }

    /// One model's metrics; to be asked with names of served models only, or an empty one.
    pub fn model(&self, name: &str) -> Arc<ModelMetrics> {
        if let Some(known) = self.models.read().get(name) {
            return known.clone();
        }
        let made = Arc::new(ModelMetrics {
            name: name.to_owned(),
            started: [const { OnceLock::new() }; KINDS],
            succeeded: [const { OnceLock::new() }; KINDS],
            inflight: self.inflight.with_label_values(&[name]),
            active: self.active.with_label_values(&[name]),
            queued: self.queued.with_label_values(&[name]),
            output_tokens: self.output_tokens.with_label_values(&[name]),
            duration: self.duration.with_label_values(&[name]),
            ttft: self.ttft.with_label_values(&[name]),
            itl: self.itl.with_label_values(&[name]),
            input_tokens: self.input_tokens.with_label_values(&[name]),
            output_sequence: self.output_sequence.with_label_values(&[name]),
            cached_tokens: self.cached_tokens.with_label_values(&[name]),
            migrations: ["new_request", "ongoing_request"]
                .map(|kind| self.migrations.with_label_values(&[name, kind])),
            not_continued: self.not_continued.with_label_values(&[name]),
        });
        self.models.write().entry(name.to_owned()).or_insert(made).clone()
    }

    /// A request that never got as far as a model.
    pub fn refused(&self, endpoint: &str, class: &str) {
        self.requests.with_label_values(&["", endpoint, "", "error", class]).inc();
    }

    pub fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    /// A certificate is in use from now on; one whose end is unknown has none.
    pub fn certificate_ends(&self, certificate: Certificate, at: Option<i64>) {
        match at {
            Some(at) => self.certificate_ends.with_label_values(&[certificate.name()]).set(at),
            None => drop(self.certificate_ends.remove_label_values(&[certificate.name()])),
        }
    }

    pub fn retried(&self, reason: &str) {
        self.retries.with_label_values(&[reason]).inc();
    }

    pub fn migrated(&self, model: &ModelMetrics, what: Migration) {
        model.migrations[what as usize].inc();
    }

    pub fn not_continued(&self, model: &ModelMetrics) {
        model.not_continued.inc();
    }

    /// One worker's metrics, resolved once for as long as it is there; given back by [`Metrics::forget_worker`].
    pub fn worker(&self, name: &str) -> Arc<WorkerMetrics> {
        let mut workers = self.workers.lock();
        if let Some((known, count)) = workers.get_mut(name) {
            *count += 1;
            return known.clone();
        }
        let of = |vec: &IntCounterVec| vec.with_label_values(&[name]);
        let made = Arc::new(WorkerMetrics {
            name: name.to_owned(),
            gone: AtomicBool::new(false),
            placements: of(&self.placements),
            predicted_tokens: of(&self.predicted_tokens),
            reported_tokens: of(&self.reported_tokens),
            disagreements: of(&self.disagreements),
            unreported: of(&self.unreported),
            malformed: of(&self.malformed),
        });
        workers.insert(name.to_owned(), (made.clone(), 1));
        made
    }

    pub fn worker_failed(&self, worker: &WorkerMetrics, reason: &str) {
        // What comes late must not bring a series back.
        if !worker.gone.load(Ordering::Relaxed) {
            self.failures.with_label_values(&[worker.name.as_str(), reason]).inc();
        }
    }

    pub fn placed(&self, worker: &WorkerMetrics, held_blocks: usize, blocks: usize) {
        worker.placements.inc();
        if blocks > 0 {
            self.hit_rate.observe(held_blocks.min(blocks) as f64 / blocks as f64);
        }
    }

    /// A worker that is gone takes its series along, unless another goes by its name.
    pub fn forget_worker(&self, worker: &WorkerMetrics) {
        let mut workers = self.workers.lock();
        match workers.get_mut(&worker.name) {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                return;
            }
            _ => drop(workers.remove(&worker.name)),
        }
        worker.gone.store(true, Ordering::Relaxed);
        let worker = worker.name.as_str();
        for vec in [
            &self.placements,
            &self.predicted_tokens,
            &self.reported_tokens,
            &self.disagreements,
            &self.unreported,
            &self.malformed,
        ] {
            let _ = vec.remove_label_values(&[worker]);
        }
        for reason in crate::error::Failure::NAMES {
            let _ = self.failures.remove_label_values(&[worker, reason]);
        }
    }

    /// One key's metrics; to be asked with names from the keys' file only, and given back by [`Metrics::forget_key`].
    pub fn key(&self, name: &str) -> Arc<KeyMetrics> {
        let [prompt_tokens, answer_tokens] =
            TOKEN_KINDS.map(|kind| self.key_tokens.with_label_values(&[name, kind]));
        Arc::new(KeyMetrics {
            name: name.to_owned(),
            requests: KEY_OUTCOMES.map(|outcome| self.key_requests.with_label_values(&[name, outcome])),
            prompt_tokens,
            answer_tokens,
            refused: LimitKind::ALL.map(|limit| self.key_refused.with_label_values(&[name, limit.name()])),
        })
    }

    /// A key that is gone takes its series along.
    pub fn forget_key(&self, key: &KeyMetrics) {
        let name = key.name.as_str();
        for outcome in KEY_OUTCOMES {
            let _ = self.key_requests.remove_label_values(&[name, outcome]);
        }
        for kind in TOKEN_KINDS {
            let _ = self.key_tokens.remove_label_values(&[name, kind]);
        }
        for limit in LimitKind::ALL {
            let _ = self.key_refused.remove_label_values(&[name, limit.name()]);
        }
    }

    pub fn worker_refused(&self, source: &'static str) {
        self.workers_refused.with_label_values(&[source]).inc();
    }

    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    pub fn unauthorized(&self) {
        self.unauthorized.inc();
    }

    /// Everything counted here, in Prometheus' text form.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail, and names were checked when they were registered.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}
