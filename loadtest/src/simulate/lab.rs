//! The virtual clock and everything that happens on it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use kvlane_engine_adapters::sim::{Request, RequestId, SimEngine, SimTime, StepOutput};
use kvlane_indexer::{Index, IndexConfig, KvEvent, Overlap, SequenceHash, Tick, WorkerId};
use kvlane_router::scheduling::{ActiveLoad, Candidate, Policy, select};
use rand::RngExt;
use rand_distr::{Distribution, LogNormal};

use super::settings::{Mode, Settings};
use super::stats::{Level, mean, percentile};
use super::workload::{Conversation, Workload};

/// Something that happens at a moment.
#[derive(Debug)]
enum Happening {
    /// A conversation asks its next question.
    Asks(Conversation),
    /// A request reaches the router.
    Arrives(u64),
    /// An engine's step is over.
    Steps(usize),
    /// The index hears of an engine's cache.
    Told(usize, Vec<KvEvent>),
    /// The client sees the first token, or the last.
    FirstToken(u64),
    LastToken(u64),
    /// Once a second, how even the load is.
    Probe,
}

#[derive(Debug)]
struct InFlight {
    conversation: Conversation,
    prompt: Vec<SequenceHash>,
    request: Option<Request>,
    worker: usize,
    prefill_tokens: usize,
    asked: SimTime,
    first_token: Option<SimTime>,
}

#[derive(Debug)]
struct Worker {
    engine: SimEngine,
    load: ActiveLoad,
    /// Requests between placement and the client's last token.
    inflight: usize,
    stepping: bool,
}

/// What was seen, kept as long as a snapshot may look back.
#[derive(Debug, Default)]
struct Seen {
    first_tokens: VecDeque<(SimTime, f64)>,
    /// When, time per token, end to end.
    answers: VecDeque<(SimTime, f64, f64)>,
    spread: Vec<f64>,
    queued_ms: Vec<f64>,
    tokens: usize,
    answered: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
}

pub(super) struct Lab<'a> {
    settings: &'a Settings,
    policy: Policy,
    workload: Workload,
    workers: Vec<Worker>,
    index: Index,
    overlap: Overlap,
    output: StepOutput,
    now: SimTime,
    agenda: BinaryHeap<Reverse<(SimTime, u64)>>,
    happenings: HashMap<u64, Happening>,
    sequence: u64,
    inflight: HashMap<u64, InFlight>,
    requests: u64,
    placed: u64,
    /// Conversations there are, and as many as there should be.
    conversations: usize,
    target: usize,
    seen: Seen,
}

impl<'a> Lab<'a> {
    pub(super) fn new(settings: &'a Settings, mode: Mode, seed: u64) -> Self {
        let policy = match mode {
            Mode::RoundRobin => Policy::RoundRobin,
            Mode::Dynamo => Policy::Kv {
                overlap_weight: settings.router.overlap_weight,
                temperature: settings.router.temperature,
            },
        };
        let worker = |n: usize| Worker {
            engine: SimEngine::new(settings.engine.clone(), seed.wrapping_mul(31).wrapping_add(n as u64)),
            load: ActiveLoad::default(),
            inflight: 0,
            stepping: false,
        };
        let mut workload = Workload::new(&settings.workload, settings.engine.block_tokens, seed);
        let placed = workload.random().random_range(0..settings.workers as u64);
        let mut lab = Self {
            settings,
            policy,
            workload,
            workers: (0..settings.workers).map(worker).collect(),
            index: Index::new(IndexConfig { shards: 16, ..IndexConfig::default() }),
            overlap: Overlap::default(),
            output: StepOutput::default(),
            now: SimTime::default(),
            agenda: BinaryHeap::new(),
            happenings: HashMap::new(),
            sequence: 0,
            inflight: HashMap::new(),
            requests: 0,
            placed,
            conversations: 0,
            target: 0,
            seen: Seen::default(),
        };
        lab.plan(SimTime::default(), Happening::Probe);
        lab
    }

    /// All levels, one after the other, in one continuous run.
    pub(super) fn sweep(mut self) -> Vec<Level> {
        let levels = &self.settings.levels;
        self.set_conversations(levels.first().copied().unwrap_or(0));
        self.run_for(self.settings.fill_s);
        levels.iter().map(|level| self.measure(*level)).collect()
    }

    fn measure(&mut self, level: usize) -> Level {
        let Settings { warm_up_s, window_s, snapshots, snapshot_s, .. } = *self.settings;
        self.set_conversations(level);
        self.run_for(warm_up_s);
        // Snapshots may look back into the warm-up; counts are of the window alone.
        let Seen { first_tokens, answers, .. } = std::mem::take(&mut self.seen);
        self.seen = Seen { first_tokens, answers, ..Seen::default() };
        let mut looks = Vec::new();
        for _ in 0..snapshots {
            self.run_for(window_s / snapshots as f64);
            let since = SimTime::from_seconds((self.now.seconds() - snapshot_s).max(0.0));
            looks.extend(self.snapshot(since));
        }
        let seen = &mut self.seen;
        Level {
            tops: seen.tokens as f64 / window_s,
            rps: seen.answered as f64 / window_s,
            hit_pct: 100.0 * seen.cached_tokens as f64 / seen.prompt_tokens.max(1) as f64,
            inflight_spread_p95: percentile(&mut seen.spread, 0.95),
            queue_ms_mean: mean(seen.queued_ms.iter().copied()),
            ..Level::mean(&looks.iter().collect::<Vec<_>>())
        }
    }

