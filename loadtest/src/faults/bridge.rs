//! Bridges beside their engines, and NATS between them and the router: real mirrors, outboxes and bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvlane_engine_adapters::bridge::{Outbox, OutboxTarget, message_bytes, snapshot_parts};
use kvlane_engine_adapters::dynamo::RouterEvent;
use kvlane_engine_adapters::feed::{CopyRule, FeedClock, FeedHealth, Sink};
use kvlane_engine_adapters::nats::{Announcement, Ask, Gathered, Parts};
use kvlane_engine_adapters::sim::SimTime;
use kvlane_engine_adapters::vllm::track::Track;
use kvlane_indexer::BlockSize;

use super::Mutant;
use super::host::Condition;
use super::link::{Ear, Link};
use super::script::BLOCK_TOKENS;
use super::world::{Happening, World, worker_id};

/// More than an engine here has.
const MAX_SNAPSHOT: usize = 1 << 20;

/// What is said to the router.
#[derive(Clone, Debug)]
pub(super) enum ToRouter {
    Event(Bytes),
    Announcement(Vec<u8>),
    /// The number after the snapshot, which part of how many.
    Part {
        ask: Ask,
        head: (u64, usize, usize),
        payload: Vec<u8>,
    },
    /// Nobody answers for this publisher.
    NoBridge(Ask),
}

#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) publisher: u64,
    pub(super) link: Link,
    pub(super) outbox: Arc<Outbox>,
    /// Said while it was cut off, to be heard later.
    pub(super) held: Vec<ToRouter>,
    /// Events on their way to the router.
    pub(super) in_flight: usize,
    last: SimTime,
    /// The process it knows, and questions it did not answer.
    process: Option<u64>,
    unanswered: u32,
    /// What it would have said first; for a bridge that never learns.
    stale: Option<Vec<Vec<u8>>>,
}

const BEAT_MS: f64 = 1_000.0;
const MOST_UNANSWERED: u32 = 3;
/// Blocks in a message: few, so that snapshots come in parts.
const MAX_BLOCKS: usize = 24;
const SNAPSHOT_TIMEOUT_MS: f64 = 10_000.0;

pub(super) fn block_size() -> BlockSize {
    BlockSize::new(BLOCK_TOKENS as u32).unwrap_or(BlockSize::USUAL)
}

