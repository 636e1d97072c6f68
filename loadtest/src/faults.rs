//! Faults in virtual time: the real scheduler, waiting room, breakers, index, feeds, bridges and simulated engines, wired
//! together on one clock, while a seeded script has workers die and hang, events get lost, networks part, clocks jump,
//! slots be other than said, routers restart and clients leave. After every step it is looked whether what must hold
//! does; `docs/faults.md` says what. The same seed is the same run.

mod bridge;
mod checks;
mod client;
mod host;
mod journey;
mod link;
mod router;
mod script;
mod soak;
mod tally;
mod tasks;
mod world;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use kvlane_router::metrics::Metrics;
use tokio::task::coop::unconstrained;
use tokio::time::{Duration, Instant, sleep_until};

use self::checks::Before;
use self::client::Stage;
use self::journey::{Lab, journey};
use self::script::{Fault, Script};
pub use self::soak::{Soak, Soaked, soak};
pub use self::tally::{End, Tally};
use self::tasks::Tasks;
use self::world::World;

/// A mistake made on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Reservations are let go while their requests go on.
    ReleasesEarly,
    /// Some are never let go.
    Leaks,
    /// Events are taken in whatever their numbers.
    NoCursor,
    /// Whoever leaves a worker calls nobody.
    LosesCalls,
    /// A request that tried a half-open breaker and failed does not say so.
    KeepsTrials,
    /// Some requests never hear of their end.
    Swallows,
    /// Some do not queue up.
    PushesIn,
    /// Bridges go on telling what they told first.
    StaleSnapshot,
    /// An engine whose line broke is still believed to hold what it held.
    KeepsLost,
}

impl Mutant {
    pub const ALL: [Self; 9] = [
        Self::ReleasesEarly,
        Self::Leaks,
        Self::NoCursor,
        Self::LosesCalls,
        Self::KeepsTrials,
        Self::Swallows,
        Self::PushesIn,
        Self::StaleSnapshot,
        Self::KeepsLost,
    ];
}

/// Names of everything that can go wrong.
pub const FAULTS: [&str; 17] = Fault::NAMES;

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub tally: Tally,
    /// Of everything that happened, in order.
    pub digest: u64,
    /// What did not hold, the first time it did not.
    pub violation: Option<String>,
    /// Everything that happened, where that was asked for.
    pub trace: Vec<String>,
}

/// Runs seeds, one after the other.
#[derive(Debug)]
pub struct Lane {
    metrics: Arc<Metrics>,
}

impl Lane {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { metrics: Metrics::register().context("metrics")? })
    }

    /// Runs one seed, with a mistake in it where one is to be found.
    pub fn run(&self, seed: u64, trace: bool, mutant: Option<Mutant>) -> anyhow::Result<Outcome> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let drive = async {
            let mut world = World::new(seed, Script::of(seed), self.metrics.clone(), mutant);
            world.trace = trace.then(Vec::new);
            let lab: Lab = Rc::new(RefCell::new(world));
            drive(&lab).await;
            let mut world = lab.borrow_mut();
            Outcome {
                seed,
                tally: std::mem::take(&mut world.tally),
                digest: world.digest,
                violation: world.violation.take(),
                trace: world.trace.take().unwrap_or_default(),
            }
        };
        // A panic is a finding like others, and has a seed.
        let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(unconstrained(drive))));
        Ok(ended.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
            Outcome {
                seed,
                tally: Tally { seeds: 1, ..Tally::default() },
                digest: 0,
                violation: Some(format!("it panicked: {said}")),
                trace: Vec::new(),
            }
        }))
    }
}

/// Lets happen what happens, until it is over or something does not hold.
async fn drive(lab: &Lab) {
    let started = Instant::now();
    let (mut tasks, mut before) = (Tasks::default(), Before::default());
    loop {
        goes_on(lab, &mut tasks);
        let next = {
            let mut world = lab.borrow_mut();
            world.check(&mut before);
            if world.ended && world.violation.is_none() {
                world.check_rest();
            }
            if world.ended || world.violation.is_some() {
                break;
            }
            world.next_at()
        };
        let Some(at) = next else { break };
        tokio::select! {
            biased;
            () = tasks.woken() => {}
            () = sleep_until(started + Duration::from_nanos(at.0)) => lab.borrow_mut().step(),
        }
        let mut world = lab.borrow_mut();
        world.now = world.now.max(kvlane_engine_adapters::sim::SimTime(started.elapsed().as_nanos() as u64));
    }
    // Whoever is left says goodbye to a world that is still there.
    drop(tasks);
}

/// More than anybody needs before time goes on.
const MOST_TURNS: usize = 1 << 20;

/// Everybody who can go on does, until nobody can.
fn goes_on(lab: &Lab, tasks: &mut Tasks) {
    for _ in 0..MOST_TURNS {
        let (begin, kill) = {
            let mut world = lab.borrow_mut();
            (std::mem::take(&mut world.begin), std::mem::take(&mut world.kill))
        };
        for n in kill {
            tasks.kill(n);
        }
        for n in begin {
            tasks.spawn(n, journey(lab.clone(), n));
        }
        let Some(n) = tasks.poll_one() else { return };
        let mut world = lab.borrow_mut();
        if world.clients[n].stage == Stage::Accepted {
            world.joins += 1;
            let place = world.joins;
            world.clients[n].stage = Stage::Waiting(place);
            world.note(format_args!("r{n} waits as {place}"));
        }
    }
    lab.borrow_mut().violate(format_args!("somebody goes on for ever and time does not"));
}