    /// Latencies since a moment; none when nothing came back since.
    fn snapshot(&mut self, since: SimTime) -> Option<Level> {
        while self.seen.first_tokens.front().is_some_and(|(at, _)| *at <= since) {
            self.seen.first_tokens.pop_front();
        }
        while self.seen.answers.front().is_some_and(|(at, ..)| *at <= since) {
            self.seen.answers.pop_front();
        }
        let mut first: Vec<f64> = self.seen.first_tokens.iter().map(|(_, ms)| *ms).collect();
        let mut between: Vec<f64> = self.seen.answers.iter().map(|(_, ms, _)| *ms).collect();
        let mut whole: Vec<f64> = self.seen.answers.iter().map(|(_, _, s)| *s).collect();
        if first.is_empty() || whole.is_empty() {
            return None;
        }
        Some(Level {
            ttft_p50_ms: percentile(&mut first, 0.5),
            ttft_p95_ms: percentile(&mut first, 0.95),
            itl_p50_ms: percentile(&mut between, 0.5),
            itl_p95_ms: percentile(&mut between, 0.95),
            e2e_p50_s: percentile(&mut whole, 0.5),
            e2e_p95_s: percentile(&mut whole, 0.95),
            ..Level::default()
        })
    }

    fn set_conversations(&mut self, count: usize) {
        self.target = count;
        while self.conversations < count {
            self.conversations += 1;
            let conversation = self.workload.conversation();
            let at = self.now.after_ms(self.workload.random().random_range(0.0..2000.0));
            self.plan(at, Happening::Asks(conversation));
        }
    }

    fn plan(&mut self, at: SimTime, happening: Happening) {
        self.sequence += 1;
        self.agenda.push(Reverse((at, self.sequence)));
        self.happenings.insert(self.sequence, happening);
    }

    fn run_for(&mut self, seconds: f64) {
        let end = self.now.after_ms(seconds * 1e3);
        while let Some(Reverse((at, sequence))) = self.agenda.peek().copied() {
            if at > end {
                break;
            }
            self.agenda.pop();
            self.now = at;
            match self.happenings.remove(&sequence) {
                Some(Happening::Asks(conversation)) => self.asks(conversation),
                Some(Happening::Arrives(request)) => self.arrives(request),
                Some(Happening::Steps(worker)) => self.steps(worker),
                Some(Happening::Told(worker, events)) => self.told(worker, &events),
                Some(Happening::FirstToken(request)) => self.first_token(request),
                Some(Happening::LastToken(request)) => self.last_token(request),
                Some(Happening::Probe) => self.probe(),
                None => {}
            }
        }
        self.now = end;
    }

    fn tick(&self) -> Tick {
        Tick(self.now.seconds() as u32)
    }

    fn asks(&mut self, mut conversation: Conversation) {
        let turn = self.workload.turn(&mut conversation);
        self.requests += 1;
        let number = self.requests;
        let prompt_blocks = turn.prompt_tokens / self.settings.engine.block_tokens;
        let prompt = SequenceHash::chain(None, turn.blocks[..prompt_blocks].iter().copied()).collect();
        let request = Request {
            id: RequestId(number),
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.answer_tokens,
            blocks: turn.blocks,
            priority: 0,
        };
        let inflight = InFlight {
            conversation,
            prompt,
            request: Some(request),
            worker: 0,
            prefill_tokens: 0,
            asked: self.now,
            first_token: None,
        };
        self.inflight.insert(number, inflight);
        let outside = self.settings.engine.outside;
        let delay = if outside.enabled { outside.request_ms } else { 0.0 };
        self.plan(self.now.after_ms(delay), Happening::Arrives(number));
    }

