//! What must hold, looked at whenever nobody can go on.

use kvlane_engine_adapters::feed::FeedState;
use kvlane_indexer::Overlap;
use kvlane_router::proxy::breaker::BreakerState;
use kvlane_router::scheduling::{Load, Standing};
use tokio::time::{Duration, Instant};

use super::client::Stage;
use super::host::Condition;
use super::link::{Line, Link};
use super::script::{MODELS, Plane};
use super::world::{World, worker_id};

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// By model: the standings there were, and since when there has been room that nobody took.
    standings: Vec<Vec<Standing>>,
    roomy: [Option<Instant>; MODELS.len()],
    /// By worker: what a look at its blocks last said of everything they depend on.
    settled: Vec<Option<(u64, u64, u64, u64)>>,
    overlap: Overlap,
}

/// A waiting room's own look around, and a timer's grain.
const LOOK_AGAIN: Duration = Duration::from_millis(252);

/// How far what is known of a worker's cache can be held against the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// Something is on its way, or was lost and is not known to be.
    No,
    /// All there is was heard, but not from the beginning: it may know less.
    Partly,
    Wholly,
}

impl World {
    pub(super) fn check(&mut self, before: &mut Before) {
        self.check_loads();
        self.check_waiting(before);
        self.check_trials();
        self.check_blocks(before);
    }

    /// 2: what live reservations took adds up to the scheduler's counters.
    fn check_loads(&mut self) {
        let Some(router) = &self.router else { return };
        let ledger = self.ledger.borrow();
        let wrong = (0..self.hosts.len()).find_map(|n| {
            let (counted, booked) = (router.scheduler.load(worker_id(n)), ledger.load(n));
            (counted != booked).then_some((n, counted, booked))
        });
        drop(ledger);
        self.tally.check("loads");
        if let Some((n, counted, booked)) = wrong {
            self.violate(format_args!(
                "2: w{n} is said to have {counted:?}, its reservations took {booked:?}"
            ));
        }
    }

    /// 4: one of its class that came before is still waiting.
    pub(super) fn checks_order(&mut self, n: usize) {
        let (ask, stage) = (&self.script.asks[n], self.clients[n].stage);
        let own = if let Stage::Waiting(place) = stage { place } else { u64::MAX };
        let earlier = self.clients.iter().enumerate().find(|(m, client)| {
            let other = &self.script.asks[*m];
            matches!(client.stage, Stage::Waiting(place) if place < own)
                && (other.model, other.priority) == (ask.model, ask.priority)
        });
        let earlier = earlier.map(|(m, _)| m);
        self.tally.check("order");
        if let Some(earlier) = earlier {
            self.violate(format_args!("4: r{n} overtook r{earlier}"));
        }
    }

    /// 4 and 5: the queue is as long as it may be at most, and nobody waits while there is room.
    fn check_waiting(&mut self, before: &mut Before) {
        let waits = |client: &super::client::Client| matches!(client.stage, Stage::Waiting(_));
        let waiting = self.clients.iter().filter(|client| waits(client)).count();
        let Some(router) = &self.router else {
            *before = Before::default();
            return;
        };
        let queued: usize = router.group.room.waiting().iter().map(|waiting| waiting.requests).sum();
        let most = self.script.rules.waiting.most;
        if queued > most || queued != waiting {
            return self.violate(format_args!("4: {queued} are queued, {waiting} wait, {most} may"));
        }
        let mut late = None;
        let mut standings = Vec::new();
        for model in 0..MODELS.len() {
            let now = router.standings(model);
            let first = self.clients.iter().enumerate();
            let first = first.filter(|(_, client)| waits(client)).map(|(n, _)| n);
            let first = first.into_iter().find(|n| self.script.asks[*n].model == model);
            let room = first.and_then(|n| {
                let demand = self.demand(n)?;
                let decision =
                    router.scheduler.explain(&demand, &router.overlap(&demand), &now, 0, router.now());
                Some((n, decision.chosen()?))
            });
            match room {
                None => before.roomy[model] = None,
                Some((n, worker)) => {
                    // Only somebody's leaving can have made it, and whoever leaves calls.
                    let by_leaving =
                        before.roomy[model].is_none() && before.standings.get(model) == Some(&now);
                    let since = before.roomy[model].get_or_insert_with(Instant::now);
                    if by_leaving || since.elapsed() > LOOK_AGAIN {
                        late = Some((n, worker));
                    }
                }
            }
            standings.push(now);
        }
        before.standings = standings;
        if waiting > 0 {
            self.tally.check("waiting");
        }
        if let Some((n, worker)) = late {
            self.violate(format_args!("5: r{n} waits though w{} has room", worker.instance - 1));
        }
    }

