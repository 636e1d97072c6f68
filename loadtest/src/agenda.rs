//! What is still to happen in virtual time, the earliest first, and of one moment in the order it was planned.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use kvlane_engine_adapters::sim::SimTime;

#[derive(Debug)]
pub(crate) struct Agenda<H> {
    times: BinaryHeap<Reverse<(SimTime, u64)>>,
    happenings: HashMap<u64, H>,
    sequence: u64,
}

impl<H> Default for Agenda<H> {
    fn default() -> Self {
        Self { times: BinaryHeap::new(), happenings: HashMap::new(), sequence: 0 }
    }
}

impl<H> Agenda<H> {
    pub(crate) fn plan(&mut self, at: SimTime, happening: H) {
        self.sequence += 1;
        self.times.push(Reverse((at, self.sequence)));
        self.happenings.insert(self.sequence, happening);
    }

    /// When the next one is.
    pub(crate) fn next_at(&self) -> Option<SimTime> {
        self.times.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<(SimTime, H)> {
        let Reverse((at, sequence)) = self.times.pop()?;
        Some((at, self.happenings.remove(&sequence)?))
    }
}
