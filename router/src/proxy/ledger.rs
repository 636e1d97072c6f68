//! What is written about a request when it is over, however it ended: numbers, one line, a span.

use std::time::Duration;

use kvlane_indexer::WorkerId;
use tokio::time::Instant;

use crate::access::Pass;
use crate::metrics::{Meter, Outcome};
use crate::scheduling::Decision;
use crate::telemetry::{RequestId, Span};

/// How a request was placed, for the line about it.
#[derive(Clone, Debug, Default)]
pub struct PlacedBy {
    pub mode: &'static str,
    /// What the client calls its conversation, or the beginning of it.
    pub session: Option<String>,
    pub prompt_tokens: usize,
    /// Whether what the worker reports as cached is held against what the index said, and when that was.
    pub audited: bool,
    pub epoch: u64,
    /// When it was placed.
    pub at: Option<Instant>,
    /// Blocks of the prompt, and those the chosen worker was known to hold.
    pub blocks: usize,
    pub held_blocks: usize,
    pub block_tokens: usize,
    pub cost: f64,
    /// The next best one's cost.
    pub runner_up: Option<f64>,
}

impl PlacedBy {
    pub fn new(mode: &'static str, decision: &Decision) -> Self {
        let cost = |n: usize| decision.ranked.get(n).map(|ranked| ranked.cost.total());
        Self { mode, cost: cost(0).unwrap_or_default(), runner_up: cost(1), ..Self::default() }
    }
}

impl PlacedBy {
    /// It was placed again.
    pub(super) fn decided(&mut self, decision: &Decision, at: Instant) {
        let again = Self::new(self.mode, decision);
        (self.cost, self.runner_up, self.at) = (again.cost, again.runner_up, Some(at));
    }
}

/// A request's own book, closed when it is dropped. A request nobody ended was left by its client.
#[derive(Debug)]
pub struct Ledger {
    pub meter: Meter,
    pub placed: PlacedBy,
    pub id: RequestId,
    pub span: Option<Span>,
    /// The status it was answered with; none yet.
    pub status: Option<u16>,
    /// Who answered, or was asked last.
    pub worker: Option<(String, WorkerId)>,
    pub attempts: usize,
    /// How often another worker went on with the answer.
    pub continued: usize,
    /// Of the key it was asked with; settled with what it came to.
    pub pass: Option<Pass>,
    /// Whether a line is written.
    access: bool,
}

impl Ledger {
    pub fn open(meter: Meter, id: RequestId, span: Option<Span>, pass: Option<Pass>, access: bool) -> Self {
        Self {
            meter,
            placed: PlacedBy::default(),
            id,
            span,
            status: None,
            worker: None,
            attempts: 0,
            continued: 0,
            pass,
            access,
        }
    }

    /// It is answered with an error of our own.
    pub fn refused(&mut self, error: &crate::error::RouterError) {
        self.status = Some(error.status().as_u16());
        self.meter.outcome = Outcome::Error(error.class());
    }
}

/// As people read it.
fn ms(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let (status, class) = self.meter.outcome.labels();
        let worker = self.worker.as_ref().map(|(name, _)| name.as_str());
        if let Some(span) = self.span.take() {
            span.end(worker, self.status, self.meter.answered_tokens(), class);
        }
        let pass = self.pass.take();
        let key = pass.as_ref().map(|pass| pass.key().clone());
        if let Some(pass) = pass {
            let answer = self.meter.answered_tokens();
            // Nobody pays for an error.
            let failed = matches!(self.meter.outcome, Outcome::Error(_)) && answer == 0;
            let prompt = if failed { Some(0) } else { self.meter.prompt_tokens };
            pass.settle(self.meter.outcome, prompt, answer);
        }
        if !self.access {
            return;
        }
        let rank = self.worker.as_ref().map(|(_, id)| id.dp_rank).filter(|rank| *rank > 0);
        tracing::info!(
            target: "kvlane::access",
            request_id = %self.id,
            key = key.as_ref().map(|key| key.name()),
            model = self.meter.model(),
            worker,
            rank,
            mode = self.placed.mode,
            session = self.placed.session,
            status = self.status,
            outcome = if class.is_empty() { status } else { class },
            prompt_tokens = self.meter.prompt_tokens.unwrap_or(self.placed.prompt_tokens as u64),
            cached_tokens = self.meter.cached_tokens,
            overlap_blocks = self.placed.held_blocks,
            answer_tokens = self.meter.answered_tokens(),
            cost = self.placed.cost,
            runner_up = self.placed.runner_up,
            attempts = self.attempts,
            continued = (self.continued > 0).then_some(self.continued),
            ttft_ms = ms(self.meter.ttft()),
            duration_ms = ms(Some(self.meter.elapsed())),
            "request"
        );
    }
}
