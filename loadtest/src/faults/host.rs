//! A worker's process: the engine, the events it publishes, what it answers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use kvlane_engine_adapters::sim::{Request, RequestId, SimEngine, StepOutput};
use kvlane_engine_adapters::vllm::wire::{Encoder, OutEvent};
use kvlane_indexer::{EngineBlockId, KvEvent, TokenId};
use kvlane_router::error::Failure;

use super::link::Ear;
use super::script::{BLOCK_TOKENS, MODELS, WorkerPlan};
use super::world::{Happening, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Up,
    /// It is there and does nothing.
    Hung,
    Down,
}

/// What the router gets of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reply {
    Tokens(usize),
    /// The whole answer was given; so many of the prompt's tokens were cached.
    Done {
        cached: usize,
    },
    Failed(Failure),
}

#[derive(Debug)]
pub(super) struct Host {
    plan: WorkerPlan,
    seed: u64,
    pub(super) engine: SimEngine,
    /// Which process it is, counted from one.
    pub(super) process: u64,
    pub(super) condition: Condition,
    stepping: bool,
    /// Attempts that came while it was hung.
    backlog: Vec<u64>,
    pub(super) refuses: Option<u16>,
    pub(super) wall_offset: f64,
    /// Tokens of what it was asked, for its events.
    asked: BTreeMap<u64, (Arc<[TokenId]>, usize)>,
    /// Batches numbered so far, and those that can be had again.
    pub(super) numbered: u64,
    pub(super) kept: VecDeque<(u64, Bytes)>,
    nudges: u64,
}

/// From the router to a worker and back.
const WAY_MS: f64 = 1.0;
/// Requests of others have numbers of their own.
const NUDGE: u64 = 1 << 48;

impl Host {
    pub(super) fn new(plan: &WorkerPlan, seed: u64, n: usize) -> Self {
        let seed = seed.wrapping_mul(31).wrapping_add(n as u64);
        Self {
            engine: SimEngine::new(plan.calibration.clone(), seed),
            plan: plan.clone(),
            seed,
            process: 1,
            condition: Condition::Up,
            stepping: false,
            backlog: Vec::new(),
            refuses: None,
            wall_offset: 0.0,
            asked: BTreeMap::new(),
            numbered: 0,
            kept: VecDeque::new(),
            nudges: 0,
        }
    }
}

impl World {
    /// Sends a placed request to its worker, and says under which number.
    pub(super) fn sends(&mut self, attempt: u64) {
        let worker = self.attempts[&attempt].worker;
        self.plan(WAY_MS, Happening::Reaches { worker, attempt });
    }

    pub(super) fn reaches(&mut self, worker: usize, attempt: u64) {
        let Some(of) = self.attempts.get(&attempt) else { return };
        let ask = self.script.asks[of.client].clone();
        let host = &mut self.hosts[worker];
        let refused = match host.condition {
            Condition::Down => Some(Failure::Connect),
            Condition::Hung => {
                host.backlog.push(attempt);
                return;
            }
            Condition::Up => host.refuses.map(Failure::Status),
        };
        if let Some(failure) = refused {
            return self.plan(WAY_MS, Happening::Replies { attempt, reply: Reply::Failed(failure) });
        }
        let request = Request {
            id: RequestId(attempt),
            prompt_tokens: ask.prompt_tokens,
            output_tokens: ask.tokens.len() - ask.prompt_tokens,
            blocks: ask.blocks.clone(),
            priority: 0,
        };
        host.asked.insert(attempt, (ask.tokens.clone(), ask.model));
        if let Err(error) = host.engine.submit(self.now, request) {
            return self.violate(format_args!("the script asks for what no engine takes: {error}"));
        }
        self.goes_on_stepping(worker);
    }

    fn goes_on_stepping(&mut self, worker: usize) {
        let host = &self.hosts[worker];
        if !host.stepping && host.condition == Condition::Up {
            self.steps(worker, host.process);
        }
    }

    pub(super) fn hung_up(&mut self, worker: usize, attempt: u64) {
        let host = &mut self.hosts[worker];
        host.backlog.retain(|waiting| *waiting != attempt);
        host.engine.cancel(RequestId(attempt));
    }

    pub(super) fn steps(&mut self, worker: usize, process: u64) {
        let host = &mut self.hosts[worker];
        if host.process != process || host.condition == Condition::Down {
            return;
        }
        host.stepping = false;
        if host.condition == Condition::Hung {
            return;
        }
        let mut output = StepOutput::default();
        host.engine.step(self.now, &mut output);
        if let Some(next) = output.next {
            host.stepping = true;
            self.plan_at(next, Happening::Steps { worker, process });
        }
        for tokens in &output.tokens {
            let (attempt, reply) = (tokens.request.0, Reply::Tokens(tokens.count));
            self.plan(WAY_MS, Happening::Replies { attempt, reply });
        }
        for done in &output.finished {
            let (attempt, reply) = (done.request.0, Reply::Done { cached: done.cached_tokens });
            self.plan(WAY_MS, Happening::Replies { attempt, reply });
        }
        if !output.events.is_empty() {
            self.publishes(worker, &output);
        }
    }

