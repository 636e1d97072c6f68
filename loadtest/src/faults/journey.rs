//! One request from the router's door to its end, as `http/completions.rs` and `proxy.rs` have it: placed at once or
//! when its turn comes, sent, sent elsewhere if that fails before the first byte, relayed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kvlane_indexer::Overlap;
use kvlane_router::discovery::Worker;
use kvlane_router::error::Failure;
use kvlane_router::proxy::breaker::Sent;
use kvlane_router::scheduling::{Answered, Barred, Demand, NoPlace, Placement, Standing, WaitingRoom};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::Mutant;
use super::client::{Booked, Held, Stage};
use super::host::Reply;
use super::script::{BLOCK_TOKENS, Plane};
use super::tally::End;
use super::world::{Attempt, World, worker_id};

/// As the proxy has it.
const UNANSWERED_LIFE: u32 = 10;

pub(super) type Lab = Rc<RefCell<World>>;

/// A request with a worker.
struct Placed {
    held: Held,
    worker: usize,
    /// Blocks the worker was known to hold, and in which epoch of what is believed of it.
    held_blocks: usize,
}

/// From the door to the end.
pub(super) async fn journey(lab: Lab, n: usize) {
    let end = answered(&lab, n).await;
    let mut world = lab.borrow_mut();
    if world.mutant == Some(Mutant::Swallows) && n.is_multiple_of(16) {
        return;
    }
    world.ends(n, end);
}

async fn answered(lab: &Lab, n: usize) -> End {
    let (room, demand) = {
        let world = lab.borrow();
        let Some((demand, router)) = world.demand(n).zip(world.router.as_ref()) else {
            return End::RouterGone;
        };
        (router.group.room.clone(), demand)
    };
    match wait(lab, n, &room, &demand).await {
        Err(NoPlace::Full(_)) => End::NoPlace,
        Err(NoPlace::TooLong(_)) => End::TooLong,
        Ok(Err(end)) => end,
        Ok(Ok(placed)) => forward(lab, n, &demand, placed).await,
    }
}

async fn wait(
    lab: &Lab,
    n: usize,
    room: &Arc<WaitingRoom>,
    demand: &Demand,
) -> Result<Result<Placed, End>, NoPlace> {
    let (model, priority, pushes_in) = {
        let world = lab.borrow();
        let ask = &world.script.asks[n];
        (ask.model, ask.priority, world.mutant == Some(Mutant::PushesIn) && n.is_multiple_of(4))
    };
    if pushes_in && let Some(placed) = lab.borrow_mut().tries_to_place(n, demand) {
        return Ok(placed);
    }
    let placed = room.placed(model as u64, priority, || lab.borrow_mut().tries_to_place(n, demand)).await;
    placed.map(|(placed, _)| placed)
}

impl World {
    /// The router's turn for a request: none while it has to wait.
    fn tries_to_place(&mut self, n: usize, demand: &Demand) -> Option<Result<Placed, End>> {
        let model = self.script.asks[n].model;
        let router = self.router.as_ref()?;
        let (overlap, standings) = (router.overlap(demand), router.standings(model));
        let draw =
            if router.scheduler.policy().takes_turns() { router.group.turn() } else { self.clients[n].draw };
        match router.scheduler.place(demand, &overlap, &standings, draw, router.now()) {
            Err(decision) if decision.must_wait() => None,
            Err(_) => Some(Err(End::NoWorker)),
            Ok(placement) => {
                self.checks_order(n);
                Some(Ok(self.books(n, demand, &overlap, &standings, placement)))
            }
        }
    }

    /// The best of those that were not tried yet.
    fn place_elsewhere(&mut self, n: usize, demand: &Demand, tried: &[usize]) -> Option<Placed> {
        let router = self.router.as_ref()?;
        let (overlap, mut standings) = (router.overlap(demand), router.standings(self.script.asks[n].model));
        for standing in &mut standings {
            if tried.iter().any(|tried| worker_id(*tried) == standing.worker) {
                standing.barred = standing.barred.or(Some(Barred::Tried));
            }
        }
        let draw = if router.scheduler.policy().takes_turns() {
            router.group.turn()
        } else {
            use rand::RngExt as _;
            self.random.random()
        };
        let placed = router.scheduler.place_anyway(demand, &overlap, &standings, draw, router.now());
        Some(self.books(n, demand, &overlap, &standings, placed.ok()?))
    }

