//! Engines that come and go in peace: drained, stopped, started with an empty cache; one more added and taken away.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::chaos::{Bench, Part};

/// How long an engine may take to be without load, and to be back.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Churn {
    turn: usize,
    added: bool,
    pub(super) restarted: usize,
    pub(super) added_and_removed: usize,
}

impl Churn {
    /// One change: each engine in turn, and after all of them the one that is added or removed.
    pub(super) async fn change(&mut self, bench: &mut Bench) -> anyhow::Result<String> {
        let workers = bench.layout.workers;
        let turn = self.turn % (workers + 1);
        self.turn += 1;
        if turn < workers {
            restart(bench, turn).await?;
            self.restarted += 1;
            return Ok(format!("worker-{turn} drained, stopped and started again"));
        }
        let mut listed: Vec<usize> = (0..workers).filter(|n| !bench.layout.is_bridged(*n)).collect();
        if self.added {
            bench.list(&listed)?;
            until_known(bench, workers, false).await?;
            bench.terminate(Part::Worker(workers)).await?;
            self.added_and_removed += 1;
        } else {
            bench.start(Part::Worker(workers))?;
            listed.push(workers);
            bench.list(&listed)?;
            until_known(bench, workers, true).await?;
        }
        self.added = !self.added;
        let done = if self.added { "added to" } else { "taken out of" };
        Ok(format!("worker-{workers} {done} the workers' file"))
    }
}

async fn restart(bench: &mut Bench, worker: usize) -> anyhow::Result<()> {
    for router in 0..bench.layout.routers {
        bench.drain(router, worker, true).await?;
    }
    until(bench, worker, "without load", |worker| worker["load"][0]["requests"] == 0).await?;
    bench.terminate(Part::Worker(worker)).await?;
    until(bench, worker, "away", |worker| worker["state"] == "down").await?;
    bench.start(Part::Worker(worker))?;
    until(bench, worker, "back", |worker| worker["state"] == "draining").await?;
    for router in 0..bench.layout.routers {
        bench.drain(router, worker, false).await?;
    }
    Ok(())
}

/// Until every router sees the worker so.
async fn until(
    bench: &Bench,
    worker: usize,
    what: &str,
    so: impl Fn(&serde_json::Value) -> bool,
) -> anyhow::Result<()> {
    let name = bench.layout.worker(worker).to_string();
    let end = Instant::now() + PATIENCE;
    for router in 0..bench.layout.routers {
        while !bench.workers(router).await?.iter().any(|worker| worker["name"] == name && so(worker)) {
            ensure!(Instant::now() < end, "worker-{worker} is not {what} after {PATIENCE:?}");
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

/// Until every router uses it, or has nothing to do with it any more.
async fn until_known(bench: &Bench, worker: usize, known: bool) -> anyhow::Result<()> {
    let name = bench.layout.worker(worker).to_string();
    let end = Instant::now() + PATIENCE;
    for router in 0..bench.layout.routers {
        loop {
            let workers = bench.workers(router).await?;
            let seen = workers.iter().find(|worker| worker["name"] == name);
            if seen.is_some_and(|worker| worker["state"] == "ready") == known && seen.is_some() == known {
                break;
            }
            ensure!(Instant::now() < end, "worker-{worker} is not known or gone after {PATIENCE:?}");
            tokio::time::sleep(LOOK).await;
        }
    }
    // Those who have it in hand finish.
    if !known {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    Ok(())
}
