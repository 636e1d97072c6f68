//! A simulated worker's metrics, under the names the engines themselves use. The only place they are written.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    Counter, Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

use crate::sim::{Calibration, FirstToken, SimEngine};

/// Memory of the card the calibrations are about, and the share an engine takes of it.
const CARD_MIB: i64 = 143_771;
const CARD_SHARE: f64 = 0.9;

const FIRST_TOKEN_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const PER_TOKEN_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_S: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

pub(super) struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    usage: Gauge,
    preemptions: IntCounter,
    queried: IntCounter,
    hit: IntCounter,
    cached: IntCounter,
    prompt: IntCounter,
    generated: IntCounter,
    success: IntCounterVec,
    first_token_s: Histogram,
    per_token_s: Histogram,
    request_s: Histogram,
    queue_s: Histogram,
    trtllm_queue_s: Histogram,
    drafts: IntCounter,
    drafted: IntCounter,
    accepted: IntCounter,
    inflight: IntGauge,
    busy_pct: Gauge,
    cpu_s: Counter,
}

/// Makes metrics of one worker and registers them as it goes.
struct Maker {
    registry: Registry,
    model: String,
}

impl Maker {
    fn add<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> prometheus::Result<C> {
        let metric = metric?;
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    /// With the labels vLLM puts on everything.
    fn vllm(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("vllm:{name}"), help)
            .const_label("engine", "0")
            .const_label("model_name", &self.model)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::with_opts(self.vllm(name, help)))
    }

    fn count(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(self.vllm(name, help)))
    }

    fn seconds(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        let options = HistogramOpts { common_opts: self.vllm(name, help), buckets: buckets.to_vec() };
        self.add(Histogram::with_opts(options))
    }
}

/// The metrics of the engine that runs now: a restarted one starts with new ones, as a new process would.
#[derive(Debug)]
pub(super) struct Dashboard {
    model: String,
    worker: String,
    calibration: Calibration,
    current: Mutex<Arc<Metrics>>,
}

impl Dashboard {
    pub(super) fn new(
        model: &str,
        worker: &str,
        calibration: &Calibration,
        started_s: f64,
    ) -> prometheus::Result<Self> {
        let metrics = Metrics::register(model, worker, calibration, started_s)?;
        Ok(Self {
            model: model.to_owned(),
            worker: worker.to_owned(),
            calibration: calibration.clone(),
            current: Mutex::new(Arc::new(metrics)),
        })
    }

    pub(super) fn current(&self) -> Arc<Metrics> {
        self.current.lock().clone()
    }

    pub(super) fn restart(&self, started_s: f64) -> Arc<Metrics> {
        let mut current = self.current.lock();
        // What could be registered once can be registered again.
        if let Ok(metrics) = Metrics::register(&self.model, &self.worker, &self.calibration, started_s) {
            *current = Arc::new(metrics);
        }
        current.clone()
    }
}

