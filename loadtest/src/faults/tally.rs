//! What happened, counted over any number of seeds.

use std::collections::BTreeMap;
use std::fmt;

/// How a request ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The whole answer came.
    Whole,
    /// The waiting room was full.
    NoPlace,
    /// It waited for too long.
    TooLong,
    /// No worker was there.
    NoWorker,
    /// No worker answered.
    NoAnswer,
    /// An error in the middle of its answer.
    BrokenOff,
    /// The router that had it is gone.
    RouterGone,
    /// No router was there.
    Unreachable,
    /// The client left: while it waited, before its first token, or after.
    LeftWaiting,
    LeftBefore,
    LeftAfter,
}

impl End {
    pub const ALL: [Self; 11] = [
        Self::Whole,
        Self::NoPlace,
        Self::TooLong,
        Self::NoWorker,
        Self::NoAnswer,
        Self::BrokenOff,
        Self::RouterGone,
        Self::Unreachable,
        Self::LeftWaiting,
        Self::LeftBefore,
        Self::LeftAfter,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::NoPlace => "no_place",
            Self::TooLong => "waited_too_long",
            Self::NoWorker => "no_worker",
            Self::NoAnswer => "no_answer",
            Self::BrokenOff => "broken_off",
            Self::RouterGone => "router_gone",
            Self::Unreachable => "unreachable",
            Self::LeftWaiting => "left_while_waiting",
            Self::LeftBefore => "left_before_first_token",
            Self::LeftAfter => "left_after_first_token",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub seeds: u64,
    pub requests: u64,
    pub steps: u64,
    pub ends: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    /// Checks that had something to look at.
    pub checks: BTreeMap<&'static str, u64>,
    /// Other things worth knowing that they happened.
    pub seen: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.steps += other.steps;
        for (own, others) in [
            (&mut self.ends, &other.ends),
            (&mut self.faults, &other.faults),
            (&mut self.checks, &other.checks),
            (&mut self.seen, &other.seen),
        ] {
            for (name, count) in others {
                *own.entry(name).or_default() += count;
            }
        }
    }

    pub(super) fn check(&mut self, name: &'static str) {
        *self.checks.entry(name).or_default() += 1;
    }

    pub(super) fn see(&mut self, name: &'static str) {
        *self.seen.entry(name).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seeds {}, requests {}, steps {}", self.seeds, self.requests, self.steps)?;
        for (title, counts) in
            [("ends", &self.ends), ("faults", &self.faults), ("checks", &self.checks), ("seen", &self.seen)]
        {
            let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(f, "{title}: {}", counts.join(", "))?;
        }
        Ok(())
    }
}