impl World {
    /// The wall clock as the router and bridges read it.
    pub(super) fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + Duration::from_nanos(self.now.0)
    }

    pub(super) fn bridge_starts(&mut self, worker: usize) {
        self.epochs += 1;
        let publisher = 0x1000 * (worker as u64 + 1) + self.epochs;
        let outbox = Arc::new(Outbox::new(self.script.rules.outbox));
        let health = Arc::new(FeedHealth::new(worker_id(worker)));
        let clock = FeedClock::starting(self.wall());
        let target = Box::new(OutboxTarget(outbox.clone()));
        let sink = Sink::new(target, block_size(), CopyRule::Counted, clock, health);
        self.bridges[worker] = Some(Bridge {
            publisher,
            link: Link::new(Track::new(sink)),
            outbox,
            held: Vec::new(),
            in_flight: 0,
            last: self.now,
            process: None,
            unanswered: 0,
            stale: None,
        });
        self.note(format_args!("bridge of w{worker} starts as {publisher:x}"));
        self.connects_after(Ear::Bridge, worker, 1.0);
        self.plan(0.0, Happening::Beat { worker, publisher });
    }

    pub(super) fn bridge_dies(&mut self, worker: usize, down_ms: f64) -> bool {
        if self.bridges[worker].take().is_none() {
            return false;
        }
        self.plan(down_ms, Happening::BridgeStarts { worker });
        true
    }

    /// Once a second: looks at its engine, and announces it.
    pub(super) fn beat(&mut self, worker: usize, publisher: u64) {
        let (up, process) = (self.hosts[worker].condition == Condition::Up, self.hosts[worker].process);
        let Some(bridge) = self.bridges[worker].as_mut().filter(|bridge| bridge.publisher == publisher)
        else {
            return;
        };
        let restarted = if up {
            bridge.unanswered = 0;
            bridge.process.replace(process).is_some_and(|before| before != process)
        } else {
            bridge.unanswered += 1;
            bridge.unanswered == MOST_UNANSWERED
        };
        if restarted {
            self.engine_restarted(Ear::Bridge, worker);
        }
        self.announces(worker);
        self.plan(BEAT_MS, Happening::Beat { worker, publisher });
    }

    fn announces(&mut self, worker: usize) {
        let Some(bridge) = &self.bridges[worker] else { return };
        let announcement = Announcement {
            worker_id: worker_id(worker).instance,
            publisher: bridge.publisher,
            block_size: BLOCK_TOKENS as u32,
            next_sequence: bridge.outbox.next_sequence(),
            held_blocks: bridge.outbox.blocks(),
            ..Announcement::default()
        };
        if let Ok(bytes) = serde_json::to_vec(&announcement) {
            self.says(worker, ToRouter::Announcement(bytes));
        }
    }

    pub(super) fn roll_call(&mut self) {
        (0..self.bridges.len()).for_each(|worker| self.announces(worker));
    }

    /// What a bridge has heard of its engine goes out.
    pub(super) fn flushes(&mut self, ear: Ear, worker: usize) {
        if ear == Ear::Router {
            return;
        }
        let at_ms = self.wall().as_millis() as u64;
        while let Some(bridge) = &self.bridges[worker]
            && let Some(message) = bridge.outbox.take(MAX_BLOCKS)
        {
            let bytes = message_bytes(worker_id(worker), bridge.publisher, at_ms, &message);
            self.note(format_args!("bridge of w{worker} says {}", message.sequence));
            self.says(worker, ToRouter::Event(bytes.into()));
        }
    }

    fn cut(&self, worker: usize) -> Option<bool> {
        let of = |place: usize| self.cuts[place].map(|(_, held)| held);
        match (of(worker), of(self.hosts.len())) {
            (None, None) => None,
            // What the bridge's own client loses is lost, whatever else.
            (own, routers) => Some(own.unwrap_or(true) && routers.unwrap_or(true)),
        }
    }

    fn says(&mut self, worker: usize, message: ToRouter) {
        let cut = self.cut(worker);
        let Some(bridge) = &mut self.bridges[worker] else { return };
        if let Some(held) = cut {
            if held {
                bridge.held.push(message);
            }
            return;
        }
        let (publisher, mut last) = (bridge.publisher, bridge.last);
        let arrivals = self.arrivals(worker, &mut last);
        if let Some(bridge) = &mut self.bridges[worker] {
            bridge.last = last;
            if matches!(message, ToRouter::Event(_)) {
                bridge.in_flight += arrivals.len();
            }
        }
        let epoch = self.router.as_ref().map_or(0, |router| router.epoch);
        for at in arrivals {
            self.plan_at(at, Happening::Heard { epoch, worker, publisher, message: message.clone() });
        }
    }

    /// The way is free again: what was held back comes, and whoever was away says so.
    pub(super) fn heals(&mut self, bridge: Option<usize>) {
        let place = bridge.unwrap_or(self.hosts.len());
        if self.cuts[place].is_none_or(|(until, _)| until > self.now) {
            return;
        }
        self.cuts[place] = None;
        for worker in 0..self.bridges.len() {
            if self.cut(worker).is_none()
                && let Some(bridge) = &mut self.bridges[worker]
            {
                for message in std::mem::take(&mut bridge.held) {
                    self.says(worker, message);
                }
            }
        }
        match bridge {
            Some(worker) => self.announces(worker),
            None => {
                self.router.iter_mut().for_each(|router| router.listener.distrust_strangers());
                self.plan(2.0, Happening::RollCall);
            }
        }
    }

    pub(super) fn router_hears(&mut self, epoch: u64, worker: usize, publisher: u64, message: ToRouter) {
        if let Some(bridge) = self.bridges[worker].as_mut().filter(|bridge| bridge.publisher == publisher)
            && matches!(message, ToRouter::Event(_))
        {
            bridge.in_flight -= 1;
        }
        let cut = self.cuts[self.hosts.len()].is_some();
        let Some(router) = self.router.as_mut().filter(|router| router.epoch == epoch && !cut) else {
            return;
        };
        match message {
            ToRouter::Event(bytes) => router.listener.hear(bytes),
            ToRouter::Announcement(bytes) => router.listener.announced(&bytes),
            ToRouter::NoBridge(ask) => return self.snapshot_over(epoch, ask, None),
            ToRouter::Part { ask, head, payload } => {
                let Some((_, parts)) = router.asks.iter_mut().find(|(of, _)| *of == ask) else { return };
                match parts.take(head, &payload) {
                    Gathered::More => {}
                    Gathered::Whole(next, events) => {
                        return self.snapshot_over(epoch, ask, Some((next, events)));
                    }
                    Gathered::Wrong => return self.snapshot_over(epoch, ask, None),
                }
            }
        }
        let expected = router.listener.expected(publisher);
        self.note(format_args!("router hears {publisher:x}, expects {expected:?}"));
        self.asks_bridges();
    }

    /// Snapshots the listener wants are asked for.
    pub(super) fn asks_bridges(&mut self) {
        let Some(router) = &mut self.router else { return };
        let (epoch, mut wanted) = (router.epoch, router.listener.wanted());
        wanted.sort_by_key(|ask| ask.publisher);
        router.asks.extend(wanted.iter().map(|ask| (*ask, Parts::new(MAX_SNAPSHOT))));
        for ask in wanted {
            self.note(format_args!("router asks {:x} for a snapshot", ask.publisher));
            self.tally.see("snapshots_asked");
            self.plan(SNAPSHOT_TIMEOUT_MS, Happening::Unanswered { epoch, ask });
            if self.cuts[self.hosts.len()].is_none() {
                let way = self.between(0.5, 4.0);
                self.plan(way, Happening::Asked { epoch, ask });
            }
        }
    }

    pub(super) fn bridge_asked(&mut self, epoch: u64, ask: Ask) {
        let answers = |bridge: &Option<Bridge>| bridge.as_ref().is_some_and(|b| b.publisher == ask.publisher);
        let worker = self.bridges.iter().position(answers).filter(|worker| self.cuts[*worker].is_none());
        let Some(worker) = worker else {
            // A server says so itself when nobody listens there.
            let (worker, publisher, message) = (0, ask.publisher, ToRouter::NoBridge(ask));
            return self.plan(1.0, Happening::Heard { epoch, worker, publisher, message });
        };
        let stale = self.mutant == Some(Mutant::StaleSnapshot);
        let Some(bridge) = &mut self.bridges[worker] else { return };
        let (next, mut parts) = snapshot_parts(worker_id(worker), &bridge.outbox, MAX_BLOCKS);
        if stale {
            parts.clone_from(bridge.stale.get_or_insert(parts.clone()));
        }
        let of = parts.len();
        for (at, payload) in parts.into_iter().enumerate() {
            self.says(worker, ToRouter::Part { ask, head: (next, at + 1, of), payload });
        }
    }

    /// A snapshot came, or will not.
    pub(super) fn snapshot_over(&mut self, epoch: u64, ask: Ask, answer: Option<(u64, Vec<RouterEvent>)>) {
        let Some(router) = self.router.as_mut().filter(|router| router.epoch == epoch) else { return };
        let Some(at) = router.asks.iter().position(|(of, _)| *of == ask) else { return };
        router.asks.remove(at);
        let next = answer.as_ref().map(|(next, _)| *next);
        router.listener.restore(ask.answered(answer));
        self.note(format_args!("snapshot of {:x}: {next:?}", ask.publisher));
        self.tally.see(if next.is_some() { "snapshots_whole" } else { "snapshots_failed" });
        self.asks_bridges();
    }
}
