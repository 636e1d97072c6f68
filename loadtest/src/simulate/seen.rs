//! What clients and engines saw of a level, and the figures it comes to.

use std::collections::{BTreeMap, VecDeque};

use kvlane_engine_adapters::sim::{Drafts, SimTime};

use crate::measure::{Evenness, Objective};
use crate::results::{LevelFigures, TurnFigures};
use crate::statistics::{mean, percentile};

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Of its conversation; 0 when it came by itself.
    pub(super) turn: usize,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) ttft_ms: f64,
    pub(super) per_token_ms: f64,
    pub(super) e2e_s: f64,
}

/// Kept as long as a snapshot may look back.
#[derive(Debug, Default)]
pub(super) struct Seen {
    answers: VecDeque<(SimTime, Answered)>,
    counts: Counts,
}

/// Of the level alone.
#[derive(Debug, Default)]
struct Counts {
    /// Looked at each second.
    evenness: Evenness,
    queued_ms: Vec<f64>,
    /// Of requests that began to answer, by quarter minutes.
    queued_by_time: BTreeMap<u64, (f64, f64)>,
    tokens: usize,
    answered: usize,
    met: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    turns: BTreeMap<usize, Turn>,
    drafts_before: Drafts,
}

#[derive(Debug, Default)]
struct Turn {
    ttft_ms: Vec<f64>,
    e2e_s: Vec<f64>,
    prompt_tokens: usize,
    output_tokens: usize,
    cached_tokens: usize,
}

const QUARTER_MINUTE_S: f64 = 15.0;

impl Seen {
    pub(super) fn tokens(&mut self, count: usize) {
        self.counts.tokens += count;
    }

    /// A request has joined its engine's batch after so long, and begins to answer.
    pub(super) fn begins(&mut self, at: SimTime, queued_ms: f64) {
        let of = self.counts.queued_by_time.entry((at.seconds() / QUARTER_MINUTE_S) as u64).or_default();
        *of = (of.0 + queued_ms, of.1 + 1.0);
    }

    /// An engine is done with a request.
    pub(super) fn done(&mut self, prompt_tokens: usize, cached_tokens: usize, queued_ms: f64) {
        self.counts.prompt_tokens += prompt_tokens;
        self.counts.cached_tokens += cached_tokens;
        self.counts.queued_ms.push(queued_ms);
    }

    /// Its client has all of it.
    pub(super) fn answered(&mut self, now: SimTime, answered: Answered, objective: &Objective) {
        let Answered { ttft_ms, per_token_ms, e2e_s, .. } = answered;
        self.answers.push_back((now, answered));
        self.counts.answered += 1;
        let met = ttft_ms <= objective.ttft_s * 1e3 && per_token_ms <= objective.tpot_s * 1e3;
        self.counts.met += usize::from(met);
        let turn = self.counts.turns.entry(answered.turn).or_default();
        turn.ttft_ms.push(ttft_ms);
        turn.e2e_s.push(e2e_s);
        turn.prompt_tokens += answered.prompt_tokens;
        turn.output_tokens += answered.output_tokens;
        turn.cached_tokens += answered.cached_tokens;
    }

    /// How many requests each worker has.
    pub(super) fn load(&mut self, counts: impl ExactSizeIterator<Item = usize>) {
        self.counts.evenness.see(counts);
    }

    /// A level begins: snapshots may look back, counts start over.
    pub(super) fn start(&mut self, drafts: Drafts) {
        self.counts = Counts { drafts_before: drafts, ..Counts::default() };
    }

    /// Latencies of what was answered since a moment, as the load generator counts them; none when nothing was.
    pub(super) fn snapshot(&mut self, since: SimTime) -> Option<LevelFigures> {
        while self.answers.front().is_some_and(|(at, _)| *at <= since) {
            self.answers.pop_front();
        }
        if self.answers.is_empty() {
            return None;
        }
        let all =
            |of: fn(&Answered) -> f64| -> Vec<f64> { self.answers.iter().map(|(_, one)| of(one)).collect() };
        let (mut first, mut between) = (all(|one| one.ttft_ms), all(|one| one.per_token_ms));
        let mut whole = all(|one| one.e2e_s);
        Some(LevelFigures {
            ttft_p50_ms: Some(percentile(&mut first, 0.5)),
            ttft_p95_ms: Some(percentile(&mut first, 0.95)),
            itl_p50_ms: Some(percentile(&mut between, 0.5)),
            itl_p95_ms: Some(percentile(&mut between, 0.95)),
            e2e_p50_s: Some(percentile(&mut whole, 0.5)),
            e2e_p95_s: Some(percentile(&mut whole, 0.95)),
            ..LevelFigures::default()
        })
    }

    /// What the level came to in so many seconds, latencies apart.
    pub(super) fn figures(&mut self, window_s: f64, drafts: Drafts) -> LevelFigures {
        let counts = &mut self.counts;
        let made = (drafts.drafts - counts.drafts_before.drafts) as f64;
        let drafted = (drafts.tokens - counts.drafts_before.tokens) as f64;
        let accepted = (drafts.accepted - counts.drafts_before.accepted) as f64;
        let again = counts.turns.iter().filter(|(turn, _)| **turn > 1);
        let mut again: Vec<f64> = again.flat_map(|(_, of)| of.ttft_ms.iter().copied()).collect();
        let mut again_ms = |share: f64| (!again.is_empty()).then(|| percentile(&mut again, share));
        let worst = counts.queued_by_time.values().map(|(sum, count)| sum / count).fold(0.0, f64::max);
        LevelFigures {
            tops: Some(counts.tokens as f64 / window_s),
            rps: Some(counts.answered as f64 / window_s),
            hit_pct: (counts.prompt_tokens > 0)
                .then(|| 100.0 * counts.cached_tokens as f64 / counts.prompt_tokens as f64),
            goodput_pct: (counts.answered > 0).then(|| 100.0 * counts.met as f64 / counts.answered as f64),
            error_pct: Some(0.0),
            requests: Some(counts.answered as f64),
            queue_ms_mean: (!counts.queued_ms.is_empty()).then(|| mean(counts.queued_ms.iter().copied())),
            queue_ms_worst: Some(worst),
            ttft_again_p50_ms: again_ms(0.5),
            ttft_again_p95_ms: again_ms(0.95),
            acceptance_pct: (drafted > 0.0).then(|| 100.0 * accepted / drafted),
            tokens_per_step: Some(if made > 0.0 { 1.0 + accepted / made } else { 1.0 }),
            ..counts.evenness.figures()
        }
    }

    /// The same by turn, for conversations.
    pub(super) fn by_turn(&mut self) -> Vec<TurnFigures> {
        let figures = |(turn, of): (&usize, &mut Turn)| {
            let count = of.e2e_s.len() as f64;
            TurnFigures {
                turn: *turn,
                requests: of.e2e_s.len() as u64,
                prompt_tokens: Some(of.prompt_tokens as f64 / count),
                output_tokens: Some(of.output_tokens as f64 / count),
                ttft_p50_ms: Some(percentile(&mut of.ttft_ms, 0.5)),
                ttft_p95_ms: Some(percentile(&mut of.ttft_ms, 0.95)),
                e2e_p50_s: Some(percentile(&mut of.e2e_s, 0.5)),
                hit_pct: Some(100.0 * of.cached_tokens as f64 / of.prompt_tokens.max(1) as f64),
            }
        };
        self.counts.turns.iter_mut().filter(|(turn, _)| **turn > 0).map(figures).collect()
    }
}