    fn books(
        &mut self,
        n: usize,
        demand: &Demand,
        overlap: &Overlap,
        standings: &[Standing],
        placement: Placement,
    ) -> Placed {
        let id = placement.reservation.worker();
        let worker = id.instance as usize - 1;
        let trust = standings.iter().find(|standing| standing.worker == id).map_or(1.0, |found| found.trust);
        let expected = f64::from(overlap.of(id).expected());
        let cached = (expected * trust.min(1.0)) as usize * BLOCK_TOKENS;
        let booked = Booked {
            worker,
            blocks: demand.blocks.clone(),
            prefill_tokens: demand.prompt_tokens.saturating_sub(cached),
            open_tokens: demand.prompt_tokens - demand.blocks.len() * BLOCK_TOKENS,
            begun: false,
        };
        self.clients[n].stage = Stage::Sent(worker);
        let held_blocks = overlap.of(id).device as usize;
        self.note(format_args!("r{n} is placed on w{worker}, {held_blocks} of {} held", demand.blocks.len()));
        Placed {
            held: Held::new(placement.reservation, booked, &self.ledger, self.mutant),
            worker,
            held_blocks,
        }
    }

    /// What a worker is expected to hold once it has the request. Whether its events will confirm it.
    fn expects(&self, worker: usize, demand: &Demand) -> bool {
        let Some(router) = &self.router else { return false };
        let rules = &self.script.rules;
        let confirmed = router.watches[worker].fed && self.script.workers[worker].plane != Plane::Nowhere;
        if rules.predicted_ttl_s > 0 || !confirmed {
            let life = (!confirmed).then(|| rules.approximate_ttl_s.min(UNANSWERED_LIFE));
            router.index.predict_for(worker_id(worker), &demand.blocks, router.tick(), life);
        }
        confirmed
    }

    /// It answers: where no events will say so, what it was sent counts as held from now on.
    fn answers(&mut self, n: usize, worker: usize, demand: &Demand, confirmed: bool) {
        self.clients[n].stage = Stage::Answered;
        if let Some(router) = self.router.as_ref().filter(|_| !confirmed) {
            let life = Some(self.script.rules.approximate_ttl_s);
            router.index.predict_for(worker_id(worker), &demand.blocks, router.tick(), life);
        }
    }

    fn worker(&self, n: usize) -> Option<Arc<Worker>> {
        self.router.as_ref().map(|router| router.workers[n].clone())
    }

    /// An answer's usage, held against what was expected.
    fn audits(&self, worker: &Worker, demand: &Demand, seen: &Seen, cached: usize) {
        if !seen.audited || seen.first_after.is_none_or(|after| after >= Duration::from_secs(2)) {
            return;
        }
        let prompt = demand.prompt_tokens;
        worker.belief.answered(
            &worker.name,
            seen.epoch,
            Answered {
                predicted: (seen.held_blocks * BLOCK_TOKENS).min(prompt),
                reported: cached,
                prompt_here: prompt,
                prompt_there: prompt,
                block: BLOCK_TOKENS,
            },
        );
    }
}

/// What an answer is held against.
struct Seen {
    audited: bool,
    epoch: u64,
    held_blocks: usize,
    placed: Instant,
    first_after: Option<Duration>,
}

/// The place of a half-open breaker, given back by whatever happens.
struct Trial<'a>(&'a Worker, Sent, bool);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.2 {
            self.0.breaker.abandoned(self.1);
        }
    }
}

/// A connection to a worker, closed when it is dropped.
struct Connection {
    lab: Lab,
    attempt: u64,
    replies: UnboundedReceiver<Reply>,
}

impl Connection {
    fn open(lab: &Lab, client: usize, worker: usize) -> Self {
        let (sender, replies) = unbounded_channel();
        let mut world = lab.borrow_mut();
        world.last_attempt += 1;
        let attempt = world.last_attempt;
        world.attempts.insert(attempt, Attempt { client, worker, replies: sender });
        world.sends(attempt);
        Self { lab: lab.clone(), attempt, replies }
    }

