//! Everything there is in a scenario, and what happens to it next.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use kvlane_engine_adapters::nats::Ask;
use kvlane_engine_adapters::sim::SimTime;
use kvlane_indexer::WorkerId;
use kvlane_router::metrics::Metrics;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::UnboundedSender;

use super::Mutant;
use super::bridge::{Bridge, ToRouter};
use super::client::{Client, Ledger};
use super::host::{Host, Reply};
use super::link::{Ear, Replayed};
use super::router::Router;
use super::script::{Fault, Mishap, Plane, Script};
use super::tally::Tally;
use crate::agenda::Agenda;

/// What happens, to whom.
#[derive(Debug)]
pub(super) enum Happening {
    Comes(usize),
    Leaves(usize),
    /// A request reaches its worker, or its connection is closed there.
    Reaches {
        worker: usize,
        attempt: u64,
    },
    HungUp {
        worker: usize,
        attempt: u64,
    },
    /// A worker's word reaches the router.
    Replies {
        attempt: u64,
        reply: Reply,
    },
    Steps {
        worker: usize,
        process: u64,
    },
    Comeback {
        worker: usize,
        process: u64,
    },
    /// Of a line from an engine to whoever listens.
    Connects {
        ear: Ear,
        worker: usize,
        line: u64,
    },
    AsksAgain {
        ear: Ear,
        worker: usize,
        line: u64,
    },
    Batch {
        ear: Ear,
        worker: usize,
        line: u64,
        number: u64,
        bytes: Bytes,
    },
    ReplayAsked {
        ear: Ear,
        worker: usize,
        line: u64,
        start: u64,
    },
    ReplayCame {
        ear: Ear,
        worker: usize,
        line: u64,
        replayed: Replayed,
    },
    Breaks {
        ear: Ear,
        worker: usize,
        line: u64,
    },
    /// Over NATS.
    Heard {
        epoch: u64,
        worker: usize,
        publisher: u64,
        message: ToRouter,
    },
    Asked {
        epoch: u64,
        ask: Ask,
    },
    Unanswered {
        epoch: u64,
        ask: Ask,
    },
    RollCall,
    Beat {
        worker: usize,
        publisher: u64,
    },
    BridgeStarts {
        worker: usize,
    },
    /// The router looks at a worker, or cleans up.
    Probes {
        epoch: u64,
        worker: usize,
    },
    CleansUp {
        epoch: u64,
    },
    RouterStarts,
    Fault(usize),
    Over(usize),
    /// Somebody else's request to a worker, so that it says something.
    Nudge(usize),
    Quiet,
    End,
}

/// What happens to a worker's messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Weather(BTreeMap<Mishap, f64>);

/// An attempt at having a request answered.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) client: usize,
    pub(super) worker: usize,
    pub(super) replies: UnboundedSender<Reply>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) script: Rc<Script>,
    pub(super) mutant: Option<Mutant>,
    pub(super) random: StdRng,
    pub(super) now: SimTime,
    agenda: Agenda<Happening>,
    pub(super) hosts: Vec<Host>,
    pub(super) bridges: Vec<Option<Bridge>>,
    weather: Vec<Weather>,
    /// Until when a bridge, and at last the router, is cut off, and whether what is said meanwhile comes later.
    pub(super) cuts: Vec<Option<(SimTime, bool)>>,
    pub(super) router: Option<Router>,
    pub(super) epochs: u64,
    pub(super) lines: u64,
    pub(super) clients: Vec<Client>,
    pub(super) joins: u64,
    pub(super) attempts: BTreeMap<u64, Attempt>,
    pub(super) last_attempt: u64,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) metrics: Arc<Metrics>,
    /// Tasks to begin and to end, for whoever drives them.
    pub(super) begin: Vec<usize>,
    pub(super) kill: Vec<usize>,
    pub(super) quiet: bool,
    pub(super) ended: bool,
    pub(super) tally: Tally,
    pub(super) violation: Option<String>,
    /// Of everything that happened.
    pub(super) digest: u64,
    pub(super) trace: Option<Vec<String>>,
    line: String,
}

/// What is left of time after everything went wrong, for all to come right again: the longest a breaker is open, and the
/// longest pause before a bridge is asked again.
const GRACE_MS: f64 = 75_000.0;
/// When engines are made to say something, counted from the quiet on.
const NUDGES_MS: [f64; 3] = [2_000.0, 12_000.0, 24_000.0];

pub(super) fn worker_id(n: usize) -> WorkerId {
    WorkerId::new(n as u64 + 1, 0)
}

