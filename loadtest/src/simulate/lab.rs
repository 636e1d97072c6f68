//! The virtual clock and everything that happens on it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use kvlane_engine_adapters::sim::{Calibration, Request, RequestId, SimEngine, SimTime, StepOutput};
use kvlane_indexer::{KvEvent, SequenceHash};
use kvlane_router::scheduling::{Demand, Load, Priority, Reservation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use super::front::{Front, Shown, since_start, worker_id};
use super::mode::Mode;
use super::open_load::{Recorded, Replay, burst, burst_gap_ms, sibling_delay_ms};
use super::settings::{Settings, Sharing, WorkloadKind};
use super::stats::{Level, mean, percentile};
use super::workload::{Conversation, Turn, Workload};

/// Something that happens at a moment.
#[derive(Debug)]
enum Happening {
    /// A conversation asks its next question.
    Asks(Conversation),
    /// The next burst comes, or the next request of a trace.
    Comes,
    /// A request is sent.
    Sends(Turn),
    /// A request reaches its router.
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
    /// Routers ask the engines, or tell each other.
    Asked,
    Shared,
}

#[derive(Debug)]
struct InFlight {
    /// Whose next turn it is; of one that comes by itself none.
    conversation: Option<Conversation>,
    answer_tokens: usize,
    prompt: Arc<[SequenceHash]>,
    request: Option<Request>,
    router: usize,
    worker: usize,
    /// The router's load, for as long as it counts the request.
    reservation: Option<Reservation>,
    asked: SimTime,
    first_token: Option<SimTime>,
}

#[derive(Debug)]
struct Worker {
    engine: SimEngine,
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
    workload: Workload,
    /// For everything that is not the workload, which is the same however requests are placed.
    random: StdRng,
    replay: Option<Replay<'a>>,
    bursts: u64,
    workers: Vec<Worker>,
    fronts: Vec<Front>,
    output: StepOutput,
    now: SimTime,
    agenda: BinaryHeap<Reverse<(SimTime, u64)>>,
    happenings: HashMap<u64, Happening>,
    sequence: u64,
    inflight: HashMap<u64, InFlight>,
    requests: u64,
    placed: u64,
    /// Whether requests name their conversation.
    sessions: bool,
    turns: bool,
    /// Conversations there are, and the level: as many as there should be.
    conversations: usize,
    target: usize,
    seen: Seen,
}

impl<'a> Lab<'a> {
    pub(super) fn new(settings: &'a Settings, trace: &'a [Recorded], mode: Mode, seed: u64) -> Self {
        let worker = |n: usize| Worker {
            engine: SimEngine::new(
                slowed(&settings.engine, settings.slowness.get(n).copied().unwrap_or(1.0)),
                seed.wrapping_mul(31).wrapping_add(n as u64),
            ),
            inflight: 0,
            stepping: false,
        };
        let block_tokens = settings.engine.block_tokens;
        let workload = Workload::new(&settings.workload, block_tokens, seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0x005E_ED0F_01A6);
        let placed = random.random_range(0..settings.workers as u64);
        let replay = (settings.workload.kind == WorkloadKind::Trace)
            .then(|| Replay::new(trace, &settings.workload, block_tokens, settings.engine.kv_blocks));
        let mut lab = Self {
            settings,
            workload,
            random,
            replay,
            bursts: seed << 16,
            workers: (0..settings.workers).map(worker).collect(),
            fronts: (0..settings.router.count).map(|_| Front::new(settings, mode)).collect(),
            output: StepOutput::default(),
            now: SimTime::default(),
            agenda: BinaryHeap::new(),
            happenings: HashMap::new(),
            sequence: 0,
            inflight: HashMap::new(),
            requests: 0,
            placed,
            sessions: mode.names_sessions(),
            turns: mode.policy(&settings.router).takes_turns(),
            conversations: 0,
            target: 0,
            seen: Seen::default(),
        };
        lab.plan(SimTime::default(), Happening::Probe);
        lab.plan(SimTime::default(), Happening::Asked);
        if settings.router.count > 1 && settings.router.sharing == Sharing::Nats {
            lab.plan(SimTime::default(), Happening::Shared);
        }
        if settings.workload.kind != WorkloadKind::Conversations {
            lab.plan(SimTime::default(), Happening::Comes);
        }
        lab
    }

    /// All levels, one after the other, in one continuous run.
    pub(super) fn sweep(mut self) -> Vec<Level> {
        let levels = &self.settings.levels;
        self.set_level(levels.first().copied().unwrap_or(0));
        self.run_for(self.settings.fill_s);
        levels.iter().map(|level| self.measure(*level)).collect()
    }

    fn measure(&mut self, level: usize) -> Level {
        let Settings { warm_up_s, window_s, snapshots, snapshot_s, .. } = *self.settings;
        self.set_level(level);
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

    fn set_level(&mut self, count: usize) {
        self.target = count;
        if self.settings.workload.kind != WorkloadKind::Conversations {
            return;
        }
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
                Some(Happening::Comes) => self.comes(),
                Some(Happening::Sends(turn)) => self.sends(turn, None),
                Some(Happening::Arrives(request)) => self.arrives(request),
                Some(Happening::Steps(worker)) => self.steps(worker),
                Some(Happening::Told(worker, events)) => {
                    self.fronts.iter().for_each(|front| front.told(worker, &events, at));
                }
                Some(Happening::FirstToken(request)) => self.first_token(request),
                Some(Happening::LastToken(request)) => self.last_token(request),
                Some(Happening::Probe) => self.probe(),
                Some(Happening::Asked) => self.asked(),
                Some(Happening::Shared) => self.shared(),
                None => {}
            }
        }
        self.now = end;
    }

    /// What comes by itself.
    fn comes(&mut self) {
        let random = self.workload.random();
        let gap_ms = match &mut self.replay {
            Some(replay) => {
                let (turn, until) = replay.next();
                self.sends(turn, None);
                until * 100.0 / self.target.max(1) as f64
            }
            None => {
                self.bursts += 1;
                let block_tokens = self.settings.engine.block_tokens;
                let turns = burst(&self.settings.workload, self.bursts, block_tokens, random);
                let gap_ms = burst_gap_ms(self.target, random);
                for turn in turns {
                    let after = sibling_delay_ms(self.workload.random());
                    self.plan(self.now.after_ms(after), Happening::Sends(turn));
                }
                gap_ms
            }
        };
        self.plan(self.now.after_ms(gap_ms), Happening::Comes);
    }

    fn asks(&mut self, mut conversation: Conversation) {
        let turn = self.workload.turn(&mut conversation);
        self.sends(turn, Some(conversation));
    }

    fn sends(&mut self, turn: Turn, conversation: Option<Conversation>) {
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
        let routers = self.fronts.len();
        let inflight = InFlight {
            conversation,
            answer_tokens: turn.answer_tokens,
            prompt,
            request: Some(request),
            router: if routers > 1 { self.random.random_range(0..routers) } else { 0 },
            worker: 0,
            reservation: None,
            asked: self.now,
            first_token: None,
        };
        self.inflight.insert(number, inflight);
        let outside = self.settings.engine.outside;
        let delay = if outside.enabled { outside.request_ms } else { 0.0 };
        self.plan(self.now.after_ms(delay), Happening::Arrives(number));
    }

    /// A request waits if others do, or if nobody may take it.
    fn arrives(&mut self, number: u64) {
        let Some(router) = self.inflight.get(&number).map(|inflight| inflight.router) else { return };
        if !self.fronts[router].queue.is_empty() || !self.places(number) {
            self.fronts[router].queue.join(Priority::Normal, number);
        }
    }

    /// There may be room: those who wait are placed, as far as there is.
    fn call_waiting(&mut self, router: usize) {
        while let Some((place, number)) = self.fronts[router].queue.call(|_| true) {
            if !self.places(number) {
                self.fronts[router].queue.rejoin(place, number);
                return;
            }
        }
    }

    /// The router's turn: overlap, cost, choice, load. False when there is no room.
    fn places(&mut self, number: u64) -> bool {
        let shown = self.shown();
        let Some(inflight) = self.inflight.get_mut(&number) else { return true };
        let Some(prompt_tokens) = inflight.request.as_ref().map(|request| request.prompt_tokens) else {
            return true;
        };
        let demand = Demand {
            blocks: inflight.prompt.clone(),
            prompt_tokens,
            block_tokens: self.settings.engine.block_tokens,
            session: inflight.conversation.as_ref().filter(|_| self.sessions).map(Conversation::id),
            room: None,
            streamed: true,
            arrived: since_start(inflight.asked),
        };
        let draw = if self.turns { self.placed } else { self.random.random() };
        let front = &mut self.fronts[inflight.router];
        let Some(placement) = front.place(&self.settings.router, &demand, &shown, draw, self.now) else {
            return false;
        };
        self.placed += 1;
        let n = placement.reservation.worker().instance as usize;
        inflight.worker = n;
        inflight.reservation = Some(placement.reservation);
        let Some(request) = inflight.request.take() else { return true };
        let worker = &mut self.workers[n];
        // Settings are refused under which a conversation could outgrow an engine.
        let submitted = worker.engine.submit(self.now, request);
        debug_assert!(submitted.is_ok(), "{submitted:?}");
        worker.inflight += 1;
        if !worker.stepping {
            self.steps(n);
        }
        true
    }

    /// The engines as they look now.
    fn shown(&self) -> Vec<Shown> {
        let shown = |worker: &Worker| Shown {
            running: worker.engine.running_count(),
            waiting: worker.engine.waiting_count(),
            held_blocks: worker.engine.block_counts().1,
            slots: self.settings.engine.max_batch,
        };
        self.workers.iter().map(shown).collect()
    }

    fn asked(&mut self) {
        let router = &self.settings.router;
        let shown = self.shown();
        let sees_strangers = router.sharing != Sharing::Nothing;
        self.fronts.iter_mut().for_each(|front| front.asked(&shown, sees_strangers, self.now));
        self.plan(self.now.after_ms(router.probe_ms), Happening::Asked);
        (0..self.fronts.len()).for_each(|router| self.call_waiting(router));
    }

    /// Routers hear what the others have where.
    fn shared(&mut self) {
        let of = |front: &Front| {
            let loads = front.scheduler.loads(since_start(self.now));
            let load = |n: usize| loads.iter().find(|(worker, _)| *worker == worker_id(n));
            (0..self.workers.len()).map(|n| load(n).map(|(_, load)| *load).unwrap_or_default()).collect()
        };
        let loads: Vec<Vec<Load>> = self.fronts.iter().map(of).collect();
        for (own, front) in self.fronts.iter_mut().enumerate() {
            let others = loads.iter().enumerate().filter(|(other, _)| *other != own).map(|(_, loads)| loads);
            let sum = |n: usize| others.clone().fold(Load::default(), |sum, loads| sum.and(loads[n]));
            front.heard((0..loads[own].len()).map(sum).collect());
        }
        self.plan(self.now.after_ms(self.settings.router.share_ms), Happening::Shared);
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
            if let Some(inflight) = self.inflight.get_mut(&tokens.request.0) {
                inflight.reservation.iter_mut().for_each(|reservation| reservation.grew(tokens.count));
            }
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
        if !output.events.is_empty() && self.settings.router.events {
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
        base * spread.map_or(1.0, |spread| spread.sample(&mut self.random))
    }

    fn first_token(&mut self, number: u64) {
        let Some(inflight) = self.inflight.get_mut(&number) else { return };
        if inflight.first_token.is_some() {
            return;
        }
        inflight.first_token = Some(self.now);
        let waited = self.now.ms_since(inflight.asked);
        if let Some(reservation) = &mut inflight.reservation {
            reservation.first_token(since_start(self.now));
        }
        self.seen.first_tokens.push_back((self.now, waited));
    }

    fn last_token(&mut self, number: u64) {
        // The way back is jittery: a short answer's end may overtake its beginning.
        self.first_token(number);
        let Some(inflight) = self.inflight.remove(&number) else { return };
        self.workers[inflight.worker].inflight -= 1;
        let tokens = inflight.answer_tokens.saturating_sub(1).max(1);
        let per_token = self.now.ms_since(inflight.first_token.unwrap_or(self.now)) / tokens as f64;
        self.seen.answers.push_back((self.now, per_token, self.now.ms_since(inflight.asked) / 1e3));
        self.seen.answered += 1;
        drop(inflight.reservation);
        self.call_waiting(inflight.router);
        let Some(conversation) = inflight.conversation else { return };
        if self.conversations > self.target {
            self.conversations -= 1;
            return;
        }
        match self.workload.think_s(&conversation) {
            Some(seconds) => {
                self.plan(self.now.after_ms(seconds * 1e3), Happening::Asks(conversation));
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

/// The same engine, slower.
fn slowed(calibration: &Calibration, slowness: f64) -> Calibration {
    Calibration {
        weights_ms: calibration.weights_ms * slowness,
        kv_ns_per_token: calibration.kv_ns_per_token * slowness,
        eager_ms: calibration.eager_ms * slowness,
        prefill_us_per_token: calibration.prefill_us_per_token * slowness,
        ..calibration.clone()
    }
}