    /// The next of the answer, unless it takes too long.
    async fn next(&mut self, patience: Duration) -> Result<Reply, Failure> {
        match timeout(patience, self.replies.recv()).await {
            Err(_) => Err(Failure::Timeout),
            Ok(None) => Err(Failure::Closed),
            Ok(Some(Reply::Failed(failure))) => Err(failure),
            Ok(Some(reply)) => Ok(reply),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.lab.borrow_mut().hangs_up(self.attempt);
    }
}

async fn forward(lab: &Lab, n: usize, demand: &Demand, first: Placed) -> End {
    let rules = lab.borrow().script.rules;
    let keeps_trials = lab.borrow().mutant == Some(Mutant::KeepsTrials);
    let (mut placed, mut tried) = (first, Vec::new());
    let mut internal_errors: Vec<(Arc<Worker>, Sent)> = Vec::new();
    loop {
        let Some(worker) = lab.borrow().worker(placed.worker) else { return End::RouterGone };
        tried.push(placed.worker);
        let confirmed = lab.borrow().expects(placed.worker, demand);
        let mut seen = Seen {
            audited: rules.audit && confirmed,
            epoch: worker.belief.epoch(),
            held_blocks: placed.held_blocks,
            placed: Instant::now(),
            first_after: None,
        };
        let sent = worker.breaker.sending();
        let trial = Trial(&worker, sent, keeps_trials);
        let mut connection = Connection::open(lab, n, placed.worker);
        let failure = match connection.next(rules.first_byte).await {
            Ok(reply) => {
                worker.breaker.answering(sent);
                drop(trial);
                internal_errors.iter().for_each(|(worker, sent)| worker.breaker.failed(*sent));
                lab.borrow_mut().answers(n, placed.worker, demand, confirmed);
                let answer = (&mut connection, &mut placed.held, &mut seen);
                return match relay(lab, n, demand, answer, reply, rules.idle, &worker).await {
                    Ok(()) => {
                        worker.breaker.succeeded();
                        End::Whole
                    }
                    Err(_) => {
                        worker.breaker.failed(sent);
                        End::BrokenOff
                    }
                };
            }
            Err(failure) => failure,
        };
        drop(trial);
        drop(connection);
        match failure {
            Failure::Status(429 | 503) => {}
            Failure::Status(_) => internal_errors.push((worker.clone(), sent)),
            _ => worker.breaker.failed(sent),
        }
        let again = {
            let mut world = lab.borrow_mut();
            world.note(format_args!("r{n} failed at w{}: {}", tried[tried.len() - 1], failure.name()));
            world.tally.see("failed_attempts");
            if tried.len() > rules.retries { None } else { world.place_elsewhere(n, demand, &tried) }
        };
        match again {
            Some(next) => {
                lab.borrow_mut().tally.see("retries");
                placed = next;
            }
            None => {
                if let [(alone, sent)] = &internal_errors[..] {
                    alone.breaker.failed(*sent);
                }
                return End::NoAnswer;
            }
        }
    }
}

async fn relay(
    lab: &Lab,
    n: usize,
    demand: &Demand,
    (connection, held, seen): (&mut Connection, &mut Held, &mut Seen),
    first: Reply,
    idle: Duration,
    worker: &Worker,
) -> Result<(), Failure> {
    let (mut reply, mut tokens) = (first, 0);
    loop {
        match reply {
            Reply::Tokens(count) => {
                seen.first_after.get_or_insert(seen.placed.elapsed());
                tokens += count;
                held.tokens(count);
            }
            Reply::Done { cached } => {
                let mut world = lab.borrow_mut();
                let ask = &world.script.asks[n];
                let owed = ask.tokens.len() - ask.prompt_tokens;
                if tokens != owed {
                    world.violate(format_args!("1: r{n} got {tokens} tokens of {owed} as its whole answer"));
                }
                world.audits(worker, demand, seen, cached);
                return Ok(());
            }
            Reply::Failed(failure) => return Err(failure),
        }
        reply = connection.next(idle).await?;
    }
}
