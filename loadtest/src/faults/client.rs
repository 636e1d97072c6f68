//! Clients: each asks once, and is owed one end. And what every live reservation should have taken.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kvlane_indexer::SequenceHash;
use kvlane_router::scheduling::{Load, Reservation};

use super::Mutant;
use super::script::BLOCK_TOKENS;
use super::tally::End;
use super::world::{Happening, World};

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Coming,
    /// Accepted, and not looked at yet.
    Accepted,
    /// In the waiting room; the number is its place.
    Waiting(u64),
    /// Sent to a worker that has not answered.
    Sent(usize),
    /// Being answered.
    Answered,
    Over(End),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) stage: Stage,
    /// Ends it was told: one, when all is well.
    pub(super) ends: u32,
    /// For being placed.
    pub(super) draw: u64,
}

impl Client {
    /// The router has it.
    pub(super) fn is_on_its_way(&self) -> bool {
        !matches!(self.stage, Stage::Coming | Stage::Over(_))
    }
}

/// What a reservation took, as far as can be known from outside.
#[derive(Clone, Debug)]
pub(super) struct Booked {
    pub(super) worker: usize,
    pub(super) blocks: std::sync::Arc<[SequenceHash]>,
    pub(super) prefill_tokens: usize,
    /// Tokens past the prompt's last whole block.
    pub(super) open_tokens: usize,
    pub(super) begun: bool,
}

/// Live reservations, by a number of their own.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) booked: BTreeMap<u64, Booked>,
    numbers: u64,
}

impl Ledger {
    /// What a worker should be said to be busy with.
    pub(super) fn load(&self, worker: usize) -> Load {
        let (mut load, mut distinct) = (Load::default(), BTreeSet::new());
        for booked in self.booked.values().filter(|booked| booked.worker == worker) {
            load.requests += 1;
            load.prefill_tokens += if booked.begun { 0 } else { booked.prefill_tokens };
            load.total_blocks += booked.blocks.len() + booked.open_tokens / BLOCK_TOKENS;
            distinct.extend(booked.blocks.iter().map(|hash| hash.0));
        }
        load.blocks = distinct.len();
        load
    }
}

/// A reservation, and its line in the ledger for as long as it lives.
#[derive(Debug)]
pub(super) struct Held {
    reservation: Option<Reservation>,
    ledger: Rc<RefCell<Ledger>>,
    number: u64,
    mutant: Option<Mutant>,
}

impl Held {
    pub(super) fn new(
        reservation: Reservation,
        booked: Booked,
        ledger: &Rc<RefCell<Ledger>>,
        mutant: Option<Mutant>,
    ) -> Self {
        let mut of = ledger.borrow_mut();
        of.numbers += 1;
        let number = of.numbers;
        of.booked.insert(number, booked);
        Self { reservation: Some(reservation), ledger: ledger.clone(), number, mutant }
    }

    pub(super) fn tokens(&mut self, count: usize) {
        let mut ledger = self.ledger.borrow_mut();
        let Some(booked) = ledger.booked.get_mut(&self.number) else { return };
        booked.begun = true;
        booked.open_tokens += count;
        if let Some(reservation) = &mut self.reservation {
            let now = reservation.time(tokio::time::Instant::now());
            reservation.first_token(now);
            reservation.grew(count);
        }
        if self.mutant == Some(Mutant::ReleasesEarly) {
            self.reservation = None;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.borrow_mut().booked.remove(&self.number);
        if self.mutant == Some(Mutant::Leaks) && self.number.is_multiple_of(16) {
            std::mem::forget(self.reservation.take());
        }
    }
}

impl World {
    pub(super) fn comes(&mut self, n: usize) {
        if self.clients[n].stage != Stage::Coming {
            return;
        }
        if self.router.is_none() {
            return self.ends(n, End::Unreachable);
        }
        use rand::RngExt as _;
        self.clients[n].draw = self.random.random();
        self.clients[n].stage = Stage::Accepted;
        self.note(format_args!("r{n} comes"));
        self.begin.push(n);
    }

    /// The client closes its connection; its task is dropped wherever it is.
    pub(super) fn leaves(&mut self, n: usize) {
        let end = match self.clients[n].stage {
            Stage::Coming | Stage::Over(_) => return,
            Stage::Accepted | Stage::Waiting(_) => End::LeftWaiting,
            Stage::Sent(_) => End::LeftBefore,
            Stage::Answered => End::LeftAfter,
        };
        self.ends(n, end);
        self.kill.push(n);
    }

    pub(super) fn ends(&mut self, n: usize, end: End) {
        self.note(format_args!("r{n} ends: {}", end.name()));
        let client = &mut self.clients[n];
        client.ends += 1;
        client.stage = Stage::Over(end);
        *self.tally.ends.entry(end.name()).or_default() += 1;
        if self.clients[n].ends > 1 {
            self.violate(format_args!("1: r{n} ended twice, the second time as {}", end.name()));
        }
    }

    /// A connection to a worker is closed.
    pub(super) fn hangs_up(&mut self, attempt: u64) {
        if let Some(of) = self.attempts.remove(&attempt) {
            self.plan(1.0, Happening::HungUp { worker: of.worker, attempt });
        }
    }
}
