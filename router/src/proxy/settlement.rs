//! What is done when a request is over, however it ended: load given back, numbers counted, one line written.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::usage::Usage;
use crate::discovery::Worker;
use crate::error::Failure;
use crate::metrics::{Meter, Metrics, Outcome};
use crate::scheduling::{Decision, Reservation};
use crate::telemetry::{RequestId, Span};

/// How a request was placed, for the line about it.
#[derive(Clone, Debug, Default)]
pub struct PlacedBy {
    pub mode: &'static str,
    /// What the client calls its conversation.
    pub session: Option<String>,
    pub prompt_tokens: usize,
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

/// Everything that has to be settled. Dropped by whoever holds the answer last: the client's connection.
#[derive(Debug)]
pub struct Settlement {
    meter: Meter,
    reservation: Reservation,
    worker: Arc<Worker>,
    metrics: Arc<Metrics>,
    placed: PlacedBy,
    id: RequestId,
    span: Option<Span>,
    status: u16,
    attempts: usize,
    /// One line about it.
    access: bool,
    ended: bool,
}

impl Settlement {
    #[allow(clippy::too_many_arguments, reason = "made in one place, out of everything a request has")]
    pub fn new(
        meter: Meter,
        reservation: Reservation,
        worker: Arc<Worker>,
        metrics: Arc<Metrics>,
        placed: PlacedBy,
        id: RequestId,
        span: Option<Span>,
        status: u16,
        attempts: usize,
        access: bool,
    ) -> Self {
        Self { meter, reservation, worker, metrics, placed, id, span, status, attempts, access, ended: false }
    }

    pub(super) fn worker(&self) -> &str {
        &self.worker.name
    }

    pub(super) fn tokens(&mut self, count: u64, now: Instant) {
        if self.meter.tokens(count, now) {
            self.reservation.first_token();
        }
    }

    /// Something of the answer came that is not counted in tokens.
    pub(super) fn first_token(&mut self, now: Instant) {
        if self.meter.ttft().is_none() {
            self.tokens(0, now);
        }
    }

    pub(super) fn malformed(&self, events: u64) {
        self.metrics.malformed(&self.worker.name, events);
    }

    /// The engine's own count, held against what was expected.
    pub(super) fn usage(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        self.meter.prompt_tokens = usage.prompt_tokens;
        self.meter.answer_tokens = usage.completion_tokens;
        self.meter.cached_tokens = usage.cached();
        let block_tokens = self.placed.block_tokens.max(1);
        let predicted = (self.placed.held_blocks * block_tokens).min(self.placed.prompt_tokens);
        let reported = usage.cached();
        self.metrics.audited(
            &self.worker.name,
            predicted,
            reported.map(|tokens| tokens as usize),
            block_tokens,
        );
        if reported.is_none() && predicted > block_tokens && self.worker.first_unreported() {
            tracing::warn!(
                worker = self.worker.name,
                "worker does not report cached tokens; start vLLM with --enable-prompt-tokens-details to have its \
                 cache hits counted and checked"
            );
        }
    }

    pub(super) fn broken(&self, failure: Failure) {
        self.worker.breaker.failed();
        self.metrics.worker_failed(&self.worker.name, failure.name());
        tracing::warn!(request_id = %self.id, worker = self.worker.name, reason = failure.name(), "answer broke off");
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        self.meter.outcome = outcome;
        self.ended = true;
        if outcome == Outcome::Success {
            // Long enough to be cached, so its events should speak of it.
            let spoken_of = self.placed.prompt_tokens >= self.placed.block_tokens.max(1);
            if spoken_of && self.status < 300 {
                for health in self.worker.feeds.lock().iter().flat_map(|feeds| feeds.health()) {
                    health.served();
                }
            }
        }
    }
}

/// As JSON has them.
fn ms(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if !self.ended {
            // The client left. If this one was a trial, somebody else may try.
            self.worker.breaker.abandoned();
        }
        let (status, class) = self.meter.outcome.labels();
        if let Some(span) = self.span.take() {
            span.end(&self.worker.name, self.status, self.meter.answered_tokens(), class);
        }
        if !self.access {
            return;
        }
        let rank = self.reservation.worker().dp_rank;
        tracing::info!(
            target: "kvlane::access",
            request_id = %self.id,
            model = self.meter.model(),
            worker = self.worker.name,
            rank = (rank > 0).then_some(rank),
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
            ttft_ms = ms(self.meter.ttft()),
            duration_ms = ms(Some(self.meter.elapsed())),
            "request"
        );
    }
}
