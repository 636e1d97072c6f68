//! A request that is being answered: whose load it is, and what is learnt from its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Course;
use super::breaker::Sent;
use super::ledger::Ledger;
use super::usage::Usage;
use crate::discovery::Worker;
use crate::error::Failure;
use crate::metrics::{Metrics, Migration, Outcome};
use crate::scheduling::{Answered, Reservation};

/// Everything that has to be settled. Dropped by whoever holds the answer last: the client's connection.
#[derive(Debug)]
pub struct Settlement {
    ledger: Ledger,
    reservation: Reservation,
    worker: Arc<Worker>,
    /// What its breaker knows the request by.
    sent: Sent,
    metrics: Arc<Metrics>,
    ended: bool,
}

/// What a request that waited longer found cached says little of what was there when it was placed.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

impl Settlement {
    pub fn new(
        ledger: Ledger,
        reservation: Reservation,
        (worker, sent): (Arc<Worker>, Sent),
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { ledger, reservation, worker, sent, metrics, ended: false }
    }

    pub(super) fn worker_instance(&self) -> u64 {
        self.worker.instance
    }

    pub(super) fn worker(&self) -> &str {
        &self.worker.name
    }

    pub(super) fn tokens(&mut self, count: u64, now: Instant) {
        // Whoever goes on with an answer has a first token of his own.
        if self.ledger.meter.tokens(count, now) | self.reservation.awaits_first_token() {
            self.reservation.first_token(self.reservation.time(now));
        }
        self.reservation.grew(count as usize);
    }

    /// Something of the answer came that is not counted in tokens.
    pub(super) fn answer_begins(&mut self, now: Instant) {
        if self.ledger.meter.begins(now) {
            // Not the first token of a stream, so not comparable with those.
            self.reservation.begins();
        }
    }

    pub(super) fn malformed(&self, events: u64) {
        self.worker.metrics.malformed(events);
    }

    /// The engine's own count, held against what was expected.
    pub(super) fn usage(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        let Ledger { meter, placed, .. } = &mut self.ledger;
        meter.prompt_tokens = usage.prompt_tokens;
        meter.answer_tokens = usage.completion_tokens;
        let reported = self.worker.cached_tokens(usage.cached());
        meter.cached_tokens = reported;
        let block_tokens = placed.block_tokens.max(1);
        let predicted = (placed.held_blocks * block_tokens).min(placed.prompt_tokens);
        if let (Some(reported), Some(prompt_there)) = (reported, usage.prompt_tokens)
            && placed.audited
            && meter.first_token_after(placed.at).is_some_and(|waited| waited < LONGEST_WAIT)
        {
            let prompt_here = placed.prompt_tokens;
            let (reported, prompt_there) = (reported as usize, prompt_there as usize);
            let answer = Answered { predicted, reported, prompt_here, prompt_there, block: block_tokens };
            self.worker.belief.answered(&self.worker.name, placed.epoch, answer);
        }
        let told = reported.map(|tokens| tokens as usize);
        self.worker.metrics.audited(predicted, told, block_tokens);
        if reported.is_none() && predicted > block_tokens && self.worker.first_unreported() {
            tracing::warn!(
                worker = self.worker.name,
                "worker does not report cached tokens; start vLLM with --enable-prompt-tokens-details to have its \
                 cache hits counted and checked"
            );
        }
    }

    /// The answer broke off. Unless the router itself broke it off, that is the worker's fault.
    pub(super) fn worker_failed(&mut self, failure: Failure) {
        if failure != Failure::ShuttingDown {
            self.worker.breaker.failed(self.sent);
            self.metrics.worker_failed(&self.worker.metrics, failure.name());
        }
        let (id, worker) = (&self.ledger.id, &self.worker.name);
        tracing::warn!(request_id = %id, worker, reason = failure.name(), "answer broke off");
    }

    /// Another worker goes on with it: the load is there from now on.
    pub(super) fn continued(
        &mut self,
        reservation: Reservation,
        (worker, sent): (Arc<Worker>, Sent),
        course: Course,
    ) {
        self.metrics.migrated(self.ledger.meter.model_metrics(), Migration::OngoingRequest);
        course.write(&mut self.ledger, false);
        self.ledger.continued += 1;
        tracing::info!(request_id = %self.ledger.id, worker = worker.name, "answer is continued");
        (self.reservation, self.worker, self.sent) = (reservation, worker, sent);
    }

    /// Nobody does.
    pub(super) fn not_continued(&self) {
        self.metrics.not_continued(self.ledger.meter.model_metrics());
    }

    /// It ended before it was whole.
    pub(super) fn broken(&mut self, class: &'static str) {
        self.ledger.meter.outcome = Outcome::Error(class);
        self.ended = true;
    }

    /// The answer is over, whatever it says.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.ledger.meter.outcome = outcome;
        self.worker.breaker.succeeded();
        let placed = &self.ledger.placed;
        // Long enough to be cached, so its events should speak of it.
        if outcome == Outcome::Success && placed.prompt_tokens >= placed.block_tokens.max(1) {
            let id = self.reservation.worker();
            let feeds = self.worker.feeds.lock();
            let health = feeds.iter().flat_map(|feeds| feeds.health());
            health.filter(|health| health.worker == id).for_each(|health| health.served());
        }
    }
}