impl World {
    pub(super) fn new(seed: u64, script: Script, metrics: Arc<Metrics>, mutant: Option<Mutant>) -> Self {
        let hosts = (0..script.workers.len()).map(|n| Host::new(&script.workers[n], seed, n)).collect();
        let mut world = Self {
            mutant,
            random: StdRng::seed_from_u64(seed ^ 0x0F_A017),
            now: SimTime::default(),
            agenda: Agenda::default(),
            hosts,
            bridges: script.workers.iter().map(|_| None).collect(),
            weather: vec![Weather::default(); script.workers.len()],
            cuts: vec![None; script.workers.len() + 1],
            router: None,
            epochs: 0,
            lines: 0,
            clients: script.asks.iter().map(|_| Client::default()).collect(),
            joins: 0,
            attempts: BTreeMap::new(),
            last_attempt: 0,
            ledger: Rc::default(),
            metrics,
            begin: Vec::new(),
            kill: Vec::new(),
            quiet: false,
            ended: false,
            tally: Tally { seeds: 1, requests: script.asks.len() as u64, ..Tally::default() },
            violation: None,
            digest: 0xcbf2_9ce4_8422_2325,
            trace: None,
            line: String::new(),
            script: Rc::new(script),
        };
        world.lay_out();
        world
    }

    /// Plans what the script has.
    fn lay_out(&mut self) {
        let script = self.script.clone();
        for (n, ask) in script.asks.iter().enumerate() {
            self.plan(ask.at_ms, Happening::Comes(n));
            if let Some(after) = ask.cancels_ms {
                self.plan(ask.at_ms + after, Happening::Leaves(n));
            }
        }
        for (n, (at_ms, _)) in script.faults.iter().enumerate() {
            self.plan(*at_ms, Happening::Fault(n));
        }
        for (n, plan) in script.workers.iter().enumerate() {
            if matches!(plan.plane, Plane::Bridged { .. }) {
                self.plan(0.0, Happening::BridgeStarts { worker: n });
            }
            if plan.said.is_some_and(|said| said as usize != plan.calibration.max_batch) {
                *self.tally.faults.entry("slot_lie").or_default() += 1;
            }
            for after in NUDGES_MS {
                self.plan(script.quiet_ms + after, Happening::Nudge(n));
            }
        }
        self.plan(0.0, Happening::RouterStarts);
        self.plan(script.quiet_ms, Happening::Quiet);
        self.plan(script.quiet_ms + GRACE_MS, Happening::End);
    }

    /// Something will happen so many milliseconds from now; timers know whole ones only.
    pub(super) fn plan(&mut self, after_ms: f64, happening: Happening) {
        self.plan_at(self.now.after_ms(after_ms), happening);
    }

    pub(super) fn plan_at(&mut self, at: SimTime, happening: Happening) {
        self.agenda.plan(SimTime(at.0.div_ceil(1_000_000) * 1_000_000), happening);
    }

    pub(super) fn next_at(&self) -> Option<SimTime> {
        self.agenda.next_at()
    }

    pub(super) fn between(&mut self, least: f64, most: f64) -> f64 {
        self.random.random_range(least..most)
    }

    fn chance(&mut self, worker: usize, how: Mishap) -> bool {
        let share = self.weather[worker].0.get(&how).copied().unwrap_or(0.0);
        share > 0.0 && self.random.random_bool(share)
    }

    pub(super) fn replay_is_cut(&mut self, worker: usize) -> bool {
        self.chance(worker, Mishap::ReplayCut)
    }

    /// When a message of a worker's arrives: not at all, once or twice. `last` is when the one before it does.
    pub(super) fn arrivals(&mut self, worker: usize, last: &mut SimTime) -> Vec<SimTime> {
        if self.chance(worker, Mishap::Lost) {
            return Vec::new();
        }
        let late = if self.chance(worker, Mishap::Delayed) { self.between(50.0, 1_500.0) } else { 0.0 };
        let way = self.between(0.5, 4.0);
        let at = self.now.after_ms(way + late).max(*last);
        *last = at;
        let mut arrivals = vec![at];
        if self.chance(worker, Mishap::Reordered) {
            arrivals[0] = at.after_ms(self.between(10.0, 400.0));
        }
        if self.chance(worker, Mishap::Twice) {
            arrivals.push(at.after_ms(self.between(0.0, 200.0)));
        }
        arrivals
    }