    /// 6: where a trial is said to run, there is a request that has not been answered.
    fn check_trials(&mut self) {
        let Some(router) = &self.router else { return };
        let mut tried = 0;
        let stuck = (0..self.hosts.len()).find(|n| {
            let breaker = &router.workers[*n].breaker;
            let trying = breaker.state() == BreakerState::HalfOpen && !breaker.admits();
            tried += u64::from(trying);
            trying && !self.clients.iter().any(|client| client.stage == Stage::Sent(*n))
        });
        if tried > 0 {
            self.tally.check("trials");
        }
        if let Some(n) = stuck {
            self.violate(format_args!("6: the trial of w{n}'s breaker is nobody's"));
        }
    }

    /// 3: where all that was said was heard, nothing is claimed that is not there.
    fn check_blocks(&mut self, before: &mut Before) {
        before.settled.resize(self.hosts.len(), None);
        for n in 0..self.hosts.len() {
            let settled = self.settled(n);
            if settled == Settled::No {
                before.settled[n] = None;
                self.check_nothing_claimed(n);
                continue;
            }
            // Nothing that could make a difference since the last look.
            let state = self.state_of(n);
            if before.settled[n].replace(state) == Some(state) {
                continue;
            }
            self.tally.check(if settled == Settled::Wholly { "blocks" } else { "blocks_at_most" });
            if let Some((path, known, there)) = self.wrong_blocks(n, settled, &mut before.overlap) {
                self.violate(format_args!(
                    "3: w{n} has {there} blocks of path {path}, {known} are known ({settled:?})"
                ));
            }
        }
    }

    /// 3: of an engine that cannot be heard, or whose past is being asked for, nothing is claimed at all.
    fn check_nothing_claimed(&mut self, n: usize) {
        let Some(router) = &self.router else { return };
        let unheard = match self.script.workers[n].plane {
            Plane::Nowhere => false,
            Plane::Straight { .. } => {
                router.links[n].as_ref().is_none_or(|link| link.state != Line::Listening)
            }
            Plane::Bridged { .. } => {
                let health = router.listener.view().health(worker_id(n));
                health.is_none_or(|health| health.state() == FeedState::Repairing)
            }
        };
        if !unheard {
            return;
        }
        let claimed = router.index.held_blocks(worker_id(n));
        self.tally.check("nothing_claimed");
        if claimed > 0 {
            let feed = self.feed_of(n);
            self.violate(format_args!("3: {claimed} blocks of w{n} are known that cannot be ({feed})"));
        }
    }

    /// A path of which the index knows other than there is.
    fn wrong_blocks(
        &self,
        n: usize,
        settled: Settled,
        overlap: &mut Overlap,
    ) -> Option<(usize, usize, usize)> {
        let router = self.router.as_ref()?;
        self.script.paths.iter().enumerate().find_map(|(at, path)| {
            router.index.overlap_into(path, router.tick(), overlap);
            let known = overlap.of(worker_id(n)).device as usize;
            let there = self.hosts[n].engine.cached_prefix(path);
            let wrong = known > there || (settled == Settled::Wholly && known != there);
            wrong.then_some((at, known, there))
        })
    }

    /// What the blocks known of a worker depend on.
    fn state_of(&self, n: usize) -> (u64, u64, u64, u64) {
        let (epoch, said) = match (&self.router, &self.bridges[n]) {
            (Some(router), Some(bridge)) => (
                router.epoch,
                bridge.publisher << 32 | router.listener.expected(bridge.publisher).unwrap_or(0),
            ),
            (Some(router), None) => (router.epoch, 0),
            _ => (0, 0),
        };
        (epoch, self.hosts[n].process, self.hosts[n].numbered, said)
    }

    /// Whether a line has brought all its engine said.
    fn line_settled(&self, n: usize, link: &Link) -> Settled {
        let host = &self.hosts[n];
        let heard = link.state == Line::Listening
            && link.to == Some(host.process)
            && host.condition != Condition::Down
            && link.waiting.is_empty()
            && link.in_flight == 0
            && link.track.expected() == host.numbered;
        match link.feed() {
            FeedState::Live if heard => Settled::Wholly,
            FeedState::Partial if heard => Settled::Partly,
            _ => Settled::No,
        }
    }

