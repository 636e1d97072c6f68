//! A line from an engine to whoever listens to it straight: the router, or a bridge. The listening is the real feed's
//! [`Track`]; here are only the line, its breaks, and messages that come when they come.

use std::collections::VecDeque;

use bytes::Bytes;
use kvlane_engine_adapters::feed::FeedState;
use kvlane_engine_adapters::sim::SimTime;
use kvlane_engine_adapters::vllm::decode;
use kvlane_engine_adapters::vllm::track::{Next, ReplayEnd, Track};

use super::Mutant;
use super::host::Condition;
use super::world::{Happening, World};

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ear {
    Router,
    Bridge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Connecting,
    Repairing,
    Listening,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) track: Track,
    /// Which connection it is; what comes over an older one is lost.
    id: u64,
    pub(super) state: Line,
    /// The process it is connected to.
    pub(super) to: Option<u64>,
    /// What came while the past was asked for.
    pub(super) waiting: VecDeque<(u64, Bytes)>,
    /// It broke meanwhile, which is noticed afterwards.
    broken: bool,
    pause_ms: f64,
    pub(super) in_flight: usize,
    last: SimTime,
}

/// What came of asking for the past.
#[derive(Debug)]
pub(super) struct Replayed {
    batches: Vec<(u64, Bytes)>,
    end: ReplayEnd,
}

/// As the real feed has them.
const FIRST_PAUSE_MS: f64 = 100.0;
const LONGEST_PAUSE_MS: f64 = 2_000.0;
const REPLAY_TIMEOUT_MS: f64 = 5_000.0;
const ASK_AGAIN_MS: f64 = 30_000.0;

impl Link {
    pub(super) fn new(track: Track) -> Self {
        Self {
            track,
            id: 0,
            state: Line::Connecting,
            to: None,
            waiting: VecDeque::new(),
            broken: false,
            pause_ms: FIRST_PAUSE_MS,
            in_flight: 0,
            last: SimTime::default(),
        }
    }

    pub(super) fn feed(&self) -> FeedState {
        self.track.sink().health().state()
    }
}

impl World {
    fn link(&mut self, ear: Ear, worker: usize) -> Option<&mut Link> {
        match ear {
            Ear::Router => self.router.as_mut()?.links[worker].as_mut(),
            Ear::Bridge => Some(&mut self.bridges[worker].as_mut()?.link),
        }
    }

    /// The line, if it is still that one.
    fn line(&mut self, ear: Ear, worker: usize, id: u64) -> Option<&mut Link> {
        self.link(ear, worker).filter(|link| link.id == id)
    }

    /// Tries to connect, after a while.
    pub(super) fn connects_after(&mut self, ear: Ear, worker: usize, after_ms: f64) {
        self.lines += 1;
        let line = self.lines;
        let Some(link) = self.link(ear, worker) else { return };
        (link.id, link.in_flight, link.to, link.state, link.broken) =
            (line, 0, None, Line::Connecting, false);
        link.waiting.clear();
        self.plan(after_ms, Happening::Connects { ear, worker, line });
    }

    pub(super) fn connects(&mut self, ear: Ear, worker: usize, line: u64) {
        let (process, condition) = (self.hosts[worker].process, self.hosts[worker].condition);
        let Some(link) = self.line(ear, worker, line) else { return };
        if condition == Condition::Down {
            let pause = link.pause_ms;
            link.pause_ms = (2.0 * pause).min(LONGEST_PAUSE_MS);
            return self.connects_after(ear, worker, pause);
        }
        link.pause_ms = FIRST_PAUSE_MS;
        link.to = Some(process);
        self.note(format_args!("{ear:?} is connected to w{worker}, process {process}"));
        self.repairs(ear, worker);
    }

    fn repairs(&mut self, ear: Ear, worker: usize) {
        let Some(link) = self.link(ear, worker) else { return };
        link.state = Line::Repairing;
        let start = link.track.repair();
        self.flushes(ear, worker);
        self.asks_for_replay(ear, worker, start);
    }

    fn asks_for_replay(&mut self, ear: Ear, worker: usize, start: u64) {
        let Some(line) = self.link(ear, worker).map(|link| link.id) else { return };
        let way = self.between(0.5, 3.0);
        self.plan(way, Happening::ReplayAsked { ear, worker, line, start });
    }

    pub(super) fn replay_asked(&mut self, ear: Ear, worker: usize, line: u64, start: u64) {
        let host = &self.hosts[worker];
        let (up, process) = (host.condition == Condition::Up, host.process);
        let Some(link) = self.line(ear, worker, line) else { return };
        if !up || link.to != Some(process) {
            let replayed = Replayed { batches: Vec::new(), end: ReplayEnd::Silent };
            return self.plan(REPLAY_TIMEOUT_MS, Happening::ReplayCame { ear, worker, line, replayed });
        }
        let kept = self.hosts[worker].kept.iter();
        let mut batches: Vec<(u64, Bytes)> = kept.filter(|(number, _)| *number >= start).cloned().collect();
        let mut end = ReplayEnd::Ended;
        if !batches.is_empty() && self.replay_is_cut(worker) {
            let at = self.between(0.0, batches.len() as f64) as usize;
            // A queue that is full drops what comes then. It is empty at the first one.
            if self.between(0.0, 1.0) < 0.5 || at == 0 {
                batches.truncate(at);
                end = ReplayEnd::Broken;
            } else {
                batches.remove(at);
            }
        }
        let way = self.between(1.0, 30.0);
        let replayed = Replayed { batches, end };
        self.plan(way, Happening::ReplayCame { ear, worker, line, replayed });
    }