    /// Something happened; the digest is of all that did.
    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        use fmt::Write as _;
        self.line.clear();
        let _ = write!(self.line, "{:>9.3} {what}", self.now.seconds());
        for byte in self.line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(self.line.clone());
        }
    }

    pub(super) fn violate(&mut self, what: fmt::Arguments<'_>) {
        self.note(format_args!("VIOLATION {what}"));
        self.violation.get_or_insert_with(|| what.to_string());
    }

    /// The next happening.
    pub(super) fn step(&mut self) {
        let Some((at, happening)) = self.agenda.pop() else { return };
        self.now = at.max(self.now);
        self.tally.steps += 1;
        match happening {
            Happening::Comes(n) => self.comes(n),
            Happening::Leaves(n) => self.leaves(n),
            Happening::Reaches { worker, attempt } => self.reaches(worker, attempt),
            Happening::HungUp { worker, attempt } => self.hung_up(worker, attempt),
            Happening::Replies { attempt, reply } => self.replies(attempt, reply),
            Happening::Steps { worker, process } => self.steps(worker, process),
            Happening::Comeback { worker, process } => self.comes_back(worker, process),
            Happening::Connects { ear, worker, line } => self.connects(ear, worker, line),
            Happening::AsksAgain { ear, worker, line } => self.asks_again(ear, worker, line),
            Happening::Batch { ear, worker, line, number, bytes } => {
                self.batch_came(ear, worker, line, number, bytes);
            }
            Happening::ReplayAsked { ear, worker, line, start } => {
                self.replay_asked(ear, worker, line, start);
            }
            Happening::ReplayCame { ear, worker, line, replayed } => {
                self.replay_came(ear, worker, line, replayed);
            }
            Happening::Breaks { ear, worker, line } => self.breaks(ear, worker, line),
            Happening::Heard { epoch, worker, publisher, message } => {
                self.router_hears(epoch, worker, publisher, message);
            }
            Happening::Asked { epoch, ask } => self.bridge_asked(epoch, ask),
            Happening::Unanswered { epoch, ask } => self.snapshot_over(epoch, ask, None),
            Happening::RollCall => self.roll_call(),
            Happening::Beat { worker, publisher } => self.beat(worker, publisher),
            Happening::BridgeStarts { worker } => self.bridge_starts(worker),
            Happening::Probes { epoch, worker } => self.probes(epoch, worker),
            Happening::CleansUp { epoch } => self.cleans_up(epoch),
            Happening::RouterStarts => self.router_starts(),
            Happening::Fault(n) => self.fault(n),
            Happening::Over(n) => self.fault_over(n),
            Happening::Nudge(worker) => self.nudge(worker),
            Happening::Quiet => self.quiet = true,
            Happening::End => self.ended = true,
        }
    }

    fn fault(&mut self, n: usize) {
        let (_, fault) = self.script.faults[n];
        let happened = match fault {
            Fault::Crash { worker, down_ms, batch } => self.crashes(worker, down_ms, batch),
            Fault::Hang { worker, ms, .. } => self.hangs(worker) && self.over_after(ms, n),
            Fault::Refuses { worker, ms, status } => {
                self.hosts[worker].refuses = Some(status);
                self.over_after(ms, n)
            }
            Fault::Drain { worker, ms } => {
                self.router.iter().for_each(|router| router.workers[worker].drain(true));
                self.router.is_some() && self.over_after(ms, n)
            }
            Fault::Events { worker, ms, how, share } => {
                self.weather[worker].0.insert(how, share);
                self.over_after(ms, n)
            }
            Fault::BridgeRestart { worker, down_ms } => self.bridge_dies(worker, down_ms),
            Fault::Partition { bridge, ms, held } => {
                let there = bridge.is_none_or(|worker| self.bridges[worker].is_some());
                if there {
                    self.cuts[bridge.unwrap_or(self.hosts.len())] = Some((self.now.after_ms(ms), held));
                }
                there && self.over_after(ms, n)
            }
            Fault::RouterRestart { down_ms } => self.router_dies(down_ms),
            Fault::TickJump { seconds } => {
                self.router.iter_mut().for_each(|router| router.tick_offset += seconds);
                self.router.is_some()
            }
            Fault::WallJump { worker, seconds } => {
                self.hosts[worker].wall_offset += seconds;
                true
            }
        };
        if happened {
            *self.tally.faults.entry(fault.name()).or_default() += 1;
            self.note(format_args!("fault {fault:?}"));
        }
    }

    fn over_after(&mut self, ms: f64, n: usize) -> bool {
        self.plan(ms, Happening::Over(n));
        true
    }

    fn fault_over(&mut self, n: usize) {
        let (_, fault) = self.script.faults[n];
        self.note(format_args!("over {}", fault.name()));
        match fault {
            Fault::Hang { worker, dies: true, .. } => drop(self.crashes(worker, 300.0, None)),
            Fault::Hang { worker, .. } => self.goes_on(worker),
            Fault::Refuses { worker, .. } => self.hosts[worker].refuses = None,
            Fault::Drain { worker, .. } => {
                self.router.iter().for_each(|router| router.workers[worker].drain(false));
            }
            Fault::Events { worker, how, .. } => drop(self.weather[worker].0.remove(&how)),
            Fault::Partition { bridge, .. } => self.heals(bridge),
            _ => {}
        }
    }
}
