//! The virtual clock and everything that happens on it.

use std::collections::HashMap;
use std::sync::Arc;

use kvlane_engine_adapters::sim::{Calibration, Drafts, Request, RequestId, SimEngine, SimTime, StepOutput};
use kvlane_indexer::{KvEvent, SequenceHash};
use kvlane_router::scheduling::{Demand, Load, Priority, Reservation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use super::front::{Front, Shown, since_start, worker_id};
use super::mode::Mode;
use super::open_load::{Replay, burst, burst_gap_ms, sibling_delay_ms};
use super::seen::{Answered, Seen};
use super::settings::{ArrivalKind, Settings, Sharing, WorkloadKind};
use super::workload::{Conversation, Turn, Workload};
use crate::agenda::Agenda;
use crate::measure::Objective;
use crate::results::{LevelFigures, TurnFigures};
use crate::trace::Trace;

/// Something that happens at a moment.
#[derive(Debug)]
enum Happening {
    /// A conversation asks its next question.
    Asks(Conversation),
    /// The next conversation begins by itself, the next burst comes, or the next request of a trace; of this rate.
    Comes(u64),
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
    prompt_tokens: usize,
    answer_tokens: usize,
    cached_tokens: usize,
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

/// What a level came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) figures: LevelFigures,
    pub(super) by_turn: Vec<TurnFigures>,
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
    agenda: Agenda<Happening>,
    inflight: HashMap<u64, InFlight>,
    requests: u64,
    placed: u64,
    /// Whether requests name their conversation.
    sessions: bool,
    turns: bool,
    objective: Objective,
    /// Conversations there are, and the level: as many as there should be.
    conversations: usize,
    target: usize,
    /// How often the rate of what comes by itself was set.
    rates: u64,
    seen: Seen,
}

impl<'a> Lab<'a> {
    pub(super) fn new(settings: &'a Settings, trace: Option<&'a Trace>, mode: Mode, seed: u64) -> Self {
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
        let replay = trace
            .map(|trace| Replay::new(trace, &settings.workload, block_tokens, settings.engine.kv_blocks));
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
            agenda: Agenda::default(),
            inflight: HashMap::new(),
            requests: 0,
            placed,
            sessions: mode.names_sessions(),
            turns: mode.policy(&settings.router).takes_turns(),
            objective: settings.objective(),
            conversations: 0,
            target: 0,
            rates: 0,
            seen: Seen::default(),
        };
        lab.plan(SimTime::default(), Happening::Probe);
        lab.plan(SimTime::default(), Happening::Asked);
        if settings.router.count > 1 && settings.router.sharing == Sharing::Nats {
            lab.plan(SimTime::default(), Happening::Shared);
        }
        lab
    }

    /// All levels, one after the other, in one continuous run.
    pub(super) fn sweep(mut self, stop: impl Fn() -> bool) -> Vec<Measured> {
        if stop() {
            return Vec::new();
        }
        let levels = &self.settings.levels;
        self.set_level(levels.first().copied().unwrap_or(0));
        self.run_for(self.settings.fill_s);
        levels.iter().take_while(|_| !stop()).map(|level| self.measure(*level)).collect()
    }

    fn measure(&mut self, level: usize) -> Measured {
        let Settings { warm_up_s, window_s, snapshots, snapshot_s, .. } = *self.settings;
        self.set_level(level);
        self.run_for(warm_up_s);
        self.seen.start(self.drafts());
        let mut looks = Vec::new();
        for _ in 0..snapshots {
            self.run_for(window_s / snapshots as f64);
            let since = SimTime::from_seconds((self.now.seconds() - snapshot_s).max(0.0));
            looks.extend(self.seen.snapshot(since));
        }
        let drafts = self.drafts();
        let counted = self.seen.figures(window_s, drafts);
        let figures = counted.or(LevelFigures::mean(&looks.iter().collect::<Vec<_>>()));
        Measured { figures, by_turn: self.seen.by_turn() }
    }

    /// All engines' speculation so far.
    fn drafts(&self) -> Drafts {
        self.workers.iter().map(|worker| worker.engine.drafts()).fold(Drafts::default(), |sum, of| Drafts {
            drafts: sum.drafts + of.drafts,
            tokens: sum.tokens + of.tokens,
            accepted: sum.accepted + of.accepted,
        })
    }

    fn set_level(&mut self, count: usize) {
        self.target = count;
        if self.open_conversations() {
            // What was planned at the old rate is not waited for.
            self.rates += 1;
            let gap_ms = self.workload.arrival_gap_ms(count);
            self.plan(self.now.after_ms(gap_ms), Happening::Comes(self.rates));
            return;
        }
        if self.settings.workload.kind != WorkloadKind::Conversations {
            if self.rates == 0 {
                self.rates = 1;
                self.plan(self.now, Happening::Comes(self.rates));
            }
            return;
        }
        while self.conversations < count {
            self.conversations += 1;
            let conversation = self.workload.conversation(true);
            let at = self.now.after_ms(self.workload.random().random_range(0.0..2000.0));
            self.plan(at, Happening::Asks(conversation));
        }
    }

    fn closed_loop(&self) -> bool {
        let workload = &self.settings.workload;
        workload.kind == WorkloadKind::Conversations && workload.arrivals == ArrivalKind::Closed
    }

    fn open_conversations(&self) -> bool {
        let workload = &self.settings.workload;
        workload.kind == WorkloadKind::Conversations && workload.arrivals != ArrivalKind::Closed
    }

    fn plan(&mut self, at: SimTime, happening: Happening) {
        self.agenda.plan(at, happening);
    }

    fn run_for(&mut self, seconds: f64) {
        let end = self.now.after_ms(seconds * 1e3);
        while self.agenda.next_at().is_some_and(|at| at <= end) {
            let Some((at, happening)) = self.agenda.pop() else { break };
            self.now = at;
            match happening {
                Happening::Asks(conversation) => self.asks(conversation),
                Happening::Comes(of) if of == self.rates => self.comes(),
                Happening::Comes(_) => {}
                Happening::Sends(turn) => self.sends(turn, None),
                Happening::Arrives(request) => self.arrives(request),
                Happening::Steps(worker) => self.steps(worker),
                Happening::Told(worker, events) => {
                    self.fronts.iter().for_each(|front| front.told(worker, &events, at));
                }
                Happening::FirstToken(request) => self.first_token(request),
                Happening::LastToken(request) => self.last_token(request),
                Happening::Probe => self.probe(),
                Happening::Asked => self.asked(),
                Happening::Shared => self.shared(),
            }
        }
        self.now = end;
    }

    /// What comes by itself.
    fn comes(&mut self) {
        if self.settings.workload.kind == WorkloadKind::Conversations {
            let conversation = self.workload.conversation(false);
            self.asks(conversation);
            let gap_ms = self.workload.arrival_gap_ms(self.target);
            self.plan(self.now.after_ms(gap_ms), Happening::Comes(self.rates));
            return;
        }
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
        self.plan(self.now.after_ms(gap_ms), Happening::Comes(self.rates));
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
            prompt_tokens: turn.prompt_tokens,
            answer_tokens: turn.answer_tokens,
            cached_tokens: 0,
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
            self.seen.tokens(tokens.count);
            if let Some(inflight) = self.inflight.get_mut(&tokens.request.0) {
                inflight.reservation.iter_mut().for_each(|reservation| reservation.grew(tokens.count));
            }
            if let Some(first) = tokens.first {
                self.seen.begins(tokens.at, first.queued_ms);
                let at = tokens.at.after_ms(self.response_ms(n));
                self.plan(at, Happening::FirstToken(tokens.request.0));
            }
        }
        for done in &output.finished {
            self.seen.done(done.prompt_tokens, done.cached_tokens, done.queued_ms);
            if let Some(inflight) = self.inflight.get_mut(&done.request.0) {
                inflight.cached_tokens = done.cached_tokens;
            }
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
        if let Some(reservation) = &mut inflight.reservation {
            reservation.first_token(since_start(self.now));
        }
    }

    fn last_token(&mut self, number: u64) {
        // The way back is jittery: a short answer's end may overtake its beginning.
        self.first_token(number);
        let Some(inflight) = self.inflight.remove(&number) else { return };
        self.workers[inflight.worker].inflight -= 1;
        let tokens = inflight.answer_tokens.saturating_sub(1).max(1);
        let first = inflight.first_token.unwrap_or(self.now);
        let answered = Answered {
            turn: inflight.conversation.as_ref().map_or(0, Conversation::turn),
            prompt_tokens: inflight.prompt_tokens,
            cached_tokens: inflight.cached_tokens,
            output_tokens: inflight.answer_tokens,
            ttft_ms: first.ms_since(inflight.asked),
            per_token_ms: self.now.ms_since(first) / tokens as f64,
            e2e_s: self.now.ms_since(inflight.asked) / 1e3,
        };
        self.seen.answered(self.now, answered, &self.objective);
        drop(inflight.reservation);
        self.call_waiting(inflight.router);
        let Some(conversation) = inflight.conversation else { return };
        if self.closed_loop() && self.conversations > self.target {
            self.conversations -= 1;
            return;
        }
        match self.workload.think_s(&conversation) {
            Some(seconds) => {
                self.plan(self.now.after_ms(seconds * 1e3), Happening::Asks(conversation));
            }
            None if self.closed_loop() => {
                let conversation = self.workload.conversation(false);
                self.plan(self.now, Happening::Asks(conversation));
            }
            None => {}
        }
    }

    fn probe(&mut self) {
        self.seen.load(self.workers.iter().map(|worker| worker.inflight));
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
        attention_ps_per_pair: calibration.attention_ps_per_pair * slowness,
        launch_ms: calibration.launch_ms * slowness,
        ..calibration.clone()
    }
}
