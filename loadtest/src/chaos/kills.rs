//! Who is killed when, and when it comes back.
//!
//! Times and victims are drawn from a seed. Unless it is merciless, somebody is always left: another router that is
//! ready, and for every router a worker it knows that is not away.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::bench::{Bench, Part};
use super::tally::Tally;

/// How often somebody is killed, and for how long it is away.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// Mean time between two kills.
    pub every: Duration,
    /// Shortest and longest time until it is started again.
    pub away: (Duration, Duration),
    /// Nobody has to be left.
    pub merciless: bool,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Absent {
    /// To be started then.
    Dead { until: Instant },
    /// Started then, and not quite back.
    Returning { since: Instant },
}

/// See the [module](self).
#[derive(Debug)]
pub struct Killer<'l> {
    rhythm: Rhythm,
    random: StdRng,
    absent: BTreeMap<Part, Absent>,
    /// Kinds whose turn is still to come.
    turns: Vec<&'static str>,
    tally: &'l Tally,
}

/// How often it is looked who is back.
const LOOK: Duration = Duration::from_millis(100);
/// How long a bridge or NATS takes to be heard of again.
const HEARD: Duration = Duration::from_secs(2);
/// How long everybody may take to be back in the end.
const ALL_BACK: Duration = Duration::from_secs(60);

impl<'l> Killer<'l> {
    pub fn new(rhythm: Rhythm, tally: &'l Tally) -> Self {
        let random = StdRng::seed_from_u64(rhythm.seed);
        Self { rhythm, random, absent: BTreeMap::new(), turns: Vec::new(), tally }
    }

    /// Kills for so long, then waits until everybody is back. `say` is told of each.
    pub async fn run(
        &mut self,
        bench: &mut Bench,
        how_long: Duration,
        mut say: impl FnMut(String),
    ) -> anyhow::Result<()> {
        let end = Instant::now() + how_long;
        let mut next = Instant::now() + self.pause();
        while Instant::now() < end {
            self.look_after(bench).await?;
            if Instant::now() >= next {
                next = Instant::now() + self.pause();
                if let Some(victim) = self.victim(bench).await {
                    self.kill(bench, victim, &mut say).await?;
                }
            }
            bench.children.check()?;
            tokio::time::sleep(LOOK).await;
        }
        let patience = Instant::now() + self.rhythm.away.1 + ALL_BACK;
        while !self.absent.is_empty() {
            self.look_after(bench).await?;
            anyhow::ensure!(Instant::now() < patience, "{:?} did not come back", self.absent.keys());
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Around the mean, never quite regular.
    fn pause(&mut self) -> Duration {
        self.rhythm.every.mul_f64(self.random.random_range(0.3..1.7))
    }

    async fn kill(
        &mut self,
        bench: &mut Bench,
        victim: Part,
        say: &mut impl FnMut(String),
    ) -> anyhow::Result<()> {
        let (shortest, longest) = self.rhythm.away;
        let away = self.random.random_range(shortest..=longest);
        self.tally.killed(victim);
        bench.kill(victim).await?;
        self.absent.insert(victim, Absent::Dead { until: Instant::now() + away });
        let at = self.tally.elapsed().as_secs_f64();
        say(format!("{at:6.1} s  {victim} killed, started again after {:.1} s", away.as_secs_f64()));
        Ok(())
    }

    /// Starts who is due, and notes who is back.
    async fn look_after(&mut self, bench: &mut Bench) -> anyhow::Result<()> {
        for (part, absent) in self.absent.clone() {
            match absent {
                Absent::Dead { until } if Instant::now() >= until => {
                    bench.start(part)?;
                    self.absent.insert(part, Absent::Returning { since: Instant::now() });
                }
                Absent::Returning { since } if self.is_back(bench, part, since).await => {
                    self.absent.remove(&part);
                    self.tally.back(part);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn is_back(&self, bench: &Bench, part: Part, since: Instant) -> bool {
        match part {
            Part::Nats | Part::Bridge(_) => since.elapsed() > HEARD,
            Part::Router(n) => bench.is_ready(n).await,
            Part::Worker(n) => {
                let name = bench.layout.worker(n).to_string();
                for router in self.routers(bench) {
                    let known = bench.workers(router).await.unwrap_or_default();
                    // A router without its bridge or NATS may not know it at all, and need not.
                    if known.iter().any(|worker| worker["name"] == name && worker["state"] != "ready") {
                        return false;
                    }
                }
                tokio::net::TcpStream::connect(bench.layout.worker(n)).await.is_ok()
            }
        }
    }

    fn routers<'a>(&'a self, bench: &Bench) -> impl Iterator<Item = usize> + use<'a> {
        (0..bench.layout.routers).filter(|n| !self.absent.contains_key(&Part::Router(*n)))
    }

    /// Somebody who may die now. Kinds take turns in an order that is drawn, so that each has its share.
    async fn victim(&mut self, bench: &Bench) -> Option<Part> {
        let mut kinds: BTreeMap<&'static str, Vec<Part>> = BTreeMap::new();
        for part in bench.layout.parts() {
            let there = !self.absent.contains_key(&part);
            if there && (self.rhythm.merciless || self.may_die(bench, part).await) {
                kinds.entry(part.kind()).or_default().push(part);
            }
        }
        if self.turns.is_empty() {
            self.turns = bench.layout.parts().iter().map(|part| part.kind()).collect();
            self.turns.dedup();
            self.turns.shuffle(&mut self.random);
        }
        let turn = self.turns.iter().position(|kind| kinds.contains_key(kind))?;
        kinds.remove(self.turns.remove(turn))?.choose(&mut self.random).copied()
    }

    async fn may_die(&self, bench: &Bench, part: Part) -> bool {
        match part {
            Part::Nats => true,
            Part::Router(n) => {
                for other in self.routers(bench).filter(|other| *other != n) {
                    if bench.is_ready(other).await {
                        return true;
                    }
                }
                false
            }
            Part::Worker(n) | Part::Bridge(n) => {
                let stays = |other: usize| {
                    let bridge = Part::Bridge(other);
                    other != n
                        && !self.absent.contains_key(&Part::Worker(other))
                        && !self.absent.contains_key(&bridge)
                };
                let staying: Vec<String> = (0..bench.layout.workers)
                    .filter(|other| stays(*other))
                    .map(|other| bench.layout.worker(other).to_string())
                    .collect();
                for router in self.routers(bench) {
                    let known = bench.workers(router).await.unwrap_or_default();
                    let fine = |worker: &serde_json::Value| {
                        let name = worker["name"].as_str().unwrap_or_default();
                        worker["state"] == "ready" && staying.iter().any(|staying| staying == name)
                    };
                    if !known.iter().any(fine) {
                        return false;
                    }
                }
                true
            }
        }
    }
}