    /// What a step changed goes to everybody who is connected, and is kept.
    fn publishes(&mut self, worker: usize, output: &StepOutput) {
        let host = &mut self.hosts[worker];
        let mut origins = output.origins.iter();
        let mut events = Vec::new();
        for event in &output.events {
            match event {
                KvEvent::Removed { ids, .. } => {
                    events.extend(ids.iter().map(|id| OutEvent::Removed { name: id.to_u64() }));
                }
                KvEvent::Stored { parent, blocks, .. } => {
                    let Some(origin) = origins.next() else { continue };
                    let Some((tokens, model)) = host.asked.get(&origin.request.0) else { continue };
                    let first = origin.first_block * BLOCK_TOKENS;
                    events.push(OutEvent::Stored {
                        names: blocks.iter().map(|block| block.id.to_u64()).collect(),
                        parent: parent.map(EngineBlockId::to_u64),
                        tokens: tokens.get(first..first + blocks.len() * BLOCK_TOKENS).unwrap_or_default(),
                        block_tokens: BLOCK_TOKENS,
                        lora_name: (*model == 1).then_some(MODELS[1]),
                        cache_salt: None,
                        session_id: None,
                    });
                }
                KvEvent::Cleared { .. } => events.push(OutEvent::Cleared),
            }
        }
        let seconds = 1_700_000_000.0 + self.now.seconds() + host.wall_offset;
        let bytes = Bytes::from(Encoder::default().batch(seconds, &events));
        let (number, process) = (host.numbered, host.process);
        host.numbered += 1;
        host.kept.push_back((number, bytes.clone()));
        if host.kept.len() > host.plan.plane.kept() {
            host.kept.pop_front();
        }
        for ear in [Ear::Router, Ear::Bridge] {
            self.carries(ear, worker, process, number, &bytes);
        }
    }

    pub(super) fn replies(&mut self, attempt: u64, reply: Reply) {
        if let Some(of) = self.attempts.get(&attempt) {
            let (client, worker) = (of.client, of.worker);
            // Whoever asked may have turned away.
            let _ = of.replies.send(reply);
            self.note(format_args!("w{worker} to r{client}: {reply:?}"));
        }
    }

    /// The process dies with all it has; another one comes.
    pub(super) fn crashes(&mut self, worker: usize, down_ms: f64, batch: Option<usize>) -> bool {
        if self.hosts[worker].condition == Condition::Down {
            return false;
        }
        let host = &mut self.hosts[worker];
        host.process += 1;
        host.condition = Condition::Down;
        if let Some(batch) = batch {
            host.plan.calibration.max_batch = batch;
        }
        let (process, seed) = (host.process, host.seed.wrapping_add(host.process << 32));
        host.engine = SimEngine::new(host.plan.calibration.clone(), seed);
        (host.stepping, host.numbered) = (false, 0);
        host.kept.clear();
        host.asked.clear();
        host.backlog.clear();
        let there = |(_, attempt): &(&u64, &super::world::Attempt)| attempt.worker == worker;
        let attempts: Vec<u64> = self.attempts.iter().filter(there).map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            self.plan(WAY_MS, Happening::Replies { attempt, reply: Reply::Failed(Failure::Closed) });
        }
        for ear in [Ear::Router, Ear::Bridge] {
            self.breaks_soon(ear, worker);
        }
        self.plan(down_ms, Happening::Comeback { worker, process });
        true
    }

    pub(super) fn comes_back(&mut self, worker: usize, process: u64) {
        let host = &mut self.hosts[worker];
        if host.process == process && host.condition == Condition::Down {
            host.condition = Condition::Up;
            self.note(format_args!("w{worker} is back as process {process}"));
        }
    }

    pub(super) fn hangs(&mut self, worker: usize) -> bool {
        let host = &mut self.hosts[worker];
        let up = host.condition == Condition::Up;
        if up {
            host.condition = Condition::Hung;
        }
        up
    }

    pub(super) fn goes_on(&mut self, worker: usize) {
        let host = &mut self.hosts[worker];
        if host.condition != Condition::Hung {
            return;
        }
        host.condition = Condition::Up;
        for attempt in std::mem::take(&mut host.backlog) {
            self.reaches(worker, attempt);
        }
        self.goes_on_stepping(worker);
    }

    /// A request of somebody else, never seen before, so that the engine has something new to say.
    pub(super) fn nudge(&mut self, worker: usize) {
        let host = &mut self.hosts[worker];
        if host.condition != Condition::Up {
            return self.plan(500.0, Happening::Nudge(worker));
        }
        host.nudges += 1;
        let id = NUDGE + host.nudges;
        let token = 60_000 + host.nudges as TokenId;
        let tokens: Arc<[TokenId]> = vec![token; 2 * BLOCK_TOKENS].into();
        let size =
            kvlane_indexer::BlockSize::new(BLOCK_TOKENS as u32).unwrap_or(kvlane_indexer::BlockSize::USUAL);
        let hasher = kvlane_indexer::BlockHasher::new(size, kvlane_indexer::Namespace::default());
        let blocks = hasher.blocks(&tokens).collect();
        host.asked.insert(id, (tokens, 0));
        let (prompt_tokens, output_tokens) = (2 * BLOCK_TOKENS - 1, 1);
        let request = Request { id: RequestId(id), prompt_tokens, output_tokens, blocks, priority: 0 };
        let _ = host.engine.submit(self.now, request);
        self.goes_on_stepping(worker);
    }
}