    /// The router's turn: overlap, cost, choice, load.
    fn arrives(&mut self, number: u64) {
        let tick = self.tick();
        let Some(inflight) = self.inflight.get_mut(&number) else { return };
        let Some(request) = inflight.request.take() else { return };
        let block_tokens = self.settings.engine.block_tokens as f64;
        self.index.overlap_into(&inflight.prompt, tick, &mut self.overlap);
        let overlap = &self.overlap;
        let cached = |n: usize| overlap.of(worker_id(n)).device as usize * self.settings.engine.block_tokens;
        let candidate = |(n, worker): (usize, &Worker)| Candidate {
            worker: worker_id(n),
            prefill_blocks: (request.prompt_tokens - cached(n).min(request.prompt_tokens)
                + worker.load.prefill_tokens()) as f64
                / block_tokens,
            decode_blocks: worker.load.blocks_with(&inflight.prompt) as f64,
            active_requests: worker.load.requests(),
            tie_break: worker.engine.block_counts().1 as u64,
            barred: None,
        };
        let candidates: Vec<_> = self.workers.iter().enumerate().map(candidate).collect();
        let draw = if self.policy.takes_turns() { self.placed } else { self.workload.random().random() };
        self.placed += 1;
        let Some(chosen) = select(&self.policy, None, &candidates, draw).chosen() else { return };
        let n = chosen.instance as usize;
        inflight.worker = n;
        inflight.prefill_tokens = request.prompt_tokens - cached(n).min(request.prompt_tokens);
        let worker = &mut self.workers[n];
        // Settings are refused under which a conversation could outgrow an engine.
        let submitted = worker.engine.submit(self.now, request);
        debug_assert!(submitted.is_ok(), "{submitted:?}");
        worker.load.add(&inflight.prompt, inflight.prefill_tokens);
        worker.inflight += 1;
        if !worker.stepping {
            self.steps(n);
        }
    }

    fn steps(&mut self, n: usize) {
        let mut output = std::mem::take(&mut self.output);
        let worker = &mut self.workers[n];
        worker.engine.step(self.now, &mut output);
        worker.stepping = output.next.is_some();
        if let Some(next) = output.next {
            self.plan(next, Happening::Steps(n));
        }
        for tokens in &output.tokens {
            self.seen.tokens += tokens.count;
            if tokens.first.is_some() {
                let at = tokens.at.after_ms(self.response_ms(n));
                self.plan(at, Happening::FirstToken(tokens.request.0));
            }
        }
        for done in &output.finished {
            self.seen.prompt_tokens += done.prompt_tokens;
            self.seen.cached_tokens += done.cached_tokens;
            self.seen.queued_ms.push(done.queued_ms);
            let at = done.at.after_ms(self.response_ms(n));
            self.plan(at, Happening::LastToken(done.request.0));
        }
        if !output.events.is_empty() {
            let events = std::mem::take(&mut output.events);
            self.plan(self.now.after_ms(self.settings.router.event_lag_ms), Happening::Told(n, events));
        }
        self.output = output;
    }

    /// The way back to the client.
    fn response_ms(&mut self, n: usize) -> f64 {
        let outside = self.settings.engine.outside;
        if !outside.enabled {
            return 0.0;
        }
        let base = outside.response_ms + outside.response_ms_per_inflight * self.workers[n].inflight as f64;
        let spread = LogNormal::new(0.0, outside.jitter);
        base * spread.map_or(1.0, |spread| spread.sample(self.workload.random()))
    }

    fn told(&mut self, n: usize, events: &[KvEvent]) {
        let tick = self.tick();
        for event in events {
            // The engine's events are well formed, and its own blocks' parents are known.
            let applied = self.index.apply(worker_id(n), event, tick);
            debug_assert!(applied.is_ok_and(|applied| applied.orphaned + applied.unknown == 0));
        }
    }

    fn first_token(&mut self, number: u64) {
        let Some(inflight) = self.inflight.get_mut(&number) else { return };
        if inflight.first_token.is_some() {
            return;
        }
        inflight.first_token = Some(self.now);
        self.workers[inflight.worker].load.prefilled(inflight.prefill_tokens);
        self.seen.first_tokens.push_back((self.now, self.now.ms_since(inflight.asked)));
    }

    fn last_token(&mut self, number: u64) {
        // The way back is jittery: a short answer's end may overtake its beginning.
        self.first_token(number);
        let Some(inflight) = self.inflight.remove(&number) else { return };
        let worker = &mut self.workers[inflight.worker];
        worker.inflight -= 1;
        worker.load.remove(&inflight.prompt);
        let tokens = inflight.conversation.last_answer_tokens().saturating_sub(1).max(1);
        let per_token = self.now.ms_since(inflight.first_token.unwrap_or(self.now)) / tokens as f64;
        self.seen.answers.push_back((self.now, per_token, self.now.ms_since(inflight.asked) / 1e3));
        self.seen.answered += 1;
        if self.conversations > self.target {
            self.conversations -= 1;
            return;
        }
        match self.workload.think_s(&inflight.conversation) {
            Some(seconds) => {
                self.plan(self.now.after_ms(seconds * 1e3), Happening::Asks(inflight.conversation));
            }
            None => {
                let conversation = self.workload.conversation();
                self.plan(self.now, Happening::Asks(conversation));
            }
        }
    }

    fn probe(&mut self) {
        let counts = self.workers.iter().map(|worker| worker.inflight);
        let (least, most) = counts.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
        self.seen.spread.push(most.saturating_sub(least) as f64);
        self.plan(self.now.after_ms(1000.0), Happening::Probe);
    }
}

fn worker_id(n: usize) -> WorkerId {
    WorkerId::new(n as u64, 0)
}