    fn settled(&self, n: usize) -> Settled {
        let Some(router) = &self.router else { return Settled::No };
        match self.script.workers[n].plane {
            Plane::Nowhere => Settled::No,
            Plane::Straight { .. } => {
                router.links[n].as_ref().map_or(Settled::No, |link| self.line_settled(n, link))
            }
            Plane::Bridged { .. } => {
                let Some(bridge) = &self.bridges[n] else { return Settled::No };
                let said = bridge.outbox.next_sequence();
                let announced = router.listener.view().announced();
                let heard = match router.listener.expected(bridge.publisher) {
                    Some(expected) => expected == said,
                    // It has said nothing yet; whether the router knows that it is another than before is to be seen.
                    None => said == 0 && announced.iter().any(|known| known.publisher == bridge.publisher),
                };
                let health = router.listener.view().health(worker_id(n));
                let feed = health.map_or(FeedState::Connecting, |health| health.state());
                let all = heard
                    && bridge.outbox.is_drained()
                    && bridge.held.is_empty()
                    && bridge.in_flight == 0
                    && !router.watches[n].resyncing;
                match (all, feed, self.line_settled(n, &bridge.link)) {
                    (true, FeedState::Live, Settled::Wholly) => Settled::Wholly,
                    (true, FeedState::Live | FeedState::Partial, Settled::Wholly | Settled::Partly) => {
                        Settled::Partly
                    }
                    _ => Settled::No,
                }
            }
        }
    }

    /// Everything is over and has been for a while: nothing is left, and all is known again.
    pub(super) fn check_rest(&mut self) {
        if let Some(n) = self.clients.iter().position(|client| client.ends != 1) {
            let super::client::Client { stage, ends, .. } = self.clients[n];
            return self.violate(format_args!("1: r{n} ended {ends} times, it is {stage:?}"));
        }
        for n in 0..self.hosts.len() {
            let Some(router) = &self.router else {
                return self.violate(format_args!("the router is not back"));
            };
            let load = router.scheduler.load(worker_id(n));
            if load != Load::default() {
                return self.violate(format_args!("2: w{n} is said to have {load:?} at rest"));
            }
            if !router.workers[n].breaker.admits() {
                return self.violate(format_args!("6: w{n}'s breaker admits nobody any more"));
            }
            if self.script.workers[n].plane == Plane::Nowhere {
                self.tally.see("rest_without_events");
                continue;
            }
            match self.settled(n) {
                Settled::No => {
                    return self
                        .violate(format_args!("3: w{n}'s feed did not come back ({:?})", self.feed_of(n)));
                }
                Settled::Partly => self.excuses(n),
                Settled::Wholly => self.tally.see("rest_wholly_known"),
            }
        }
        self.tally.check("rest");
    }

    /// A worker of which a part is not known, after all: why that is so.
    fn excuses(&mut self, n: usize) {
        let host = &self.hosts[n];
        // What the engine does not keep any more, nobody can tell.
        let forgotten = host.kept.front().is_some_and(|(first, _)| *first > 0);
        let bridge = self.bridges[n].as_ref().map(|bridge| &bridge.link);
        let line = bridge.or(self.router.as_ref().and_then(|router| router.links[n].as_ref()));
        let line = line.map(|line| (self.line_settled(n, line), line.track.asks_again()));
        let feed = self.feed_of(n);
        self.note(format_args!("w{n} is known in part only: {feed}"));
        match line {
            Some((Settled::Partly, _)) if forgotten => self.tally.see("rest_partly_replay_too_short"),
            Some((Settled::Partly, true)) => self.tally.see("rest_partly_to_be_asked_again"),
            // A bridge that knows everything could have been asked.
            _ => self.violate(format_args!("3: w{n} stays known in part ({feed})")),
        }
    }

    fn feed_of(&self, n: usize) -> String {
        let bridge = self.bridges[n].as_ref();
        let router = self.router.as_ref();
        let line = bridge.map(|bridge| &bridge.link).or(router.and_then(|router| router.links[n].as_ref()));
        let line = line.map(|link| (link.state, link.feed(), link.to, link.track.expected(), link.in_flight));
        let host = (self.hosts[n].condition, self.hosts[n].process, self.hosts[n].numbered);
        let nats = bridge.map(|bridge| {
            let expected = router.and_then(|router| router.listener.expected(bridge.publisher));
            let feed = router.and_then(|router| router.listener.view().health(worker_id(n)));
            (expected, bridge.outbox.next_sequence(), bridge.in_flight, feed.map(|feed| feed.state()))
        });
        format!("line {line:?}, engine {host:?}, nats {nats:?}")
    }
}