    pub(super) fn replay_came(&mut self, ear: Ear, worker: usize, line: u64, replayed: Replayed) {
        let Some(link) = self.line(ear, worker, line) else { return };
        let Replayed { batches, mut end } = replayed;
        let count = batches.len();
        for (number, bytes) in batches {
            match link.track.replayed(number, decode::batch(&bytes).ok()) {
                Ok(true) => {}
                Ok(false) => {
                    end = ReplayEnd::Broken;
                    break;
                }
                Err(error) => return self.violate(format_args!("a replay is refused: {error}")),
            }
        }
        let again = link.track.replay_ended(end);
        let state = link.feed();
        self.note(format_args!("{ear:?} of w{worker}: replay of {count} {end:?}, now {state:?}"));
        match again {
            Ok(Some(start)) => return self.asks_for_replay(ear, worker, start),
            Ok(None) => {}
            Err(error) => return self.violate(format_args!("a replay is refused: {error}")),
        }
        let Some(link) = self.line(ear, worker, line) else { return };
        link.state = Line::Listening;
        if link.broken {
            self.loses(ear, worker);
        } else if link.track.asks_again() {
            self.plan(ASK_AGAIN_MS, Happening::AsksAgain { ear, worker, line });
        }
        self.hears_waiting(ear, worker);
        self.flushes(ear, worker);
    }

    /// The past was asked for in vain, and may be had by now.
    pub(super) fn asks_again(&mut self, ear: Ear, worker: usize, line: u64) {
        let host = &self.hosts[worker];
        let (up, process) = (host.condition == Condition::Up, host.process);
        let Some(link) = self.line(ear, worker, line) else { return };
        if link.state != Line::Listening || !link.track.asks_again() {
            return;
        }
        if !up || link.to != Some(process) {
            return self.plan(ASK_AGAIN_MS, Happening::AsksAgain { ear, worker, line });
        }
        self.tally.see("pasts_asked_again");
        self.repairs(ear, worker);
    }

    /// A batch goes to whoever is connected.
    pub(super) fn carries(&mut self, ear: Ear, worker: usize, process: u64, number: u64, bytes: &Bytes) {
        let Some(link) = self.link(ear, worker).filter(|link| link.to == Some(process)) else { return };
        let (line, mut last) = (link.id, link.last);
        let arrivals = self.arrivals(worker, &mut last);
        if let Some(link) = self.link(ear, worker) {
            link.last = last;
            link.in_flight += arrivals.len();
        }
        for at in arrivals {
            self.plan_at(at, Happening::Batch { ear, worker, line, number, bytes: bytes.clone() });
        }
    }

    pub(super) fn batch_came(&mut self, ear: Ear, worker: usize, line: u64, number: u64, bytes: Bytes) {
        let Some(link) = self.line(ear, worker, line) else { return };
        link.in_flight -= 1;
        link.waiting.push_back((number, bytes));
        self.hears_waiting(ear, worker);
        self.flushes(ear, worker);
    }

    fn hears_waiting(&mut self, ear: Ear, worker: usize) {
        let without_cursor = self.mutant == Some(Mutant::NoCursor);
        loop {
            let Some(link) = self.link(ear, worker).filter(|link| link.state == Line::Listening) else {
                return;
            };
            let Some((number, bytes)) = link.waiting.pop_front() else { return };
            let number = if without_cursor { link.track.expected() } else { number };
            let heard = link.track.hear(number, decode::batch(&bytes).ok());
            let state = link.feed();
            self.note(format_args!("{ear:?} of w{worker} hears {number}: {heard:?}, {state:?}"));
            match heard {
                Ok(Next::GoOn) => {}
                Ok(Next::Repair) => {
                    self.tally.see("gaps_found");
                    self.repairs(ear, worker);
                }
                Err(error) => return self.violate(format_args!("a batch is refused: {error}")),
            }
        }
    }

    /// The engine's end of a line is gone, which is noticed in a moment.
    pub(super) fn breaks_soon(&mut self, ear: Ear, worker: usize) {
        let Some(line) = self.link(ear, worker).filter(|link| link.to.is_some()).map(|link| link.id) else {
            return;
        };
        let way = self.between(0.5, 5.0);
        self.plan(way, Happening::Breaks { ear, worker, line });
    }

    pub(super) fn breaks(&mut self, ear: Ear, worker: usize, line: u64) {
        if self.line(ear, worker, line).is_some() {
            self.engine_restarted(ear, worker);
        }
    }

    /// The line is to another process than it should be, or to none.
    pub(super) fn engine_restarted(&mut self, ear: Ear, worker: usize) {
        let Some(link) = self.link(ear, worker) else { return };
        match link.state {
            Line::Connecting => {}
            Line::Repairing => link.broken = true,
            Line::Listening => self.loses(ear, worker),
        }
        self.flushes(ear, worker);
    }

    fn loses(&mut self, ear: Ear, worker: usize) {
        let keeps = self.mutant == Some(Mutant::KeepsLost);
        let Some(link) = self.link(ear, worker) else { return };
        if !keeps {
            link.track.lost(FeedState::Connecting);
        }
        let pause = link.pause_ms;
        link.pause_ms = (2.0 * pause).min(LONGEST_PAUSE_MS);
        self.note(format_args!("{ear:?} lost w{worker}"));
        self.connects_after(ear, worker, pause);
    }
}
