//! One request, measured from its arrival to whatever end it finds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Metrics, ModelMetrics};
use crate::openai::Endpoint;
use crate::preprocess::Took;
use crate::scheduling::{NoPlace, Priority};

/// What a request goes through before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Receiving and parsing its body.
    Read,
    Template,
    Tokenize,
    Hash,
    Overlap,
    Place,
}

impl Phase {
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Template, Self::Tokenize, Self::Hash, Self::Overlap, Self::Place];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Template => "template",
            Self::Tokenize => "tokenize",
            Self::Hash => "hash",
            Self::Overlap => "overlap",
            Self::Place => "place",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// With an error of this class, Dynamo's words.
    Error(&'static str),
    /// The client went away.
    #[default]
    Cancelled,
}

impl Outcome {
    /// `status` and `error_type`.
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Success => ("success", ""),
            Self::Error(class) => ("error", class),
            Self::Cancelled => ("error", "cancelled"),
        }
    }
}

/// A request's own stopwatch. What it found is counted when it is dropped; a request nobody finished was cancelled.
#[derive(Debug)]
pub struct Meter {
    metrics: Arc<Metrics>,
    model: Arc<ModelMetrics>,
    endpoint: Endpoint,
    streamed: bool,
    arrived: Instant,
    first: Option<Instant>,
    last: Instant,
    seen_tokens: u64,
    /// What the engine's usage says; better than what was seen.
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub outcome: Outcome,
}

/// Where a model keeps what it counts of an endpoint's answers.
fn kind(endpoint: Endpoint, streamed: bool) -> usize {
    2 * endpoint as usize + usize::from(streamed)
}

/// Dynamo's word for it.
fn kind_name(streamed: bool) -> &'static str {
    if streamed { "stream" } else { "unary" }
}

/// Gaps recorded for one chunk, however many tokens it carries.
const MOST_GAPS: u64 = 16;

impl Meter {
    /// A request that arrived when it did and is known to be for `model` now.
    pub fn begin(
        metrics: &Arc<Metrics>,
        model: Arc<ModelMetrics>,
        endpoint: Endpoint,
        streamed: bool,
        arrived: Instant,
    ) -> Self {
        let started = model.started[kind(endpoint, streamed)].get_or_init(|| {
            metrics.started.with_label_values(&[model.name.as_str(), endpoint.name(), kind_name(streamed)])
        });
        started.inc();
        model.inflight.inc();
        model.active.inc();
        model.queued.inc();
        Self {
            metrics: metrics.clone(),
            model,
            endpoint,
            streamed,
            arrived,
            first: None,
            last: arrived,
            seen_tokens: 0,
            prompt_tokens: None,
            answer_tokens: None,
            cached_tokens: None,
            outcome: Outcome::default(),
        }
    }

    /// How long the prompt took to be made.
    pub fn prepared(&self, read: Duration, took: Took) {
        self.phase(Phase::Read, read);
        self.phase(Phase::Template, took.template);
        self.phase(Phase::Tokenize, took.tokenize);
        self.phase(Phase::Hash, took.hash);
        self.metrics.template.observe(took.template.as_secs_f64());
        self.metrics.tokenize.observe(took.tokenize.as_secs_f64());
        self.metrics.overhead[0].observe(took.hash.as_secs_f64() * 1e3);
    }

    /// How long placing it took: the lookup, the choice; and everything since its body was there.
    pub fn placed(&self, overlap: Duration, place: Duration, total: Duration) {
        self.phase(Phase::Overlap, overlap);
        self.phase(Phase::Place, place);
        for (histogram, took) in self.metrics.overhead[1..].iter().zip([overlap, place, total]) {
            histogram.observe(took.as_secs_f64() * 1e3);
        }
    }

    /// It waited so long for a worker with room, or in vain.
    pub fn waited(&self, priority: Priority, waited: Result<Duration, NoPlace>) {
        let wait = match waited {
            Ok(waited) => waited.as_secs_f64(),
            Err(NoPlace::TooLong(ms)) => ms as f64 / 1e3,
            Err(NoPlace::Full(_)) => 0.0,
        };
        if wait > 0.0 {
            self.metrics.queue_wait.with_label_values(&[priority.name()]).observe(wait);
        }
        if let Err(refused) = waited {
            self.metrics.queue_refused.with_label_values(&[refused.name()]).inc();
        }
    }

    fn phase(&self, phase: Phase, took: Duration) {
        self.metrics.phases[phase as usize].observe(took.as_secs_f64());
    }

    /// The answer begins. True the first time.
    pub fn begins(&mut self, now: Instant) -> bool {
        if self.first.is_some() {
            return false;
        }
        self.first = Some(now);
        self.last = now;
        self.model.queued.dec();
        true
    }

    /// Tokens of a stream came. True the first time.
    pub fn tokens(&mut self, count: u64, now: Instant) -> bool {
        let first = self.begins(now);
        if first {
            self.model.ttft.observe((now - self.arrived).as_secs_f64());
        } else if count > 0 {
            let gap = (now - self.last).as_secs_f64() / count as f64;
            (0..count.min(MOST_GAPS)).for_each(|_| self.model.itl.observe(gap));
        }
        self.last = now;
        self.seen_tokens += count;
        first
    }

    /// Tokens of the answer: what the engine says, else what was seen.
    pub fn answered_tokens(&self) -> u64 {
        self.answer_tokens.unwrap_or(self.seen_tokens)
    }

    /// Only a stream has one: anything else begins when it is over.
    pub fn ttft(&self) -> Option<Duration> {
        self.first.filter(|_| self.streamed).map(|first| first - self.arrived)
    }

    /// How long after that a stream's first token came; none for what is not streamed.
    pub fn first_token_after(&self, at: Option<Instant>) -> Option<Duration> {
        Some(self.first.filter(|_| self.streamed)?.saturating_duration_since(at?))
    }

    pub fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }

    pub fn model_metrics(&self) -> &ModelMetrics {
        &self.model
    }

    pub fn model(&self) -> &str {
        &self.model.name
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let (status, class) = self.outcome.labels();
        let labels =
            [self.model.name.as_str(), self.endpoint.name(), kind_name(self.streamed), status, class];
        let count = || self.metrics.requests.with_label_values(&labels);
        match self.outcome {
            Outcome::Success => {
                self.model.succeeded[kind(self.endpoint, self.streamed)].get_or_init(count).inc();
            }
            _ => count().inc(),
        }
        if self.outcome == Outcome::Cancelled {
            self.metrics.disconnected.inc();
        }
        let model = &self.model;
        model.inflight.dec();
        model.active.dec();
        if self.first.is_none() {
            model.queued.dec();
        }
        model.duration.observe(self.elapsed().as_secs_f64());
        let answered = self.answered_tokens();
        model.output_tokens.inc_by(answered);
        if let Some(prompt) = self.prompt_tokens {
            model.input_tokens.observe(prompt as f64);
        }
        if self.outcome == Outcome::Success && self.endpoint.generates() {
            model.output_sequence.observe(answered as f64);
            // A miss counts too, or the share of hits would be wrong.
            model.cached_tokens.observe(self.cached_tokens.unwrap_or(0) as f64);
        }
    }
}