impl Metrics {
    fn register(
        model: &str,
        worker: &str,
        calibration: &Calibration,
        started_s: f64,
    ) -> prometheus::Result<Self> {
        let make = Maker { registry: Registry::new(), model: model.to_owned() };
        let simulated = |name: &str, help: &str| {
            Opts::new(name, help)
                .const_label("simulated", "true")
                .const_label("modelName", &calibration.name)
                .const_label("gpu", "0")
                .const_label("Hostname", worker)
                .const_label("pod", worker)
                .const_label("namespace", "dynamo-workload")
        };
        let trtllm_queue =
            Opts::new("trtllm_request_queue_time_seconds", "Time a request waited before it ran.")
                .const_label("model_name", model)
                .const_label("engine_type", "simulated");
        let inflight = Opts::new("dynamo_component_inflight_requests", "Requests this worker is serving.")
            .const_label("dynamo_namespace", "kvlane")
            .const_label("dynamo_component", "simulated")
            .const_label("dynamo_endpoint", "generate");
        let cache = make
            .vllm("cache_config_info", "What the KV cache is like.")
            .const_label("block_size", calibration.block_tokens.to_string())
            .const_label("num_gpu_blocks", calibration.kv_blocks.to_string())
            .const_label("enable_prefix_caching", "True")
            .const_label("prefix_caching_hash_algo", "simulated");
        make.add(IntGauge::with_opts(cache))?.set(1);
        let used_mib = (CARD_MIB as f64 * CARD_SHARE) as i64;
        make.add(IntGauge::with_opts(simulated("DCGM_FI_DEV_FB_USED", "Framebuffer used (MiB).")))?
            .set(used_mib);
        make.add(IntGauge::with_opts(simulated("DCGM_FI_DEV_FB_FREE", "Framebuffer free (MiB).")))?
            .set(CARD_MIB - used_mib);
        make.add(Gauge::new("process_start_time_seconds", "When the engine started, since 1970."))?
            .set(started_s);
        let success = make.vllm("request_success_total", "Requests answered, by how they ended.");
        let metrics = Self {
            running: make.gauge("num_requests_running", "Requests in the batch.")?,
            waiting: make.gauge("num_requests_waiting", "Requests waiting for a slot.")?,
            usage: make.add(Gauge::with_opts(
                make.vllm("kv_cache_usage_perc", "Share of KV blocks in use by requests."),
            ))?,
            preemptions: make
                .count("num_preemptions_total", "Requests sent back to wait for want of blocks.")?,
            queried: make
                .count("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")?,
            hit: make.count("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")?,
            cached: make.count("prompt_tokens_cached_total", "Prompt tokens that were not computed.")?,
            prompt: make.count("prompt_tokens_total", "Prompt tokens of requests that began to answer.")?,
            generated: make.count("generation_tokens_total", "Tokens generated.")?,
            success: make.add(IntCounterVec::new(success, &["finished_reason"]))?,
            first_token_s: make.seconds(
                "time_to_first_token_seconds",
                "Submission to first token.",
                FIRST_TOKEN_S,
            )?,
            per_token_s: make.seconds(
                "inter_token_latency_seconds",
                "Between two tokens of an answer.",
                PER_TOKEN_S,
            )?,
            request_s: make.seconds("e2e_request_latency_seconds", "Submission to last token.", REQUEST_S)?,
            queue_s: make.seconds(
                "request_queue_time_seconds",
                "Submission to joining the batch.",
                REQUEST_S,
            )?,
            trtllm_queue_s: make.add(Histogram::with_opts(HistogramOpts {
                common_opts: trtllm_queue,
                buckets: FIRST_TOKEN_S.to_vec(),
            }))?,
            drafts: make.count("spec_decode_num_drafts_total", "Drafts made.")?,
            drafted: make.count("spec_decode_num_draft_tokens_total", "Tokens drafted.")?,
            accepted: make.count("spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.")?,
            inflight: make.add(IntGauge::with_opts(inflight))?,
            busy_pct: make
                .add(Gauge::with_opts(simulated("DCGM_FI_DEV_GPU_UTIL", "Share of time a step ran (%).")))?,
            cpu_s: make
                .add(Counter::new("process_cpu_seconds_total", "User and system time of the process."))?,
            registry: make.registry,
        };
        for reason in ["stop", "length", "abort"] {
            metrics.success.with_label_values(&[reason]).inc_by(0);
        }
        Ok(metrics)
    }

    /// The engine as it stands between two steps.
    pub(super) fn engine(&self, engine: &SimEngine) {
        self.running.set(engine.running_count() as i64);
        self.waiting.set(engine.waiting_count() as i64);
        self.usage.set(engine.block_counts().0 as f64 / engine.calibration().kv_blocks as f64);
        let drafts = engine.drafts();
        let catch_up = |counter: &IntCounter, now: u64| counter.inc_by(now.saturating_sub(counter.get()));
        catch_up(&self.preemptions, engine.preemption_count());
        catch_up(&self.drafts, drafts.drafts);
        catch_up(&self.drafted, drafts.tokens);
        catch_up(&self.accepted, drafts.accepted);
    }

    pub(super) fn inflight(&self, requests: usize) {
        self.inflight.set(requests as i64);
    }

    pub(super) fn busy(&self, share: f64) {
        self.busy_pct.set((100.0 * share).clamp(0.0, 100.0));
    }

    /// An answer's first tokens came, so long after it was asked for; with what the engine says of the request
    /// and how long it queued.
    pub(super) fn first_tokens(&self, count: usize, seconds: f64, first: Option<(FirstToken, f64)>) {
        self.generated.inc_by(count as u64);
        self.first_token_s.observe(seconds);
        let Some((request, queue_s)) = first else { return };
        self.queue_s.observe(queue_s);
        self.trtllm_queue_s.observe(queue_s);
        for (counter, tokens) in [
            (&self.queried, request.prompt_tokens),
            (&self.prompt, request.prompt_tokens),
            (&self.hit, request.cached_tokens),
            (&self.cached, request.cached_tokens),
        ] {
            counter.inc_by(tokens as u64);
        }
    }

    /// More came, so long after those before them.
    pub(super) fn more_tokens(&self, count: usize, seconds: f64) {
        self.generated.inc_by(count as u64);
        self.per_token_s.observe(seconds);
    }

    pub(super) fn finished(&self, reason: &str, seconds: f64) {
        self.success.with_label_values(&[reason]).inc();
        self.request_s.observe(seconds);
    }

    /// Everything in Prometheus' text form.
    pub(super) fn text(&self) -> String {
        if let Some(seconds) = crate::process::cpu_seconds("self") {
            self.cpu_s.inc_by((seconds - self.cpu_s.get()).max(0.0));
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
